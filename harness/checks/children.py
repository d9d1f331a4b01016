"""Child processes that a case or a fixture has started and left running."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from os import getpid  # imported by name: a case may have replaced the attribute of the module

from harness.checks import process
from harness.checks.live_fixtures import FixtureProblem, LiveFixture
from harness.core import linux
from harness.core.outcome import Outcome
from harness.protocol.endings import StateProblem


class ChildWatch:
    """Finds the processes that a case or a fixture has left running. One system call if there are none.

    A process that appears during the set-up of a fixture belongs to the fixture. One that appears later, while fixtures
    are set up, may belong to one of them, as that of a pool that starts its workers when they are needed. It is judged
    when the last of these fixtures ends; until then, the meter of child processes decides whether the case leaks one
    each time it runs.
    """

    def __init__(self, live: Callable[[], Collection[LiveFixture]]) -> None:
        """`live` returns the fixtures that are set up. The present children, for example of a device, may stay."""
        self._live = live
        self._known = set(_children())
        #: By process id, the fixtures that are set up and may have started it.
        self._held: dict[int, set[LiveFixture]] = {}
        #: By process id, the fixture with whose end it should have ended.
        self._overdue: dict[int, LiveFixture] = {}

    @contextmanager
    def setting_up(self, fixture: LiveFixture) -> Iterator[None]:
        """Wrap the set-up of a fixture: the processes that appear inside belong to it, or to a fixture inside."""
        before = set(_children())
        try:
            yield
        finally:
            for pid in {*_children()} - before - self._held.keys():
                self._held[pid] = {fixture}

    def finished(self, fixture: LiveFixture) -> None:
        """Expect the processes of a fixture to have ended."""
        for pid, owners in [*self._held.items()]:
            owners.discard(fixture)
            if not owners:
                del self._held[pid]
                self._overdue[pid] = fixture

    def check(self) -> tuple[list[StateProblem], list[FixtureProblem]]:
        """Return the processes that the case has left running, and those that fixtures have left when they ended."""
        now = set(_children())
        overdue, self._overdue = self._overdue, {}
        problems = [
            FixtureProblem(fixture, StateProblem(Outcome.LEAKED, f"{fixture.label} {text}"))
            for pid, fixture in sorted(overdue.items())
            if pid in now and (text := _leftover(pid)) is not None
        ]
        self._held = {pid: owners for pid, owners in self._held.items() if pid in now}
        new = sorted(now - self._known - self._held.keys() - overdue.keys())
        self._known = now
        if new and (live := self._live()):
            self._held.update((pid, {*live}) for pid in new)
            new = []
        process.wait_for_exec(new, linux.has_not_called_exec, process.ExecPatience(process.START_PATIENCE))
        texts = [_leftover(pid) for pid in new]
        return [StateProblem(Outcome.LEAKED, text) for text in texts if text is not None], problems


def _children() -> list[int]:
    return linux.child_pids() if linux.has_children() else []


def _leftover(pid: int) -> str | None:
    _, own = linux.describe_process(getpid()) or ("", "")
    text = process.describe_leftover(linux.describe_process(pid), pid, own)
    return None if text is None else f"left a child process running: {text}"
