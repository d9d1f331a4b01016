"""The devices that workers use while some turn out to be sick: several workers, one folder, one journal."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import NoDeviceError
from harness.devices.device import CPU, Device
from harness.supervisor.device_pool import DevicePool
from tests import fake_nvml
from tests.supervisor.fakes import FakeJournal, KeptLines

GPUS = [Device(uuid=f"GPU-{number}", kind="cuda", name="Fake GPU", index=number) for number in range(3)]
SLICES = [Device(uuid=f"MIG-GPU-0/{n}/0", kind="cuda", name="Fake", index=0, mig_parent="GPU-0") for n in range(2)]


class Workers:
    """The workers of a run, and their lines in the journal."""

    def __init__(self, folder: Path, devices: Sequence[Device]) -> None:
        self._kept = KeptLines()
        self._folder = folder / "drained"
        self._devices = devices
        self._cares: list[DevicePool] = []

    def join(self, leased: Device, *, examine: bool = True) -> DevicePool:
        name = f"gw{len(self._cares)}"
        journal = FakeJournal(name, self._kept)
        care = DevicePool(leased, self._devices, journal, folder=self._folder, examine=examine)
        self._cares.append(care)
        return care

    @property
    def reported(self) -> list[dict[str, Any]]:
        return self._kept.lines

    def close(self) -> None:
        for care in self._cares:
            care.close()


MakeWorkers = Callable[..., Workers]


@pytest.fixture
def make_workers(tmp_path: Path) -> Iterator[MakeWorkers]:
    made: list[Workers] = []

    def make(devices: Sequence[Device] = GPUS) -> Workers:
        made.append(Workers(tmp_path, devices))
        return made[-1]

    yield make
    for workers in made:
        workers.close()


def _uuids(devices: Sequence[Device]) -> list[str]:
    return [device.uuid for device in devices]


def _drain(care: DevicePool, device: Device, why: str = "it burns") -> None:
    care.drain(device, why, "after a::b crashed", ["a::b"])


@pytest.mark.parametrize(
    ("leased", "drained", "moves", "used"),
    [
        (0, [], False, 0),
        (0, [1], False, 0),
        (0, [0], True, 1),
        (1, [1], True, 2),
        (2, [2], True, 0),
        (1, [1, 2], True, 0),
        (0, [0, 1], True, 2),
        (0, [0, 1, 2], False, 0),
    ],
)
def test_a_worker_leaves_a_drained_device_for_the_next_healthy_one(
    make_workers: MakeWorkers, leased: int, drained: list[int], moves: bool, used: int
) -> None:
    workers = make_workers()
    care, other = workers.join(GPUS[leased]), workers.join(GPUS[0])
    for number in drained:
        _drain(other, GPUS[number])
    assert care.move() is moves
    assert care.device is GPUS[used]
    assert not care.move()


@pytest.mark.parametrize(
    ("leased", "drained", "count", "chosen"),
    [
        (0, [], 1, [0]),
        (1, [], 1, [1]),
        (1, [], 2, [1, 2]),
        (2, [], 2, [2, 0]),
        (1, [], 3, [1, 2, 0]),
        (1, [2], 2, [1, 0]),
        (1, [2], 3, None),
        (1, [0, 2], 1, [1]),
        (1, [0, 2], 2, None),
        (1, [1], 1, None),
        (1, [1], 2, None),
        (0, [0, 1, 2], 1, None),
    ],
)
def test_a_case_gets_healthy_devices_its_worker_s_own_first(
    make_workers: MakeWorkers, leased: int, drained: list[int], count: int, chosen: list[int] | None
) -> None:
    workers = make_workers()
    care = workers.join(GPUS[leased])
    for number in drained:
        _drain(care, GPUS[number], f"cause {number}")
    if chosen is not None:
        assert care.choose(count) == tuple(GPUS[number] for number in chosen)
        return
    with pytest.raises(NoDeviceError) as caught:
        care.choose(count)
    causes = [f"GPU-{number} is drained: cause {number}, after a::b crashed" for number in drained]
    assert str(caught.value) == f"{count} healthy devices wanted, {3 - len(drained)} left; {'; '.join(causes)}"


def test_an_instance_is_chosen_though_no_process_could_hold_it_with_the_first(make_workers: MakeWorkers) -> None:
    workers = make_workers(SLICES)
    assert workers.join(SLICES[1]).choose(1) == (SLICES[1],)
    with pytest.raises(NoDeviceError):
        workers.join(SLICES[1]).choose(2)


@pytest.mark.parametrize(("leased", "examine"), [(CPU, True), (GPUS[0], False)], ids=["the cpu", "switched off"])
def test_what_is_not_looked_after_is_neither_examined_nor_watched_nor_left(
    make_workers: MakeWorkers, leased: Device, examine: bool
) -> None:
    workers = make_workers([leased])
    care = workers.join(leased, examine=examine)
    assert not care.monitored
    assert care.unexamined([leased]) == []
    assert care.new_events([leased.uuid]) == []
    assert not care.move()
    assert care.choose(1) == (leased,)
    assert workers.reported == []


def test_each_worker_examines_a_device_once_and_tells_how_it_went(make_workers: MakeWorkers) -> None:
    workers = make_workers()
    one, two = workers.join(GPUS[0]), workers.join(GPUS[1])
    assert one.unexamined(GPUS[:2]) == GPUS[:2]
    one.record_examination(GPUS[0], healthy=True, text="computes", moment="at the start", seconds=1.23456789)
    assert one.unexamined(GPUS[:2]) == [GPUS[1]]
    assert two.unexamined(GPUS[:2]) == GPUS[:2]
    (reported,) = workers.reported
    del reported["t"]
    assert [reported] == [
        {
            "event": "device",
            "host": "",
            "device": "GPU-0",
            "state": "healthy",
            "worker": "gw0",
            "moment": "at the start",
            "message": "computes",
            "seconds": 1.234568,
        }
    ]


def test_a_device_that_is_found_sick_is_drained_for_every_worker(make_workers: MakeWorkers) -> None:
    workers = make_workers()
    one, two = workers.join(GPUS[0]), workers.join(GPUS[1])
    one.record_examination(
        GPUS[1], healthy=False, text="word 3\nis wrong", moment="after a::b crashed", seconds=1, cases=["a::b"]
    )
    assert two.drained(GPUS[1]) == one.drained(GPUS[1]) == "word 3\nis wrong, after a::b crashed"
    assert one.drained(GPUS[0]) is None
    assert [(line["event"], line.get("state", line.get("kind"))) for line in workers.reported] == [
        ("device", "sick"),
        ("device", "drained"),
        ("finding", "sick_device"),
    ]
    assert workers.reported[-1]["cases"] == ["a::b"]
    assert workers.reported[-1]["message"].startswith("device GPU-1 (Fake GPU) is drained: word 3")
    assert two.move()
    assert two.device is GPUS[2]


def test_a_device_is_drained_once_by_the_first_of_several_workers(make_workers: MakeWorkers) -> None:
    devices = [Device(uuid=f"GPU-{number}/x", kind="cuda", name="Fake GPU") for number in range(100)]
    workers = make_workers(devices)
    cares = [workers.join(devices[0]) for _ in range(3)]
    barrier = threading.Barrier(len(cares))

    def drain(care: DevicePool, number: int) -> None:
        for device in devices:
            barrier.wait(60)
            _drain(care, device, f"cause {number}")
            assert (care.drained(device) or "").endswith(", after a::b crashed")

    threads = [threading.Thread(target=drain, args=each) for each in zip(cares, range(3), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    findings = [line for line in workers.reported if line["event"] == "finding"]
    assert len(findings) == len(devices)
    for device, line in zip(devices, findings, strict=True):
        assert line["message"].endswith(f"is drained: {cares[0].drained(device)}")


# In its own process, since the environment determines the library that pynvml loads.
_WATCHES = """
import os, pathlib, sys
from harness.devices.device import Device
from harness.supervisor.device_pool import DevicePool
from tests.supervisor.fakes import FakeJournal

