"""What our processes ask of the operating system."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def follow_parent(number: signal.Signals) -> None:
    """Have this process sent signal `number` when its parent dies, however it dies (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
