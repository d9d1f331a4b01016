"""Cases whose streams use the same memory with and without an order, for the simulated CUDA with --race-check=on."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

EXPECTED = {
    "test_no_wait[1]": "raced: aten::mul reads 4096 bytes that aten::add_ has written, in no order: stream",
    "test_no_wait[2]": "raced: aten::mul reads 4096 bytes that aten::add_ has written, in no order: stream",
    "test_waits": "passed",
    "test_frees_too_early": "raced: aten::zero_ writes 4194304 bytes that aten::sum has read, in no order: the",
    "test_child": "raced: aten::add_ writes 4096 bytes that aten::fill_ has written, in no order: stream",
    "test_two_races": "raced: aten::mul_ writes 4096 bytes that aten::add_ has written, in no order",
    "test_on_purpose": "passed",
    "test_fails_too": "failed: assert (1 + 1) == 3",
    "test_last": "passed",
}

pytestmark = pytest.mark.requires(device="cuda")

_CHILD = """
import torch
x = torch.zeros(1024, device="cuda").fill_(1)
with torch.cuda.stream(torch.cuda.Stream()):
    x.add_(1)
torch.cuda.synchronize()
"""


def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def _miss_a_wait() -> torch.Tensor:
    x = torch.ones(1024, device="cuda")
    side = _stream()
    torch.cuda.synchronize()
    x.add_(1)
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.synchronize()
    return y


@pytest.mark.parametrize("_", [1, 2])
def test_no_wait(_: int) -> None:
    """The second case has its own findings, although its process has reported the same places before."""
    assert _miss_a_wait().shape == (1024,)


def test_waits() -> None:
    x = torch.ones(1024, device="cuda")
    side = _stream()
    x.add_(1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    side.synchronize()
    assert y.sum().item() == 4096


def test_frees_too_early() -> None:
    side = _stream()
    x = torch.ones(1 << 20, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.sum()
    del x
    torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()


def test_child() -> None:
    subprocess.run([sys.executable, "-c", _CHILD], check=True)


def test_two_races() -> None:
    x = torch.ones(1024, device="cuda")
    side = _stream()
    torch.cuda.synchronize()
    x.add_(1)
    with torch.cuda.stream(side):
        x.mul_(2)
    x.sub_(3)
    torch.cuda.synchronize()


@pytest.mark.races("the case is about the values before the wait")
def test_on_purpose() -> None:
    _miss_a_wait()


def test_fails_too() -> None:
    _miss_a_wait()
    assert 1 + 1 == 3


def test_last() -> None:
    assert torch.ones(8, device="cuda").sum().item() == 8
