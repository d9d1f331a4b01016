"""One column of a matrix: a run in few bytes, for 200 runs in one process. Several processes read runs in parallel."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness.backends.table import backend_of
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_NOTHING_RAN, EXIT_OK, Outcome
from harness.core.text import escape_invalid_xml, single_line, truncate_middle
from harness.fleet.classing import Factor, ResultPlace
from harness.fleet.matrix_model import HoleKind, MatrixRun, StatedLevel
from harness.fleet.run import RunSummary, environment_facts, is_plain, mapping, read_run
from harness.journal import environment, identity, journal
from harness.journal.events import Finding, RunStarted
from harness.journal.ledger import Summary
from harness.journal.verdicts import Verdict
from harness.tools import conformance

#: Maximum characters of a message, and of a command. A longer command is left out, since a part of it would not work.
MOST_OF_MESSAGE = 300
MOST_OF_COMMAND = 1000
#: Maximum findings of a run, and cases of a finding.
MOST_FINDINGS = 100
MOST_CASES = 20
#: Maximum unreadable lines that a text names.
MOST_DAMAGED = 3
#: Maximum levels of conformance of a run, and bytes of its file.
MOST_LEVELS = 50
MOST_BYTES = 64 << 20
_HOLES = {
    outcome: HoleKind(outcome.value)
    for outcome in (Outcome.WAIVED, Outcome.LOST, Outcome.NOT_RUN, Outcome.GATED, Outcome.SKIPPED)
}
_STATES = (conformance.PASSED, conformance.FAILED, conformance.NOT_APPLICABLE, conformance.INCOMPLETE)
#: The version of a component that a machine does not have.
NONE = "none"
#: Facts of a run that belong to its machine, and the seed. Both may differ between runs.
_MACHINE = frozenset({"torch", "driver", "device", "--seed"})
#: A fact by its factor and name, with its values: an option such as ``--inject`` may have several.
Facts = Mapping[tuple[Factor, str], tuple[str, ...]]
#: Facts that are already properties of a place, and the seed, which differs in each run.
_ELSEWHERE = frozenset({"torch", "driver", "device", "devices", "--seed"})
_COMMIT = "commit"
#: Whether the environment of a run is known. This fact explains nothing.
_READ = (Factor.SETTING, "environment.json")
_SHOWN = 100
_MOST_FACT_VALUES = 20


class ReaderDiedError(HarnessError):
    """A process that reads runs ended before it was done."""


@dataclass(frozen=True, slots=True)
class RunDevice:
    """A device of a run. `parent`: the GPU of a MIG instance. `unique`: no other host has a device with this UUID."""

    uuid: str
    name: str
    parent: str = ""
    unique: bool = True


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case in a run: the outcome, the UUIDs of its devices, and the reason if it did not run.

    `outcome`: None if the run does not have the case, for the reason `absent`. `found`: for a gated case, the machine's
    value, in contrast to `reason`.
    """

    outcome: Outcome | None
    devices: tuple[str, ...] = ()
    reason: str = ""
    found: str = ""
    absent: HoleKind | None = None

    @property
    def hole(self) -> HoleKind | None:
        """Why the result says nothing about the case; None for an observation."""
        return self.absent if self.outcome is None else _HOLES.get(self.outcome)

    @property
    def is_red(self) -> bool:
        return self.hole is None and self.outcome is not None and self.outcome.is_red

    @property
    def is_bad(self) -> bool:
        return self.is_red or self.outcome is Outcome.FLAKY


