"""A snapshot of the allocator's history: a block that leaks is in it, with the line that allocated it."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import torch


def leak() -> torch.Tensor:
    """Return memory that the program keeps."""
    return torch.empty(5 << 20, dtype=torch.uint8, device="cuda")


def main() -> None:
    """Record, dump and read a snapshot."""
    torch.cuda.memory._record_memory_history(max_entries=1000)
    kept = [leak() for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        torch.cuda.memory._dump_snapshot(str(path))
        snapshot = pickle.loads(path.read_bytes())
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    ours = [block for block in blocks if any(frame["name"] == "leak" for frame in block["frames"])]
    assert len(ours) == len(kept), blocks
    print("done")


if __name__ == "__main__":
    main()
