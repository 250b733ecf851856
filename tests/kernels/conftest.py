"""Kernels are tested through Triton's interpreter, which must be chosen before triton is first imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
