"""All cases of this suite capture backward passes, of which torch keeps something."""

from __future__ import annotations

import pytest

from suites.compiled import KEEPS


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.keeps(KEEPS))
