"""What torch's compiler keeps of a case of this suite. Without torch, since supervisors import the conftest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

KEEPS: Final = "torch's compiler keeps guards, code and fake tensors of what it compiled, more of it with each reset"
#: How much at most. Seen on the simulated CUDA in a repetition: 16 tensors, 3,600 blocks of Python's allocator, 512
#: bytes of the device. The rest is for a GPU, on which it has not been measured.
KEPT: Final[Mapping[str, int | str]] = {"tensors": 100, "host": "4MiB", "device": "8KiB"}
#: For a case that breaks a graph: torch keeps what it compiled of such a function, after a reset too.
BROKEN: Final = "torch keeps what it compiled of a function with a break in its graph, here the manager of the trees"
KEPT_BROKEN: Final[Mapping[str, int | str]] = {**KEPT, "streams": 1}
