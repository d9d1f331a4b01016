"""Seeds: one number for the run, one for each case, the same on every machine."""

from __future__ import annotations

import hashlib
import random
import sys


def case_seed(run_seed: int, case: str) -> int:
    """The seed of `case`, in [0, 2**32), from the run's seed and the case id."""
    digest = hashlib.sha256(f"{run_seed}\0{case}".encode("utf-8", "backslashreplace")).digest()
    return int.from_bytes(digest[:4], "big")


def seed_everything(seed: int, *, cuda: bool) -> None:
    """Seed Python's, NumPy's and torch's global generators, of those that are imported.

    `cuda` says that the process has a GPU: its generators are then seeded too, or will be when CUDA wakes. Asking torch
    for that in a process without one would make it keep a stack trace a case.
    """
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed_all(seed)
