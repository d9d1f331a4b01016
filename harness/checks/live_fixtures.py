"""Fixtures of a wider scope than a case: what they hold while they are set up belongs to them, and not to a case.

A fixture may change state, start processes and threads, and open files for several cases. Each check of cases is also a
`FixtureHolder`: it assigns to the fixture what appears during its set-up, and judges it once, when the fixture ends.
"""

from __future__ import annotations

import contextlib
import re
import unittest
from collections.abc import Container, Generator, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from harness.protocol.endings import StateProblem


@dataclass(frozen=True, slots=True, eq=False)
class LiveFixture:
    """A fixture that is set up, or has just ended. `of_pytest`: it belongs to pytest itself, such as a folder."""

    name: str
    scope: str
    of_pytest: bool = False

    @property
    def label(self) -> str:
        """The fixture in a message: ``the module fixture 'server'``, ``setUpClass of TestPool``."""
        match = _SET_UP.match(self.name)
        return f"{match[1]} of {self.name[match.end() :]}" if match else f"the {self.scope} fixture {self.name!r}"


#: The names of the fixtures with which pytest runs the set-up functions of modules and classes.
_SET_UP = re.compile(r"_(?:xunit|unittest)_(setup_module|setup_class|setUpClass)_fixture_")


@dataclass(frozen=True, slots=True)
class FixtureProblem:
    """Something that a fixture left behind when it ended."""

    fixture: LiveFixture
    problem: StateProblem


class FixtureHolder(Protocol):
    """A check that tells fixtures from cases."""

    def setting_up(self, fixture: LiveFixture) -> AbstractContextManager[None]:
        """Wrap the set-up of a fixture: what appears inside belongs to the fixture. May be nested."""

    def finished(self, fixture: LiveFixture) -> None:
        """Judge the fixture, which has been torn down."""


class FixtureWatch:
    """A pytest plugin that notifies checks when fixtures of a wider scope than a case are set up and torn down.

    The plugin is registered before the fork, since registering costs 1 ms. pytest also runs the set-up functions and
    methods of modules, classes and `unittest` as such fixtures.
    """

    def __init__(self, *holders: FixtureHolder) -> None:
        self.holders = [*holders]
        self._live: dict[pytest.FixtureDef[Any], LiveFixture] = {}

    @property
    def live(self) -> list[LiveFixture]:
        """The fixtures that are set up, without those of pytest itself."""
        return [fixture for fixture in self._live.values() if not fixture.of_pytest]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        owner = request.cls if fixturedef.scope == "class" else None
        fixture = LiveFixture(fixturedef.argname, fixturedef.scope, of_pytest=_is_of_pytest(fixturedef, owner))
        self._live[fixturedef] = fixture
        with contextlib.ExitStack() as contexts:
            for holder in self.holders:
                contexts.enter_context(holder.setting_up(fixture))
            return (yield)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        fixture = self._live.pop(fixturedef, None)
        if fixture is not None:
            for holder in self.holders:
                holder.finished(fixture)


def _is_of_pytest(definition: pytest.FixtureDef[Any], owner: type | None) -> bool:
    """Return whether a fixture runs no code of the project.

    It is one of pytest's own, or runs the `setUpClass` of a class of `unittest` that has none.
    """
    if _SET_UP.match(definition.argname):
        set_up = getattr(owner, "setUpClass", None) if definition.argname.startswith("_unittest_") else None
        return getattr(set_up, "__func__", None) is unittest.TestCase.setUpClass.__func__  # type: ignore[attr-defined]
    return (getattr(definition.func, "__module__", None) or "").startswith("_pytest.")


def split_by_use(
    problems: Iterable[FixtureProblem], used: Container[str]
) -> tuple[list[StateProblem], list[StateProblem]]:
    """Return the problems of fixtures that the case uses, by name, and those of the others.

    A fixture ends with the last case of its scope, which need not use it.
    """
    own: list[StateProblem] = []
    others: list[StateProblem] = []
    for entry in problems:
        (own if entry.fixture.name in used else others).append(entry.problem)
    return own, others
