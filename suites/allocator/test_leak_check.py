"""The leak check of torch's own tests: it detects leaks and does not mask errors from the checked code."""

from __future__ import annotations

import pytest
import torch

from ._torch_private import leak_check

pytestmark = [pytest.mark.requires(device="cuda"), pytest.mark.timeout(300)]

#: Large enough to change the driver's value too, which the check requires before it raises.
SIZE = 64 << 20


class OwnError(Exception):
    """Raised by the code under the check."""


@pytest.mark.covers("test_cuda::TestCuda::test_cuda_memory_leak_detection_propagates_errors")
@pytest.mark.parametrize("leaks", [False, True], ids=["clean", "leaky"])
def test_leak_check_passes_an_exception_through(device: torch.device, leaks: bool) -> None:
    """An exception raised under the check propagates as the same object, with or without a leak."""
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
    """A torch error, such as mismatched operand sizes, propagates too, and is not reported as a leak."""
    x, y = torch.randn(3, 1, device=device), torch.randn(2, 1, device=device)

    def fail() -> None:
        with leak_check("case"):
            x + y

    with pytest.raises(RuntimeError, match="size of tensor a"):
        fail()


@pytest.mark.serial  # the driver's value includes all processes that use the device
def test_leak_check_reports_a_tensor_that_stays(device: torch.device) -> None:
    """A tensor that stays allocated raises RuntimeError with the case's name, if the driver's figure confirms the leak.

    This is also the control for the cases above.
    """
    kept = []
    # The check empties the cache at its beginning only if memory is allocated, and at its end always: what an earlier
    # case has left in the cache would count for the driver's figure before, and not after.
    torch.cuda.empty_cache()

    def leave() -> None:
        with leak_check("the_leaky_case"):
            kept.append(torch.ones(SIZE, dtype=torch.uint8, device=device))

    with pytest.raises(RuntimeError, match="the_leaky_case"):
        leave()
    kept.clear()


def test_leak_check_ignores_memory_that_is_freed(device: torch.device) -> None:
    """Memory that is freed under the check is no leak, even if it stays cached."""
    with leak_check("case"):
        x = torch.ones(SIZE, dtype=torch.uint8, device=device)
        del x
