"""Limits on which those that check a request and those that compute it must agree. Numbers alone."""

MAX_EXACT = 2**53  # beyond it, float64 (and JavaScript) no longer tells neighbours apart
MAX_SEED = 2**63 - 1
SMALLEST_NORMAL = 2.0**-126  # of float32; a processor may take what is below for 0

# Triton's, of tiles.
MIN_BLOCK, MAX_BLOCK = 16, 1024  # tl.dot multiplies nothing narrower; 1024 × 1024 is the largest tile
MAX_BLOCK_ELEMENTS = MAX_BLOCK**2

# Queries of the decode kernels; more fill tiles of their own, as the flash kernel's do.
MAX_DECODE_LEN = 16

MAX_ROUNDS, MAX_BUCKETS = 64, 4096  # of hashing
