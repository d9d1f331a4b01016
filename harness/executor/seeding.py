"""Seeds the random generators of a process before each case."""

from __future__ import annotations

import random
import sys

from harness.backends.backend import Backend


def seed_everything(seed: int, backend: Backend) -> None:
    """Seed Python's, NumPy's and torch's global generators, of those that are imported.

    `backend` is the kind of the process's devices, whose generators are seeded too. Those of CUDA are seeded once it is
    initialised. Other kinds are left alone: torch keeps a stack trace a case for a device that a process lacks.
    """
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)
        backend.seed(torch, seed)
