"""FlashAttention in Triton: ``kernel`` is the one to read first, ``launch`` runs it."""
