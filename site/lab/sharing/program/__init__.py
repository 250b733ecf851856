"""A run as a short program in plain PyTorch: only the lines that its configuration needs, in float64.

`writing.program` puts the parts together; each part says what it adds as lines of Python. What cannot be said
in a short program is `Unsayable`, with the reason.
"""

from lab.sharing.program.facts import Facts, Unsayable
from lab.sharing.program.writing import program

__all__ = ["Facts", "Unsayable", "program"]
