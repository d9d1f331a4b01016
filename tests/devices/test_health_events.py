"""The judgement on NVML's signs, as a table; and reading them, through the real pynvml with a fake NVML."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from harness.devices.device import CPU, Device
from harness.devices.health_events import (
    HealthEvent,
    HealthReading,
    HealthWatch,
    compare_readings,
    standing_problems,
    xid_meaning,
)
from tests import fake_nvml
from tests.devices.test_inventory import gpu, mig

CALM = HealthReading(
    ecc_corrected=3,
    ecc_uncorrected=0,
    ecc_uncorrected_ever=5,
    rows_correctable=1,
    rows_uncorrectable=2,
    rows_pending=False,
    rows_failed=False,
    pages_pending=False,
    throttled=(),
    temperature=40,
    replays=7,
    xids=((13, 1),),
)


@pytest.mark.parametrize(
    ("change", "kind", "severity", "text"),
    [
        ({"lost": "name: GPU is lost"}, "lost", "fatal", "the device is lost: name: GPU is lost"),
        ({"rows_failed": True}, "rows", "fatal", "a memory row could not be remapped: replace the GPU"),
        ({"rows_pending": True}, "rows", "fatal", "a memory row remapping is pending: reset the GPU"),
        ({"pages_pending": True}, "pages", "fatal", "a memory page retirement is pending: reload the driver"),
        ({"ecc_uncorrected": 2}, "ecc", "fatal", "uncorrected memory errors: 0, then 2"),
        ({"ecc_uncorrected_ever": 6}, "ecc", "fatal", "uncorrected memory errors: 5, then 6"),
        ({"ecc_uncorrected": 1, "ecc_uncorrected_ever": 6}, "ecc", "fatal", "uncorrected memory errors: 0, then 1"),
        ({"ecc_uncorrected": None, "ecc_uncorrected_ever": 6}, "ecc", "fatal", "uncorrected memory errors: 5, then 6"),
        ({"rows_uncorrectable": 3}, "rows", "fatal", "memory rows remapped after uncorrected errors: 2, then 3"),
        ({"rows_correctable": 2}, "rows", "suspect", "memory rows remapped after corrected errors: 1, then 2"),
        ({"ecc_corrected": 4}, "ecc", "note", "corrected memory errors: 3, then 4"),
        ({"replays": 9}, "pcie", "note", "PCIe replays: 7, then 9"),
        ({"xids": ((13, 2),)}, "xid", "note", "Xid 13 (graphics engine exception, mostly caused by the application)"),
        ({"xids": ((13, 1), (79, 1))}, "xid", "fatal", "Xid 79 (the GPU has fallen off the bus)"),
        ({"xids": ((13, 1), (109, 3))}, "xid", "suspect", "Xid 109 (a context switch took too long), 3 times"),
        (
            {
                "throttled": (
                    "hardware slowdown",
                    "hardware power brake",
                ),
                "temperature": 91,
            },
            "throttled",
            "note",
            "clocks are throttled at 91 °C: hardware power brake, hardware slowdown",
        ),
        (
            {"throttled": ("hardware slowdown",), "temperature": None},
            "throttled",
            "note",
            "clocks are throttled: hardware slowdown",
        ),
        ({"faults": ("temperature: Unknown Error",)}, "nvml", "suspect", "temperature: Unknown Error"),
    ],
)
def test_what_is_new_is_one_sign(change: dict[str, Any], kind: str, severity: Any, text: str) -> None:
    after = replace(CALM, **change)
    assert compare_readings(CALM, after) == (HealthEvent(kind, text, severity),)
    assert compare_readings(after, after) == ()
    assert compare_readings(after, CALM) == ()  # decreases are not signs


_TOLD = [each.name for each in fields(HealthReading) if each.name not in ("lost", "faults", "hang")]


@pytest.mark.parametrize("name", _TOLD)
def test_counters_that_one_reading_lacks_are_not_compared(name: str) -> None:
    worst = HealthReading(
        ecc_corrected=99,
        ecc_uncorrected=99,
        ecc_uncorrected_ever=99,
        rows_correctable=99,
        rows_uncorrectable=99,
        rows_pending=True,
        rows_failed=True,
        pages_pending=True,
        throttled=("hardware slowdown",),
        temperature=99,
        replays=99,
        xids=((79, 9),),
    )
    reported = {name: getattr(worst, name)}
    assert compare_readings(HealthReading(), replace(HealthReading(), **reported)) == ()
    reported[name] = None
    assert compare_readings(CALM, replace(CALM, **reported)) == ()


def test_all_that_is_new_is_reported_the_fatal_first() -> None:
    after = replace(CALM, lost="x", ecc_uncorrected=1, ecc_corrected=4, xids=((13, 1), (31, 1), (48, 1)), faults=("y",))
    assert [(sign.kind, sign.severity) for sign in compare_readings(CALM, after)] == [
        ("lost", "fatal"),
        ("ecc", "fatal"),
        ("ecc", "note"),
        ("xid", "note"),
        ("xid", "fatal"),
        ("nvml", "suspect"),
    ]


@pytest.mark.parametrize(
    ("signs", "severities"),
    [
        (CALM, []),
        (HealthReading(), []),
        (HealthReading(lost="x"), ["fatal"]),
        (HealthReading(rows_failed=True), ["fatal"]),
        (HealthReading(rows_pending=True), ["suspect"]),
        (HealthReading(pages_pending=True), ["suspect"]),
        (HealthReading(ecc_uncorrected=9, ecc_uncorrected_ever=9, xids=((79, 1),)), []),
    ],
)
def test_what_stands_before_a_run(signs: HealthReading, severities: list[str]) -> None:
    assert [sign.severity for sign in standing_problems(signs)] == severities


@pytest.mark.parametrize(
    ("xids", "severity"),
    [
        ((11, 13, 25, 31, 32, 43, 45, 69, 80, 93), "note"),
        ((8, 38, 39, 61, 68, 109, 121, 126, 135, 144, 150, 154), "suspect"),
        ((46, 48, 62, 63, 64, 74, 79, 92, 94, 95, 110, 119, 120, 136, 140, 143, 158, 167, 171, 172), "fatal"),
        ((0, 1, 12, 999), "suspect"),
    ],
)
def test_the_severity_of_xids(xids: tuple[int, ...], severity: str) -> None:
    assert {xid: xid_meaning(xid)[1] for xid in xids} == dict.fromkeys(xids, severity)


def test_an_unknown_xid_says_where_to_look() -> None:
    assert "catalogue" in xid_meaning(999)[0]


# Watching. A process holds the fake, executes one command per line, and answers each line with a line of JSON.

_WATCH = """
import dataclasses, json, os, sys
from harness.devices.inventory import discover_devices
from harness.devices.health_events import HealthWatch
watch = None
for line in sys.stdin:
    order, *words = line.split()
    if order == "open":
        devices = [device for device in discover_devices().devices if not words or device.uuid in words]
        if hanging := os.environ.pop("HANGS_LATER", None):  # not already when the devices are found
            os.environ["FAKE_NVML_HANG"] = hanging
        watch = HealthWatch(devices, limit=float(os.environ.get("LIMIT", "60")))
        answer = watch.notes
    elif order == "read":
        answer = dataclasses.asdict(watch.read(words[0]))
    elif order == "close":
        answer = [watch.close(), watch.close(), *watch.notes]
    elif order == "modules":
        answer = [name for name in words if name in sys.modules]
    print(json.dumps(answer), flush=True)
