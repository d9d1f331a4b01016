"""What torch's compiler keeps of a case of this suite. Without torch, since supervisors import the conftest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

KEEPS: Final = "torch's compiler keeps guards, code and fake tensors of what it compiled, more of it with each reset"
#: As in `suites.compiled`, and as much again: a case may compile several functions for the GPU.
KEPT: Final[Mapping[str, int | str]] = {"tensors": 800, "host": "12MiB", "device": "32KiB"}
#: For a case that breaks a graph: torch keeps what it compiled of such a function, after a reset too.
BROKEN: Final = "torch keeps what it compiled of a function with a break in its graph, here the manager of the trees"
KEPT_BROKEN: Final[Mapping[str, int | str]] = {**KEPT, "streams": 1}
