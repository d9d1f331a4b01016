"""Says what is missing if pytest runs the suites without the harness."""

from __future__ import annotations

import sys

import pytest


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Raise pytest.UsageError before pytest refuses the harness's options, marks and ini values as unknown."""
    loaded = pluginmanager.has_plugin("harness") or pluginmanager.has_plugin("harness.plugin")
    if not loaded and not pluginmanager.is_blocked("harness"):
        raise pytest.UsageError(
            f"gpu-conformance-harness is not installed for {sys.executable}: activate the environment that has it, or, "
            "in the folder of the project: pip install -c constraints.txt -e ."
        )
