"""Leases of devices between threads, which file locks separate like processes, and with processes that die."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from harness.core.errors import NoDeviceError
from harness.scheduling.device_leases import VARIABLE, BoardError, DeviceLeases, LeaseWait, default_folder
from harness.scheduling.leases import Claim

PATIENCE = 60.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def claim(*devices: str) -> Claim:
    """Return a claim to all of these devices."""
    return Claim(devices[0], devices[1:], len(devices))


class Taker:
    """Another worker, in a thread: it claims devices, sets `had` once it has them, and keeps them until `let_go`."""

    def __init__(self, folder: Path, *devices: str) -> None:
        self.had, self.let_go = threading.Event(), threading.Event()
        self.waits: list[str] = []
        self._leases = DeviceLeases(folder)
        self._claim = claim(*devices)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._leases.take(self._claim, waiting=self._waiting)
        self.had.set()
        assert self.let_go.wait(PATIENCE)
        self._leases.close()

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
    mine = DeviceLeases(tmp_path)
    mine.take(Claim("a"))
    assert not mine.wanted()
    other = Taker(tmp_path, "a")
    until(mine.wanted)
    assert not other.had.is_set()
    mine.give_back()
    assert other.had.wait(PATIENCE)
    assert not mine.wanted()
    other.end()


def test_only_who_has_to_wait_says_so(tmp_path: Path) -> None:
    first = Taker(tmp_path, "a", "b")
    assert first.had.wait(PATIENCE)
    second = Taker(tmp_path, "b")
    until(lambda: bool(second.waits))
    assert second.waits == ["for b"]
    first.end()
    assert second.had.wait(PATIENCE)
    second.end()
    assert (first.waits, second.waits) == ([], ["for b", "had b"])


def test_different_devices_are_had_at_once(tmp_path: Path) -> None:
    mine = DeviceLeases(tmp_path)
    mine.take(Claim("GPU-a/1"))
    other = Taker(tmp_path, "GPU-a/2")
    assert other.had.wait(PATIENCE)
    assert not mine.wanted()
    other.end()


def test_who_gives_back_and_wants_again_comes_after_who_waited(tmp_path: Path) -> None:
    mine = DeviceLeases(tmp_path)
    mine.take(Claim("a"))
    other = Taker(tmp_path, "a")
    until(mine.wanted)
    mine.give_back()
    again = Taker(tmp_path, "a")
    assert other.had.wait(PATIENCE)
    assert not again.had.is_set()
    other.end()
    assert again.had.wait(PATIENCE)
    again.end()


@pytest.mark.parametrize("wanted", [Claim("a"), Claim("b", ("a",), 2)])
def test_what_is_held_already_is_not_waited_for(tmp_path: Path, wanted: Claim) -> None:
    mine = DeviceLeases(tmp_path)
    mine.take(claim("a", "b"))
    other = Taker(tmp_path, "a")
    until(mine.wanted)
    assert mine.take(wanted) == (wanted.own, *wanted.others)
    assert not other.had.is_set()
    mine.give_back()
    assert other.had.wait(PATIENCE)
    other.end()


def test_who_wants_more_than_it_holds_gives_that_back_first(tmp_path: Path) -> None:
    mine = DeviceLeases(tmp_path)
    mine.take(Claim("b"))
    other = Taker(tmp_path, "a", "b")
    until(mine.wanted)
    # The other has a and waits for b: holding b while waiting for a would be a deadlock.
    third = threading.Thread(target=lambda: mine.take(Claim("b", ("a",), 2)), daemon=True)
    third.start()
    assert other.had.wait(PATIENCE)
    other.end()
    third.join(PATIENCE)
    assert not third.is_alive()
    mine.give_back()


def test_opposite_orders_do_not_wait_for_each_other(tmp_path: Path) -> None:
    rounds = 50

    def take(*devices: str) -> None:
        leases = DeviceLeases(tmp_path)
        for _ in range(rounds):
            leases.take(claim(*devices))
            leases.give_back()
        leases.close()

    threads = [threading.Thread(target=take, args=devices, daemon=True) for devices in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_devices_that_each_process_has_for_itself_are_not_waited_for(tmp_path: Path) -> None:
    first, second = DeviceLeases(None), DeviceLeases(None)
    assert first.take(Claim("a", ("b", "c"), 2)) == second.take(Claim("a", ("b", "c"), 2)) == ("a", "b")
    assert not first.wanted()
    first.bind(os.getpid())
    first.close()
    assert not any(tmp_path.iterdir())


_HOLDER = """
import sys
from pathlib import Path
from harness.scheduling.leases import Claim
from harness.scheduling.device_leases import DeviceLeases
leases = DeviceLeases(Path(sys.argv[1]))
leases.take(Claim("a"))
if sys.argv[2:]:
    leases.bind(int(sys.argv[2]))
