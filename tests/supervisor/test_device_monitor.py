"""The health of devices: when they are checked, the reports, and the devices that are drained."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcome import Outcome
from harness.devices.device import Device
from harness.devices.health_events import HealthEvent
from harness.journal.journal import WorkerJournal
from harness.protocol.endings import EXIT_HARNESS_ERROR
from harness.scheduling.device_leases import DeviceLeases
from harness.scheduling.leases import Claim
from harness.scheduling.stop_request import StopListener, StoppedError, StopRequest, send_stop
from harness.supervisor.device_monitor import DeviceMonitor
from harness.supervisor.device_pool import DevicePool
from harness.supervisor.executor_handle import Binding, Bindings
from harness.supervisor.executor_slot import ExecutorSlot
from harness.zygote.client import ZygoteClient
from tests.supervisor.fakes import FakeExecutor, FakeJournal, FakeZygote, FakeZygotes, attempt, case

GPUS = [Device(uuid=f"GPU-{number}", kind="cuda", name="Fake GPU", index=number) for number in range(2)]
LOST = HealthEvent("lost", "the device is lost", "fatal")
XID = HealthEvent("xid", "xid 8", "suspect")
HOT = HealthEvent("throttled", "clocks are throttled", "note")
HANG = HealthEvent("hang", "nvml did not answer", "suspect")


class FakePool(DevicePool):
    """A pool whose NVML reports the events that a test sets, by device, at its next queries."""

    def __init__(self, folder: Path, journal: WorkerJournal) -> None:
        super().__init__(GPUS[0], GPUS, journal, folder=folder / "drained", examine=False)
        self.monitored = True
        self.news: dict[str, list[list[HealthEvent]]] = {}

    def new_events(self, uuids: Sequence[str]) -> list[tuple[Device, HealthEvent]]:
        found = []
        for device in self.ordered(uuids):
            looks = self.news.get(device.uuid, [])
            found += [(device, event) for event in (looks.pop(0) if looks else [])]
        return found


def healthy(executor: FakeExecutor) -> None:
    executor.send("examined", healthy=True, facts={}) if executor.last_request == "examine" else executor.exit(0)


def sick(executor: FakeExecutor) -> None:
    executor.send("examined", healthy=False, text="it burns") if executor.last_request == "examine" else executor.exit(
        0
    )


def fails(executor: FakeExecutor) -> None:
    executor.send("harness_error", error="E: ours", traceback="Traceback")
    executor.exit(EXIT_HARNESS_ERROR)


class FakeBindings(Bindings):
    """Binds executors to GPUs that do not exist. `bound`: their UUIDs."""

    def __init__(self) -> None:
        self.bound: list[str] = []

    def bind(self, devices: Sequence[Device]) -> Binding:
        self.bound += [device.uuid for device in devices]
        return Binding(tuple(device.uuid for device in devices), "cuda", {}, None, "fast")


class Bench:
    """A monitor with executors that answer health checks with `answers` in turn; the last one answers all others."""

    def __init__(self, folder: Path, worker: str = "gw0") -> None:
        self.journal = FakeJournal(worker)
        self._bindings = FakeBindings()
        self.answers: list[Callable[[FakeExecutor], None]] = [healthy]
        self.zygotes: list[FakeZygote] = []
        self.pool = FakePool(folder, self.journal)
        self.other = DeviceLeases(folder / "leases", worker="gw9", limit=0.0)
        self.stop = StopListener(folder / "stop", worker)
        self.slot = ExecutorSlot(
            FakeZygotes(self._connect),
            self.pool,
            self.journal,
            temp=folder / worker,
            run_dir=folder / worker,
            stop=self.stop,
            leases=DeviceLeases(folder / "leases", worker=worker, limit=0.0),
        )
        self.monitor = DeviceMonitor(
            self.pool,
            self.slot,
            self._bindings,
            self.journal,
            seed=7,
            limit=60.0,
        )

    @property
    def examined(self) -> list[str]:
        return self._bindings.bound

    @property
    def reported(self) -> list[dict[str, Any]]:
        return self.journal.lines

    @property
    def findings(self) -> list[tuple[str, str, list[str]]]:
        """The findings of the monitor, without those of its slot and pool."""
        return [finding for finding in self.journal.findings if finding[0] in ("device_sign", "unexamined_device")]

    def states(self) -> list[tuple[str, str]]:
        return [(line["device"], line["state"]) for line in self.reported if line["event"] == "device"]

    def after(self, outcome: Outcome, *, unkillable: bool = False, share: Fraction = Fraction(1)) -> tuple[str, ...]:
        """Return the notes on an attempt with `outcome` on the first device, in an executor that has ended."""
        handle = self.slot.spawn(Binding((GPUS[0].uuid,), "cuda", {}, None, "fast"))
        self.slot.dispose(handle, "unfit", hold=True)
        handle.unkillable = unkillable
        return self.monitor.after_attempt(
            replace(case("a::b"), share=share), handle, replace(attempt(outcome), notes=())
        ).notes

    def close(self) -> None:
        self.slot.close("the test is over")
        self.stop.close()
        for zygote in self.zygotes:
            zygote.end()

    def _connect(self) -> ZygoteClient:
        self.zygotes.append(FakeZygote(self._answer, {int(signal.SIGTERM): -15}))
        return self.zygotes[-1].client

    def _answer(self, executor: FakeExecutor) -> None:
        if executor.last_request == "examine":
            executor.script = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        executor.script(executor)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


# Before the first case on a device.


def test_a_device_is_examined_once_before_it_is_used(bench: Bench) -> None:
    assert bench.monitor.missing(1) == ""
    assert bench.monitor.missing(1) == ""
    assert bench.examined == ["GPU-0"]
    assert bench.states() == [("GPU-0", "healthy")]
    bench.other.take(Claim("GPU-0"))  # no worker holds it afterwards


def test_one_examination_at_the_start_serves_all_workers_of_a_run(tmp_path: Path) -> None:
    first, second = Bench(tmp_path, "gw0"), Bench(tmp_path, "gw1")
    try:
        assert first.monitor.missing(1) == ""
        assert second.monitor.missing(1) == ""
        assert (first.examined, second.examined) == (["GPU-0"], [])
        assert first.states() == [("GPU-0", "healthy")]
        assert second.states() == []
    finally:
        first.close()
        second.close()


def test_workers_wait_for_the_examination_at_the_start_and_use_its_result(tmp_path: Path) -> None:
    first, second = Bench(tmp_path, "gw0"), Bench(tmp_path, "gw1")
    found: list[str | None] = []
    waiting = threading.Thread(target=lambda: found.append(second.monitor.missing(1)))
    try:
        with first.pool.first_turn(GPUS[0]):
            waiting.start()
            deadline = time.monotonic() + 60
            while not any("waiting for another worker" in line.get("what", "") for line in second.reported):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            first.pool.record_examination(GPUS[0], healthy=True, text="fine", moment="at the start", seconds=1.0)
        waiting.join(60)
        assert found == [""]
        assert second.examined == []
    finally:
        first.close()
        second.close()


def test_a_device_that_no_worker_could_examine_is_tried_by_the_next(tmp_path: Path) -> None:
    first, second = Bench(tmp_path, "gw0"), Bench(tmp_path, "gw1")
    first.answers = [fails]
    try:
        assert first.monitor.missing(1) == ""
        assert second.monitor.missing(1) == ""
        assert second.states() == [("GPU-0", "healthy")]
    finally:
        first.close()
        second.close()


def test_a_request_to_stop_ends_the_wait_for_an_examination(tmp_path: Path) -> None:
    first, second = Bench(tmp_path, "gw0"), Bench(tmp_path, "gw1")
    try:
        with first.pool.first_turn(GPUS[0]):
            send_stop(tmp_path / "stop", StopRequest.after(0.0, "stopped by SIGTERM"))
            with pytest.raises(StoppedError, match="SIGTERM"):
                second.monitor.missing(1)
    finally:
        first.close()
        second.close()


def test_a_sick_device_is_left_for_a_healthy_one(bench: Bench) -> None:
    bench.answers = [sick, healthy]
    assert bench.monitor.missing(1) == ""
    assert bench.pool.device is GPUS[1]
    assert bench.states() == [("GPU-0", "sick"), ("GPU-0", "drained"), ("GPU-1", "healthy")]


def test_without_a_healthy_device_the_reason_is_reported(bench: Bench) -> None:
    bench.answers = [sick]
    assert str(bench.monitor.missing(1)).startswith("1 healthy devices wanted, 0 left; GPU-0 is drained: it burns")


@pytest.mark.parametrize(
    ("event", "examined", "finding"),
    [
        (LOST, ["GPU-1"], None),
        (XID, ["GPU-0"], "device GPU-0 at the start: xid 8"),
        (HANG, ["GPU-0"], "device GPU-0 at the start: nvml did not answer"),
    ],
)
def test_what_is_wrong_at_the_start(bench: Bench, event: HealthEvent, examined: list[str], finding: str | None) -> None:
    bench.pool.news = {"GPU-0": [[event]]}
    assert bench.monitor.missing(1) == ""
    assert bench.examined == examined
    assert bench.findings == ([] if finding is None else [("device_sign", finding, [])])


def test_a_device_that_does_not_become_free_is_the_reason_why_there_is_none(bench: Bench) -> None:
    bench.other.take(Claim("GPU-0"))
    assert "device GPU-0 did not become free: worker gw9" in str(bench.monitor.missing(1))
    bench.other.give_back()
    assert bench.monitor.missing(1) == ""


def test_a_lost_zygote_says_nothing_of_the_device(bench: Bench) -> None:
    bench.answers = [lambda _: bench.zygotes[0].die(), healthy]
    assert bench.monitor.missing(1) == ""
    assert bench.states() == [("GPU-0", "healthy")]
    assert len(bench.zygotes) == 2


def test_a_failure_of_the_harness_is_tried_once_more(bench: Bench) -> None:
    bench.answers = [fails, healthy]
    assert bench.monitor.missing(1) == ""
    assert bench.states() == [("GPU-0", "healthy")]
    assert bench.findings == []


def test_a_device_that_the_harness_fails_to_examine_is_used_and_reported(bench: Bench) -> None:
    bench.answers = [fails]
    assert bench.monitor.missing(1) == ""
    assert bench.monitor.missing(1) == ""
    assert bench.states() == []
    result = "not known, because the harness failed: E: ours"
    text = f"device GPU-0 at the start: {result}; the device is used without an examination"
    assert bench.findings == [("unexamined_device", text, [])]
    assert bench.examined == ["GPU-0", "GPU-0"]


# After an attempt.


@pytest.mark.parametrize(
    ("outcome", "examined"),
    [
        (Outcome.PASSED, False),
        (Outcome.FAILED, False),
        (Outcome.LOST, False),
        (Outcome.LEAKED, False),
        (Outcome.CONTAMINATED, False),
        (Outcome.CRASHED, True),
        (Outcome.TIMEOUT, True),
        (Outcome.POISONED, True),
    ],
)
def test_what_may_have_been_the_device_s_doing_has_it_examined(bench: Bench, outcome: Outcome, examined: bool) -> None:
    notes = bench.after(outcome)
    assert bench.examined == (["GPU-0"] if examined else [])
    reported = ("device GPU-0 examined after the case: computes and copies correctly",)
    assert notes == (reported if examined else ())


@pytest.mark.parametrize(
    ("event", "examined", "drained", "findings"),
    [(HOT, False, False, 0), (XID, True, False, 0), (HANG, True, False, 1), (LOST, False, True, 0)],
)
def test_nvml_events_during_a_case_are_noted_and_handled(
    bench: Bench, event: HealthEvent, examined: bool, drained: bool, findings: int
) -> None:
    bench.pool.news = {"GPU-0": [[event]]}
    notes = bench.after(Outcome.PASSED)
    assert notes[0] == f"device GPU-0 while the case ran: {event.text}"
    assert bool(bench.examined) is examined
    assert (bench.pool.drained(GPUS[0]) is not None) is drained
    assert len(bench.findings) == findings


def test_an_event_on_a_shared_device_is_not_blamed_on_one_case(bench: Bench) -> None:
    bench.pool.news = {"GPU-0": [[HOT]]}
    notes = bench.after(Outcome.PASSED, share=Fraction(1, 4))
    assert notes[0] == f"device GPU-0 while this case and others ran on it: {HOT.text}"


def test_a_device_that_is_drained_already_is_not_examined(bench: Bench) -> None:
    bench.pool.news = {"GPU-0": [[LOST]]}
    bench.after(Outcome.CRASHED)
    assert bench.examined == []


def test_a_device_with_an_executor_that_cannot_be_killed_is_drained(bench: Bench) -> None:
    bench.after(Outcome.TIMEOUT, unkillable=True)
    assert "could not be killed, after a::b timeout" in (bench.pool.drained(GPUS[0]) or "")
    assert bench.examined == []


def test_what_nvml_tells_while_a_device_is_examined_counts_too(bench: Bench) -> None:
    bench.pool.news = {"GPU-0": [[], [LOST]]}
    bench.after(Outcome.CRASHED)
    assert bench.pool.drained(GPUS[0]) == "the device is lost, while it was examined after a::b crashed"


def test_an_nvml_that_hangs_during_an_examination_is_reported(bench: Bench) -> None:
    bench.pool.news = {"GPU-0": [[], [HANG]]}
    bench.after(Outcome.CRASHED)
    text = "device GPU-0 examined after a::b crashed: nvml did not answer"
    assert bench.findings == [("device_sign", text, ["a::b"])]


def test_without_health_nothing_is_done(bench: Bench) -> None:
    bench.pool.monitored = False
    assert bench.after(Outcome.CRASHED) == ()
    assert bench.examined == []
