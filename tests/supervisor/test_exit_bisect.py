"""Which of several cases breaks the end of its process: halves are tried, then single cases, and those alone."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.configuration.context import RunContext
from harness.core.outcome import Outcome
from harness.devices.device import Device
from harness.gating.policy import Policy
from harness.journal.journal import WorkerJournal
from harness.protocol.endings import EXIT_HARNESS_ERROR
from harness.scheduling.device_leases import DeviceLeases
from harness.scheduling.stop_request import StopListener
from harness.supervisor.attempt import CaseHistory
from harness.supervisor.case import Case, CasePreparation
from harness.supervisor.case_reports import CaseLines, PytestSession
from harness.supervisor.device_monitor import DeviceMonitor
from harness.supervisor.diagnostics import Diagnostics
from harness.supervisor.executor_handle import Binding, Bindings
from harness.supervisor.executor_slot import ExecutorSlot
from harness.supervisor.lane import Lane
from harness.supervisor.lookahead import RunOrder
from harness.supervisor.supervisor import Supervisor
from tests.supervisor.fakes import BINDING, FakeExecutor, FakeItem, FakeJournal, FakeZygote, FakeZygotes, case, cpu_pool

NAMES = [f"c{number}" for number in range(8)]


class NamedItem(FakeItem):
    """An item of a session that nobody looks at."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = Path("suites/a/test_a.py")
        self.session = SimpleNamespace(config=None)


class FakeBindings(Bindings):
    def __init__(self) -> None:
        pass

    def bind(self, devices: Sequence[Device]) -> Binding:
        assert [device.uuid for device in devices] == ["cpu"]
        return BINDING


class FakePreparation(CasePreparation):
    """Makes a case of an item by its name."""

    def __init__(self) -> None:
        pass

    def prepare(self, item: pytest.Item) -> Case:
        return Case(item=item, id=item.name, seed=7, limit=60.0, devices=1, unmet=None)


