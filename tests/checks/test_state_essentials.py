"""State that an executor itself needs, before and after a case."""

from __future__ import annotations

import faulthandler
import io
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from harness.checks.state.essentials import DUMP_LATER, essential_settings
from harness.checks.state.guard import StateGuard
from harness.checks.state.section import SettingsSection


@contextmanager
def moved(folder: Path, descriptor: int) -> Iterator[None]:  # noqa: ARG001
    before = os.getcwd()
    os.chdir(folder)
    yield
    os.chdir(before)


@contextmanager
def limited(folder: Path, descriptor: int) -> Iterator[None]:  # noqa: ARG001
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0 if soft else min(4096, hard) if hard >= 0 else 4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


@contextmanager
def timed(folder: Path, descriptor: int) -> Iterator[None]:  # noqa: ARG001
    signal.setitimer(signal.ITIMER_REAL, 1000)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def dumped(folder: Path, descriptor: int) -> Iterator[None]:  # noqa: ARG001
    faulthandler.dump_traceback_later(1000)
    yield
    faulthandler.cancel_dump_traceback_later()


@contextmanager
def other_stream(folder: Path, descriptor: int) -> Iterator[None]:  # noqa: ARG001
    before, sys.stdin = sys.stdin, io.StringIO()
    yield
    sys.stdin = before


@contextmanager
def other_file(folder: Path, descriptor: int) -> Iterator[None]:  # noqa: ARG001
    kept = os.dup(descriptor)
    os.close(descriptor)
    yield
    os.dup2(kept, descriptor)
    os.close(kept)


@contextmanager
def no_folder(folder: Path, descriptor: int) -> Iterator[None]:  # noqa: ARG001
    (folder / "temp").rename(folder / "elsewhere")
    yield
    (folder / "elsewhere").rename(folder / "temp")


@pytest.fixture
def guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StateGuard, int]]:
    for name in ("dump_traceback_later", "cancel_dump_traceback_later"):
        monkeypatch.setattr(faulthandler, name, getattr(faulthandler, name))  # restored after the test
    DUMP_LATER.install()
    (tmp_path / "temp").mkdir()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    guard = StateGuard()
    rows = essential_settings([descriptor], str(tmp_path / "temp"))
    guard.extend(SettingsSection(lambda: rows), alone=True)
    guard.capture()
    yield guard, descriptor
    os.close(descriptor)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (moved, "did not restore the working folder (now "),
        (limited, "did not restore RLIMIT_CORE (now ["),
        (timed, "did not restore the timer that sends SIGALRM (now 'pending', was 'none')"),
        (dumped, "did not restore the dump of faulthandler.dump_traceback_later() (now 'pending', was 'none')"),
        (other_stream, "did not restore sys.stdin (now a _io.StringIO, was "),
        (other_file, ", which belongs to the process (now 'closed', was 'inode "),
        (no_folder, "did not restore the folder for temporary files (now 'removed', was 'inode "),
    ],
)
def test_a_real_change_of_each_kind_is_seen(
    guard: tuple[StateGuard, int],
    tmp_path: Path,
    change: Callable[[Path, int], AbstractContextManager[None]],
    text: str,
) -> None:
    state, descriptor = guard
    assert state.compare() == []
    with change(tmp_path, descriptor):
        (problem,) = state.compare()
        assert text in problem.text
        state.capture()
    assert [problem.text for problem in state.compare() if "timer" in text or "dump" in text] == []


def test_timers_are_stopped_when_the_state_is_restored(guard: tuple[StateGuard, int]) -> None:
    state, _ = guard
    signal.setitimer(signal.ITIMER_REAL, 1000)
    faulthandler.dump_traceback_later(1000)
    assert len(state.compare()) == 2
    assert state.restore() == []
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert not DUMP_LATER.is_pending
