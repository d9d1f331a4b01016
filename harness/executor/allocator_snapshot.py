"""Writes a snapshot of torch's CUDA caching allocator when a case fails, for pytorch.org/memory_viz."""

from __future__ import annotations

import sys
from pathlib import Path

#: The most snapshots of one executor.
MOST_SNAPSHOTS = 10


def write_allocator_snapshot(folder: Path, number: int) -> None:
    """Write a snapshot into `folder`, or a text that says why there is none. Write nothing if no GPU is in use."""
    path = folder / f"allocator-snapshot-{number}.pickle"
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # https://docs.pytorch.org/docs/stable/torch_cuda_memory.html documents this function under its private name.
        torch.cuda.memory._dump_snapshot(str(path))
    except Exception as error:  # noqa: BLE001 - the context may be broken: the case has failed
        path.with_suffix(".txt").write_text(f"{error!r}\n", encoding="utf-8", errors="backslashreplace")