#: The results of cases that a run does not have. The first one is that of a case of which nothing is known.
ABSENT = {
    kind: CaseResult(None, reason=reason, absent=kind)
    for kind, reason in (
        (HoleKind.NOT_COLLECTED, "the runs of these machines have no such case"),
        (HoleKind.DESELECTED, "excluded by the options of the run"),
        (HoleKind.OTHER_SHARD, "it is in another shard of the run, which is missing here"),
    )
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """The message of a red or flaky case, and the command that runs it again."""

    message: str
    reproduce: str = ""


class MachineKey(NamedTuple):
    """What makes runs those of one machine of a matrix."""

    device: str
    driver: str
    torch: str
    host: str

    @property
    def order(self) -> tuple[object, ...]:
        """The sort key: device, driver, torch, host; numbers within them by size."""
        return tuple(map(_natural, self))


@dataclass(frozen=True, slots=True)
class Column:
    """One run. `shown`: what the JSON says about it. `results`, `troubles`: by case; equal results are one object.

    `facts`: facts that should be equal in all runs, such as the hash of the suites' files. `unread`: the beginnings of
    ids that the run has not read, because it would have left them out. `parts`: run ids of the shards that it was
    merged from. `print`: runs with the same value are copies of one run. `findings`: the first of them, with few of
    their cases, and the number of these. `conditions`: its facts other than those of the machine.
    """

    shown: MatrixRun
    host: str
    driver: str
    torch: str
    devices: tuple[RunDevice, ...]
    facts: Mapping[str, str]
    results: Mapping[str, CaseResult]
    troubles: Mapping[str, Trouble]
    unread: tuple[str, ...]
    parts: tuple[str, ...]
    print: tuple[object, ...]
    fail_on_flaky: bool
    findings: tuple[tuple[Finding, int], ...]
    conditions: Facts

    @property
    def machine(self) -> MachineKey:
        """The machine of the run."""
        names = sorted({device.name for device in self.devices})
        return MachineKey(", ".join(names) or "no device", self.driver, self.torch, self.host)

    @property
    def text(self) -> str:
        """The name with the time of the start."""
        try:
            return f"{self.shown.name} ({datetime.fromtimestamp(self.shown.begun, UTC):%Y-%m-%d %H:%M} UTC)"
        except (OverflowError, ValueError):
            return self.shown.name

    def place(self, uuids: Sequence[str]) -> ResultPlace:
        """Return the place of an attempt on these devices.

        Without devices, the place has the names of all devices of the run. A machine without a driver has no version
        that could explain anything.
        """
        by_uuid = {device.uuid: device for device in self.devices}
        used = [by_uuid.get(uuid, RunDevice(uuid, "unknown device")) for uuid in uuids]
        unique = [name for device in used if device.unique for name in (device.uuid, device.parent) if name]
        return ResultPlace(
            host=self.host,
            devices=tuple(sorted({device.name for device in used or self.devices})),
            driver="" if self.driver == NONE else self.driver,
            torch="" if self.torch == NONE else self.torch,
            uuids=tuple(dict.fromkeys(unique)),
        )


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]", text)
    return tuple((0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part) for part in parts)


def read_summaries(run_dirs: Sequence[Path], processes: int | None = None) -> Iterator[Column | str]:
    """Return every run, in order; a sentence about one that cannot be read. Raise ReaderDiedError.

    Several processes read, by default one per core.
    """
    wanted = min(processes or len(os.sched_getaffinity(0)), len(run_dirs))
    if wanted < 2:
        yield from map(read_summary, run_dirs)
        return
    # Not forked: the open files and threads of the caller are unknown.
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(wanted, mp_context=context, initializer=gc.disable) as pool:
            yield from pool.map(read_summary, run_dirs)
    except BrokenProcessPool:
        message = "a process that reads runs was killed, perhaps for lack of memory: try again with fewer runs"
        raise ReaderDiedError(message) from None


def read_summary(run_dir: Path) -> Column | str:
    """Read one run directory. Return a sentence if it cannot be read. Symbolic links are not followed."""
    left_out = f"{escape_invalid_xml(str(run_dir))} was left out"
    if not is_plain(run_dir / journal.FILE_NAME):
        return f"{left_out}: {journal.FILE_NAME} is a symbolic link or no regular file"
    try:
        return make_column(read_run(run_dir, environments=is_plain(run_dir / environment.FILE_NAME)))
    except HarnessError as error:
        return f"{left_out}: {single_line(str(error))}"


