"""Tells a `StateGuard` when fixtures of a scope wider than a case's are set up and torn down."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from harness.checks.state import StateGuard


class FixtureWatch:
    """A pytest plugin, to be registered before the fork: registering costs 1 ms.

    pytest runs set-up functions and methods of modules and classes, and those of `unittest`, as such fixtures too.
    """

    def __init__(self, guard: StateGuard) -> None:
        self._guard = guard

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        with self._guard.setting_up(fixturedef, f"the {fixturedef.scope} fixture {fixturedef.argname!r}"):
            return (yield)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        self._guard.finished(fixturedef)
