"""Turns at devices: between threads, which locks on files keep apart as they do processes, and a process that dies."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from harness.scheduling.device_locks import DeviceLocks

PATIENCE = 60.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Taker:
    """Another worker, in a thread: it wants devices, tells `had` once it has them, and keeps them until `let_go`."""

    def __init__(self, folder: Path, devices: list[str], *, enabled: bool = True) -> None:
        self.had, self.let_go = threading.Event(), threading.Event()
        self.waits: list[str] = []
        self._turns = DeviceLocks(folder, enabled=enabled)
        self._devices = devices
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._turns.take(self._devices, waiting=self._waiting)
        self.had.set()
        assert self.let_go.wait(PATIENCE)
        self._turns.give_back()

    @contextlib.contextmanager
    def _waiting(self, device: str) -> Generator[None]:
        self.waits.append(f"for {device}")
        yield
        self.waits.append(f"had {device}")

    def end(self) -> None:
        self.let_go.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def test_who_wants_a_device_waits_for_it_and_is_seen_to(tmp_path: Path) -> None:
    mine = DeviceLocks(tmp_path, enabled=True)
    mine.take(["a"])
    assert not mine.wanted()
    other = Taker(tmp_path, ["a"])
    until(mine.wanted)
    assert not other.had.is_set()
    mine.give_back()
    assert other.had.wait(PATIENCE)
    assert not mine.wanted()
    other.end()


def test_only_who_has_to_wait_says_so(tmp_path: Path) -> None:
    first = Taker(tmp_path, ["a", "b"])
    assert first.had.wait(PATIENCE)
    second = Taker(tmp_path, ["b"])
    until(lambda: bool(second.waits))
    assert second.waits == ["for b"]
    first.end()
    assert second.had.wait(PATIENCE)
    second.end()
    assert (first.waits, second.waits) == ([], ["for b", "had b"])


def test_different_devices_are_had_at_once(tmp_path: Path) -> None:
    mine = DeviceLocks(tmp_path, enabled=True)
    mine.take(["GPU-a/1"])
    other = Taker(tmp_path, ["GPU-a/2"])
    assert other.had.wait(PATIENCE)
    assert not mine.wanted()
    other.end()


def test_who_gives_back_and_wants_again_comes_after_who_waited(tmp_path: Path) -> None:
    mine = DeviceLocks(tmp_path, enabled=True)
    mine.take(["a"])
    other = Taker(tmp_path, ["a"])
    until(mine.wanted)
    mine.give_back()
    again = Taker(tmp_path, ["a"])
    assert other.had.wait(PATIENCE)
    assert not again.had.is_set()
    other.end()
    assert again.had.wait(PATIENCE)
    again.end()


@pytest.mark.parametrize("wanted", [["a"], ["b", "a"], []])
def test_what_is_held_already_is_not_waited_for(tmp_path: Path, wanted: list[str]) -> None:
    mine = DeviceLocks(tmp_path, enabled=True)
    mine.take(["a", "b"])
    other = Taker(tmp_path, ["a"])
    until(mine.wanted)
    again = threading.Thread(target=mine.take, args=[wanted], daemon=True)
    again.start()
    again.join(PATIENCE)
    assert not again.is_alive()
    assert not other.had.is_set()
    mine.give_back()
    assert other.had.wait(PATIENCE)
    other.end()


def test_who_wants_more_than_it_holds_gives_that_back_first(tmp_path: Path) -> None:
    mine = DeviceLocks(tmp_path, enabled=True)
    mine.take(["b"])
    other = Taker(tmp_path, ["a", "b"])
    until(mine.wanted)
    # The other has a and waits for b: to hold b while waiting for a would be for ever.
    third = threading.Thread(target=lambda: mine.take(["b", "a"]), daemon=True)
    third.start()
    assert other.had.wait(PATIENCE)
    other.end()
    third.join(PATIENCE)
    assert not third.is_alive()
    mine.give_back()


def test_opposite_orders_do_not_wait_for_each_other(tmp_path: Path) -> None:
    rounds = 50

    def take(devices: list[str]) -> None:
        turns = DeviceLocks(tmp_path, enabled=True)
        for _ in range(rounds):
            turns.take(devices)
            turns.give_back()

    threads = [threading.Thread(target=take, args=[devices], daemon=True) for devices in (["a", "b"], ["b", "a"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_without_turns_devices_are_shared(tmp_path: Path) -> None:
    mine = DeviceLocks(tmp_path / "none", enabled=False)
    mine.take(["a"])
    other = Taker(tmp_path / "none", ["a"], enabled=False)
    assert other.had.wait(PATIENCE)
    assert not mine.wanted()
    assert not (tmp_path / "none").exists()
    other.end()


_HOLDER = """
import sys
from pathlib import Path
from harness.scheduling.device_locks import DeviceLocks
turns = DeviceLocks(Path(sys.argv[1]), enabled=True)
turns.take(["a"])
print(flush=True)
sys.stdin.read()
"""


def test_the_turn_of_a_process_that_is_killed_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"\n"
        other = Taker(tmp_path, ["a"])
        assert not other.had.wait(0.1)
        holder.kill()
        assert other.had.wait(PATIENCE)
        other.end()
