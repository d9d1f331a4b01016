"""Captures that fail, in each way: the process goes on, and has afterwards what it had before.

Each contract is a case of its own, because releases of torch keep some and break others. A child process lets the
capture fail, since what that leaves behind stays there.
"""

from __future__ import annotations

import contextlib
import gc
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from suites import children

from .capturing import on_cuda, works

pytestmark = [on_cuda, pytest.mark.own_process]

ELEMENTS = 1 << 20
PULL = "https://github.com/pytorch/pytorch/pull/"
LEAVES_ITS_STREAM = "`torch.cuda.graph` leaves its stream current if `capture_end` raises"
KEEPS_ITS_POOL = "a graph whose `capture_end` raised keeps its pool"


class CaptureStoppedError(Exception):
    """Raised by the program within a capture."""


def _in_a_graph(work: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], None]:
    """Return a function that captures an operator and then `work`, with `torch.cuda.graph`."""

    def capture(x: torch.Tensor) -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            kept = x * 2
            work(kept)

    return capture


def _stop(_: torch.Tensor) -> None:
    raise CaptureStoppedError


def _fork_without_join(x: torch.Tensor) -> None:
    side = torch.cuda.Stream(x.device)
    side.wait_stream(torch.cuda.current_stream())
    with side:
        x * 3


def _synchronize_in_a_thread(x: torch.Tensor) -> None:
    def synchronize() -> None:
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize(x.device)

    thread = threading.Thread(target=synchronize)
    thread.start()
    thread.join()


def _capture_within(_: torch.Tensor) -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        pass


def _by_hand(x: torch.Tensor) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream(x.device)):
        graph.capture_begin()
        try:
            (x * 2).sum().item()
        finally:
            graph.capture_end()


class _ReadsWithinACapture(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            x.sum().item()
        return x * 2


def _graphed_callable(x: torch.Tensor) -> None:
    torch.cuda.make_graphed_callables(_ReadsWithinACapture(), (x.clone(),))


#: The ways to fail. Each raises. All but these two end by an error of `capture_end`.
FAILURES: dict[str, Callable[[torch.Tensor], None]] = {
    "item": _in_a_graph(lambda x: x.sum().item()),
    "synchronize": _in_a_graph(lambda x: torch.cuda.synchronize(x.device)),
    "unjoined_stream": _in_a_graph(_fork_without_join),
    "other_thread": _in_a_graph(_synchronize_in_a_thread),
    "nested_capture": _in_a_graph(_capture_within),
    "capture_end_by_hand": _by_hand,
    "make_graphed_callables": _graphed_callable,
    "exception": _in_a_graph(_stop),
    "out_of_memory": _in_a_graph(lambda x: torch.empty(1 << 50, dtype=torch.uint8, device=x.device)),
}
ENDS_WELL = {"exception", "out_of_memory"}
#: `capture_end` is called within a block of `torch.cuda.stream`, which restores the stream.
KEEPS_THE_STREAM = {*ENDS_WELL, "capture_end_by_hand"}


def _ways(kept: set[str], reason: str, link: str) -> list[Any]:
    """Return the ways to fail as parameters. Those not in `kept` are expected to break the contract."""
    wrong = pytest.mark.xfail(raises=AssertionError, strict=True, reason=f"{reason}: {link}")
    return [pytest.param(way, marks=[] if way in kept else [wrong]) for way in FAILURES]


def _never_ended(x: torch.Tensor) -> None:
    with torch.cuda.stream(torch.cuda.Stream(x.device)):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        kept = x * 2
        del kept, graph


def reserved(device: torch.device) -> list[object]:
    """Return the reserved bytes, and the pools that have some, with no memory cached."""
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    pools = {tuple(each["segment_pool_id"]) for each in torch.cuda.memory_snapshot()}
    return [torch.cuda.memory_reserved(device), sorted(map(list, pools))]


def replays(device: torch.device) -> list[list[float]]:
    """Return what a new graph that adds 1 has after each of three replays."""
    graph, total = torch.cuda.CUDAGraph(), torch.zeros(4, device=device)
    torch.cuda.synchronize(device)
    with torch.cuda.graph(graph):
        total.add_(1)
    found = []
    for _ in range(3):
        graph.replay()
        found.append(total.tolist())
    return found


def report(way: str, asked: str, device: torch.device) -> None:
    """Let a capture of this process fail, and print what is `asked` about the process, before and after."""
    stream = torch.cuda.current_stream(device)
    x = torch.ones(ELEMENTS, device=device)
    (x * 2).sum().item()
    replays(device)
    found: list[object] = []
    if asked == "memory":
        found.append(reserved(device))
    try:
        FAILURES[way](x)
    except (RuntimeError, CaptureStoppedError):
        found.append("raised")
    gc.collect()
    if asked == "stream":
        found.append(torch.cuda.current_stream(device) == stream)
    torch.cuda.set_stream(stream)
    if asked == "memory":
        found.append(reserved(device))
    if asked == "next":
        found += [torch.cuda.is_current_stream_capturing(), works(device), replays(device)]
        found.append(torch.rand(64, device=device).unique().numel() > 1)
    print(json.dumps(found))


def found_in_a_child(way: str, asked: str, device: torch.device) -> list[Any]:
    """Return what `report` prints in a child process, which keeps what a failed capture keeps."""
    script = f"from {__name__} import report\nimport torch\nreport({way!r}, {asked!r}, torch.device(DEVICE))"
    found: list[Any] = json.loads(children.fork(script, device).lines()[-1])
    return found


@pytest.mark.parametrize("way", _ways(KEEPS_THE_STREAM, LEAVES_ITS_STREAM, f"{PULL}190308"))
def test_capture_that_fails_restores_the_current_stream(way: str, device: torch.device) -> None:
    """After a failed capture, the stream is current that was so before it."""
    raised, restored = found_in_a_child(way, "stream", device)

    assert raised == "raised"
    assert restored, "another stream is current"


@pytest.mark.parametrize("way", _ways(ENDS_WELL, KEEPS_ITS_POOL, f"{PULL}190348"))
def test_capture_that_fails_leaves_no_pool(way: str, device: torch.device) -> None:
    """When the graph of a failed capture is gone, `empty_cache` gives all memory of its pool back."""
    before, raised, after = found_in_a_child(way, "memory", device)

    assert raised == "raised"
    assert after == before


@pytest.mark.parametrize("way", FAILURES)
def test_capture_after_one_that_failed_is_replayed(way: str, device: torch.device) -> None:
    """After a failed capture, the device computes, the next graph replays, and random numbers can be drawn."""
    raised, capturing, computes, replayed, draws = found_in_a_child(way, "next", device)

    assert raised == "raised"
    assert not capturing
    assert computes
    assert replayed == [[number] * 4 for number in (1.0, 2.0, 3.0)]
    assert draws


NEVER_ENDED = f"""
import gc, torch
from {__name__} import _never_ended, works
device = torch.device(DEVICE)
_never_ended(torch.ones(8, device=device))
gc.collect()
try:
    print("works" if works(device) else "computes wrongly")
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""


@pytest.mark.xfail(raises=AssertionError, strict=True, reason=f"a graph that is deleted does not end it: {PULL}190308")
def test_capture_that_is_never_ended_is_over_with_its_graph(device: torch.device) -> None:
    """A graph that is deleted before `capture_end` ends its capture; the device then works."""
    assert children.fork(NEVER_ENDED, device).lines() == ["works"]
