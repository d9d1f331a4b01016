"""Cases of several ranks, some of which break."""

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

EXPECTED = {
    "test_before": "passed",
    "test_returns": "passed",
    "test_raises": "failed: rank 1 of 3 raised ValueError: the second",
    "test_raises_while_others_go_on": "failed: rank 1 of 2 raised KeyError: 'x'; rank 0 went on, and had to be killed",
    "test_segv": "crashed: rank 2 of 3 was killed by SIGSEGV; ranks 0 and 1 raised too",
    "test_sigkill": "crashed: rank 1 of 2 was killed by SIGKILL",
    "test_exits": "crashed: rank 0 of 2 ended with exit status 3 before its body returned",
    "test_sys_exit": "failed: rank 0 of 2 raised SystemExit: 3",
    "test_hangs": "timeout: rank 1 of 2 did not end within 1 s: test_ranks.py:",
    "test_hangs_until_the_limit_of_the_case": "timeout: rank 1 of 2 did not end within",
    "test_stopped": "timeout: rank 0 of 2 did not end within 1 s: it is stopped by a signal",
    "test_leaves_a_process": "leaked: rank 1 of 2 left a process running",
    "test_leaves_a_daemon": "leaked: left a child process running",
    "test_leaves_a_process_and_raises": "failed: rank 0 of 1 raised RuntimeError: beside the process",
    "test_skips": "skipped: not here",
    "test_expected_death": "passed",
    "test_unexpected_survivor": "failed: rank 1 of 2 was expected to end with SIGKILL, but its body returned",
    "test_inner_function": "failed: ValueError: the body of ranks is <function",
    "test_unsendable_result": "failed: rank 0 of 1 raised the body returned lock, which cannot be sent",
    "test_beside_a_thread": "passed",
    "test_raises_beside_a_thread": "failed: rank 1 of 3 raised ValueError: the second",
    "test_after": "passed",
}
OPTIONS = ["--leak-search=off"]

WAITS = [sys.executable, "-c", "import signal; signal.pause()"]


def numbers(rank: Any, factor: int) -> tuple[int, int, str]:
    print("output of a rank that returns")
    return rank.number * factor, rank.world, os.environ["RANK"]


def second_raises(rank: Any) -> None:
    if rank.number == 1:
        raise ValueError("the second")


def one_raises(rank: Any) -> None:
    if rank.number == 0:
        time.sleep(100)
    raise KeyError("x")


def last_dies(rank: Any) -> None:
    """The other ranks notice it, as ranks of a process group do."""
    if rank.number == 2:
        (rank.folder / "pid").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSEGV)
    while not (rank.folder / "pid").exists() or os.path.exists(f"/proc/{(rank.folder / 'pid').read_text()}/fd/0"):
        time.sleep(0.01)
    raise ConnectionError("closed by peer")


def exits(rank: Any) -> None:
    if rank.number == 0:
        os._exit(3)


def sys_exits(rank: Any) -> None:
    if rank.number == 0:
        sys.exit(3)


def second_sleeps(rank: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rank.number == 1:
        time.sleep(100)


def first_stops(rank: Any) -> None:
    if rank.number == 0:
        os.kill(os.getpid(), signal.SIGSTOP)


def leaves_a_process(rank: Any) -> None:
    if rank.number == 1:
        subprocess.Popen(WAITS)


def leaves_a_daemon(rank: Any) -> None:
    if rank.number == 1:
        subprocess.Popen(WAITS, start_new_session=True)


def leaves_and_raises(_: Any) -> None:
    subprocess.Popen(WAITS)
    raise RuntimeError("beside the process")


def skips(_: Any) -> None:
    pytest.skip("not here")


def second_is_killed(rank: Any) -> int:
    if rank.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return int(rank.number)


def returns(_: Any) -> None:
    pass


def unsendable(_: Any) -> Any:
    return threading.Lock()


def test_before() -> None:
    pass


def test_returns(ranks: Any) -> None:
    assert ranks.run(numbers, 3, world=4) == [(0, 4, "0"), (3, 4, "1"), (6, 4, "2"), (9, 4, "3")]
    assert ranks.run(numbers, 1, world=1) == [(0, 1, "0")]


def test_raises(ranks: Any) -> None:
    ranks.run(second_raises, world=3)


def test_raises_while_others_go_on(ranks: Any) -> None:
    ranks.run(one_raises, world=2)


def test_segv(ranks: Any) -> None:
    ranks.run(last_dies, world=3)


def test_sigkill(ranks: Any) -> None:
    ranks.run(second_is_killed, world=2)


def test_exits(ranks: Any) -> None:
    ranks.run(exits, world=2)


def test_sys_exit(ranks: Any) -> None:
    ranks.run(sys_exits, world=2)


def test_hangs(ranks: Any) -> None:
    ranks.run(second_sleeps, world=2, limit=1)


@pytest.mark.timeout(4)
def test_hangs_until_the_limit_of_the_case(ranks: Any) -> None:
    ranks.run(second_sleeps, world=2)


def test_stopped(ranks: Any) -> None:
    ranks.run(first_stops, world=2, limit=1)


def test_leaves_a_process(ranks: Any) -> None:
    ranks.run(leaves_a_process, world=2)


def test_leaves_a_daemon(ranks: Any) -> None:
    ranks.run(leaves_a_daemon, world=2)


def test_leaves_a_process_and_raises(ranks: Any) -> None:
    ranks.run(leaves_and_raises, world=1)


def test_skips(ranks: Any) -> None:
    ranks.run(skips, world=2)


def test_expected_death(ranks: Any) -> None:
    assert ranks.run(second_is_killed, world=3, deaths={1: -signal.SIGKILL}) == [0, None, 2]


def test_unexpected_survivor(ranks: Any) -> None:
    ranks.run(returns, world=2, deaths={1: -signal.SIGKILL})


def test_inner_function(ranks: Any) -> None:
    ranks.run(lambda rank: rank.number, world=2)


def test_unsendable_result(ranks: Any) -> None:
    ranks.run(unsendable, world=1)


class Thread:
    """A thread beside the ranks: a fork would lose it."""

    def __enter__(self) -> None:
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.over.wait)
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def test_beside_a_thread(ranks: Any) -> None:
    with Thread():
        assert ranks.run(numbers, 3, world=2) == [(0, 2, "0"), (3, 2, "1")]


def test_raises_beside_a_thread(ranks: Any) -> None:
    with Thread():
        ranks.run(second_raises, world=3)


def test_after(ranks: Any) -> None:
    assert ranks.run(numbers, 3, world=2) == [(0, 2, "0"), (3, 2, "1")]
