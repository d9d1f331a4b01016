"""Compares the state of the process before and after a case.

What a fixture of a wider scope holds while it is set up belongs to it, and not to a case.

A fixture may change state, start processes and threads, and open files for several cases. Each check of cases is also a
`FixtureHolder`: it assigns to the fixture what appears during its set-up, and judges it once, when the fixture ends.
"""

from __future__ import annotations

import contextlib
import re
import unittest
from collections.abc import Container, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from harness.checks.state.devices import accelerator_settings, cuda_settings
from harness.checks.state.interpreter import (
    Environment,
    LogHandlers,
    SignalHandlers,
    WarningFilters,
    asyncio_settings,
    decimal_settings,
    process_settings,
)
from harness.checks.state.kernel import KernelStatus, attribute_settings, kernel_settings
from harness.checks.state.names import ModulesSection, NamespacesSection, TorchConfigModules
from harness.checks.state.section import (
    FixtureChanges,
    SectionValues,
    SettingsSection,
    StateChange,
    StateSection,
    are_values_equal,
    describe_change,
)
from harness.checks.state.torch_settings import (
    OperatorRegistrations,
    compiler_settings,
    numpy_settings,
    torch_settings,
)
from harness.core.outcome import Outcome
from harness.core.plain_values import safe_repr
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