"""


class Watcher:
    """A process that watches the fake's GPUs."""

    def __init__(self, environ: dict[str, str]) -> None:
        command = [sys.executable, "-W", "error", "-c", _WATCH]
        self._process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
        assert process.returncode == 0

    def ask(self, *words: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(words) + "\n")
        return json.loads(self._process.stdout.readline())

    def read(self, uuid: str) -> HealthReading:
        values = self.ask("read", uuid)
        return HealthReading(**{name: _tuples(value) for name, value in values.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


@pytest.fixture
def state(tmp_path: Path) -> fake_nvml.State:
    return fake_nvml.State(tmp_path / "gpus")


@pytest.fixture
def watcher(request: pytest.FixtureRequest, nvml_folder: Path, state: fake_nvml.State) -> Any:
    """A process that watches two GPUs, or those that the test's parameter describes."""
    described: dict[str, Any] = {"gpus": 2, **getattr(request, "param", {})}
    with Watcher(fake_nvml.environment(nvml_folder, **described, state=state)) as started:
        yield started


HEALTHY = HealthReading(
    ecc_corrected=0,
    ecc_uncorrected=0,
    ecc_uncorrected_ever=0,
    rows_correctable=0,
    rows_uncorrectable=0,
    rows_pending=False,
    rows_failed=False,
    throttled=(),
    temperature=40,
    replays=0,
    xids=(),
)


def test_a_healthy_gpu_is_read(watcher: Watcher) -> None:
    assert watcher.ask("open") == []
    assert watcher.read(gpu(0)) == HEALTHY


def test_a_watch_imports_no_torch(watcher: Watcher) -> None:
    watcher.ask("open")
    assert watcher.ask("modules", "torch", "numpy", "pytest") == []


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ({"ecc_corrected": 4}, {"ecc_corrected": 4}),
        ({"ecc_uncorrected": 1}, {"ecc_uncorrected": 1}),
        ({"ecc_aggregate": 2}, {"ecc_uncorrected_ever": 2}),
        ({"rows_correctable": 1}, {"rows_correctable": 1}),
        ({"rows_uncorrectable": 1}, {"rows_uncorrectable": 1}),
        ({"rows_pending": 1}, {"rows_pending": True}),
        ({"rows_failed": 1}, {"rows_failed": True}),
        ({"temperature": 91}, {"temperature": 91}),
        ({"replays": 12}, {"replays": 12}),
        ({"throttle": 0x01 | 0x02 | 0x04 | 0x10 | 0x100}, {}),  # idle, chosen clocks, power, sync, display
        (
            {"throttle": 0x01 | 0x08 | 0x20 | 0x40 | 0x80},
            {
                "throttled": (
                    "hardware slowdown",
                    "software thermal slowdown",
                    "hardware thermal slowdown",
                    "hardware power brake",
                )
            },
        ),
        pytest.param(
            {"nvmlDeviceGetTemperature": 13, "temperature": 50},
            {"temperature": 50},
            marks=pytest.mark.skipif(not hasattr(pynvml, "nvmlDeviceGetTemperatureV"), reason="pynvml is older"),
        ),
        (
            {"nvmlDeviceGetCurrentClocksEventReasons": 13, "throttle": 8},
            {"throttled": ("hardware slowdown",)},
        ),
        ({"nvmlDeviceGetTemperature": 3}, {"temperature": None}),
        ({"nvmlDeviceGetPcieReplayCounter": 4}, {"replays": None}),
        (
            {"nvmlDeviceGetPcieReplayCounter": 999},
            {"replays": None, "faults": ("PCIe replays: Unknown Error",)},
        ),
        (
            {"nvmlDeviceGetRemappedRows": 998},
            {
                "rows_correctable": None,
                "rows_uncorrectable": None,
                "rows_pending": None,
                "rows_failed": None,
                "faults": ("remapped rows: Fake\\x1b[31m error",),
            },
        ),
    ],
)
def test_a_change_while_the_watch_is_open_is_read(
    watcher: Watcher, state: fake_nvml.State, words: dict[str, int], value: dict[str, Any]
) -> None:
    watcher.ask("open")
    state.set(0, **words)
    assert watcher.read(gpu(0)) == replace(HEALTHY, **value)


