"""State that threads share: the allocator, pinned memory, autograd graphs, and concurrent synchronization."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from ..streams.busy import calibrate, ever, sleep_on
from ..synchronizing import synchronize
from . import together

THREADS = 4


def test_caching_allocator_serves_threads_at_once(device: torch.device) -> None:
    """Concurrent allocations do not overlap: each of many short-lived tensors keeps its contents."""

    def work(number: int) -> list[int]:
        kept: list[tuple[int, torch.Tensor]] = []
        wrong = []
        for step in range(150):
            value = number * 1000 + step
            kept.append((value, torch.full((step * 97 % 5000 + 1,), value, device=device)))
            if len(kept) > 8:
                expected, x = kept.pop(step * 7 % 8)
                if not bool((x == expected).all()):
                    wrong.append(expected)
        return wrong + [value for value, x in kept if not bool((x == value).all())]

    assert together.run(THREADS, work) == [[]] * THREADS


@pytest.mark.requires(accelerator=True)
@pytest.mark.requires(caching_allocator=True)
def test_memory_allocated_is_unchanged_after_threads(device: torch.device) -> None:
    """After threads that allocated and freed memory have ended, the allocated memory is as before."""
    synchronize(device)
    before = torch.accelerator.memory_allocated(device)

    def work(number: int) -> None:
        for step in range(200):
            torch.empty((number + 1) * 1000 + step * 64, device=device)

    together.run(THREADS, work)
    synchronize(device)

    assert torch.accelerator.memory_allocated(device) == before


@pytest.mark.requires(pinned_memory=True)
@pytest.mark.requires(accelerator=True)
def test_pin_memory_copy_and_free_in_concurrent_threads(device: torch.device) -> None:
    """Threads can concurrently allocate pinned memory, copy it on delayed streams and free it, with correct values."""
    calibrate(device)

    def work(number: int) -> list[int]:
        stream, wrong = torch.Stream(device), []
        for step in range(40):
            value = number * 100 + step
            source = torch.full((10_000 + step,), value, dtype=torch.int32).pin_memory()
            if step % 8 == 0:
                sleep_on(stream, 2)
            with stream:
                there = source.to(device, non_blocking=True)
                del source
                torch.full((10_000 + step,), -1, dtype=torch.int32).pin_memory()
                back = there.cpu()
            if not bool((back == value).all()):
                wrong.append(value)
        return wrong

    assert together.run(THREADS, work) == [[]] * THREADS


def test_backward_in_threads_at_once(device: torch.device) -> None:
    """Concurrent backward passes over separate graphs give each thread its own gradients."""

    def work(number: int) -> bool:
        right = True
        for step in range(1, 20):
            x = torch.full((500,), float(number + 1), device=device, requires_grad=True)
            (x.square() * step).sum().backward()
            assert x.grad is not None
            right &= bool((x.grad == 2 * (number + 1) * step).all())
        return right

    assert together.run(THREADS, work) == [True] * THREADS


def test_backward_in_threads_adds_up_gradients_of_one_leaf(device: torch.device) -> None:
    """Backward passes of several threads into one leaf lose no gradient, because the engine serializes accumulation.

    The passes take turns on the device; only the leaf is shared.
    """
    x = torch.ones(200, device=device, requires_grad=True)
    graphs = [[(x * (number + 1)).sum() for _ in range(20)] for number in range(THREADS)]
    synchronize(device)

    def work(number: int) -> None:
        for loss in graphs[number]:
            loss.backward()

    together.run(THREADS, work)
    synchronize(device)

    assert x.grad is not None
    assert (x.grad == 20 * sum(range(1, THREADS + 1))).all()


def test_error_in_one_thread_does_not_affect_others(device: torch.device) -> None:
    """An exception in one thread is raised in that thread, and does not affect the others."""

    def work(number: int) -> int:
        mistakes = 0
        for step in range(50):
            a, b = torch.ones(3, 4, device=device), torch.ones((4, 3) if number else (5, 3), device=device)
            try:
                assert (a @ b).sum().item() == 36, step
            except RuntimeError as error:
                mistakes += "3x4 and 5x3" in str(error)
        return mistakes

    assert together.run(THREADS, work) == [50, 0, 0, 0]


WAITS: dict[str, Callable[[torch.Stream, torch.Event], object]] = {
    "stream": lambda stream, _: stream.synchronize(),
    "event": lambda _, event: event.synchronize(),
    "device": lambda stream, _: torch.accelerator.synchronize(stream.device),
}


@pytest.mark.requires(asynchronous=True)
@pytest.mark.requires(accelerator=True)
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_synchronize_releases_the_gil(
    device: torch.device, wait: Callable[[torch.Stream, torch.Event], object]
) -> None:
    """A synchronize releases the GIL: another thread runs during the wait, and reports so before the wait returns.

    The other thread is woken right before the wait and queries the stream. If the GIL were held, it could not do so
    before the end of the sleep.
    """
    stream = torch.Stream(device)
    calibrate(device)

    def ran_meanwhile() -> bool:
        begin, seen = threading.Event(), []

        def other() -> None:
            begin.wait(together.LIMIT)
            seen.extend(not stream.query() for _ in range(20))

        thread = threading.Thread(target=other)
        thread.start()
        torch.accelerator.synchronize(device)
        sleep_on(stream, 200)
        event = stream.record_event()
        begin.set()
        wait(stream, event)
        assert stream.query()
        thread.join()
        return all(seen)

    assert ever(ran_meanwhile)


@pytest.mark.requires(accelerator=True)
def test_synchronize_in_one_thread_while_another_launches(device: torch.device) -> None:
    """One thread can synchronize a stream while another launches work on a second one, in each of several trials."""
    first, second = torch.Stream(device), torch.Stream(device)
    x = torch.zeros(64, dtype=torch.int64, device=device)
    calibrate(device)
    synchronize(device)

    def work(number: int) -> int:
        if number == 0:
            sleep_on(first, 20)
            first.synchronize()
            return int(first.query())
        with second:
            for _ in range(300):
                x.add_(1)
        second.synchronize()
        return int(x[0])

    for trial in range(1, 4):
        assert together.run(2, work) == [1, 300 * trial]


@pytest.mark.requires(accelerator=True)
def test_stream_and_event_made_by_threads_at_once(device: torch.device) -> None:
    """Threads can concurrently create, use and delete streams and events; each thread's work completes."""
    synchronize(device)

    def work(number: int) -> list[int]:
        wrong = []
        for step in range(60):
            stream, event = torch.Stream(device), torch.Event(device)
            with stream:
                x = torch.full((100,), number * 60 + step, device=device)
                event.record(stream)
            event.synchronize()
            if not event.query() or not bool((x == number * 60 + step).all()):
                wrong.append(step)
        return wrong

    assert together.run(THREADS, work) == [[]] * THREADS
