"""What a server does with the requests of many: pages, batches, drafts and shared prefixes, simulated.

Each simulator is deterministic, bounded and pure Python; a body of JSON goes in through
:data:`kernels.simulators.SIMULATORS`.
"""
