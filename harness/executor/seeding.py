"""Seeds the random generators of a process before each case."""

from __future__ import annotations

import random
import sys

from harness.backends.backend import Backend


def seed_everything(seed: int, backend: Backend) -> None:
    """Seed the global generators of Python, and of NumPy and torch if they are imported.

    The generators of the `backend`'s devices are seeded too; those of CUDA only once it is initialised. Other device
    kinds are not seeded, since torch would store a stack trace at each call for a device that the process lacks.
    """
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)
        backend.seed(torch, seed)
