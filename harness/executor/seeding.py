"""Seeds: one number for the run, one for each case, the same on every machine."""

from __future__ import annotations

import hashlib
import random
import sys

from harness.devices.device import Kind


def case_seed(run_seed: int, case: str) -> int:
    """The seed of `case`, in [0, 2**32), from the run's seed and the case id."""
    digest = hashlib.sha256(f"{run_seed}\0{case}".encode("utf-8", "backslashreplace")).digest()
    return int.from_bytes(digest[:4], "big")


def seed_everything(seed: int, kind: Kind) -> None:
    """Seed Python's, NumPy's and torch's global generators, of those that are imported.

    `kind` is that of the process's devices: the generators of these are then seeded too, or will be when CUDA wakes.
    Asking torch for that in a process without a GPU would make it keep a stack trace a case.
    """
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)
        if kind == "cuda":
            torch.cuda.manual_seed_all(seed)
        elif kind == "soft":
            torch.soft.manual_seed_all(seed)
