"""Observing cycles that hold tensors from end to end: on the host, with its tensors taken for a GPU's."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from . import _torch_private as private
from . import pages
from .collecting import Watched, collect, leave_a_cycle, on_demand

pytestmark = pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_cycles")

ORIGIN = "model.py:3:forward"


@pytest.fixture(autouse=True)
def taken_for_a_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Tensors of the host count as a GPU's, and all come from one place; what is asked to be recorded is noted."""
    asked: list[Any] = []
    cycles, memory = private.module(private.CYCLES), private.module(private.MEMORY)
    monkeypatch.setattr(cycles, "is_cuda_tensor", lambda value: isinstance(value, torch.Tensor))
    monkeypatch.setattr(cycles, "cuda_allocation_context", lambda: lambda _: ORIGIN)
    monkeypatch.setattr(memory, "_record_memory_history", lambda *each, **options: asked.append((each, options)))
    with on_demand():
        yield asked


def test_observe_tensor_cycles_makes_a_page_of_a_cycle(taken_for_a_gpus: list[Any]) -> None:
    """Contract: allocations are recorded from then on, with a limit; a cycle that is collected is one page, with the
    tensor, what holds it, and where it was allocated; the tensor is freed."""
    shown: list[str] = []
    disarm = private.observe_tensor_cycles(shown.append)
    watched = Watched()
    leave_a_cycle(watched.tensor())
    assert watched.is_held()

    collect()
    disarm()

    assert not watched.is_held()
    ((each, options),) = taken_for_a_gpus
    assert (each, set(options)) == ((), {"max_entries"})
    assert 0 < options["max_entries"] < sys.maxsize
    (page,) = shown
    text = pages.structure(page).scripts[1].text
    for word in ("torch.Tensor", "torch.Size([3])", "cell_contents", "again", ORIGIN):
        assert word in text, f"the page does not tell of {word!r}"


def test_observe_tensor_cycles_shows_no_cycle_without_a_tensor() -> None:
    """Contract: the control: other cycles are no matter."""
    shown: list[str] = []
    disarm = private.observe_tensor_cycles(shown.append)
    table: dict[str, Any] = {}
    table["itself"] = table
    del table

    collect()
    disarm()

    assert shown == []


@pytest.fixture
def warnings_logged() -> Iterator[list[str]]:
    """What torch's module for cycles logs."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(private.CYCLES)
    before = logger.level
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.mark.xfail(
    raises=FileNotFoundError, reason="the page that the warning names is deleted as soon as it has been given"
)
def test_warn_tensor_cycles_names_a_page(warnings_logged: list[str]) -> None:
    """Contract: `warn_tensor_cycles` logs one warning a cycle, with the name of a file that holds its page."""
    disarm = private.warn_tensor_cycles()
    leave_a_cycle(torch.empty(3, 4))

    collect()
    disarm()

    (named,) = [found[1] for each in warnings_logged if (found := re.search(r"(\S+\.html)", each))]
    assert "torch.Tensor" in pages.structure(Path(named).read_text(encoding="utf-8")).scripts[1].text