print(flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def process(*command: str) -> Generator[subprocess.Popen[bytes]]:
    """Start a Python process, wait until it prints a line, and kill it at the end."""
    started = subprocess.Popen([sys.executable, "-c", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"\n"
        try:
            yield started
        finally:
            started.kill()


def test_the_lease_of_a_process_that_is_killed_ends(tmp_path: Path) -> None:
    with process(_HOLDER, str(tmp_path)) as holder:
        other = Taker(tmp_path, "a")
        until(lambda: bool(other.waits))
        holder.kill()
        assert other.had.wait(PATIENCE)
        other.end()
    assert {path.name for path in tmp_path.iterdir()} == {"board.json", "lock"}


_USER = "import sys; print(flush=True); sys.stdin.read()"


def test_a_lease_lasts_as_long_as_the_process_that_uses_the_device(tmp_path: Path) -> None:
    """This holds even if the worker has died or has released the lease."""
    with process(_USER) as user:
        with process(_HOLDER, str(tmp_path), str(user.pid)) as holder:
            other = Taker(tmp_path, "a")
            until(lambda: bool(other.waits))
            holder.kill()
        with pytest.raises(NoDeviceError, match=rf"worker main \(process {holder.pid}\) has held it"):
            DeviceLeases(tmp_path, limit=2.0).take(Claim("a"))
        assert not other.had.is_set()
        user.kill()
        user.wait()
        assert other.had.wait(PATIENCE)
        other.end()


def test_a_lease_that_was_given_back_lasts_as_long_as_its_process(tmp_path: Path) -> None:
    mine = DeviceLeases(tmp_path)
    with process(_USER) as user:
        mine.take(Claim("a"))
        mine.bind(user.pid)
        mine.give_back()
        with pytest.raises(NoDeviceError):
            DeviceLeases(tmp_path, limit=0.0).take(Claim("a"))
    assert DeviceLeases(tmp_path, limit=0.0).take(Claim("a")) == ("a",)


def test_a_worker_keeps_its_lease_between_two_processes(tmp_path: Path) -> None:
    """It checks the device's health after a crash: no other worker gets it meanwhile."""
    mine = DeviceLeases(tmp_path)
    mine.take(Claim("a"))
    with process(_USER) as user:
        mine.bind(user.pid)
    with pytest.raises(NoDeviceError):
        DeviceLeases(tmp_path, limit=0.0).take(Claim("a"))


def test_a_share_leaves_room_for_others(tmp_path: Path) -> None:
    first, second, third = (DeviceLeases(tmp_path, limit=0.0) for _ in range(3))
    half = Claim("a", share=Fraction(1, 2))
    assert first.take(half) == second.take(half) == ("a",)
    with pytest.raises(NoDeviceError):
        third.take(half)
    first.give_back()
    with pytest.raises(NoDeviceError):
        third.take(Claim("a"))
    second.give_back()
    assert third.take(Claim("a")) == ("a",)
    assert not third.wanted()


def test_memory_is_waited_for(tmp_path: Path) -> None:
    first, second = (DeviceLeases(tmp_path, limit=0.0, memory={"a": 10}) for _ in range(2))
    quarter = Claim("a", share=Fraction(1, 4), memory=4)
    first.take(quarter)
    with pytest.raises(NoDeviceError):
        second.take(replace(quarter, memory=7))
    assert second.take(replace(quarter, memory=6)) == ("a",)


def test_nobody_waits_where_the_board_was_removed(tmp_path: Path) -> None:
    mine = DeviceLeases(tmp_path)
    mine.take(Claim("a"))
    (tmp_path / "board.json").unlink()
    assert not mine.wanted()
    mine.close()


def test_a_board_from_before_the_last_boot_is_empty(tmp_path: Path) -> None:
    DeviceLeases(tmp_path).take(Claim("a"))
    board = tmp_path / "board.json"
    board.write_text(json.dumps({**json.loads(board.read_text()), "boot": "another"}))
    assert DeviceLeases(tmp_path, limit=0.0).take(Claim("a")) == ("a",)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"format": 2}', '{"format": 1, "boot": "", "turns": 0, "memory": {}, "entries": [{}]}'),
        *('{"format": 1, "boot": "", "turns": 0, "memory": [], "entries": []}', "[" * 100_000),
    ],
    ids=["empty", "list", "object", "format", "entry", "memory", "deep"],
)
def test_what_is_no_board_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "board.json").write_text(text)
    with pytest.raises(BoardError, match=r"board\.json' is not a board of leases \(.*\): remove it once no run uses"):
        DeviceLeases(tmp_path).take(Claim("a"))


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_board_that_is_no_file_is_named_and_not_waited_for(kind: str, tmp_path: Path) -> None:
    board = tmp_path / "board.json"
    if kind == "pipe":
        os.mkfifo(board)
    elif kind == "link":
        board.symlink_to("/etc/passwd")
    else:
        board.mkdir()
    with pytest.raises(BoardError, match=r"board\.json' is not a board of leases \(.*\): remove it once no run uses"):
        DeviceLeases(tmp_path).take(Claim("a"))