@pytest.mark.parametrize("watcher", [{"other": [0], "no_ecc": [0]}], indirect=True)
def test_a_gpu_that_tells_other_things_is_read(watcher: Watcher, state: fake_nvml.State) -> None:
    watcher.ask("open")
    state.set(0, pages_pending=1)
    assert watcher.read(gpu(0)) == HealthReading(pages_pending=True, throttled=(), temperature=40, replays=0, xids=())


def test_a_gpu_that_is_lost_between_two_readings(watcher: Watcher, state: fake_nvml.State) -> None:
    watcher.ask("open")
    before = watcher.read(gpu(0))
    state.xid(0, 79)
    state.set(0, lost=1)
    after = watcher.read(gpu(0))
    assert [(sign.kind, sign.severity) for sign in compare_readings(before, after)] == [
        ("lost", "fatal"),
        ("xid", "fatal"),
    ]
    assert after == HealthReading(lost="corrected errors: GPU is lost", xids=((79, 1),))
    assert watcher.read(gpu(1)).lost == ""


def test_a_gpu_that_is_lost_in_the_middle_of_a_reading_is_asked_no_more(
    watcher: Watcher, state: fake_nvml.State
) -> None:
    watcher.ask("open")
    watcher.read(gpu(0))
    state.set(0, nvmlDeviceGetRemappedRows=16, nvmlDeviceGetTemperature=999)
    after = watcher.read(gpu(0))
    assert (after.lost, after.ecc_corrected, after.temperature, after.faults) == (
        "remapped rows: GPU requires restart",
        0,
        None,
        (),
    )


