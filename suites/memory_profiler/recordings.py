"""A run under the memory profiler, and queries on it by the tensors of the case."""

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
    """The memory profiler's results for a finished run.

    Tensors are found by address, so they must be alive when the run ends, and afterwards.
    """

    def __init__(self, prof: profile, result: Any) -> None:
        self.prof = prof
        self.result = result

    @functools.cached_property
    def memory(self) -> Any:
        """torch's memory profile object."""
        return private.memory_profile(self.prof)

    @functools.cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The data flow."""
        return private.nodes(self.memory)

    @functools.cached_property
    def categories(self) -> dict[State, Category | None]:
        """The category of each version of each tensor."""
        return private.categories(self.memory)

    @functools.cached_property
    def timeline(self) -> list[Event]:
        """The memory events."""
        return private.timeline(self.memory)

    @functools.cached_property
    def gradients(self) -> list[FoundGradient]:
        """The gradients extracted from events."""
        return private.found_gradients(self.prof)

    @functools.cached_property
    def matches(self) -> list[Match]:
        """The schema matches of operators."""
        return private.matches(self.prof)

    def key(self, tensor: torch.Tensor) -> Key:
        """Return the key of a live tensor's memory; fail the case if the profiler has no record of it."""
        address, device = tensor.untyped_storage().data_ptr(), str(tensor.device)
        freed = {key for node in self.nodes for key in node.frees}
        found = {state.key for state in self.categories if (state.key.address, state.key.device) == (address, device)}
        assert found - freed, f"the profiler has not seen the tensor of shape {tuple(tensor.shape)} on {device}"
        return max(found - freed, key=lambda key: key.allocation or 0)

    def category(self, tensor: torch.Tensor) -> Category | None:
        """Return the category of a live tensor in all its versions; fail the case if versions differ."""
        versions = self.versions(tensor)
        assert len(set(versions.values())) == 1, f"expected one category for all versions, got {versions}"
        return versions[0]

    def versions(self, tensor: torch.Tensor) -> dict[int, Category | None]:
        """Return the category of each version of a live tensor."""
        key = self.key(tensor)
        return {state.version: category for state, category in self.categories.items() if state.key == key}

    def maker(self, tensor: torch.Tensor, version: int = 0) -> Node | None:
        """Return the node that created a version of a live tensor, or None if it existed before."""
        state = State(self.key(tensor), version)
        makers = [node for node in self.nodes if state in node.makes]
        assert len(makers) <= 1, f"{len(makers)} nodes created the same version"
        return makers[0] if makers else None

    def named(self, name: str) -> list[Node]:
        """Return the nodes with this name."""
        return [node for node in self.nodes if node.name == name]

    def one(self, name: str) -> Node:
        """Return the only node with this name; fail the case if there is not exactly one."""
        found = self.named(name)
        assert len(found) == 1, f"{len(found)} nodes {name!r}, expected one, among {[n.name for n in self.nodes]}"
        return found[0]

    def names(self, **tensors: torch.Tensor) -> Names:
        """Return the names for a listing, for live tensors."""
        return Names({self.key(tensor): name for name, tensor in tensors.items()})

    def sizes(self, device: torch.device) -> list[tuple[int, Sizes]]:
        """Return the bytes of each category on a device over time, according to the timeline."""
        return sizes_over_time([e for e in self.timeline if e.key.device == str(device)], self.categories)


def record(work: Callable[[], object], device: torch.device = CPU) -> Recording:
    """Run `work` once with all options that the memory profiler needs, and keep its result alive."""
    warm_up(device)
    with recording(device) as prof:
        result = work()
    return Recording(prof, result)


@contextmanager
def recording(device: torch.device) -> Iterator[profile]:
    """Profile the block with all options that the memory profiler needs.

    Python's garbage collector is off, so that it does not free unrelated tensors.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with profile(activities=activities(device), **EVERYTHING) as prof:
            yield prof
    finally:
        if collects:
            gc.enable()


def activities(device: torch.device) -> list[ProfilerActivity]:
    """Return the activities to profile on this device: a run on the CPU does not touch a GPU."""
    return [ProfilerActivity.CPU, ProfilerActivity.CUDA] if device.type == "cuda" else [ProfilerActivity.CPU]


@functools.cache
def warm_up(device: torch.device) -> None:
    """Complete torch's first-use initialization: imports, library workspaces, caches.

    Within a profile, imports leave Python frames with garbage names (https://github.com/pytorch/pytorch/issues/136040),
    and workspaces are recorded as memory of the run.
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