@pytest.mark.parametrize(("mode", "allowed"), [(0o700, True), (0o2770, True), (0o777, False), (0o1777, False)])
def test_a_folder_that_everyone_may_write_into_is_refused(tmp_path: Path, mode: int, allowed: bool) -> None:
    folder = tmp_path / "leases"
    folder.mkdir()
    folder.chmod(mode)
    if allowed:
        DeviceLeases(folder).take(Claim("a"))
        return
    with pytest.raises(BoardError, match=f"remove it, or name another one in {VARIABLE}"):
        DeviceLeases(folder).take(Claim("a"))


def test_a_link_is_no_folder_for_leases(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(BoardError, match="is not a folder"):
        DeviceLeases(tmp_path / "link").take(Claim("a"))


def test_the_folder_is_the_same_for_all_users_of_a_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert default_folder({}) == tmp_path / f"gpu-conformance-leases-{os.getgid()}"
    assert default_folder({VARIABLE: "/srv/leases"}) == Path("/srv/leases")
    DeviceLeases(default_folder({})).take(Claim("a"))
    folder = default_folder({})
    assert folder.stat().st_mode & 0o7777 == 0o2770
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o660}


def test_who_waits_for_long_says_for_what_and_gives_up(tmp_path: Path) -> None:
    """The error names the holder; afterwards no device is held, not even a free one, and the queue is free again."""
    holder = DeviceLeases(tmp_path, worker="gw1")
    holder.take(Claim("GPU-b"))
    reported: list[str] = []
    waiter = DeviceLeases(tmp_path, worker="gw2", limit=0.0, first_message=0.0, log=reported.append)
    with pytest.raises(NoDeviceError) as caught:
        waiter.take(Claim("GPU-a", ("GPU-b",), 2))
    who = f"worker gw1 (process {os.getpid()})"
    assert reported == [f"worker gw2 has waited 0 s for device GPU-b, which {who} holds"]
    assert str(caught.value).startswith(f"device GPU-b did not become free: {who} has held it for over 0 s; ")
    assert not holder.wanted()
    DeviceLeases(tmp_path, limit=0.0).take(Claim("GPU-a"))


def test_a_short_wait_is_not_reported(tmp_path: Path) -> None:
    holder = DeviceLeases(tmp_path)
    holder.take(Claim("a"))
    reported: list[str] = []
    with pytest.raises(NoDeviceError):
        DeviceLeases(tmp_path, limit=0.0, log=reported.append).take(Claim("a"))
    assert reported == []


def test_who_waits_behind_another_waiter_gives_up_too(tmp_path: Path) -> None:
    mine = DeviceLeases(tmp_path, worker="gw1")
    mine.take(Claim("a"))
    first = Taker(tmp_path, "a")
    until(mine.wanted)
    with pytest.raises(NoDeviceError, match=r"worker gw1 \(process"):
        DeviceLeases(tmp_path, limit=0.0).take(Claim("a"))
    mine.give_back()
    assert first.had.wait(PATIENCE)
    first.end()


def looks(wait: LeaseWait, *seen: tuple[float, str]) -> list[tuple[bool, bool]]:
    """Return the decisions at each of these times, with this holder."""
    return [wait.look(now, holder) for now, holder in seen]


def test_words_come_each_time_a_wait_has_taken_twice_as_long() -> None:
    wait = LeaseWait(100.0, "a", limit=1000.0, first_message=30.0)
    assert wait.next_look == 130.0
    assert looks(wait, (129.0, "a"), (130.0, "a")) == [(False, False), (True, False)]
    assert wait.next_look == 160.0
    assert looks(wait, (160.0, "a")) == [(True, False)]
    assert wait.next_look == 220.0


def test_one_holder_is_waited_for_until_the_limit() -> None:
    wait = LeaseWait(100.0, "a", limit=50.0, first_message=30.0)
    assert looks(wait, (130.0, "a"), (149.0, "a"), (150.0, "a")) == [(True, False), (False, False), (False, True)]


def test_each_new_holder_is_waited_for_anew() -> None:
    """A moving queue is not a reason to give up, but still one for a message."""
    wait = LeaseWait(100.0, "", limit=50.0, first_message=30.0)
    assert looks(wait, (130.0, "a"), (150.0, "b"), (160.0, "b")) == [(True, False), (False, False), (True, False)]
    assert wait.next_look == 200.0
    assert looks(wait, (200.0, "b")) == [(False, True)]
