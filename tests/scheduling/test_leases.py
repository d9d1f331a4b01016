"""Leases: the device of each worker, and the devices of a case that needs several."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.devices.device import CPU, Device
from harness.scheduling.leases import LeaseBook, devices_of_lease


def test_each_worker_gets_a_device_of_its_own_while_there_are_any() -> None:
    book = LeaseBook(["a", "b", "c"])
    assert [book.take(worker) for worker in ("gw0", "gw1", "gw2")] == ["a", "b", "c"]
    assert book.take("gw1") == "b"


def test_a_replacement_gets_the_device_that_was_freed() -> None:
    book = LeaseBook(["a", "b", "c"])
    for worker in ("gw0", "gw1", "gw2"):
        book.take(worker)
    book.give_back("gw1")
    assert book.take("gw3") == "b"  # by number it would be "a", which gw0 holds


def test_more_workers_than_devices_share_evenly() -> None:
    book = LeaseBook(["a", "b"])
    assert [book.take(f"gw{n}") for n in range(5)] == ["a", "b", "a", "b", "a"]


def test_no_devices_is_an_error_and_an_unknown_worker_is_not() -> None:
    with pytest.raises(ValueError, match="at least one"):
        LeaseBook([])
    LeaseBook(["a"]).give_back("nobody")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60), st.integers(1, 4))
def test_devices_are_never_more_than_one_holder_apart_when_another_was_free(
    steps: list[tuple[bool, int]], count: int
) -> None:
    book = LeaseBook([f"d{n}" for n in range(count)])
    held: dict[str, str] = {}
    for takes, number in steps:
        worker = f"gw{number}"
        if not takes:
            book.give_back(worker)
            held.pop(worker, None)
            continue
        new = worker not in held
        loads = {f"d{n}": list(held.values()).count(f"d{n}") for n in range(count)}
        device = book.take(worker)
        if new:
            assert loads[device] == min(loads.values())
        else:
            assert device == held[worker]
        held[worker] = device


def _gpu(number: int) -> Device:
    return Device(uuid=f"GPU-{number}", kind="cuda", name="G", index=number)


def test_several_devices_start_with_the_leased_one() -> None:
    gpus = [_gpu(n) for n in range(3)]
    assert devices_of_lease(gpus[2], 2, gpus) == (gpus[2], gpus[0])
    assert devices_of_lease(gpus[1], 3, gpus) == (gpus[1], gpus[2], gpus[0])
    assert devices_of_lease(CPU, 1, [CPU]) == (CPU,)


def test_too_few_devices_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="2 devices wanted, 1 can be held"):
        devices_of_lease(CPU, 2, [CPU])
