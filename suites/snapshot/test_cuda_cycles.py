"""Cycles that hold memory of a GPU: seen when they are collected, with where the memory was allocated."""

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
    pytest.mark.keeps(
        "the observer stays registered for the end of the process, and symbols of libraries are kept", host="64MiB"
    ),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nothing is collected but on demand; afterwards nothing is recorded."""
    with on_demand():
        yield
    private.record(None)


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_cycles")
def test_observe_tensor_cycles_shows_where_gpu_memory_comes_from(device: torch.device) -> None:
    """Contract: the callback gets a page with the graph of the cycle: the tensor, the cell that holds it, the function;
    and the calls that allocated the tensor, this case's among them. The memory is freed."""
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
        "test_observe_tensor_cycles_shows_where_gpu_memory_comes_from",
    ):
        assert word in text, f"the page does not tell of {word!r}"
    assert torch.cuda.memory_allocated(device) == before


def test_observe_tensor_cycles_shows_no_cycle_without_gpu_memory() -> None:
    """Contract: cycles that hold no tensor, or tensors of the host only, are no matter."""
    shown: list[str] = []
    disarm = private.observe_tensor_cycles(shown.append)
    leave_a_cycle(torch.empty(3, 4))
    table: dict[str, object] = {}
    table["itself"] = table
    del table

    collect()
    disarm()

    assert shown == []
