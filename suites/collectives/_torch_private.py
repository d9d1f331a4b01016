"""The undocumented names of torch that this suite uses. No other module of the suite looks one up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from suites.reaching import reach


def coalescing_manager() -> Any:
    """Return the context that combines several collectives in one call."""
    return reach("torch.distributed._coalescing_manager")


def premultiplied_sum(factor: Any) -> Any:
    """Return the sum of inputs multiplied by a factor: a number, or a tensor of one element. Only NCCL supports it."""
    return reach("torch.distributed._make_nccl_premul_sum")(factor)


def abort_process_group() -> None:
    """End all communicators without waiting for other ranks, and forget the groups."""
    reach("torch.distributed.distributed_c10d._abort_process_group")()


def flight_record() -> bytes:
    """Return the pickled record that NCCL's process groups keep of their calls."""
    record: bytes = reach("torch._C._distributed_c10d._dump_nccl_trace")()
    return record


def set_timeout(timeout: timedelta) -> None:
    """Change the time limit of the default group."""
    reach("torch.distributed.distributed_c10d._set_pg_timeout")(timeout, None)


def functional_collectives() -> Any:
    """Return the module of the functional collectives, which `DTensor` and the compiler use."""
    return reach("torch.distributed._functional_collectives")


def functional_single(name: str, suffix: str = "") -> Any:
    """Return a functional collective on one tensor. torch 2.13 renames them, and warns of the old names."""
    module = functional_collectives()
    return getattr(module, f"{name}_single{suffix}", None) or getattr(module, f"{name}_tensor{suffix}")


def symmetric_memory() -> Any:
    """Return the module of memory that each rank of a group can address."""
    return reach("torch.distributed._symmetric_memory")


def scatter_stream(device: torch.device) -> torch.Stream:
    """Return the stream on which `nn.parallel.scatter` copies from the host to a device."""
    stream: torch.Stream = reach("torch.nn.parallel._functions._get_stream")(device)
    return stream