class FakeSession(PytestSession):
    """Keeps what pytest would get."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, Outcome]] = []
        self.late: list[str] = []

    def begin_case(self, item: pytest.Item) -> None:
        pass

    def report(self, history: CaseHistory) -> None:
        self.reported.append((history.case.id, history.outcome))

    def report_late(self, history: CaseHistory) -> None:
        self.late.append(history.case.id)

    def apply_attempts(self, history: CaseHistory) -> None:
        pass

    def apply(self, news: object) -> None:
        pass


class FakeLane(Lane):
    """A lane that has no device once `lost` says why."""

    lost = ""

    def missing(self, count: int) -> str | None:
        return self.lost or super().missing(count)


class FakeSupervisor(Supervisor):
    """A supervisor of these parts."""

    def __init__(
        self, context: RunContext, lane: Lane, session: PytestSession, lines: CaseLines, journal: WorkerJournal
    ) -> None:
        self.context, self.policy, self.journal, self.preparation = context, Policy(), journal, FakePreparation()
        self._order = RunOrder()
        self._use(lane, session, lines)


class World:
    """A supervisor whose executors end badly after all cases of `breaks` have run in them.

    `processes`: the cases of each executor that has ended. `status`: the exit status of a bad end.
    """

    def __init__(self, folder: Path, breaks: Sequence[str], *, status: int = -11, lost: str = "") -> None:
        """`lost`: why there is no device after the end of the first executor."""
        self._lost = lost
        self.processes: list[list[str]] = []
        self.journal = FakeJournal()
        self.session = FakeSession()
        self._breaks = {*breaks}
        self._status = status
        self._zygote = FakeZygote(self._answer, {int(signal.SIGTERM): -15})
        self.stop = StopListener(folder / "stop", "gw0")
        context = cast(
            RunContext,
            SimpleNamespace(
                isolation="batch",
                leak_search=0.0,
                timeout_multiplier=1.0,
                case_timeout=60.0,
                collect_on_failure=(),
                temp_dir=str(folder),
                run_dir=str(folder),
                invocation_dir=str(folder),
                reproduce=lambda case, *_: f"pytest {case}",
            ),
        )
        pool, lines = cpu_pool(folder), CaseLines(context, "gw0")
        zygotes = FakeZygotes(lambda: self._zygote.client)
        slot = ExecutorSlot(
            zygotes,
            pool,
            self.journal,
            temp=folder / "temp",
            run_dir=folder,
            stop=self.stop,
            leases=DeviceLeases(None),
        )
        bindings = FakeBindings()
        self.lane = FakeLane(
            slot,
            pool,
            DeviceMonitor(pool, slot, bindings, self.journal, seed=7, limit=60.0),
            Diagnostics(context, self.journal, self.stop),
            bindings,
            self.session,
            lines,
            self.journal,
            levels=False,
        )
        self.supervisor = FakeSupervisor(context, self.lane, self.session, lines, self.journal)

    def run(self, names: Sequence[str]) -> None:
        """Run these cases, one after the other, as pytest does."""
        items = [cast(pytest.Item, NamedItem(name)) for name in names]
        for item, following in zip(items, [*items[1:], None], strict=True):
            self.supervisor.run_case(item, following)

    @property
    def rehearsed(self) -> list[list[str]]:
        """The cases of the executors after the first, without the cases that ran alone in the end."""
        return self.processes[1 : len(self.processes) - len(self.alone)]

    @property
    def alone(self) -> list[tuple[str, str]]:
        """The cases that ran again alone, with the outcomes."""
        ends = [line for line in self.journal.lines if line["event"] == "finish" and line["attempt"] > 1]
        return [(line["case"], line["outcome"]) for line in ends]

    def close(self) -> None:
        self.lane.slot.close("the test has ended")
        self.stop.close()
        self._zygote.end()

    def _answer(self, executor: FakeExecutor) -> None:
        if executor.last_request == "run":
            executor.pass_case()
            return
        handle = self.lane.slot.current
        assert handle is not None
        self.processes.append([*handle.cases])
        self.lane.lost = self._lost
        bad = {*handle.cases} >= self._breaks
        if bad and self._status == EXIT_HARNESS_ERROR and len(self.processes) > 1:
            executor.send("harness_error", error="E: x", traceback="Traceback")
            executor.exit(self._status)
        else:
            executor.exit((-11 if self._status == EXIT_HARNESS_ERROR else self._status) if bad else 0)


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(breaks: Sequence[str], **more: Any) -> World:
        made.append(World(tmp_path, breaks, **more))
        return made[-1]

    yield make
    for world in made:
        world.close()


MakeWorld = Callable[..., World]


def test_halves_are_tried_until_one_is_left_which_runs_alone(make_world: MakeWorld) -> None:
    world = make_world(["c5"])
    world.run(NAMES)
    assert world.rehearsed == [NAMES[:4], NAMES[4:], ["c4", "c5"], ["c4"], ["c5"], ["c6", "c7"]]
    assert world.alone == [("c5", "crashed")]
    assert (world.session.late, world.journal.findings) == (["c5"], [])
    assert world.session.reported == [(name, Outcome.PASSED) for name in NAMES]


def test_one_that_ran_alone_is_blamed_at_once(make_world: MakeWorld) -> None:
    """Its process ends in the attempt itself."""
    world = make_world(["c0"])
    world.run(["c0"])
    assert world.processes == [["c0"]]
    assert world.session.reported == [("c0", Outcome.CRASHED)]
    assert (world.session.late, world.journal.findings) == ([], [])


def test_what_only_two_halves_do_together_is_a_finding(make_world: MakeWorld) -> None:
    world = make_world(["c1", "c6"])
    world.run(NAMES)
    assert world.rehearsed == [NAMES[:4], NAMES[4:]]
    ((kind, text, cases),) = world.journal.findings
    assert (kind, cases) == ("executor_exit", NAMES)
    assert text.startswith("executor gw0-e1 ended with ")
    assert text.endswith(" at interpreter exit; no single case causes this alone")


def test_a_pair_in_one_half_is_no_single_case(make_world: MakeWorld) -> None:
    """Each is tried within that half, and neither breaks it alone."""
    world = make_world(["c0", "c1"])
    world.run(NAMES)
    assert world.rehearsed == [NAMES[:4], ["c0", "c1"], ["c0"], ["c1"], ["c2", "c3"], NAMES[4:]]
    assert (world.alone, world.session.late) == ([], [])
    assert [kind for kind, _, _ in world.journal.findings] == ["executor_exit"]


def test_without_devices_the_case_is_not_found(make_world: MakeWorld) -> None:
    world = make_world(["c1"], lost="1 healthy devices wanted, 0 left")
    world.run(NAMES)
    ((kind, text, cases),) = world.journal.findings
    assert (kind, cases) == ("executor_exit", NAMES)
    assert text.endswith("; the case that causes this was not found: 1 healthy devices wanted, 0 left")
    assert world.rehearsed == []


def test_a_failure_of_the_harness_in_a_rehearsal_accuses_no_case(make_world: MakeWorld) -> None:
    world = make_world(["c5"], status=EXIT_HARNESS_ERROR)
    world.run(NAMES)
    assert world.rehearsed == [NAMES[:4], NAMES[4:]]
    assert world.alone == []
    assert [kind for kind, _, _ in world.journal.findings] == ["harness_error", "executor_exit"]


def test_a_history_goes_on_after_the_attempts_of_the_run() -> None:
    assert CaseHistory(case("a::b"), 2).next_number == 3
