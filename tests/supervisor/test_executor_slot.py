"""The executors of one supervisor: at most one runs, it holds its devices, and the journal records each."""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import NoDeviceError
from harness.protocol.endings import EXIT_HARNESS_ERROR
from harness.scheduling.device_leases import DeviceLeases
from harness.scheduling.leases import Claim
from harness.scheduling.stop_request import StopListener
from harness.supervisor import executor_files
from harness.supervisor.executor_handle import Outputs
from harness.supervisor.executor_slot import ExecutorSlot
from harness.zygote.client import ZygoteClient, ZygoteError
from tests.supervisor.fakes import BINDING, DIES, NO_PID, FakeExecutor, FakeJournal, FakeZygote, FakeZygotes, cpu_pool

PATIENCE = 60.0


class Bench:
    """A slot, its zygotes, and everything that it reported."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._journal = FakeJournal()
        self.zygotes: list[FakeZygote] = []
        self.unclean = 0
        #: Called with each zygote before the slot gets it.
        self.prepare: Callable[[FakeZygote], None] = lambda _: None
        self.script: Callable[[FakeExecutor], None] = lambda _: None
        self.connect: Callable[[], ZygoteClient] = self._connect
        self.other = DeviceLeases(folder / "leases", worker="gw1", limit=0.0)
        self.stop = StopListener(folder / "stop", "gw0")
        self.slot = ExecutorSlot(
            FakeZygotes(lambda: self.connect()),
            cpu_pool(folder),
            self._journal,
            temp=folder,
            run_dir=folder,
            stop=self.stop,
            leases=DeviceLeases(folder / "leases", worker="gw0", limit=0.0),
        )
        monkeypatch.setattr(executor_files, "release_cache_locks", self._count_unclean)

    def lines(self, *fields: str) -> list[tuple[Any, ...]]:
        return [tuple(line.get(field) for field in fields) for line in self.reported]

    @property
    def free(self) -> bool:
        """Whether another worker could get the device."""
        try:
            self.other.take(Claim(BINDING.devices[0]))
        except NoDeviceError:
            return False
        self.other.give_back()
        return True

    def close(self) -> None:
        self.slot.close("the session ended")
        self.stop.close()
        for zygote in self.zygotes:
            zygote.end()

    def _connect(self) -> ZygoteClient:
        zygote = FakeZygote(lambda executor: self.script(executor), DIES)
        self.prepare(zygote)
        self.zygotes.append(zygote)
        return zygote.client

    @property
    def reported(self) -> list[dict[str, Any]]:
        return [line for line in self._journal.lines if line["event"] != "activity"]

    def _count_unclean(self, _: Path) -> None:
        self.unclean += 1


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.close()


def test_the_devices_are_held_from_the_start_of_an_executor_to_its_end(bench: Bench) -> None:
    handle = bench.slot.spawn(BINDING)
    assert bench.slot.current is handle
    assert not bench.free
    bench.slot.dispose(handle, "retired")
    assert bench.slot.current is None
    assert bench.free
    assert bench.lines("executor", "state", "exit_status", "reason") == [
        ("gw0-e1", "started", None, ""),
        ("gw0-e1", "ended", -15, "retired"),
    ]
    assert bench.unclean == 1


def test_an_executor_that_ended_in_order_leaves_nothing_to_clear_up(bench: Bench) -> None:
    bench.script = lambda executor: executor.exit(0)
    handle = bench.slot.spawn(BINDING)
    handle.send({"op": "exit"})
    assert handle.wait_exit(time.monotonic() + PATIENCE)
    bench.slot.dispose(handle, "retired")
    assert (bench.unclean, bench.zygotes[0].signals) == (0, [])


def test_devices_that_are_held_on_to_are_free_after_the_release(bench: Bench) -> None:
    handle = bench.slot.spawn(BINDING)
    bench.slot.release()  # not while an executor uses them
    assert not bench.free
    bench.slot.dispose(handle, "unfit", hold=True)
    assert not bench.free
    bench.slot.release()
    assert bench.free


def test_a_device_that_does_not_become_free_keeps_the_zygote(bench: Bench) -> None:
    bench.other.take(Claim(BINDING.devices[0]))
    with pytest.raises(NoDeviceError, match="worker gw1"):
        bench.slot.spawn(BINDING)
    assert (bench.slot.current, bench.zygotes, bench.reported) == (None, [], [])
    bench.other.give_back()
    assert bench.slot.spawn(BINDING).name == "gw0-e1"


def test_a_zygote_that_is_gone_is_replaced_once(bench: Bench) -> None:
    bench.slot.dispose(bench.slot.spawn(BINDING), "retired")
    bench.zygotes[0].gone = True
    assert bench.slot.spawn(BINDING).name == "gw0-e3"
    assert [zygote.closed for zygote in bench.zygotes] == [True, False]


def test_zygotes_that_go_one_after_the_other_are_given_up(bench: Bench) -> None:
    bench.prepare = lambda zygote: setattr(zygote, "gone", True)
    with pytest.raises(ZygoteError):
        bench.slot.spawn(BINDING)
    assert len(bench.zygotes) == 2
    assert bench.slot.current is None


def test_a_zygote_that_cannot_be_found_gives_the_devices_back(bench: Bench) -> None:
    def refuse() -> ZygoteClient:
        raise ZygoteError("none can be had")

    bench.connect = refuse
    with pytest.raises(ZygoteError, match="none can be had"):
        bench.slot.spawn(BINDING)
    assert bench.free


def test_a_zygote_that_goes_while_its_executor_is_ended_is_dropped(bench: Bench) -> None:
    handle = bench.slot.spawn(BINDING)
    bench.zygotes[0].gone = True
    bench.slot.dispose(handle, "unfit")
    assert (bench.slot.current, bench.zygotes[0].closed) == (None, True)
    assert bench.free


def test_an_executor_that_cannot_be_killed_does_not_get_to_write_into_the_next_one_s_files(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.supervisor.executor_handle.LADDER", ((signal.SIGKILL, 0.0),))
    handle = bench.slot.spawn(BINDING)
    bench.slot.dispose(handle, "unfit")
    assert handle.unkillable
    assert [line["reason"] for line in bench.reported if line["event"] == "executor"][-1] == "could not be killed"
    assert bench.reported[-1]["kind"] == "unkillable"
    assert bench.slot.spawn(BINDING).outputs is not handle.outputs


def test_files_of_a_red_executor_are_kept_if_it_made_any(bench: Bench) -> None:
    for made, keep, left in ((False, True, False), (True, True, True), (True, False, False)):
        handle = bench.slot.spawn(BINDING)
        if made:
            (handle.temp / "file").touch()
        bench.slot.dispose(handle, "unfit", keep_files=keep)
        assert (handle.temp.exists(), handle.kept.exists()) == (False, left)


def test_another_executor_lives_while_the_current_one_is_set_aside(bench: Bench) -> None:
    kept = bench.slot.spawn(BINDING)
    with bench.slot.set_aside():
        assert bench.slot.current is None
        assert not bench.free
        bench.slot.spawn(BINDING)
    assert bench.slot.current is kept
    assert not bench.free
    assert bench.lines("executor", "reason")[-1] == ("gw0-e2", "rehearsal")


def test_one_that_was_set_aside_ends_with_its_zygote(bench: Bench) -> None:
    kept = bench.slot.spawn(BINDING)
    with bench.slot.set_aside():
        bench.slot.drop_zygote()
    assert bench.slot.current is None
    assert bench.lines("executor", "reason")[-1] == (kept.name, "the zygote was lost")


def test_an_executor_that_was_started_ahead_is_the_next_one(bench: Bench) -> None:
    current = bench.slot.spawn(BINDING)
    for _ in range(2):  # the second call has no effect
        bench.slot.prepare(BINDING)
    bench.slot.dispose(current, "retired")
    assert [executor.name for executor in bench.zygotes[0].executors] == ["gw0-e1", "gw0-e2"]
    following = bench.slot.spawn(BINDING)
    assert (following.name, following.pid) == ("gw0-e2", NO_PID + 2)
    assert following.outputs is not current.outputs
    assert bench.lines("executor", "state")[-1] == ("gw0-e2", "started")
    assert not bench.free
    bench.slot.dispose(following, "retired")
    assert bench.slot.spawn(BINDING).name == "gw0-e3"


@pytest.mark.parametrize("why", ["another binding", "refused", "ended", "failed", "killed at once"])
def test_one_that_is_not_fit_for_use_is_replaced(bench: Bench, why: str) -> None:
    bench.slot.dispose(bench.slot.spawn(BINDING), "retired")
    reported = len(bench.reported)
    bench.slot.prepare(BINDING)
    spare = bench.zygotes[0].executors[-1]
    bench.zygotes[0].refuses = why == "refused"
    bench.zygotes[0].deaths[int(signal.SIGKILL)] = -9
    binding = BINDING
    if why == "another binding":
        binding = replace(BINDING, leak_check="full")
    elif why == "ended":
        spare.exit(-9)
    elif why == "failed":
        spare.send("harness_error", error="E: x", traceback="Traceback: a")
    elif why == "killed at once":
        bench.slot.drop_spare()
    assert bench.reported[reported:] == []  # no case can have run in it
    handle = bench.slot.spawn(binding)
    assert (handle.name, handle.binding) == ("gw0-e3", binding)
    killed = [9] if why in ("another binding", "killed at once") else []
    assert bench.zygotes[0].signals[1:] == killed
    assert not (handle.temp.parent / "gw0-e2").exists()


def test_a_lack_of_descriptors_prevents_only_that_one_is_started_ahead(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking() -> Outputs:
        raise OSError(errno.EMFILE, "Too many open files")

    current = bench.slot.spawn(BINDING)
    with monkeypatch.context() as patched:
        patched.setattr("harness.supervisor.executor_slot.Outputs", lacking)
        bench.slot.prepare(BINDING)
    bench.slot.dispose(current, "retired")
    assert bench.slot.spawn(BINDING).name == "gw0-e3"


def test_one_whose_zygote_is_gone_is_forgotten(bench: Bench) -> None:
    bench.slot.dispose(bench.slot.spawn(BINDING), "retired")
    bench.slot.prepare(BINDING)
    bench.zygotes[0].gone = True
    handle = bench.slot.spawn(BINDING)
    assert (handle.name, len(bench.zygotes)) == ("gw0-e3", 2)


def test_one_that_waits_at_the_end_is_ended(bench: Bench) -> None:
    bench.slot.spawn(BINDING)
    bench.slot.prepare(BINDING)
    bench.slot.close("the session ended")
    assert [line["executor"] for line in bench.reported] == ["gw0-e1", "gw0-e1"]
    assert bench.zygotes[0].closed  # so it ends all that it has forked for this worker


def test_the_same_failure_of_the_harness_is_reported_once_with_its_case(bench: Bench) -> None:
    tracebacks = iter(["Traceback: a", "Traceback: a", "Traceback: b"])

    def fail(executor: FakeExecutor) -> None:
        executor.send("harness_error", error="E: x", traceback=next(tracebacks))
        executor.exit(EXIT_HARNESS_ERROR)

    bench.script = fail
    for number in range(3):
        handle = bench.slot.spawn(BINDING)
        handle.cases += ["a::earlier", f"a::case{number}"]
        handle.send({"op": "run"})
        assert handle.receive(time.monotonic() + PATIENCE)
        bench.slot.dispose(handle, "unfit")
    findings = [line for line in bench.reported if line["event"] == "finding"]
    assert [(line["kind"], line["cases"]) for line in findings] == [
        ("harness_error", ["a::case0"]),
        ("harness_error", ["a::case2"]),
    ]
    assert findings[0]["message"] == "the harness failed in executor gw0-e1: E: x\nTraceback: a"


def test_the_end_of_everything_kills_what_runs(bench: Bench) -> None:
    bench.slot.spawn(BINDING)
    bench.slot.abandon("interrupted")
    assert bench.lines("state", "reason")[-1] == ("ended", "interrupted")
    bench.slot.abandon("interrupted")
    assert bench.free
