"""Framework and process state that a case must leave as it found it.

A `StateGuard` reads the state after each case and compares it with what was read before. What is read is in the other
modules of this folder, a section each. Whether a change is anybody's fault is decided there; whose it is, here.

Fixtures of a scope wider than a case's may hold state while several cases run. What changed while such a fixture was
set up is its own, and the state that the cases are held to; when it is torn down the old state must be back.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from harness.checks.process import Problem
from harness.checks.state.config import Configurations
from harness.checks.state.devices import cuda_settings, soft_settings
from harness.checks.state.interpreter import (
    Environment,
    LogHandlers,
    SignalHandlers,
    WarningFilters,
    asyncio_settings,
    decimal_settings,
    process_settings,
)
from harness.checks.state.names import Modules, Namespaces
from harness.checks.state.section import Change, Held, Section, Settings, Values, alike, describe, same
from harness.checks.state.torch_settings import (
    Registrations,
    compiler_settings,
    numpy_settings,
    torch_settings,
)
from harness.outcome import Outcome


class StateGuard:
    """Compares the state of this process, and of the libraries in it, before and after a case.

    Reading imports nothing, wakes no device and starts no thread, so that `capture` may be called before a fork: what
    it copied is then shared by every child. One guard, one thread: settings of a thread are those of the caller's.
    """

    def __init__(self) -> None:
        self._modules = Modules()
        self._sections: Sequence[Section] = (
            self._modules,
            Settings(process_settings),
            Settings(decimal_settings),
            Settings(asyncio_settings),
            SignalHandlers(),
            Environment(),
            WarningFilters(),
            LogHandlers(),
            Namespaces(),
            Settings(numpy_settings),
            Settings(torch_settings),
            Settings(compiler_settings),
            Settings(cuda_settings),
            Settings(soft_settings),
            Registrations(),
            Configurations(),
        )
        #: Sections, by position, that cannot be read on this machine, and why.
        self.blind: dict[int, str] = {}
        self._before: list[Values] = []
        self._found: list[tuple[int, Change]] = []
        self._told: list[str] = []
        self._held: dict[Hashable, Held] = {}
        #: Owners that are being set up, outermost first, and the state at the last time that changed hands.
        self._busy: list[Held] = []
        self._boundary: list[Values] = []
        self._serial = 0

    def capture(self) -> None:
        """Take the state as it is for the one that the next case has to leave behind."""
        self._before = self._read()
        self._found = []

    def compare(self) -> list[Problem]:
        """What is not as it was at the last `capture` or `compare`, with new and old value; none is the rule.

        The state as it is now becomes the one that the next case is held to. Raises RuntimeError before a `capture`.
        """
        if not self._before:
            raise RuntimeError("there is no state to compare with: call capture() first")
        try:
            after = self._read()
            self._found = self._changes(self._before, after)
        except Exception as error:  # noqa: BLE001 - the case may have replaced anything, the built-ins included
            return [Problem(Outcome.CONTAMINATED, f"left a process whose state cannot be read: {error!r}")]
        self._before = after
        texts = self._told + [describe(change) for _, change in self._found]
        self._told = []
        return [Problem(Outcome.CONTAMINATED, text) for text in texts]

    def restore(self) -> list[str]:
        """Put back what the last `compare` found, where that is safe; returns what is still not as it was.

        For a process that is to say more before it ends, not to go on with: nobody knows what else was changed.
        """
        for position, change in reversed(self._found):
            self._put_back(position, change)
        self._before = self._read()
        left = [
            f"could not put back {change.name}"
            for position, change in self._found
            if not same(self._sections[position].value(self._before[position], change.name), change.old)
        ]
        self._found = []
        return left

    @contextmanager
    def setting_up(self, owner: Hashable, label: str) -> Iterator[None]:
        """Around the set-up of a fixture of a scope wider than a case's: what changes inside is the owner's to hold.

        `label` names it in texts. May be nested. Nothing is held before the first `capture`.
        """
        if not self._before:
            yield
            return
        self._hand_over()
        held = self._held[owner] = Held(label)
        self._busy.append(held)
        try:
            yield
        finally:
            self._hand_over()
            self._busy.pop()

    def finished(self, owner: Hashable) -> None:
        """After the tear-down of a fixture: what it held must be as it was before its set-up, and is told otherwise.

        Costs nothing for an owner that holds nothing. The problems are among those of the next `compare`.
        """
        held = self._held.pop(owner, None)
        if held is None or not held.changes:
            return
        now = self._read()
        scene = self._modules.scene(self._before[0], now[0])
        for key, (serial, change) in held.changes.items():
            position, name = key
            section = self._sections[position]
            on_top = [other for other in self._held.values() if key in other.changes and other.changes[key][0] > serial]
            if on_top:
                # Changed again by one that is still there: it is the one to bring the old value back.
                first = min(on_top, key=lambda other: other.changes[key][0])
                later_serial, later = first.changes[key]
                first.changes[key] = later_serial, Change(name, change.old, later.new)
                continue
            value = section.value(now[position], name)
            expected, found = section.expecting({}, name, change.old), section.expecting({}, name, value)
            if section.changes(expected, found, scene):
                left = Change(name, change.old, value)
                self._told.append(f"{held.label} {describe(left)}")
                self._put_back(position, left)
            self._before[position] = section.expecting(self._before[position], name, change.old)

    def _hand_over(self) -> None:
        """Give what changed since the last boundary to the owner that is being set up, if any."""
        now = self._read()
        if self._busy:
            for position, change in self._changes(self._boundary, now):
                if self._sections[position].undone_by_pytest:
                    continue
                key = position, change.name
                mine = self._busy[-1].changes
                if key in mine:
                    serial, first = mine[key]
                    mine[key] = serial, Change(change.name, first.old, change.new)
                else:
                    self._serial += 1
                    mine[key] = self._serial, change
                section = self._sections[position]
                self._before[position] = section.expecting(self._before[position], change.name, change.new)
        self._boundary = now

    def _read(self) -> list[Values]:
        return [self._reading(position, section) for position, section in enumerate(self._sections)]

    def _reading(self, position: int, section: Section) -> Values:
        if position in self.blind:
            return {}
        try:
            return section.read()
        except Exception as error:  # noqa: BLE001
            # A torch that is not as this was written for is no case's doing: better blind in one eye, and said, than
            # every case to blame.
            self.blind[position] = f"{type(section).__name__}: {error!r}"
            return {}

    def _changes(self, before: Sequence[Values], after: Sequence[Values]) -> list[tuple[int, Change]]:
        scene = self._modules.scene(before[0], after[0])
        return [
            (position, change)
            for position, section in enumerate(self._sections)
            if position not in self.blind and not alike(before[position], after[position])
            for change in section.changes(before[position], after[position], scene)
        ]

    def _put_back(self, position: int, change: Change) -> None:
        try:
            self._sections[position].put_back(change)
        except (RuntimeError, AttributeError, TypeError, ValueError, KeyError, OSError):
            return  # the next reading shows that it is not as it was


class FixtureWatch:
    """A pytest plugin that tells a `StateGuard` when fixtures of a wider scope than a case's are set up and torn down.

    It is registered before the fork, since registering costs 1 ms.

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