def test_a_gpu_lost_from_a_given_question_on(nvml_folder: Path, state: fake_nvml.State, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    environ = fake_nvml.environment(nvml_folder, gpus=1, FAKE_NVML_LOG=str(log), state=state)
    with Watcher(environ) as watcher:
        watcher.ask("open")
        questions = len([call for call in log.read_text().split() if call in _ABOUT_A_DEVICE])
        state.set(0, lost_from=questions + 2)
        assert watcher.read(gpu(0)).lost == "uncorrected errors: GPU is lost"


_ABOUT_A_DEVICE = {
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetApplicationsClock",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceRegisterEvents",
}


def test_a_gpu_that_is_lost_when_the_watch_opens_is_lost_at_every_reading(
    watcher: Watcher, state: fake_nvml.State
) -> None:
    watcher.ask("open", gpu(1))
    state.set(0, lost=1)
    assert watcher.ask("open") == []
    assert watcher.read(gpu(0)).lost == "name: GPU is lost"
    assert watcher.read(gpu(1)) == replace(HEALTHY, **_NO_ECC)


_NO_ECC: dict[str, Any] = {"ecc_corrected": None, "ecc_uncorrected": None, "ecc_uncorrected_ever": None}


def test_xids_are_counted_from_the_opening_on_for_the_gpu_they_happen_to(
    watcher: Watcher, state: fake_nvml.State
) -> None:
    state.xid(0, 79)
    watcher.ask("open")
    assert watcher.read(gpu(0)).xids == ()
    for number in (31, 13, 31):
        state.xid(0, number)
    state.xid(1, 45)
    assert watcher.read(gpu(0)).xids == ((13, 1), (31, 2))
    assert watcher.read(gpu(1)).xids == ((45, 1),)
    assert watcher.read(gpu(0)).xids == ((13, 1), (31, 2))


def test_xids_of_a_gpu_that_is_not_watched_are_not_heard(watcher: Watcher, state: fake_nvml.State) -> None:
    watcher.ask("open", gpu(1))
    state.xid(0, 79)
    assert watcher.read(gpu(1)).xids == ()


@pytest.mark.parametrize("watcher", [{"gpus": 1, "mig": [0]}], indirect=True)
def test_an_instance_has_the_signs_of_its_gpu_and_the_xids_of_its_own(watcher: Watcher, state: fake_nvml.State) -> None:
    assert watcher.ask("open") == []
    state.set(0, ecc_aggregate=1, ecc_uncorrected=1)
    state.xid(0, 13, instance=1)
    state.xid(0, 79)
    first, second = watcher.read(mig(0, 1)), watcher.read(mig(0, 2))
    # In MIG mode NVML tells neither volatile counts nor remapped rows of the whole GPU.
    assert first == HealthReading(
        ecc_uncorrected_ever=1, throttled=(), temperature=40, replays=0, xids=((13, 1), (79, 1))
    )
    assert second == replace(first, xids=((79, 1),))


@pytest.mark.parametrize("watcher", [{"no_events": [0]}], indirect=True)
def test_a_gpu_without_events_is_read_all_the_same(watcher: Watcher, state: fake_nvml.State) -> None:
    assert watcher.ask("open") == [f"Xids of {gpu(0)} are not watched: Not Supported"]
    state.xid(0, 79)
    assert watcher.read(gpu(0)) == replace(HEALTHY, xids=None)


def test_a_storm_of_xids_does_not_keep_the_reader(watcher: Watcher, tmp_path: Path) -> None:
    watcher.ask("open")
    with (tmp_path / "gpus").open("a") as file:
        file.write("0 xid 13\n" * 1100)
    assert watcher.read(gpu(0)).xids == ((13, 1000),)
    assert watcher.read(gpu(0)).xids == ((13, 1100),)


def test_a_reading_asks_few_questions_of_one_device(nvml_folder: Path, tmp_path: Path) -> None:
    """A reading follows each case, so its cost must not grow with the number of devices."""
    asked = []
    for gpus in (1, 8):
        log = tmp_path / f"calls-{gpus}"
        with Watcher(fake_nvml.environment(nvml_folder, gpus=gpus, FAKE_NVML_LOG=str(log))) as watcher:
            watcher.ask("open")
            watcher.read(gpu(0))
            log.unlink()
            watcher.read(gpu(0))
            asked.append(log.read_text().split())
    assert asked[0] == asked[1]
    assert len(asked[0]) <= 9, asked


NEVER = 997


def test_a_call_that_does_not_return_is_reported_once_and_nothing_is_asked_any_more(
    nvml_folder: Path, state: fake_nvml.State, tmp_path: Path
) -> None:
    """No device is queried, since a query of another device could hang, too. The process still ends."""
    log = tmp_path / "calls"
    text = "NVML did not answer within 1 s (temperature); it is not called again"
    environ = fake_nvml.environment(nvml_folder, gpus=2, FAKE_NVML_LOG=str(log), LIMIT="1", state=state)
    with Watcher(environ) as watcher:
        assert watcher.ask("open") == []
        before = watcher.read(gpu(0))
        state.set(0, nvmlDeviceGetTemperature=NEVER, nvmlDeviceGetTemperatureV=NEVER)
        after = watcher.read(gpu(0))
        assert after == HealthReading(hang=text)
        assert compare_readings(before, after) == (HealthEvent("hang", text, "suspect"),)
        assert standing_problems(after) == (HealthEvent("hang", text, "suspect"),)
        log.unlink()
        assert [watcher.read(gpu(number)) for number in (0, 1)] == [HealthReading()] * 2
        assert watcher.ask("close") == [None, None, text]
    assert not log.exists()


@pytest.mark.parametrize(
    ("call", "what"),
    [("nvmlInitWithFlags", "start"), ("nvmlEventSetCreate", "event set"), ("nvmlDeviceRegisterEvents", "xids")],
)
def test_a_start_that_does_not_return_is_reported_at_the_first_reading(
    nvml_folder: Path, state: fake_nvml.State, call: str, what: str
) -> None:
    text = f"NVML did not answer within 1 s ({what}); it is not called again"
    environ = fake_nvml.environment(nvml_folder, gpus=2, LIMIT="1", HANGS_LATER=call, state=state)
    with Watcher(environ) as watcher:
        assert watcher.ask("open") == [text]
        assert watcher.read(gpu(1)) == HealthReading(hang=text)
        assert watcher.read(gpu(0)) == HealthReading()


def test_a_shutdown_that_does_not_return_is_noted(nvml_folder: Path, state: fake_nvml.State) -> None:
    environ = fake_nvml.environment(nvml_folder, gpus=1, LIMIT="1", HANGS_LATER="nvmlShutdown", state=state)
    with Watcher(environ) as watcher:
        assert watcher.ask("open") == []
        text = "NVML did not answer within 1 s (shutdown); it is not called again"
        assert watcher.ask("close") == [None, None, text]


def test_nvml_is_shut_down_once(nvml_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    with Watcher(fake_nvml.environment(nvml_folder, gpus=1, FAKE_NVML_LOG=str(log))) as watcher:
        watcher.ask("open")
        log.unlink()
        assert watcher.ask("close") == [None, None]
    assert log.read_text().split() == ["nvmlEventSetFree", "nvmlShutdown"]


def test_without_nvml_nothing_is_reported_and_that_is_said() -> None:
    device = Device(uuid=gpu(0), kind="cuda", name="Fake GPU")
    sick = Device(uuid=gpu(1), kind="cuda", name="Fake GPU", fault="name: GPU is lost")
    with HealthWatch([CPU]) as watch:
        assert watch.notes == ()
        assert watch.read("cpu") == HealthReading()
    with HealthWatch([sick]) as watch:
        assert watch.notes == ()
        assert watch.read(gpu(1)) == HealthReading(lost="name: GPU is lost")
    with pytest.raises(KeyError):
        watch.read(gpu(1))
    with HealthWatch([device]) as watch:
        # This machine has no such GPU, whether it has an NVML or not.
        signs = watch.read(gpu(0))
    assert (signs == HealthReading() and watch.notes) or signs.lost == "handle: Not Found"
