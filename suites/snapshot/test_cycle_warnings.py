"""End-to-end observation of cycles with tensors, on the host, with CPU tensors in the place of GPU tensors."""

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
    """Treat CPU tensors as GPU tensors with one fixed allocation stack, and log the calls that enable recording."""
    asked: list[Any] = []
    cycles, memory = private.module(private.CYCLES), private.module(private.MEMORY)
    monkeypatch.setattr(cycles, "is_cuda_tensor", lambda value: isinstance(value, torch.Tensor))
    monkeypatch.setattr(cycles, "cuda_allocation_context", lambda: lambda _: ORIGIN)
    monkeypatch.setattr(memory, "_record_memory_history", lambda *each, **options: asked.append((each, options)))
    with on_demand():
        yield asked


def test_observe_tensor_cycles_makes_a_page_of_a_cycle(taken_for_a_gpus: list[Any]) -> None:
    """The first observer enables recording with a limit.

    A collected cycle yields one page with the tensor, its referrers and its allocation stack; the tensor is freed.
    """
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
        assert word in text, f"the page does not contain {word!r}"


def test_observe_tensor_cycles_shows_no_cycle_without_a_tensor() -> None:
    """Control: cycles without tensors are not reported."""
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
    """Yield the log messages of torch's cycle module."""
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
    raises=FileNotFoundError, reason="the page that the warning names is deleted immediately after it was written"
)
def test_warn_tensor_cycles_names_a_page(warnings_logged: list[str]) -> None:
    """`warn_tensor_cycles` logs one warning per cycle, with the path of a file that contains its page."""
    disarm = private.warn_tensor_cycles()
    leave_a_cycle(torch.empty(3, 4))

    collect()
    disarm()

    (named,) = [found[1] for each in warnings_logged if (found := re.search(r"(\S+\.html)", each))]
    assert "torch.Tensor" in pages.structure(Path(named).read_text(encoding="utf-8")).scripts[1].text
