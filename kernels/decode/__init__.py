"""Split-KV decoding in Triton: ``kernel`` and ``merge`` (read them), ``splits`` and ``launch``."""
