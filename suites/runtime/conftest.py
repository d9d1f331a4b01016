"""The CUDA runtime as a fixture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

    from .cudart import Runtime


@pytest.fixture
def cuda() -> Iterator[Runtime]:
    """Yield the CUDA runtime of this process. A case's allocations are freed after it, and no error remains."""
    from .cudart import Runtime  # imported here, because supervisors import this file and must not import torch

    runtime = Runtime.of_torch()
    yield runtime
    runtime.code("cudaGetLastError")  # otherwise torch would raise a query's error at its next launch


@pytest.fixture
def in_use(device: torch.device) -> None:
    """Initialize the device's context before the case."""
    import torch  # imported here for the same reason

    torch.empty(1, device=device)
    torch.cuda.synchronize(device)
