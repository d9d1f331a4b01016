"""The values of each operator, for each group of types, are those of a reference that calls no kernel of torch."""

from __future__ import annotations

import pytest
import torch

from . import case, draws, oracles
from .catalogue import by_group

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch says about deprecation and experiments is not under test


@by_group("values", quick=("float",))
def test_values(name: str, group: str, device: torch.device) -> None:
    """An operator's results have the values that its definition gives, but for rounding (torch, its documentation).

    Which oracle says so is in `oracles.py`, how much rounding is allowed in `tolerances.py`.
    """
    if oracles.kind(name) == oracles.STATISTICS:
        _, kinds = case.types_to_try(name, group, device)
        for dtype in kinds:
            draws.verify(name, dtype, device)
        return
    for info, sample, _ in case.spread(name, group, device, 6):
        oracles.verify(name, info, sample, device)
