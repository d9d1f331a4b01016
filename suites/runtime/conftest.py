"""The runtime as a fixture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

    from .cudart import Runtime


@pytest.fixture
def cuda() -> Iterator[Runtime]:
    """The CUDA runtime of this process. What a case gets of it is given back after the case, and no error is left."""
    from .cudart import Runtime  # here, since supervisors import this file and must not import torch

    runtime = Runtime.of_torch()
    yield runtime
    runtime.code("cudaGetLastError")  # torch would raise at its next launch what a query has left


@pytest.fixture
def in_use(device: torch.device) -> None:
    """The device has its context, so that a case does not pay for it."""
    import torch  # here, for the same reason

    torch.empty(1, device=device)
    torch.cuda.synchronize(device)
