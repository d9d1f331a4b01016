"""What the ``pytest11`` entry point loads: it brings in the plugin proper, unless ``-p harness.plugin`` did already."""

from __future__ import annotations

import pytest

from harness import plugin

NAME = "harness-core"


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the plugin early enough for its options; loading the same module twice is an error to pluggy."""
    if not pluginmanager.is_registered(plugin):
        pluginmanager.register(plugin, NAME)
