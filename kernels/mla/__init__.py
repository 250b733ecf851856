"""Multi-head latent attention in Triton: ``kernel`` (read it), ``forms`` (arithmetic) and ``launch``."""
