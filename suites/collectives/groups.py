"""Process groups for ranks: gloo on the CPU, NCCL on GPUs, otherwise the registered backend.

Also names that torch changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from .checking import Checks

#: Cases run with gloo on the CPU, with NCCL on GPUs, and on other devices with the backend that is registered for them.
GATE = pytest.mark.requires(process_groups=True)
#: Cases about NCCL and the devices that it supports.
NCCL = pytest.mark.requires(device="cuda", nccl=True)
#: Seconds. More than any case takes, and less than the time limit of a case, so that torch raises first.
TIMEOUT = 40.0

#: torch 2.13 renames these functions, and warns of the old names.
all_gather_single: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def worlds(*sizes: int) -> pytest.MarkDecorator:
    """Run a case with each of these numbers of ranks, as the parameter `world`.

    If there are more than two numbers, the default run only has 1 (which NCCL supports on a machine with one GPU), 2
    and 3.
    """
    more = [size for size in sizes if len(sizes) > 2 and size not in (1, 2, 3)]
    values = [
        pytest.param(size, marks=[pytest.mark.requires(ranks=size), *([pytest.mark.extended] if size in more else [])])
        for size in sizes
    ]
    return pytest.mark.parametrize("world", values)


def on_cpu(rank: Any) -> Any:
    """Return the same rank with the CPU as its device, for cases about gloo, which every machine has."""
    return dataclasses.replace(rank, device_name="cpu")


def backend(rank: Any) -> str:
    """Return the name of the backend for the device of a rank."""
    known = {"cpu": "gloo", "cuda": "nccl"}
    return known.get(rank.device.type) or str(dist.get_default_backend_for_device(rank.device))


def begin(
    rank: Any,
    name: str = "rendezvous",
    timeout: float = TIMEOUT,
    *,
    members: Sequence[int] = (),
    bound: bool = True,
) -> None:
    """Create the default group of a rank, with all ranks or with `members`. Each of them calls this function.

    `bound`: an NCCL group has the device of its rank from the beginning, and creates its communicator immediately.
    """
    device = rank.device
    more: dict[str, Any] = {}
    if device.type == "cuda":
        torch.cuda.set_device(device)
        if bound:
            more["device_id"] = device
    elif device.type != "cpu":
        torch.accelerator.set_device_index(device.index)
    dist.init_process_group(
        backend(rank),
        init_method=rank.rendezvous(name),
        rank=members.index(rank.number) if members else rank.number,
        world_size=len(members) or rank.world,
        timeout=timedelta(seconds=timeout),
        **more,
    )


def connect(rank: Any, group: Any = None) -> None:
    """Create the communicator of a group of GPUs. NCCL does so at its first use, which a capture cannot contain."""
    dist.all_reduce(torch.ones(1, device=rank.device), group=group)
    torch.accelerator.synchronize()


@contextlib.contextmanager
def group(rank: Any, name: str = "rendezvous", **more: Any) -> Iterator[None]:
    """Create the default group of a rank, and destroy it unless the block raises: with a broken peer, that may hang."""
    begin(rank, name, **more)
    yield
    dist.destroy_process_group()


def use_again(rank: Any, checks: Checks, members: Sequence[int]) -> None:
    """Create a group of these ranks after another group has broken, and check that it works."""
    with group(rank, "again", members=members):
        dist.all_reduce(given := torch.full((33,), rank.number + 1.0, device=rank.device))
        expected = torch.full((33,), float(sum(number + 1 for number in members)))
        checks.same("all_reduce in a new group", given, expected)


def total(rank: Any) -> float:
    """Return the sum over all ranks of their numbers, counted from 1."""
    return rank.world * (rank.world + 1) / 2


def grouped(body: Callable[..., Any]) -> Callable[..., Any]:
    """Make a body run inside the default group. Everything that the body has created is freed before the group.

    In the other order, a `DistributedDataParallel` frees the group while it holds Python's lock and waits for a thread
    of the group that may need this lock (torch 2.13). Both then wait forever.
    """

    @functools.wraps(body)
    def run(rank: Any, *arguments: Any) -> Any:
        with group(rank):
            result = body(rank, *arguments)
            gc.collect()
        return result

    return run