def make_column(summary: RunSummary) -> Column:
    """Return the column of a run."""
    run, ledger, facts = summary.run, summary.ledger, summary.facts or {}
    left_out = {HoleKind.DESELECTED: summary.deselected, HoleKind.OTHER_SHARD: summary.selected}
    results = {case: ABSENT[kind] for kind, cases in left_out.items() for case in cases}
    known: dict[CaseResult, CaseResult] = {}
    troubles: dict[str, Trouble] = {}
    for verdict in ledger.verdicts:
        result, trouble = _result_of(verdict)
        results[verdict.case] = known.setdefault(result, result)
        if trouble is not None:
            troubles[verdict.case] = trouble
    status = ledger.run_exit_status()
    levels, doubt = read_levels(summary.path, run.run_id)
    read_error = [] if summary.doubt is None else [str(summary.doubt)]
    notes = (*read_error, *([doubt] if doubt else []), *_doubts(summary), *_unexplained(ledger))
    torch = mapping(facts.get("versions")).get("torch")
    uuids = dict.fromkeys([*run.devices, *(uuid for result in known for uuid in result.devices)])
    return Column(
        shown=MatrixRun(
            name=summary.name,
            run_id=escape_invalid_xml(run.run_id),
            begun=run.t,
            machine=0,  # not known yet
            red=status not in (EXIT_OK, EXIT_NOTHING_RAN),
            exit_status=status,
            notes=tuple(map(escape_invalid_xml, notes)),
            levels=levels,
        ),
        host=single_line(run.host, 200),
        driver=single_line(str(facts.get("driver") or run.identity.get("driver") or NONE), 100),
        torch=single_line(str(torch or run.identity.get("torch") or NONE), 100),
        devices=tuple(_devices(uuids, facts, run.identity.get("device", ""))),
        facts={name: text for name, text in identity.identity_facts(run).items() if name not in _MACHINE},
        results=results,
        troubles=troubles,
        unread=summary.unread,
        parts=tuple(escape_invalid_xml(shard.run_id) for shard in ledger.shards),
        print=(run.run_id, run.host, run.t, run.pid, summary.print),
        fail_on_flaky=run.fail_on_flaky,
        findings=tuple(map(_finding, ledger.findings[:MOST_FINDINGS])),
        conditions=facts_of(run, summary.facts),
    )


def _result_of(verdict: Verdict) -> tuple[CaseResult, Trouble | None]:
    outcome, by = verdict.outcome, verdict.decided
    if outcome is Outcome.PASSED:
        return CaseResult(outcome, verdict.devices), None
    devices = () if by is None else by.devices
    if any(finish.ruling is not None and finish.ruling.outcome is outcome for finish in verdict.finishes):
        message = verdict.message
    elif by is None:
        # The text of the verdict names worker and executor, so that equal holes would have different reasons.
        message = verdict.message if outcome is Outcome.NOT_RUN else "it started and never finished"
    elif by.gate is not None:
        message = f"{by.gate.capability}: wanted {by.gate.wanted}"
    else:
        message = by.message
    message = single_line(message, MOST_OF_MESSAGE)
    if outcome is Outcome.FLAKY or (outcome.is_red and outcome.ran):
        command = "" if by is None else by.reproduce or ""
        return CaseResult(outcome, devices), Trouble(
            message or str(outcome), "" if len(command) > MOST_OF_COMMAND else command
        )
    if outcome is Outcome.GATED and by is not None:
        found = "" if by.gate is None else single_line(by.gate.found, MOST_OF_MESSAGE)
        return CaseResult(outcome, (), message, found), None
    return CaseResult(outcome, devices if outcome.ran else (), message), None


def _doubts(summary: RunSummary) -> Iterator[str]:
    ledger, problems = summary.ledger, summary.ledger.read_problems
    if summary.run.imported is not None:
        yield f"its cases were run {single_line(summary.run.imported.text, MOST_OF_MESSAGE)}"
    if ledger.end is None:
        yield "it did not finish"
    if problems.damaged_lines:
        named = problems.damaged[:MOST_DAMAGED]
        first = "; ".join(f"line {damaged.number}: {single_line(damaged.reason, 100)}" for damaged in named)
        yield f"lines of its journal that cannot be read: {problems.damaged_lines} ({first})"
    if problems.unknown_lines:
        yield (
            f"lines of its journal of an unknown kind: {problems.unknown_lines} "
            f"({', '.join(map(repr, summary.unknown))})"
        )
    if problems.doubled_lines:
        yield f"duplicate lines in its journal, counted once: {problems.doubled_lines}"
    if summary.facts is None:
        yield f"it has no readable {environment.FILE_NAME}, so names of devices may be missing"


def _unexplained(summary: Summary) -> Iterator[str]:
    """Yield the reason why the run is red if neither a case nor a finding explains it."""
    status = summary.run_exit_status()
    if summary.end is None or status in (EXIT_OK, EXIT_NOTHING_RAN) or summary.red_cases or summary.findings:
        return
    yield f"it ended with exit status {status}, and no case or finding explains it: read the output of pytest"


def _finding(finding: Finding) -> tuple[Finding, int]:
    """Return the finding with bounded texts and few cases, and the number of its cases."""
    command = finding.reproduce or ""
    short = msgspec.structs.replace(
        finding,
        kind=single_line(finding.kind, 100),
        message=single_line(finding.message, MOST_OF_MESSAGE),
        cases=finding.cases[:MOST_CASES],
        reproduce="" if len(command) > MOST_OF_COMMAND else escape_invalid_xml(command),
    )
    return short, len(finding.cases)


