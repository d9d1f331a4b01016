"""The order in which tests are given out, and the end of what they share."""

from __future__ import annotations

import pytest

from tests.warm import client

#: Files with a test, or a set-up, of half a minute and more.
LONGEST = ("tests/softdevice/test_core.py", "tests/softdevice/test_build.py", "tests/acceptance/test_bisect.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no worker is left with one when the others have nothing to do any more."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_sessionfinish() -> None:
    client.close()
