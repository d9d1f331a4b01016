"""A run under the memory profiler, and what can be asked of it in terms of the tensors of the case."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from . import _torch_private as private
from .models import perceptron, train
from .values import Category, Event, FoundGradient, Key, Match, Names, Node, Sizes, State, sizes_over_time

CPU = torch.device("cpu")

EVERYTHING = {"record_shapes": True, "profile_memory": True, "with_stack": True}


class Recording:
    """What the memory profiler says of a run that has ended.

    Tensors that a case asks about must have been alive when the run ended, and still be: they are found by address.
    """

    def __init__(self, prof: profile, result: Any) -> None:
        self.prof = prof
        self.result = result

    @functools.cached_property
    def memory(self) -> Any:
        """torch's own object."""
        return private.memory_profile(self.prof)

    @functools.cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The data flow."""
        return private.nodes(self.memory)

    @functools.cached_property
    def categories(self) -> dict[State, Category | None]:
        """What each version of each tensor is."""
        return private.categories(self.memory)

    @functools.cached_property
    def timeline(self) -> list[Event]:
        """What happened to memory."""
        return private.timeline(self.memory)

    @functools.cached_property
    def gradients(self) -> list[FoundGradient]:
        """The gradients that events give away."""
        return private.found_gradients(self.prof)

    @functools.cached_property
    def matches(self) -> list[Match]:
        """The schemas of operators."""
        return private.matches(self.prof)

    def key(self, tensor: torch.Tensor) -> Key:
        """The memory that a live tensor has; fails the case if the profiler saw nothing done with it."""
        address, device = tensor.untyped_storage().data_ptr(), str(tensor.device)
        freed = {key for node in self.nodes for key in node.frees}
        found = {state.key for state in self.categories if (state.key.address, state.key.device) == (address, device)}
        assert found - freed, f"the profiler has not seen the tensor of shape {tuple(tensor.shape)} on {device}"
        return max(found - freed, key=lambda key: key.allocation or 0)

    def category(self, tensor: torch.Tensor) -> Category | None:
        """What a live tensor is, in all its versions; fails the case if versions differ."""
        versions = self.versions(tensor)
        assert len(set(versions.values())) == 1, f"one category was expected of all versions, got {versions}"
        return versions[0]

    def versions(self, tensor: torch.Tensor) -> dict[int, Category | None]:
        """What each version of a live tensor is."""
        key = self.key(tensor)
        return {state.version: category for state, category in self.categories.items() if state.key == key}

    def maker(self, tensor: torch.Tensor, version: int = 0) -> Node | None:
        """The node that made a version of a live tensor; None if it was there before."""
        state = State(self.key(tensor), version)
        makers = [node for node in self.nodes if state in node.makes]
        assert len(makers) <= 1, f"{len(makers)} nodes are said to have made one version"
        return makers[0] if makers else None

    def named(self, name: str) -> list[Node]:
        """The nodes with this name."""
        return [node for node in self.nodes if node.name == name]

    def one(self, name: str) -> Node:
        """The only node with this name; fails the case if there is not exactly one."""
        found = self.named(name)
        assert len(found) == 1, f"{len(found)} nodes {name!r}, expected one, among {[n.name for n in self.nodes]}"
        return found[0]

    def names(self, **tensors: torch.Tensor) -> Names:
        """Names for a listing, from live tensors."""
        return Names({self.key(tensor): name for name, tensor in tensors.items()})

    def sizes(self, device: torch.device) -> list[tuple[int, Sizes]]:
        """The bytes of each category on a device over time, as the timeline has it."""
        return sizes_over_time([e for e in self.timeline if e.key.device == str(device)], self.categories)


def record(work: Callable[[], object], device: torch.device = CPU) -> Recording:
    """Run `work` once with all that the memory profiler needs. What it returns is kept alive."""
    warm_up(device)
    with recording(device) as prof:
        result = work()
    return Recording(prof, result)


@contextmanager
def recording(device: torch.device) -> Iterator[profile]:
    """A profile of the block with all that the memory profiler needs, undisturbed.

    Python's garbage collector is off, lest it free tensors of no concern."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with profile(activities=activities(device), **EVERYTHING) as prof:
            yield prof
    finally:
        if collects:
            gc.enable()


def activities(device: torch.device) -> list[ProfilerActivity]:
    """What a profile on this device records: a run on the CPU does not touch a GPU."""
    return [ProfilerActivity.CPU, ProfilerActivity.CUDA] if device.type == "cuda" else [ProfilerActivity.CPU]


@functools.cache
def warm_up(device: torch.device) -> None:
    """Do once what torch does on first use only: imports, libraries' workspaces, its own caches.

    Within a profile, imports leave Python frames with garbage for names (https://github.com/pytorch/pytorch/issues/136040)
    and workspaces appear as memory of the run.
    """
    model = perceptron(device)
    x, target = torch.ones((2, 3), device=device), torch.ones((2, 1), device=device)
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        torch.optim.Adam(model.parameters(), lr=0.1),
    ]

    def work() -> None:
        for optimizer in optimizers:
            train(model, optimizer, x, target)

    work()
    with recording(device) as prof:
        work()
    private.memory_profile(prof)
