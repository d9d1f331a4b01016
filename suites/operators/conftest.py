"""Random numbers for all cases of this suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import numpy as np


@pytest.fixture
def rng(case_seed: int) -> np.random.Generator:
    """Return NumPy's generator, seeded for the case."""
    import numpy as np  # imported here, because supervisors import this file and do not need NumPy

    return np.random.default_rng(case_seed)
