"""The ``pytest11`` entry point. It registers the plugin, unless ``-p harness.plugin`` has already done so."""

from __future__ import annotations

import pytest

from harness import _compat

NAME = "harness-core"


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the plugin in time for its options. Pluggy raises an error if a module is registered twice."""
    _compat.import_without_rewriting(pluginmanager, "harness")
    from harness import plugin

    if not pluginmanager.is_registered(plugin):
        pluginmanager.register(plugin, NAME)
