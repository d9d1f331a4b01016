"""Compiled code and order: programs with streams, events and copies that do not block, on each back end as in eager.

The program's stream, or that of its caller, sleeps when the program is called, so that work which should wait for it,
and does not, has the values from before.
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
]

ELEMENTS = 1 << 12
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


def called(
    program: Callable[..., Tensor],
    lanes: Lanes,
    device: torch.device,
    *,
    value: float,
    late: torch.cuda.Stream | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what the caller's stream reads of the input and of the result after a call.

    `value` fills the input. `late`: a stream that sleeps.
    """
    x = torch.full((ELEMENTS,), value, device=device)
    torch.cuda.synchronize(device)
    if late is not None:
        sleep_on(late)
    result = program(x, lanes)
    seen = x.clone(), result.clone()
    torch.cuda.synchronize(device)
    return seen


def as_eager(program: Program, backend: str, lanes: Lanes, device: torch.device) -> None:
    """Check that compiled code leaves what eager code leaves, also if its stream or that of its caller is late.

    Each call has another input, since pinned memory that is used again has the result of an earlier call.
    """
    compiled: Any = torch.compile(program, backend=backend, fullgraph=True)
    for value, late in enumerate([None, lanes.side, torch.cuda.current_stream(device)] * 2):
        found = called(compiled, lanes, device, value=100.0 + value, late=late)
        wanted = called(program, lanes, device, value=100.0 + value)
        called(program, lanes, device, value=-100.0 - value)
        for one, other, what in zip(found, wanted, ("input", "result"), strict=True):
            assert one.equal(other), f"the {what} is {one.unique().tolist()}, not {other.unique().tolist()}"


def _wrong(reason: str, *, always: bool = True) -> list[pytest.MarkDecorator]:
    """Return the marks of a case that fails: `always`, or only if streams run in an unlucky order."""
    return [pytest.mark.xfail(raises=AssertionError, strict=always, reason=reason), pytest.mark.races(reason)]


_WRITTEN_BACK_LATE = _wrong(
    "Inductor writes a changed input back after the program has joined the streams: "
    "https://github.com/pytorch/pytorch/issues/197416",
    always=False,
)
_ON_THE_CALLERS_STREAM = _wrong(
    "the back ends eager and aot_eager run the work of a stream's block on the stream of the caller, so that a wait of "
    "the host for the stream does not include it (no public issue found)"
)


def _marks(backend: str, name: str) -> list[pytest.MarkDecorator]:
    if (backend, name) == ("inductor", "changed_input"):
        return _WRITTEN_BACK_LATE
    return _ON_THE_CALLERS_STREAM if backend != "inductor" and name.startswith("copied_to_the_host") else []


def _compiled() -> list[Any]:
    return [pytest.param(backend, name, marks=_marks(backend, name)) for backend in BACK_ENDS for name in PROGRAMS]


@pytest.mark.parametrize(("backend", "name"), _compiled())
def test_compile_keeps_the_order_of_streams(backend: str, name: str, lanes: Lanes, device: torch.device) -> None:
    """Compiled code runs work on the streams of the program, and waits where the program waits."""
    as_eager(PROGRAMS[name], backend, lanes, device)


@pytest.mark.races("the control leaves out the wait")
def test_program_that_does_not_wait_reads_too_early(lanes: Lanes, device: torch.device) -> None:
    """Control: eager code that changes its input on the late stream, and does not wait, leaves the old values."""

    def unjoined(x: Tensor, lanes: Lanes) -> Tensor:
        with torch.cuda.stream(lanes.side):
            x.add_(1)
        return x.new_zeros(1)

    assert ever(lambda: bool((called(unjoined, lanes, device, value=0.0, late=lanes.side)[0] == 0).any())), NOT_SHOWN
