"""Settings and random numbers for all cases of this suite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import numpy as np
    import torch


@pytest.fixture(autouse=True)
def ieee(device: torch.device) -> Iterator[None]:
    """Disable TF32 on a GPU, so that float32 products, convolutions and recurrent networks use float32."""
    if device.type != "cuda":
        yield
        return
    import torch

    switches = torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee"
    yield
    for switch, value in zip(switches, before, strict=True):
        switch.fp32_precision = value


@pytest.fixture
def rng(case_seed: int) -> np.random.Generator:
    """Return NumPy's generator, seeded for the case."""
    import numpy as np  # imported here, because supervisors import this file and need neither NumPy nor torch

    return np.random.default_rng(case_seed)
