"""A DataLoader with worker processes and pinned memory feeds a model by asynchronous copies on a side stream."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Add up all samples on the device."""
    data = torch.arange(256 * 8, dtype=torch.float32).view(256, 8)
    batches = DataLoader(TensorDataset(data), batch_size=32, num_workers=2, pin_memory=True, persistent_workers=True)
    copies = torch.cuda.Stream()
    total = torch.zeros((), device="cuda")
    for _ in range(2):
        for (batch,) in batches:
            assert batch.is_pinned()
            with torch.cuda.stream(copies):
                there = batch.to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(copies)
            there.record_stream(torch.cuda.current_stream())
            total += there.sum()
    assert total.item() == 2 * data.sum().item(), total
    print("done")


if __name__ == "__main__":
    main()
