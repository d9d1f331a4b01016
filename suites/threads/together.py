"""Threads that start together. An exception in a thread fails the case."""

from __future__ import annotations

import threading
from collections.abc import Callable

#: Seconds to wait for a thread. A case that needs a shorter limit has its own.
LIMIT = 120.0


def run(count: int, work: Callable[[int], object]) -> list[object]:
    """Call `work` with each number from 0 to `count` - 1 in a separate thread, all started together.

    Return the results in order when all threads have ended. Raise the first exception that a thread raised.
    """
    barrier = threading.Barrier(count, timeout=LIMIT)
    results: list[object] = [None] * count
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            barrier.wait()
            results[number] = work(number)
        except BaseException as error:  # noqa: BLE001 - raised again in the case's own thread
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), name=f"case-{number}") for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def elsewhere(work: Callable[[], object]) -> object:
    """Return the result of `work` in another thread, or raise its exception."""
    return run(1, lambda _: work())[0]
