"""Device locks between threads, which file locks separate like processes, and with a process that dies."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from harness.errors import NoDeviceError
from harness.scheduling.device_locks import DeviceLocks, Wait

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
from harness.errors import NoDeviceError
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


def test_who_waits_for_long_says_for_what_and_gives_up(tmp_path: Path) -> None:
    """The holder is named; nothing is held afterwards, not even what could be had, and the queue is free again."""
    holder = DeviceLocks(tmp_path, enabled=True, worker="gw1")
    holder.take(["GPU-b"])
    told: list[str] = []
    waiter = DeviceLocks(tmp_path, enabled=True, worker="gw2", limit=0.0, first_word=0.0, tell=told.append)
    with pytest.raises(NoDeviceError) as caught:
        waiter.take(["GPU-a", "GPU-b"])
    who = f"worker gw1 (process {os.getpid()})"
    assert told == [f"worker gw2 has waited 0 s for device GPU-b, which {who} holds"]
    assert str(caught.value).startswith(f"device GPU-b did not become free: {who} has held it for over 0 s; ")
    assert not holder.wanted()
    DeviceLocks(tmp_path, enabled=True, limit=0.0).take(["GPU-a"])


def test_a_short_wait_is_not_reported(tmp_path: Path) -> None:
    holder = DeviceLocks(tmp_path, enabled=True)
    holder.take(["a"])
    told: list[str] = []
    with pytest.raises(NoDeviceError):
        DeviceLocks(tmp_path, enabled=True, limit=0.0, tell=told.append).take(["a"])
    assert told == []


def test_who_waits_behind_another_waiter_gives_up_too(tmp_path: Path) -> None:
    mine = DeviceLocks(tmp_path, enabled=True, worker="gw1")
    mine.take(["a"])
    first = Taker(tmp_path, ["a"])
    until(mine.wanted)
    with pytest.raises(NoDeviceError, match=r"worker gw1 \(process"):
        DeviceLocks(tmp_path, enabled=True, limit=0.0).take(["a"])
    mine.give_back()
    assert first.had.wait(PATIENCE)
    first.end()


def looks(wait: Wait, *seen: tuple[float, str]) -> list[tuple[bool, bool]]:
    """What is to be done at each of these times, with this holder."""
    return [wait.look(now, holder) for now, holder in seen]


def test_words_come_each_time_a_wait_has_taken_twice_as_long() -> None:
    wait = Wait(100.0, "a", limit=1000.0, first_word=30.0)
    assert wait.next_look == 130.0
    assert looks(wait, (129.0, "a"), (130.0, "a")) == [(False, False), (True, False)]
    assert wait.next_look == 160.0
    assert looks(wait, (160.0, "a")) == [(True, False)]
    assert wait.next_look == 220.0


def test_one_holder_is_waited_for_until_the_limit() -> None:
    wait = Wait(100.0, "a", limit=50.0, first_word=30.0)
    assert looks(wait, (130.0, "a"), (149.0, "a"), (150.0, "a")) == [(True, False), (False, False), (False, True)]


def test_each_new_holder_is_waited_for_anew() -> None:
    """A queue that moves is no reason to give up, and still one for a word."""
    wait = Wait(100.0, "", limit=50.0, first_word=30.0)
    assert looks(wait, (130.0, "a"), (150.0, "b"), (160.0, "b")) == [(True, False), (False, False), (True, False)]
    assert wait.next_look == 200.0
    assert looks(wait, (200.0, "b")) == [(False, True)]


def test_a_killed_holder_s_name_is_replaced_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "a.holder").write_text("worker gw9 (process 1)\n7\n")
    holder = DeviceLocks(tmp_path, enabled=True, worker="gw1")
    holder.take(["a"])
    with pytest.raises(NoDeviceError, match="worker gw1"):
        DeviceLocks(tmp_path, enabled=True, limit=0.0).take(["a"])
    holder.give_back()
    assert not (tmp_path / "a.holder").exists()
