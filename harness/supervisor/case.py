"""A case, the decisions about it before it runs (seed, time limit, devices, gate, waivers), and its journal lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from harness.collection.cases import CASE_ID
from harness.configuration.context import RunContext
from harness.configuration.values import case_time_limit
from harness.core import clock
from harness.core.caseid import case_seed
from harness.core.errors import HarnessError
from harness.core.outcome import Outcome, Ruling
from harness.core.text import single_line, truncate_middle
from harness.devices import capabilities
from harness.devices.capabilities import Capabilities
from harness.devices.device import Device, Inventory
from harness.fixtures import kept
from harness.gating import policy as rules
from harness.gating import requirements, waivers
from harness.gating.policy import Policy
from harness.gating.requirements import Unmet
from harness.gating.waivers import Waiver
from harness.journal import events
from harness.journal.events import Finish, Gate, Start
from harness.marks import all_marks, marks_of, nearest_mark
from harness.scheduling import leases
from harness.scheduling.leases import ALONE
from harness.scheduling.workers import Resumption
from harness.supervisor.device_pool import DevicePool

#: Characters kept of the tracebacks of a case.
_TRACEBACK_LIMIT = 64 << 10


@dataclass(frozen=True, slots=True)
class Case:
    """A collected item, with the decisions that are made before it runs. `limit` in seconds.

    `before`: the number of attempts before the run was resumed. `finished`: the case had its verdict before that.
    `objection`: why the run does not accept that the case is gated. `waivers`: those that apply to it in this run.
    `share` and `memory`: its needs on each of its `devices`, see `harness.scheduling.leases.Claim`. `own_process`: no
    other case may use its process before or after it. `keeps`: the memory that it may keep, as text.
    """

    item: pytest.Item
    id: str
    seed: int
    limit: float
    devices: int
    unmet: Unmet | None
    objection: Ruling | None = None
    waivers: tuple[Waiver, ...] = ()
    share: Fraction = ALONE
    memory: int = 0
    own_process: bool = False
    keeps: str = ""
    before: int = 0
    finished: bool = False

    def start(self, *, attempt: int, alone: bool, worker: str, at: float | None = None, **where: Any) -> Start:
        """Return the line of an attempt that starts. `at`: when it began, if earlier than now."""
        moment = clock.now() if at is None else at
        return Start(t=moment, case=self.id, attempt=attempt, alone=alone, worker=worker, seed=self.seed, **where)

    def finish(self, outcome: Outcome, *, worker: str, attempt: int = 1, alone: bool = True, **more: Any) -> Finish:
        """Return the line of an attempt that has ended. `more`: further fields of the line."""
        fields: dict[str, Any] = {"t": clock.now(), "final": True, "duration": 0.0, **more}
        return Finish(
            case=self.id, attempt=attempt, alone=alone, worker=worker, seed=self.seed, outcome=outcome, **fields
        )

    def gated(self, unmet: Unmet, worker: str) -> Finish:
        """Return the line of a case that is not run because of `unmet`."""
        gate = Gate(capability=unmet.capability, wanted=unmet.wanted, found=unmet.found)
        ruling = ruling_field(self.objection)
        return self.finish(Outcome.GATED, worker=worker, message=unmet.text, gate=gate, ruling=ruling)

    def not_run(self, reason: str, worker: str) -> Finish:
        """Return the line of a case that could not be run, with the `reason`."""
        return self.finish(Outcome.NOT_RUN, worker=worker, message=reason)


def ruling_field(ruling: Ruling | None) -> events.Ruling | None:
    """Return a ruling as it is written to the journal."""
    return None if ruling is None else events.Ruling(outcome=ruling.outcome, text=ruling.text, source=ruling.source)


def first_line(reports: Sequence[pytest.TestReport]) -> str:
    """Return one line with the exception of a failure or the reason of a skip; empty for a pass."""
    for report in reports:
        if report.failed:
            crash, text = getattr(getattr(report.longrepr, "reprcrash", None), "message", ""), report.longreprtext
            return single_line(assertion_reason(str(crash), text) or str(crash) or doctest_reason(text) or text)
        if report.skipped and hasattr(report, "wasxfail"):
            return f"expected failure: {report.wasxfail}" if report.wasxfail else "expected failure"
        if report.skipped and isinstance(report.longrepr, tuple):
            return single_line(str(report.longrepr[2]))
    return ""


def tracebacks(reports: Sequence[pytest.TestReport]) -> str:
    """Return the tracebacks of all failed phases."""
    return truncate_middle("\n\n".join(report.longreprtext for report in reports if report.failed), _TRACEBACK_LIMIT)


def may_follow(following: Case, case: Case) -> bool:
    """Return whether `following` will run in the executor of `case`, if that is still usable."""
    served = (following.devices, following.share) == (case.devices, case.share) and following.memory <= case.memory
    return following.unmet is None and served and not following.finished and not needs_own_process(following)


def needs_own_process(case: Case) -> bool:
    """Return whether the case asks for its own process, or a waiver expects it to break its process."""
    return case.own_process or _is_expected_to_break(case)


def takes_short_exit(case: Case) -> bool:
    """Return whether the case asks for its own process, and that process need not be finalised as a whole.

    A break that a waiver expects may show only in the finalisation.
    """
    return case.own_process and not _is_expected_to_break(case)


def _is_expected_to_break(case: Case) -> bool:
    expected = {outcome for waiver in case.waivers for outcome in waiver.expect}
    return any(outcome.breaks_executor for outcome in expected) and Outcome.FLAKY not in expected


#: What pytest says of an assertion that compares nothing.
_BARE = re.compile(
    r"(?:AssertionError: )?assert (?:not )*(?:True|False|None|np\.(?:True|False)_|tensor\((?:True|False)\b.*\))"
)
_STATEMENT = re.compile(r"^>(.*\n(?:(?!E  |>)(?! +\^+$).*\n)*)", re.MULTILINE)
_BUILT_IN = re.compile(r"<built-in (?:method|function) (\w+)(?: of [^<>]* at 0x[0-9a-f]+)?>")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")


def assertion_reason(crash: str, report: str) -> str:
    """Return the statement of an assertion whose own text has only the value, and where this came from.

    For example ``assert torch.equal(a, b), where False = equal(tensor([1.]), tensor([2.]))``. The text is empty for
    other failures, and without the source in the report. `crash`: the exception's message, with pytest's explanation.
    """
    value, _, explanation = crash.partition("\n")
    statements = [] if _BARE.fullmatch(value) is None else _STATEMENT.findall(report)
    if not statements:
        return ""
    source = " ".join(line.strip() for line in statements[-1].splitlines())
    where = explanation.partition("\n")[0].strip().removeprefix("+").strip()
    where = _ADDRESS.sub("", _BUILT_IN.sub(r"\1", where))
    return f"{source}, {where}" if where.startswith("where ") else source


_END = re.compile(r":(?P<line>[0-9]+): (?:DocTestFailure|UnexpectedException)\s*\Z")
_UNEXPECTED = re.compile(r"^UNEXPECTED EXCEPTION: (?P<error>.*)$", re.MULTILINE)
_EXPECTED = re.compile(r"^Expected(?: (?P<nothing>nothing)|:\n(?P<text>(?: {4}.*\n?|\n)*))", re.MULTILINE)
_GOT = re.compile(r"^Got(?: (?P<nothing>nothing)|:\n(?P<text>(?: {4}.*\n?|\n)*))", re.MULTILINE)
_SHOWN = 200


def doctest_reason(report: str) -> str:
    """Return the reason, such as ``line 8: expected 5, got 3``.

    The text is empty if this is not the report of a doctest.
    """
    end = _END.search(report)
    if end is None:
        return ""
    where = f"line {end['line']}"
    unexpected = _UNEXPECTED.search(report)
    if unexpected is not None:
        return f"{where}: {single_line(unexpected['error'], _SHOWN)}"
    expected, got = _EXPECTED.search(report), _GOT.search(report)
    if expected is None or got is None:
        return f"{where}: the output differs"
    return f"{where}: expected {_shown(expected)}, got {_shown(got)}"


def _shown(match: re.Match[str]) -> str:
    if match["nothing"]:
        return "nothing"
    lines = match["text"].strip().splitlines()
    return single_line(match["text"], _SHOWN) + (" …" if len(lines) > 1 else "")


_PREPARED = pytest.StashKey[tuple[str, Case]]()


class CasePreparation:
    """Makes the decisions about the cases of one worker. They depend on the device that it uses."""

    def __init__(
        self,
        context: RunContext,
        policy: Policy,
        inventory: Inventory,
        pool: DevicePool,
        resumption: Resumption,
        *,
        slots: int,
    ) -> None:
        """`slots`: the number of cases that may use one device at once."""
        self._context = context
        self._policy = policy
        self._inventory = inventory
        self._pool = pool
        self._resumption = resumption
        self._slots = slots
        self._today = datetime.now(UTC).date()
        self._capabilities: dict[str, Capabilities] = {}

    def prepare(self, item: pytest.Item) -> Case:
        """Return the decisions about a case. They are made once per device."""
        device = self._pool.device
        decided = item.stash.get(_PREPARED, None)
        if decided is None or decided[0] != device.uuid:
            item.stash[_PREPARED] = decided = device.uuid, self._decide(item, device)
        return decided[1]

    def _decide(self, item: pytest.Item, device: Device) -> Case:
        offered = self._offered(device)
        marks = all_marks(item)  # once, since each call walks all nodes above the item
        wanted = requirements.requirements_from_marks(_named(marks, "requires"))
        case_id = item.stash[CASE_ID]
        unmet = requirements.first_unmet(wanted, offered)
        lacking = self._lacking_type(item, marks)
        memory = requirements.memory_wanted(wanted)
        alone = bool(_named(marks, "serial"))
        return Case(
            item=item,
            id=case_id,
            seed=case_seed(self._context.seed, case_id),
            limit=case_time_limit(
                _named(marks, "timeout"), self._context.case_timeout, self._context.timeout_multiplier
            )
            + (self._context.endurance if _named(marks, "endurance") else 0.0),
            devices=requirements.devices_wanted(wanted, per_rank=device.backend.accelerator),
            unmet=lacking or unmet,
            objection=rules.rule_on_gate(self._policy, wanted, offered) if unmet and not lacking else None,
            waivers=self._waivers(item, case_id, _named(marks, "leaks"), offered),
            share=self._share(device, memory, alone=alone),
            memory=memory,
            # Ranks are forks of the process, which must not have used a device.
            own_process=bool(_named(marks, "own_process")) or requirements.wants_ranks(wanted),
            keeps=keeps.text if _named(marks, "keeps") and (keeps := kept(item)) is not None else "",
            before=self._resumption.attempts.get(case_id, 0),
            finished=case_id in self._resumption.finished,
        )

    def _waivers(
        self, item: pytest.Item, case_id: str, leaks: Sequence[pytest.Mark], offered: Capabilities
    ) -> tuple[Waiver, ...]:
        found = (
            *_own_waivers(item, case_id, leaks),
            *waivers.applying_waivers(self._policy.waivers, case_id, offered, self._today),
        )
        return waivers.waivers_without_checks(found) if self._context.leak_check == "off" else found

    def _lacking_type(self, item: pytest.Item, marks: Iterable[pytest.Mark]) -> Unmet | None:
        """Return why the case is gated by a type that the hardware file says its device lacks; None otherwise."""
        without = self._policy.without_types
        if not without:
            return None
        needed = requirements.types_needed(requirements.parameter_types(item), _named(marks, "types"))
        return requirements.first_lacking(needed, without, self._policy.hardware)

    def whole_devices(self, item: pytest.Item) -> int:
        """Return how many whole devices a case takes; 0 if its slot on one device is enough.

        The number is 1 for a case alone on a device that others share.
        """
        try:
            wanted = requirements.requirements_from_marks(marks_of(item, "requires"))
            count = requirements.devices_wanted(wanted, per_rank=self._pool.device.backend.accelerator)
        except HarnessError:  # an invalid mark is reported elsewhere
            return 0
        if count > 1:
            return count
        memory, alone = requirements.memory_wanted(wanted), nearest_mark(item, "serial") is not None
        share = self._share(self._pool.device, memory, alone=alone)
        return 1 if self._slots > 1 and share == leases.ALONE else 0

    def _share(self, device: Device, memory: int, *, alone: bool) -> Fraction:
        """Return the share of a device for a case that declares `memory`, or that has the mark ``serial``.

        For devices that are not hardware, the share is the same for all cases. Otherwise a claim to another share would
        end an executor needlessly.
        """
        hardware = device.backend.hardware
        return leases.share_of(self._slots, memory if hardware else 0, device.memory, alone=alone and hardware)

    def _offered(self, device: Device) -> Capabilities:
        """Return the capabilities of a device."""
        if device.uuid not in self._capabilities:
            cache = Path(self._context.temp_dir) / "capabilities"
            self._capabilities[device.uuid] = capabilities.detect_capabilities(self._inventory, device, cache)
        return self._capabilities[device.uuid]


def slots_per_device(wanted: int, workers: int, inventory: Inventory) -> int:
    """Return the number of places on each device: `wanted`, or more if the run has more workers than places."""
    return max(wanted, -(-workers // len(inventory.usable)))


def _named(marks: Iterable[pytest.Mark], name: str) -> list[pytest.Mark]:
    return [mark for mark in marks if mark.name == name]


def _own_waivers(item: pytest.Item, case_id: str, marks: Sequence[pytest.Mark]) -> tuple[Waiver, ...]:
    """Return the waivers in the case's own marks."""
    if not marks:
        return ()  # reading the location is expensive
    path, line, _ = item.location
    source = f"{path}:{(line or 0) + 1}"
    return tuple(waivers.waiver_from_mark(mark, case_id, source) for mark in marks)
