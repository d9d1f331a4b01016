"""Threads that start together; an exception in a thread fails the case."""

from __future__ import annotations

import threading
from collections.abc import Callable

#: Seconds to wait for a thread; the case's own limit is shorter where it matters.
LIMIT = 120.0


def run(count: int, work: Callable[[int], object]) -> list[object]:
    """Call `work` with the numbers 0 to `count` - 1, each in a separate thread, all started together.

    Returns the results in order when all threads have ended. Raises the first exception that one raised.
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
    """The result of `work` in another thread, or its exception."""
    return run(1, lambda _: work())[0]
