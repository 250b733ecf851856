"""Other ways from a query and its keys to a context: other scores, one sampled key, a moving window.

| module | what it says |
|---|---|
| ``functions.py`` | the scores: additive, dot, scaled dot, general, concat, cosine |
| ``costs.py`` | what each takes, counted from shapes |
| ``attention.py`` | softmax and sum over any of them |
| ``hard.py`` | one key drawn instead of the sum, and how noisy its gradient is |
| ``local.py`` | a window around a position that is given, or predicted |
| ``softness.py`` | what the key that leads gets, and why scores are divided by √d |

numpy and float64 in these; arrays are ``[batch, heads, len, dim]``, keys and values with as many heads as
queries, or fewer that consecutive groups share. Engine ``scoring`` has kernels for scores and windows:

| module | what it says |
|---|---|
| ``pairs.py``, ``windows.py`` | scores of a tile, and windows in it, in Triton |
| ``kernel.py``, ``arguments.py``, ``launch.py`` | attention by them, what it is given, and how it is run |
| ``bounds.py`` | how far rounding may take it |
| ``inputs.py``, ``rules.py`` | what is asked for, and what contradicts itself |
| ``tiling.py``, ``pricing.py`` | tiles, and what a run takes |
"""
