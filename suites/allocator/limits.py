"""A device with little free memory, for out-of-memory cases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

MIB = 1 << 20
#: Bytes that a case may use.
LEFT = 96 * MIB


def settle(device: torch.device) -> None:
    """Wait for all launched work and empty the cache."""
    torch.accelerator.synchronize(device)
    torch.accelerator.empty_cache()


@contextmanager
def short_of_memory(device: torch.device, left: int = LEFT) -> Iterator[None]:
    """Leave torch `left` more bytes of the device: by a memory fraction on CUDA, otherwise by allocating the rest."""
    settle(device)
    if device.type == "cuda":
        before = torch.cuda.get_per_process_memory_fraction(device)
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(device) + left) / total, device)
        try:
            yield
        finally:
            settle(device)
            torch.cuda.set_per_process_memory_fraction(before, device)
    else:
        free = torch.accelerator.get_memory_info(device)[0]
        rest = torch.empty(max(free - left, 0), dtype=torch.uint8, device=device)
        try:
            yield
        finally:
            del rest
            settle(device)


def block(device: torch.device, size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)
