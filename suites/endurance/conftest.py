"""Counters of memory errors around each case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

#: Counters whose growth fails the case. Corrected errors are only recorded.
_HARMFUL = (
    "uncorrected ECC errors",
    "rows remapped after uncorrected errors",
    "pending remappings",
    "failed remappings",
)


@pytest.fixture(autouse=True)
def unharmed(device: Any, record_property: Callable[[str, object], None]) -> Iterator[None]:
    """Fail the case if the device counts an uncorrected error or remaps a row; record the counters that grew."""
    from ..gpu_readings import error_counters

    before = error_counters(device)
    yield
    after = error_counters(device)
    grown = {name: after[name] - before[name] for name in after if after[name] > before.get(name, 0)}
    for name, more in grown.items():
        record_property(f"endurance.{name}", more)
    harm = ", ".join(f"{more} more {name}" for name, more in grown.items() if name in _HARMFUL)
    if harm:
        pytest.fail(f"during the case the device counted {harm}")
