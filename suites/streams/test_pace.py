"""Whether small work is done at a sane pace: a relation between device and host, so wide that no healthy device misses
it, and the best of several trials, so that a busy machine does not."""

from __future__ import annotations

import time

import pytest
import torch

from .busy import ever

pytestmark = pytest.mark.requires(accelerator=True)

PIECES = 200
#: How many times as long as on the host a small piece of work may take on the device; launches included, some ten.
MOST = 200


def test_launches_of_small_operations_keep_a_sane_pace(device: torch.device) -> None:
    """Contract: a chain of small operations, launched one by one, is done on the device in at most 200 times what the
    same chain takes on the host, in one trial of five at least, and each of them has had its effect."""

    def seconds(x: torch.Tensor) -> float:
        x.zero_()
        torch.accelerator.synchronize(device)
        begin = time.perf_counter()
        for _ in range(PIECES):
            x.add_(1)
        torch.accelerator.synchronize(device)
        taken = time.perf_counter() - begin
        assert (x == PIECES).all()
        return taken

    here, there = torch.zeros(16), torch.zeros(16, device=device)
    seconds(there)

    assert ever(lambda: seconds(there) < MOST * seconds(here))
