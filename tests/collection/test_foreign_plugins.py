"""Which plugins need real items."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from harness.collection import foreign_plugins


def _module(name: str, file: str | None, *hooks: str) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__file__ = file
    for hook in hooks:
        setattr(made, hook, types.FunctionType((lambda: None).__code__, {}, hook))
    return made


class OfAnotherPackage:
    """A plugin object."""

    def pytest_itemcollected(self) -> None:
        """Use an item."""


@pytest.mark.parametrize(
    ("plugin", "reasons"),
    [
        (
            _module(
                "suites.conftest", "/x/suites/conftest.py", "pytest_collection_modifyitems", "pytest_itemcollected"
            ),
            ["suites/conftest.py implements pytest_itemcollected, pytest_collection_modifyitems"],
        ),
        (
            _module("foreign.plugin", "/lib/foreign/plugin.py", "pytest_runtest_protocol"),
            ["the plugin foreign.plugin implements pytest_runtest_protocol"],
        ),
        (OfAnotherPackage(), [f"the plugin {__name__} implements pytest_itemcollected"]),
        (_module("conftest", "/x/conftest.py", "pytest_runtest_setup", "pytest_generate_tests"), []),
        (_module("_hypothesis_pytestplugin", None, "pytest_collection_modifyitems"), []),
        (_module("xdist.plugin", None, "pytest_collection_modifyitems"), []),
        (_module("__channelexec__", None, "pytest_collection_modifyitems"), []),
    ],
)
def test_reasons(plugin: object, reasons: list[str]) -> None:
    manager = pytest.PytestPluginManager()
    for own in list(manager.get_plugins()):
        manager.unregister(own)
    manager.register(plugin)
    assert foreign_plugins.plugins_that_need_items(manager, Path("/x")) == reasons


def test_every_hook_exists() -> None:
    manager = pytest.PytestPluginManager()
    assert all(hasattr(manager.hook, hook) for hook in foreign_plugins.ITEM_HOOKS)


def test_the_sentence_names_all_reasons() -> None:
    text = foreign_plugins.collects_itself_text(["isolation is none", "conftest.py implements pytest_itemcollected"])
    assert text.startswith("each pytest process imports and collects the tests itself, since isolation is none; conf")
