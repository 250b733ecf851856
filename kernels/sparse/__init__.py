"""Attention over some of the pairs: how many, how far they reach in a stack, and what a kernel skips.

The masks themselves are patterns of a run (``kernels/patterns.py``), which every engine takes.

| module | what it says |
|---|---|
| ``masks.py`` | all that a run forbids, as one mask; the mask of a pattern alone |
| ``density.py`` | how many pairs a pattern lets through, without making the mask |
| ``receptive.py`` | which tokens one layer sees through the layers below it |
| ``tiles.py`` | which tiles hold no visible pair, and what is then read |
| ``questions.py``, ``figures.py`` | from a body of JSON to a stack of layers, and all of this of it |
| ``lsh.py`` | Reformer: pairs that fall into the same bucket of a random hash |
"""
