"""Attention over a cache in pages: ``append`` (read it), ``tables`` (numpy) and ``launch``."""
