"""Whether small work is done at a sane pace: a relation between device and host, so wide that no healthy device misses
it, and the best of several trials, so that a busy machine does not."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from .busy import ever

pytestmark = pytest.mark.requires(accelerator=True)

PIECES = 200
#: How many times as long as on the host a small piece of work may take on the device; launches included, some ten.
MOST = 200


def _seconds(x: torch.Tensor) -> float:
    """How long it takes to add one to `x` so many times."""
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
    """Contract: a chain of small operations, launched one by one, is done on the device in at most 200 times what the
    same chain takes on the host, in one trial of five at least, and each of them has had its effect."""
    here, there = torch.zeros(16), torch.zeros(16, device=device)
    _seconds(there)

    assert ever(lambda: _seconds(there) < MOST * _seconds(here))


def test_launches_on_a_side_stream_keep_a_sane_pace(device: torch.device) -> None:
    """Contract: the same is true of a stream that is not the default one."""
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


@pytest.mark.parametrize("kind", KINDS)
def test_operations_of_each_kind_keep_a_sane_pace(device: torch.device, kind: str) -> None:
    """Contract: the same is true of operations of other kinds, each with the host's result. An operation that fell back
    to some slow path, such as one that waits for the device each time, would be far from it."""
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
