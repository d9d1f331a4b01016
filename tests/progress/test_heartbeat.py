"""When a heartbeat is printed, by a clock that the tests control."""

from __future__ import annotations

import threading
from collections.abc import Callable

from harness.progress.signs_of_life import Heartbeat


class Clock:
    """A fake of the monotonic clock and of waiting on it: each wait advances the time, until the script ends."""

    def __init__(self, *script: Callable[[], None]) -> None:
        self.now = 0.0
        self.waited: list[float] = []
        self._script = list(script)

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        self.now += seconds
        if not self._script:
            return True
        self._script.pop(0)()
        return False


class Stopped(threading.Event):
    """An event whose `wait` uses the fake clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        return self._clock.wait(timeout)


def nothing() -> None:
    """Print nothing."""


def test_a_line_each_time_that_nothing_was_printed_for_so_long() -> None:
    beats: list[float] = []

    def print_something() -> None:
        clock.now -= 10  # it happened before the wait ended
        with heart.printing():
            pass
        clock.now += 10

    clock = Clock(nothing, print_something, nothing, nothing)
    heart = Heartbeat(30, lambda: beats.append(clock.now), clock=clock, stopped=Stopped(clock))
    heart.run()
    assert beats == [30, 80, 110]
    assert clock.waited == [30, 30, 20, 30, 30]


def test_a_late_thread_does_not_wait_again() -> None:
    beats: list[float] = []

    def be_late() -> None:
        clock.now += 45

    clock = Clock(be_late, nothing)
    Heartbeat(30, lambda: beats.append(clock.now), clock=clock, stopped=Stopped(clock)).run()
    assert beats == [75, 105]


def test_it_ends_when_nobody_can_be_reached() -> None:
    def fail() -> None:
        raise BrokenPipeError

    clock = Clock(nothing, nothing, nothing)
    Heartbeat(30, fail, clock=clock, stopped=Stopped(clock)).run()
    assert clock.waited == [30]


def test_the_thread_ends_when_asked() -> None:
    beat = threading.Event()
    heart = Heartbeat(0.001, beat.set)
    heart.start()
    assert beat.wait(60)
    assert any(thread.name == "harness-heartbeat" for thread in threading.enumerate())
    heart.stop()
    assert not any(thread.name == "harness-heartbeat" for thread in threading.enumerate())


def test_no_line_comes_while_others_print() -> None:
    beat = threading.Event()
    heart = Heartbeat(0.001, beat.set)
    with heart.printing():
        heart.start()
        assert not beat.wait(0.05)
    assert beat.wait(60)
    heart.stop()
