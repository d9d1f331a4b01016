"""Cycles that hold GPU memory: reported when they are collected, with the allocation's stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from . import _torch_private as private
from . import pages
from .collecting import collect, leave_a_cycle, on_demand

pytestmark = [
    pytest.mark.requires(device="cuda", not_={"rocm": True}),
    pytest.mark.timeout(600),
    pytest.mark.keeps("the observer stays registered until process exit, and library symbols are cached", host="64MiB"),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Disable automatic collections, and stop recording afterwards."""
    with on_demand():
        yield
    private.record(None)


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_cycles")
def test_observe_tensor_cycles_shows_the_allocation_of_gpu_memory(device: torch.device) -> None:
    """The callback gets a page with the cycle (tensor, cell, function) and the stack of the tensor's allocation.

    The memory is freed.
    """
    shown: list[str] = []
    disarm: Callable[[], None] = private.observe_tensor_cycles(shown.append)
    before = torch.cuda.memory_allocated(device)
    leave_a_cycle(torch.empty(3, 4, device=device))
    assert torch.cuda.memory_allocated(device) > before

    collect()
    disarm()

    page = shown[-1]
    text = pages.structure(page).scripts[1].text
    for word in (
        *("torch.Tensor", "torch.Size([3, 4])", "cell_contents", "again"),
        "test_observe_tensor_cycles_shows_the_allocation_of_gpu_memory",
    ):
        assert word in text, f"the page does not contain {word!r}"
    assert torch.cuda.memory_allocated(device) == before


def test_observe_tensor_cycles_shows_no_cycle_without_gpu_memory() -> None:
    """Cycles without tensors, or with CPU tensors only, are not reported."""
    shown: list[str] = []
    disarm = private.observe_tensor_cycles(shown.append)
    leave_a_cycle(torch.empty(3, 4))
    table: dict[str, object] = {}
    table["itself"] = table
    del table

    collect()
    disarm()

    assert shown == []
