"""What an engine costs that costs nothing, for engines that only tests know (`Engine.pricing`)."""


def _nothing(_spec):
    return 0


engine_seconds = engine_bytes = reference_seconds = reference_bytes = flops = _nothing


def more_traffic(_spec):
    return 0, 0