def say(word, number):
    with open(os.environ["FAKE_NVML_STATE"], "a") as file:
        file.write(f"0 {word} {number}\\n")

def news(*which):
    return [(found.index, sign.kind, sign.severity) for found, sign in care.new_events([usable[n].uuid for n in which])]

uuids = [f"GPU-{digits}0000-0000-4000-8000-000000000000" for digits in ("0000", "1111")]
usable = [Device(uuid=uuid, kind="cuda", name="Fake GPU", index=index) for index, uuid in enumerate(uuids)]
care = DevicePool(usable[0], usable, FakeJournal(), folder=pathlib.Path(sys.argv[1]), examine=True)

assert news(0, 1) == [(0, "rows", "suspect")]  # what was so before the run, and not the five errors
assert news(0, 1) == []
say("ecc_corrected", 6)
say("xid", 79)
assert news(1) == []
assert news(0) == [(0, "ecc", "note"), (0, "xid", "fatal")]
assert news(0) == []
assert news() == []
care.close()
care.close()
"""


def test_signs_are_news_once_and_are_compared_with_the_last_look(tmp_path: Path) -> None:
    state = fake_nvml.State(tmp_path / "gpus")
    state.set(0, rows_pending=1, ecc_corrected=5)
    environ = fake_nvml.environment(fake_nvml.build(tmp_path), gpus=2, state=state)
    command = [sys.executable, "-c", _WATCHES, str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