def _devices(uuids: Iterable[str], facts: Mapping[str, Any], common: str) -> Iterator[RunDevice]:
    """Yield the devices with these UUIDs. `common`: the names of the devices in the run's identity."""
    rows = {str(row.get("uuid")): row for row in environment.devices_of(facts)}
    for uuid in uuids:
        row, backend = rows.get(uuid, {}), backend_of(uuid)
        label = backend.label if backend is not None and not backend.nvml else ""
        name = row.get("name") or (common if ", " not in common else "") or label or "unknown device"
        yield RunDevice(
            uuid=single_line(uuid, 200),
            name=single_line(str(name), 200),
            parent=single_line(str(row.get("mig_parent") or ""), 200),
            unique=backend is None or backend.nvml,
        )


def read_levels(run_dir: Path, run_id: str) -> tuple[tuple[StatedLevel, ...], str]:
    """Return the levels that `harness conformance --keep` recorded, and a doubt, or "". Both are empty without a file.

    The statement is not verified; `harness verify` does that.
    """
    path = run_dir / conformance.FILE_NAME
    if not is_plain(path):
        return (), ""
    try:
        if path.stat().st_size > MOST_BYTES:
            return (), f"{conformance.FILE_NAME} is too large"
        statement = json.loads(path.read_bytes())["statement"]
        if statement["run"] != run_id:
            other = single_line(escape_invalid_xml(str(statement["run"])), 100)
            return (), f"{conformance.FILE_NAME} is about another run: {other}"
        return tuple(_level(level) for level in statement["levels"][:MOST_LEVELS]), ""
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return (), f"{conformance.FILE_NAME} is no statement of harness conformance"


def _level(row: Any) -> StatedLevel:
    """Return a level from its row. Raise ValueError, TypeError or KeyError for an invalid row."""
    if row["state"] not in _STATES:
        raise ValueError(row["state"])
    name, digest = (single_line(escape_invalid_xml(str(row[key])), 100) for key in ("level", "list"))
    passed, cases = int(row["passed"]), int(row["cases"])
    return StatedLevel(level=name, state=str(row["state"]), passed=passed, cases=cases, hash=digest)


# ---- facts that distinguish the runs of one machine: options, commit, versions and variables ----


def facts_of(run: RunStarted, environment: Mapping[str, Any] | None) -> Facts:
    """Return the facts of a run. `environment`: the facts of its environment.json, None without the file."""
    facts: dict[tuple[Factor, str], tuple[str, ...]] = {} if environment is None else {_READ: ("read",)}
    for name, value in {**environment_facts(environment or {}), **identity.identity_facts(run)}.items():
        if name in _ELSEWHERE:
            continue
        factor = Factor.OPTION if name.startswith("--") else Factor.COMMIT if name == _COMMIT else Factor.SETTING
        facts[factor, single_line(name, _SHOWN)] = tuple(_values(factor, value))
    return facts


def _values(factor: Factor, value: str) -> Iterator[str]:
    """Yield the values of a fact; none if it is not set."""
    parts = value.split("; ") if factor is Factor.OPTION else [value]
    for part in parts[:_MOST_FACT_VALUES]:
        if part:
            yield (
                part[:19]
                if part.startswith("sha256:")
                else " ".join(escape_invalid_xml(truncate_middle(part, _SHOWN)).split())
            )


def differing(runs: Sequence[Facts]) -> list[frozenset[tuple[Factor, str]]]:
    """Return, for each run, its values that not all runs have: ``--inject=no_wait``, ``without $CUDA_HOME``.

    A fact that a run does not record explains nothing there. Only options, and variables if the environment is known,
    count as absent if they are not recorded.
    """
    names = dict.fromkeys(name for run in runs for name in run if name != _READ)
    values_by_run: list[set[tuple[Factor, str]]] = [set() for _ in runs]
    for factor, name in names:
        every = [run.get((factor, name), ()) for run in runs]
        if len({*every}) == 1:
            continue
        common = set(every[0]).intersection(*every[1:])
        for run, mine, values in zip(runs, values_by_run, every, strict=True):
            mine.update((factor, _words(factor, name, value)) for value in values if value not in common)
            if not values and (factor is Factor.OPTION or (name.startswith("$") and _READ in run)):
                mine.add((factor, f"without {name}"))
    return list(map(frozenset, values_by_run))


def _words(factor: Factor, name: str, value: str) -> str:
    if factor is Factor.COMMIT:
        return value
    if factor is Factor.SETTING and not name.startswith("$"):
        return f"{name} {value}"
    return name if value == "True" else f"{name}={value}"
