"""Declares the mark of pytest-dependency."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "dependency: of pytest-dependency")