class StateGuard:
    """Compares the state of this process and of its libraries before and after a case.

    Reading imports nothing, initialises no device and starts no thread. Therefore `capture` may be called before a
    fork: then all children share its copies. Use one guard in one thread: settings of a thread are those of the calling
    thread.
    """

    def __init__(self) -> None:
        self._modules = ModulesSection()
        self._sections: Sequence[StateSection] = (
            self._modules,
            SettingsSection(process_settings),
            SettingsSection(kernel_settings),
            KernelStatus(),
            SettingsSection(attribute_settings),
            SettingsSection(decimal_settings),
            SettingsSection(asyncio_settings),
            SignalHandlers(),
            Environment(),
            WarningFilters(),
            LogHandlers(),
            NamespacesSection(),
            SettingsSection(numpy_settings),
            SettingsSection(torch_settings),
            SettingsSection(compiler_settings),
            SettingsSection(cuda_settings),
            SettingsSection(accelerator_settings),
            OperatorRegistrations(),
            TorchConfigModules(),
        )
        #: By position, why a section cannot be read on this machine.
        self.unreadable: dict[int, str] = {}
        self._before: list[SectionValues] = []
        #: The state before the first case.
        self._first: list[SectionValues] = []
        self._state_changes: list[tuple[int, StateChange]] = []
        self._fixture_problems: list[FixtureProblem] = []
        self._held: dict[LiveFixture, FixtureChanges] = {}
        #: Fixtures whose set-up is running, outermost first.
        self._in_setup: list[FixtureChanges] = []
        #: The state when such a set-up last began or ended.
        self._boundary: list[SectionValues] = []
        self._serial = 0

    def extend(self, section: StateSection, *, alone: bool = False) -> None:
        """Compare another section as well, or, with `alone`, only this one. Call `capture` afterwards."""
        self._sections = (section,) if alone else (*self._sections, section)
        if alone:
            self.unreadable = {}

    def capture(self) -> None:
        """Take the present state as the state that the next case must not change."""
        self._before = self._first = self._read()
        self._state_changes = []

    def compare(self) -> list[StateProblem]:
        """Return the changes since the last `capture` or `compare`, with new and old value. Usually there are none.

        The next case is compared with the present state. Raise RuntimeError before a `capture`.
        """
        if not self._before:
            raise RuntimeError("there is no state to compare with: call capture() first")
        try:
            after = self._read()
            self._state_changes = self._changes(self._before, after)
        except Exception as error:  # noqa: BLE001 - the case may have replaced anything, the built-ins included
            return [
                StateProblem(
                    Outcome.CONTAMINATED, f"changed the process so that its state cannot be read: {safe_repr(error)}"
                )
            ]
        self._before = after
        return [StateProblem(Outcome.CONTAMINATED, describe_change(change)) for _, change in self._state_changes]

    def take_fixture_problems(self) -> list[FixtureProblem]:
        """Return, once, the state that fixtures have left changed when they ended."""
        problems, self._fixture_problems = self._fixture_problems, []
        return problems

    def restore(self) -> list[str]:
        """Restore the changes that the last `compare` found, where that is safe.

        Return those that could not be restored.

        This is for a process that must still report before it ends. Run no more cases in it: more state may have
        changed.
        """
        for position, change in reversed(self._state_changes):
            self._undo(position, change)
        self._before = self._read()
        left = [
            f"could not restore {change.name}"
            for position, change in self._state_changes
            if not are_values_equal(self._sections[position].value(self._before[position], change.name), change.old)
        ]
        self._state_changes = []
        return left

    @contextmanager
    def setting_up(self, fixture: LiveFixture) -> Iterator[None]:
        """Wrap the set-up of a fixture: changes inside belong to it. Before the first `capture` nothing is recorded."""
        if not self._before:
            yield
            return
        self._assign_changes()
        held = self._held[fixture] = FixtureChanges()
        self._in_setup.append(held)
        try:
            yield
        finally:
            self._assign_changes()
            self._in_setup.pop()

    def finished(self, fixture: LiveFixture) -> None:
        """Check after the tear-down of a fixture that the changes of its set-up are restored.

        This is free for a fixture that changed nothing. `take_fixture_problems` returns the result.
        """
        held = self._held.pop(fixture, None)
        if held is None or not held.changes:
            return
        now = self._read()
        imported = self._imported(self._before, now)
        for key, (serial, change) in held.changes.items():
            position, name = key
            section = self._sections[position]
            later_owners = [
                other for other in self._held.values() if key in other.changes and other.changes[key][0] > serial
            ]
            if later_owners:
                # Another fixture, which is still set up, changed the value again: that fixture must restore the old
                # value.
                first = min(later_owners, key=lambda other: other.changes[key][0])
                later_serial, later = first.changes[key]
                first.changes[key] = later_serial, StateChange(name, change.old, later.new)
                continue
            value = section.value(now[position], name)
            expected, actual = section.expecting({}, name, change.old), section.expecting({}, name, value)
            if section.changes(expected, actual, imported):
                left = StateChange(name, change.old, value)
                text = f"{fixture.label} {describe_change(left)}"
                self._fixture_problems.append(FixtureProblem(fixture, StateProblem(Outcome.CONTAMINATED, text)))
                self._undo(position, left)
            self._before[position] = section.expecting(self._before[position], name, change.old)

    def _assign_changes(self) -> None:
        """Assign the changes since the last boundary to the fixture whose set-up is running, if any."""
        now = self._read()
        if self._in_setup:
            for position, change in self._changes(self._boundary, now):
                if self._sections[position].restored_by_pytest:
                    continue
                key = position, change.name
                mine = self._in_setup[-1].changes
                if key in mine:
                    serial, first = mine[key]
                    mine[key] = serial, StateChange(change.name, first.old, change.new)
                else:
                    self._serial += 1
                    mine[key] = self._serial, change
                section = self._sections[position]
                self._before[position] = section.expecting(self._before[position], change.name, change.new)
        self._boundary = now

    def _read(self) -> list[SectionValues]:
        if not self.unreadable:
            with contextlib.suppress(Exception):  # each section is read by itself below
                return [section.read() for section in self._sections]
        return [self._reading(position, section) for position, section in enumerate(self._sections)]

    def _reading(self, position: int, section: StateSection) -> SectionValues:
        if position in self.unreadable:
            return {}
        try:
            return section.read()
        except Exception as error:  # noqa: BLE001
            # This release of torch may differ from the supported ones. The case is not the cause: leave the section out
            # and say so, instead of blaming every case.
            self.unreadable[position] = f"{type(section).__name__}: {error!r}"
            return {}

    def _changes(
        self, before: Sequence[SectionValues], after: Sequence[SectionValues]
    ) -> list[tuple[int, StateChange]]:
        changed = [
            position
            for position, (was, now) in enumerate(zip(before, after, strict=True))
            if was is not now and position not in self.unreadable and not are_values_equal(was, now)
        ]
        if not changed:
            return []
        imported = self._imported(before, after)
        return [
            (position, change)
            for position in changed
            for change in self._sections[position].changes(before[position], after[position], imported)
            if not self._is_back(position, change)
        ]

    def _is_back(self, position: int, change: StateChange) -> bool:
        """Return whether the new value is the one before the first case, and no fixture holds another one.

        The change away from it was ignored, for example since a library has chosen a default at its first use.
        """
        key = position, change.name
        if any(key in held.changes for held in self._held.values()):
            return False
        return are_values_equal(self._sections[position].value(self._first[position], change.name), change.new)

    def _imported(self, before: Sequence[SectionValues], after: Sequence[SectionValues]) -> frozenset[str]:
        return self._modules.imported(before[0], after[0]) if self._sections[0] is self._modules else frozenset()

    def _undo(self, position: int, change: StateChange) -> None:
        try:
            self._sections[position].restore(change)
        except (RuntimeError, AttributeError, TypeError, ValueError, KeyError, OSError):
            return  # the next reading shows that the state is not restored
