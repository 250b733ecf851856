"""Numbers of the page on engines, from what these declare and from what they made of ONNX's cases."""

from concepts.facts import fact
from concepts.figures import conformance
from kernels.limits import MAX_DECODE_LEN
from kernels.registry import ENGINES, FEATURES, SOFTMAX


def having(*features: str) -> int:
    """How many engines have all of these."""
    return sum(engine.features >= set(features) for engine in ENGINES.values())


def passes(engine: str) -> int:
    return conformance.passes(engine) or 0


@fact("engines-count")
def count() -> int:
    return len(ENGINES)


@fact("engines-softmax")
def softmax() -> int:
    return sum(engine.computes == SOFTMAX for engine in ENGINES.values())


@fact("engines-triton")
def triton() -> int:
    return sum(engine.is_triton for engine in ENGINES.values())


@fact("engines-features")
def features() -> int:
    return len(FEATURES)


@fact("engines-everywhere")
def everywhere() -> int:
    """Features that no engine lacks."""
    return sum(having(name) == len(ENGINES) for name in FEATURES)


@fact("engines-softcap")
def softcap() -> int:
    return having("softcap")


@fact("engines-softcap-gradients")
def softcap_gradients() -> int:
    return having("softcap", "gradients")


@fact("engines-softcap-gradients-pages")
def softcap_gradients_pages() -> int:
    return having("softcap", "gradients", "paged")


@fact("engines-widest")
def widest() -> int:
    """The widest head that the flash kernel takes."""
    return ENGINES["flash"].max_head_dim or 0


@fact("engines-queries")
def queries() -> int:
    return MAX_DECODE_LEN


@fact("onnx-cases")
def cases() -> int:
    return len(conformance.cases())


@fact("onnx-engines")
def engines() -> int:
    return len(conformance.engines())


@fact("onnx-complete")
def complete() -> int:
    """Engines that pass every case."""
    return sum(passes(engine) == len(conformance.cases()) for engine in conformance.engines())


@fact("onnx-sdpa")
def sdpa() -> int:
    return passes("sdpa")


@fact("onnx-decode")
def decode() -> int:
    return passes("decode")


@fact("onnx-refused")
def refused() -> int:
    """Cases that some engine refuses."""
    return sum(case.is_refused for case in conformance.cases())


@fact("onnx-wrong")
def wrong() -> int:
    """Answers that are neither right nor a refusal."""
    verdicts = [found for case in conformance.cases() for found in case.verdicts.values()]
    return sum(
        found != conformance.PASSED and not found.startswith(conformance.REFUSED) for found in verdicts
    )
