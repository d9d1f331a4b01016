"""The memory that torch's compiler keeps after a case.

This module imports no torch, because supervisors import conftest.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

KEEPS: Final = "torch's compiler keeps guards, code and fake tensors of what it compiled, more of it with each reset"
#: Upper bounds. Measured per repetition on the simulated CUDA: 16 tensors, 3,600 blocks of Python's allocator, 512
#: bytes on the device. The margin is for GPUs, on which this has not been measured.
KEPT: Final[Mapping[str, int | str]] = {"tensors": 100, "host": "4MiB", "device": "8KiB"}
#: For a case with a graph break: torch keeps the compiled code of such a function, even after a reset.
BROKEN: Final = "torch keeps the compiled code of a function with a graph break, here the manager of the trees"
KEPT_BROKEN: Final[Mapping[str, int | str]] = {**KEPT, "streams": 1}
