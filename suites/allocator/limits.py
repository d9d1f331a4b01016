"""A device with little memory left, for cases in which it runs out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

MIB = 1 << 20
#: Bytes that are left to a case.
LEFT = 96 * MIB


def settle(device: torch.device) -> None:
    """Everything launched is done and nothing is cached."""
    torch.accelerator.synchronize(device)
    torch.accelerator.empty_cache()


@contextmanager
def short_of_memory(device: torch.device, left: int = LEFT) -> Iterator[None]:
    """Let torch have `left` bytes more of the device. On CUDA a limit says so, else all the rest is taken."""
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
        yield
        del rest
        settle(device)


def block(device: torch.device, size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)
