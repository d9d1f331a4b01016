"""The fixtures for measurements of speed in this suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .measuring import Speed


@pytest.fixture
def speed(device: Any, full: bool, floors: Any, record_property: Callable[[str, object], None]) -> Speed:
    from .measuring import Speed

    return Speed(device, full, floors, record_property)
