"""The leak check of torch's own tests: it sees what stays, and hides no error of the code that it looks at."""

from __future__ import annotations

import pytest
import torch

from ._torch_private import leak_check

pytestmark = [pytest.mark.requires(device="cuda"), pytest.mark.timeout(300)]

#: Large enough that the driver's figure moves too, which the check wants before it raises.
SIZE = 64 << 20


class OwnError(Exception):
    """What the code under the check raises."""


@pytest.mark.covers("test_cuda::TestCuda::test_cuda_memory_leak_detection_propagates_errors")
@pytest.mark.parametrize("leaks", [False, True], ids=["clean", "leaky"])
def test_leak_check_passes_an_exception_through(device: torch.device, leaks: bool) -> None:
    """Contract: what is raised under the check comes out of it as it is, the same object, leak or no leak."""
    kept = []
    error = OwnError("as it was")

    def fail() -> None:
        with leak_check("case"):
            if leaks:
                kept.append(torch.ones(SIZE, dtype=torch.uint8, device=device))
            raise error

    with pytest.raises(OwnError) as caught:
        fail()

    assert caught.value is error
    kept.clear()


@pytest.mark.covers("test_cuda::TestCuda::test_cuda_memory_leak_detection_propagates_errors")
def test_leak_check_passes_an_error_of_torch_through(device: torch.device) -> None:
    """Contract: so does an error of torch's: operands whose sizes do not match are told as such, not as a leak."""
    x, y = torch.randn(3, 1, device=device), torch.randn(2, 1, device=device)

    def fail() -> None:
        with leak_check("case"):
            x + y

    with pytest.raises(RuntimeError, match="size of tensor a"):
        fail()


def test_leak_check_reports_a_tensor_that_stays(device: torch.device) -> None:
    """Contract, and the control of the cases above: a tensor that stays is a RuntimeError that names the case, where
    the driver's figure confirms it."""
    kept = []

    def leave() -> None:
        with leak_check("the_leaky_case"):
            kept.append(torch.ones(SIZE, dtype=torch.uint8, device=device))

    with pytest.raises(RuntimeError, match="the_leaky_case"):
        leave()
    kept.clear()


def test_leak_check_ignores_memory_that_is_freed(device: torch.device) -> None:
    """Contract: memory that is freed under the check, even if it stays cached, is no leak."""
    with leak_check("case"):
        x = torch.ones(SIZE, dtype=torch.uint8, device=device)
        del x
