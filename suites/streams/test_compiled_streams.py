"""Compiled code and order: programs with streams, events and copies that do not block, on each back end as in eager.

A stream of the program sleeps when the program is called, so that work which should wait for it, and does not, has the
values from before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from suites import _torch_private_compiled as private
from suites.compiled import KEEPS, KEPT

from .busy import NOT_SHOWN, calibrate, ever, sleep_on

pytestmark = [
    pytest.mark.requires(device="cuda", asynchronous=True),
    pytest.mark.keeps(KEEPS, **KEPT),
    pytest.mark.races("an order that is missing shows as a wrong value, which some cases are expected to have"),
]

ELEMENTS = 1 << 12
LATE = ("inductor", "changed_input")
BACK_ENDS = ["eager", "aot_eager", "inductor"]


@dataclass
class Lanes:
    """The streams and the event that the programs use."""

    side: torch.cuda.Stream
    other: torch.cuda.Stream
    event: torch.cuda.Event


Program = Callable[[Tensor, Lanes], Tensor]


def changed_input(x: Tensor, lanes: Lanes) -> Tensor:
    with torch.cuda.stream(lanes.side):
        x.add_(1)
    torch.cuda.current_stream().wait_stream(lanes.side)
    return x.new_zeros(1)


def made_there(x: Tensor, lanes: Lanes) -> Tensor:
    with torch.cuda.stream(lanes.side):
        y = x + 1
    torch.cuda.current_stream().wait_stream(lanes.side)
    return y * 2


def made_there_by_event(x: Tensor, lanes: Lanes) -> Tensor:
    with torch.cuda.stream(lanes.side):
        y = x + 1
        lanes.event.record()
    torch.cuda.current_stream().wait_event(lanes.event)
    return y * 2


def made_there_by_a_new_event(x: Tensor, lanes: Lanes) -> Tensor:
    with torch.cuda.stream(lanes.side):
        y = x + 1
    lanes.side.record_event().wait()
    return y * 2


def chain_of_streams(x: Tensor, lanes: Lanes) -> Tensor:
    with torch.cuda.stream(lanes.side):
        y = x + 1
    lanes.other.wait_stream(lanes.side)
    with torch.cuda.stream(lanes.other):
        z = y * 3
    torch.cuda.current_stream().wait_stream(lanes.other)
    return z + 1


def copied_to_the_host(x: Tensor, lanes: Lanes) -> Tensor:
    with torch.cuda.stream(lanes.side):
        y = (x + 1).to("cpu", non_blocking=True)
    lanes.side.synchronize()
    return y * 2


def copied_to_the_host_by_event(x: Tensor, lanes: Lanes) -> Tensor:
    with torch.cuda.stream(lanes.side):
        y = (x + 1).to("cpu", non_blocking=True)
        lanes.event.record()
    lanes.event.synchronize()
    return y * 2


#: By what is done on the stream that is late.
PROGRAMS: dict[str, Program] = {
    "changed_input": changed_input,
    "made_there": made_there,
    "made_there_by_event": made_there_by_event,
    "made_there_by_a_new_event": made_there_by_a_new_event,
    "chain_of_streams": chain_of_streams,
    "copied_to_the_host": copied_to_the_host,
    "copied_to_the_host_by_event": copied_to_the_host_by_event,
}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    with private.fresh_compiler():
        yield


@pytest.fixture
def lanes(device: torch.device) -> Lanes:
    calibrate(device)
    return Lanes(torch.cuda.Stream(device), torch.cuda.Stream(device), torch.cuda.Event())


def called(program: Callable[..., Tensor], lanes: Lanes, device: torch.device, *, late: bool) -> tuple[Tensor, Tensor]:
    """Return what the caller's stream reads of the input and of the result after a call."""
    x = torch.zeros(ELEMENTS, device=device)
    torch.cuda.synchronize(device)
    if late:
        sleep_on(lanes.side)
    result = program(x, lanes)
    seen = x.clone(), result.clone()
    torch.cuda.synchronize(device)
    return seen


def as_eager(program: Program, backend: str, lanes: Lanes, device: torch.device) -> None:
    """Check that compiled code leaves what eager code leaves, also if its stream is late."""
    wanted = called(program, lanes, device, late=False)
    compiled: Any = torch.compile(program, backend=backend, fullgraph=True)
    assert all(map(torch.equal, called(compiled, lanes, device, late=False), wanted))

    for found in (called(compiled, lanes, device, late=True) for _ in range(2)):
        for one, other, what in zip(found, wanted, ("input", "result"), strict=True):
            assert one.equal(other), f"the {what} is {one.unique().tolist()}, not {other.unique().tolist()}"


def _compiled() -> list[Any]:
    written_back_late = pytest.mark.xfail(
        raises=AssertionError,
        strict=True,
        reason="Inductor writes a changed input back after the program has joined the streams: "
        "https://github.com/pytorch/pytorch/issues/197416",
    )
    return [
        pytest.param(backend, name, marks=[written_back_late] if (backend, name) == LATE else [])
        for backend in BACK_ENDS
        for name in PROGRAMS
    ]


@pytest.mark.parametrize(("backend", "name"), _compiled())
def test_compile_keeps_the_order_of_streams(backend: str, name: str, lanes: Lanes, device: torch.device) -> None:
    """Compiled code runs work on the streams of the program, and waits where the program waits."""
    as_eager(PROGRAMS[name], backend, lanes, device)


def test_program_that_does_not_wait_reads_too_early(lanes: Lanes, device: torch.device) -> None:
    """Control: eager code that changes its input on the late stream, and does not wait, leaves the old values."""

    def unjoined(x: Tensor, lanes: Lanes) -> Tensor:
        with torch.cuda.stream(lanes.side):
            x.add_(1)
        return x.new_zeros(1)

    assert ever(lambda: bool((called(unjoined, lanes, device, late=True)[0] == 0).any())), NOT_SHOWN
