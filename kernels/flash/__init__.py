"""Our FlashAttention forward in Triton: ``kernel`` (read it), ``scores``, ``tiles`` and ``launch``."""
