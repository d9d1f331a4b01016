"""Devices that several runs on one host share: leases hold between runs, even if processes die."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.gpu_machine import GPU, Machine, checked, verdicts
from tests.acceptance.project import Result

_MIXED = """
@on_gpu
@pytest.mark.parametrize("n", range(12))
def test_one(n):
    if n % 4 == 3:
        crash()

@pytest.mark.requires(device="cuda", devices=2)
@pytest.mark.parametrize("n", range(6))
def test_two(n):
    if n == 5:
        os._exit(7)

@pytest.mark.requires(device="cuda", devices=3)
def test_three(): pass

@pytest.mark.requires(device="cuda", devices=8)
def test_all(): pass

@on_gpu
@pytest.mark.serial
def test_serial(): pass
"""


def uses(runs: Sequence[Result]) -> list[tuple[float, str, str, str]]:
    """Return all starts and ends of executors in these runs, in order of time: when, what, who, and on which device."""
    found = []
    for number, run in enumerate(runs):
        for line in run.lines:
            if line["event"] == "executor":
                found += [
                    (line["t"], line["state"], f"{number}/{line['executor']}", device) for device in line["devices"]
                ]
    return sorted(found)


def most_at_once(runs: Sequence[Result]) -> int:
    """Return the largest number of executors that had one device at the same time."""
    now: dict[str, set[str]] = {}
    most = 0
    for _, state, who, device in uses(runs):
        users = now.setdefault(device, set())
        users.add(who) if state == "started" else users.discard(who)
        most = max(most, len(users))
    assert not any(now.values())
    return most


@pytest.fixture
def eight(tmp_path: Path, library: Path) -> Machine:
    """Return a machine with eight GPUs."""
    return Machine(tmp_path, library, gpus=8)


def expected(result: Result) -> dict[str, str]:
    crashed = {f"test_one[{n}]" for n in (3, 7, 11)} | {"test_two[5]"}
    return {name: "crashed" if name in crashed else "passed" for name in verdicts(result)}


@pytest.mark.nightly
def test_two_runs_never_use_a_device_at_the_same_time(eight: Machine) -> None:
    eight.suite(_MIXED)
    running = [eight.start("-n3", "--isolation=case"), eight.start("-n8")]
    results = [checked(each.result()) for each in running]
    for result in results:
        assert result.status == 1, result.tail()
        assert len(verdicts(result)) == 21
        assert verdicts(result) == expected(result), result.tail()
    assert most_at_once(results) == 1


@pytest.mark.nightly
def test_cases_for_two_devices_run_in_few_workers(eight: Machine) -> None:
    """Otherwise each of them takes a device from another worker, and both start an executor for each case."""
    eight.suite(
        """
@on_gpu
@pytest.mark.parametrize("n", range(40))
def test_one(n): time.sleep(0.05)

@pytest.mark.requires(device="cuda", devices=2)
@pytest.mark.parametrize("n", range(8))
def test_two(n): time.sleep(0.05)
"""
    )
    result = checked(eight.run("-n8", "--no-health"))
    assert set(verdicts(result).values()) == {"passed"}, result.tail()
    starts = [line for line in result.lines if line["event"] == "start"]
    pairs = {line["worker"] for line in starts if len(line["devices"]) == 2}
    assert pairs == {"gw0", "gw2", "gw4"}
    executors = [line for line in result.lines if line["event"] == "executor" and line["state"] == "started"]
    assert len(executors) <= 8 + 6


@pytest.mark.nightly
def test_a_run_that_is_killed_leaves_its_devices_to_the_other(machine: Machine) -> None:
    machine.suite(
        """
@on_gpu
def test_holds():
    mark("holds")
    await_mark("never")
""",
        "test_a",
    )
    machine.suite("@on_gpu\ndef test_next(): pass\n", "test_b")
    first = machine.start("-n0", "-k", "holds")
    first.started("::test_holds")
    second = machine.start("-n0", "-k", "next", f"--timeout-multiplier={2}")
    machine.await_a_waiter(second, 0)
    os.kill(first.process.pid, signal.SIGKILL)
    result = checked(second.result())
    assert verdicts(result) == {"test_next": "passed"}, result.tail()
    first.kill_all()


_SLOTS = """
def meet(number):
    mark(f"here-{number}")
    await_mark(f"here-{1 - number}")

@on_gpu
@pytest.mark.parametrize("number", range(2))
def test_together(number):
    meet(number)
"""

_ALONE = """
@on_gpu
@pytest.mark.serial
@pytest.mark.parametrize("n", range(4))
def test_alone(n): pass

@pytest.mark.requires(device="cuda", memory=">=40GiB")
@pytest.mark.parametrize("n", range(4))
def test_most_of_the_memory(n): pass
"""


def test_slots_let_cases_use_one_device_at_once(machine: Machine) -> None:
    machine.suite(_SLOTS)
    result = machine.run("-n2", "--slots=2", CUDA_VISIBLE_DEVICES=GPU[0])
    assert set(verdicts(result).values()) == {"passed"}, result.tail()
    assert most_at_once([result]) == 2


@pytest.mark.nightly
def test_a_serial_case_and_a_large_one_have_their_device_alone(machine: Machine) -> None:
    machine.suite(_ALONE)
    result = machine.run("-n4", "--slots=4", "--no-health", CUDA_VISIBLE_DEVICES=GPU[0])
    assert set(verdicts(result).values()) == {"passed"}, result.tail()
    assert most_at_once([result]) == 1


@pytest.mark.nightly
def test_auto_starts_a_worker_for_each_slot(machine: Machine) -> None:
    machine.suite("@on_gpu\n@pytest.mark.parametrize('n', range(8))\ndef test_one(n): pass\n")
    result = machine.run("-nauto", "--slots=2")
    assert {line["worker"] for line in result.lines if line["event"] == "collected"} == {f"gw{n}" for n in range(4)}


@pytest.mark.parametrize("text", ["0", "two", "-1"])
def test_a_wrong_number_of_slots_is_refused(machine: Machine, text: str) -> None:
    machine.suite("@on_gpu\ndef test_one(): pass\n")
    result = machine.project.run("-n0", f"--slots={text}", env=machine.environ)
    assert result.status == 4
    assert f"--slots={text!r}: expected a whole number from 1 to 999999" in result.terminal


@pytest.mark.nightly
def test_a_board_that_is_none_is_named(machine: Machine) -> None:
    machine.suite("@on_gpu\n@pytest.mark.parametrize('n', range(3))\ndef test_one(n): pass\n")
    folder = machine.project.temp / "leases"
    folder.mkdir()
    (folder / "board.json").write_text("{}")
    result = machine.run("-n2", HARNESS_LEASE_DIR=str(folder))
    assert set(verdicts(result).values()) == {"not_run"}
    assert result.status == 2, result.tail()
    assert f"{str(folder / 'board.json')!r} is not a board of leases" in result.terminal
    assert "Traceback" not in result.terminal


def test_a_folder_for_leases_that_is_none_ends_the_run(machine: Machine, tmp_path: Path) -> None:
    machine.suite("@on_gpu\ndef test_one(): pass\n")
    wrong: dict[str, Any] = {"HARNESS_LEASE_DIR": str(tmp_path / "file")}
    (tmp_path / "file").write_text("")
    result = machine.project.run("-n0", env={**machine.environ, **wrong})
    assert "is not a folder: name one for leases of devices in HARNESS_LEASE_DIR" in result.terminal, result.tail()
    assert result.status == 4, result.tail()
    assert "Traceback" not in result.terminal
