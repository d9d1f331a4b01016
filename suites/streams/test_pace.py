"""Throughput of small operations, as a ratio between device and host.

The bound is so wide that no healthy device exceeds it, and the best of several trials counts, so that a busy machine
does not fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from .busy import ever

pytestmark = pytest.mark.requires(accelerator=True)

PIECES = 200
#: The maximum ratio of device time to host time for small operations, in the best of five trials. The usual ratio is
#: about ten, including launches; on a machine with four times as many busy threads as cores, single trials took up to
#: 43.
MOST = 50


def _seconds(x: torch.Tensor) -> float:
    """Return the time to add one to `x` `PIECES` times, in seconds."""
    x.zero_()
    torch.accelerator.synchronize()
    begin = time.perf_counter()
    for _ in range(PIECES):
        x.add_(1)
    torch.accelerator.synchronize()
    taken = time.perf_counter() - begin
    assert (x == PIECES).all()
    return taken


def test_launches_of_small_operations_keep_a_sane_pace(device: torch.device) -> None:
    """A chain of small operations takes at most 50 times its host time in one of five trials.

    Each operation has its effect.
    """
    here, there = torch.zeros(16), torch.zeros(16, device=device)
    _seconds(there)

    assert ever(lambda: _seconds(there) < MOST * _seconds(here))


def test_launches_on_a_side_stream_keep_a_sane_pace(device: torch.device) -> None:
    """A chain of small operations on a side stream takes at most 50 times its host time in one of five trials."""
    here, there = torch.zeros(16), torch.zeros(16, device=device)

    def on_a_side_stream() -> float:
        with stream:
            return _seconds(there)

    stream = torch.Stream(device)
    torch.accelerator.synchronize()
    on_a_side_stream()

    assert ever(lambda: on_a_side_stream() < MOST * _seconds(here))


#: Small operations of several kinds, on a square matrix.
KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(),
    "cumsum": lambda x: x.cumsum(0),
    "matmul": lambda x: x @ x,
    "cat": lambda x: torch.cat((x, x)),
    "flip": lambda x: x.flip(0),
    "transposed": lambda x: x.t().contiguous(),
    "to_float64": lambda x: x.to(torch.float64),
    "where": lambda x: torch.where(x > 4, x, -x),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.types("float64") if kind == "to_float64" else ()) for kind in KINDS]
)
def test_operations_of_each_kind_keep_a_sane_pace(device: torch.device, kind: str) -> None:
    """Chains of other operations take at most 50 times their host time in a trial, and have the host's results.

    An operation with a slow fallback, such as a device synchronize per call, would far exceed the bound.
    """
    operation = KINDS[kind]

    def seconds(x: torch.Tensor) -> float:
        operation(x)
        torch.accelerator.synchronize()
        begin = time.perf_counter()
        for _ in range(PIECES):
            result = operation(x)
        torch.accelerator.synchronize()
        taken = time.perf_counter() - begin
        assert result.tolist() == expected
        return taken

    here = torch.arange(16.0).reshape(4, 4)
    there = here.to(device)
    expected = operation(here).tolist()

    assert ever(lambda: seconds(there) < MOST * seconds(here))
