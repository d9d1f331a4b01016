"""The JSON report: one document per run, written case by case, and its shipped schema.

After a change here, run ``.ci/regenerate``, which also makes the schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from harness.core.outcome import Outcome
from harness.core.structs import DocumentedStruct
from harness.core.text import escape_invalid_xml, truncate_middle
from harness.journal.environment import Places
from harness.journal.events import Finish, Gate, Imported, Ruling
from harness.journal.ledger import Results, Summary
from harness.journal.verdicts import Verdict
from harness.reporting.junit_case import MOST_TEXT

#: Incremented with every change that a reader of the previous number would misread.
SCHEMA: Final = 1

Row = TypeVar("Row", bound=msgspec.Struct)
Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]


class RulingRow(Ruling, frozen=True, kw_only=True, omit_defaults=False):
    """The outcome that a rule of the run gives to a case. It replaces the outcomes of the case's attempts."""


class RunRow(DocumentedStruct, frozen=True, kw_only=True):
    """The run, as its latest ``run`` line has it."""

    run_id: str
    started: float
    """Seconds since 1970-01-01 UTC at which the first part of the run started."""
    argv: tuple[str, ...]
    host: str
    devices: tuple[str, ...]
    """UUIDs of the devices that the run may use."""
    label: str
    """The kind of the devices if they are neither GPUs nor the CPU."""
    seed: int
    isolation: str
    rootdir: str
    profile: str
    hardware: str
    shard: str
    parts: Annotated[int, Meta(ge=1)]
    """2 after one resumption, and so on."""
    fail_on_flaky: bool
    resumed_by_force: tuple[str, ...]
    """What had changed before the run was resumed by force."""
    identity: dict[str, str]
    settings: dict[str, str | int | float | bool | None]
    imported: Imported | None
    """Where the results come from if another tool ran the cases; otherwise null."""


class FindingRow(DocumentedStruct, frozen=True, kw_only=True):
    """A problem that makes the run red and belongs to no single case."""

    kind: str
    message: str
    cases: tuple[str, ...]
    reproduce: str | None


class ListRow(DocumentedStruct, frozen=True, kw_only=True):
    """The result of a must-pass list."""

    name: str
    hash: str
    cases: Count
    satisfied: bool
    missed: tuple[str, ...]
    """The cases on it that did not pass."""


class OddLine(DocumentedStruct, frozen=True, kw_only=True):
    """A line of the journal that does not count."""

    number: Annotated[int, Meta(ge=0)]
    reason: str
    """The reason why it cannot be read, or its unknown kind."""


class JournalLines(DocumentedStruct, frozen=True, kw_only=True):
    """The irregular lines of the journal: their numbers, and the first of them."""

    damaged: Count
    """Unreadable lines. They are also a finding."""
    unknown: Count
    """Lines of a kind that the harness does not know. They do not count."""
    doubled: Count
    """Duplicate lines. They count once."""
    first_damaged: tuple[OddLine, ...]
    first_unknown: tuple[OddLine, ...]


class Cost(DocumentedStruct, frozen=True, kw_only=True):
    """What isolation cost."""

    executors: Count
    startup_seconds: Seconds
    restarts: int
    retries: Count


class Attempt(DocumentedStruct, frozen=True, kw_only=True):
    """One attempt at a case. Texts are cut to 32,768 characters; an empty one is left out."""

    number: Annotated[int, Meta(ge=1)]
    outcome: Outcome
    ended: float
    """Seconds since 1970-01-01 UTC at which the attempt ended."""
    seconds: Seconds
    final: bool
    alone: bool
    worker: str
    executor: str | None
    devices: tuple[str, ...]
    seed: int
    phases: dict[str, Seconds] = msgspec.field(default_factory=dict)
    message: str = ""
    detail: str = ""
    stdout: str = ""
    stderr: str = ""
    log: str = ""
    notes: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    """What the case recorded with pytest's ``record_property``: names and values, in order."""
    exit_status: int | None = None
    gate: Gate | None = None
    ruling: RulingRow | None = None


class SecondDevice(DocumentedStruct, frozen=True, kw_only=True):
    """The result of a red case on another device of the same kind. It does not change the verdict."""

    first: str
    """UUID of the device on which the case was red."""
    second: str
    """UUID of the other device."""
    host: str
    """The node of the other device."""
    outcome: Outcome
    """The outcome of the case on the other device."""
    finding: Literal["red on this device only", "red on both"]
    message: str = ""


class CaseRow(DocumentedStruct, frozen=True, kw_only=True):
    """A case with its verdict."""

    id: str
    suite: str
    host: str
    devices: tuple[str, ...]
    """UUIDs of the devices of the deciding attempt. Empty if the case ran on none."""
    outcome: Outcome
    red: bool
    """Whether the case makes the run red."""
    message: str
    seconds: Seconds
    """Seconds of all attempts together."""
    reproduce: str | None
    collected: bool
    """False for a case that is in no list of collected cases."""
    attempts: tuple[Attempt, ...]
    second_devices: tuple[SecondDevice, ...] = ()
    """Only for a red case of a cluster run that ran on another device."""


class Head(DocumentedStruct, frozen=True, kw_only=True):
    """The results of a run beyond its cases."""

    schema_version: Literal[1] = msgspec.field(name="schema")
    run: RunRow | None
    finished: bool
    """False if the run was cut off. It counts as red."""
    exit_status: int
    duration: Seconds | None
    """Seconds that the last part of the run took."""
    totals: dict[Outcome, Annotated[int, Meta(ge=1)]]
    """The number of cases with each outcome."""
    red_cases: Count
    findings: tuple[FindingRow, ...]
    lists: tuple[ListRow, ...]
    cost: Cost
    journal: JournalLines
    environment: dict[str, Any] | None
    """What environment.json has; null without the file."""


class Report(Head, frozen=True, kw_only=True):
    """The results of a run, with its cases."""

    cases: tuple[CaseRow, ...]
    """In collection order."""


def report_json_chunks(results: Results, facts: Mapping[str, Any] | None) -> Iterator[bytes]:
    """Yield the report in pieces, one line per case. `facts`: the facts of environment.json.

    Equal results give equal bytes.
    """
    summary = results.summary
    yield _ascii(_head(summary, facts))[:-1] + b',"cases":['
    places = Places(results.runs, results.shards, facts)
    separator = b"\n"
    for verdict, _ in results.cases():
        yield separator + _ascii(_case(verdict, places, summary))
        separator = b",\n"
    yield b"\n]}\n"


def _row(kind: type[Row], source: object, **others: Any) -> Row:
    """Return a row with these fields, and the fields of `source` that have the same names."""
    names = [name for name in kind.__struct_fields__ if name not in others]
    return kind(**{name: getattr(source, name) for name in names}, **others)


def _ascii(part: DocumentedStruct) -> bytes:
    """Return a part of the report as ASCII: a terminal may show it, and a case may have printed any character."""
    return json.dumps(msgspec.to_builtins(part), separators=(",", ":"), allow_nan=False).encode("ascii")


def _head(summary: Summary, facts: Mapping[str, Any] | None) -> Head:
    run, end, odd, cost = summary.run, summary.end, summary.read_problems, summary.cost
    return Head(
        schema_version=SCHEMA,
        run=None
        if run is None
        else _row(RunRow, run, started=summary.runs[0].t, parts=len(summary.runs), resumed_by_force=summary.forced),
        finished=end is not None,
        exit_status=summary.run_exit_status(),
        duration=None if end is None else end.duration,
        totals=summary.counts,
        red_cases=summary.red_cases,
        findings=tuple(_row(FindingRow, finding) for finding in summary.findings),
        lists=tuple(_row(ListRow, result, satisfied=not result.missed) for result in summary.lists),
        cost=_row(Cost, cost, startup_seconds=round(cost.startup, 6)),
        journal=JournalLines(
            damaged=odd.damaged_lines,
            unknown=odd.unknown_lines,
            doubled=odd.doubled_lines,
            first_damaged=tuple(
                OddLine(number=line.number, reason=escape_invalid_xml(line.reason)) for line in odd.damaged[:10]
            ),
            first_unknown=tuple(
                OddLine(number=line.number, reason=escape_invalid_xml(line.kind)) for line in odd.unknown[:10]
            ),
        ),
        environment=None
        if facts is None
        else {escape_invalid_xml(name): _jsonable(value) for name, value in facts.items()},
    )


def _jsonable(value: object, depth: int = 20) -> Any:
    """Return a value of environment.json, which may hold anything, as JSON that every reader accepts."""
    if isinstance(value, str):
        return escape_invalid_xml(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict | list) and not depth:
        return None
    if isinstance(value, dict):
        return {escape_invalid_xml(name): _jsonable(item, depth - 1) for name, item in value.items()}
    return [_jsonable(item, depth - 1) for item in value] if isinstance(value, list) else value


def _case(verdict: Verdict, places: Places, summary: Summary) -> CaseRow:
    place = places.of(verdict)
    return _row(
        CaseRow,
        verdict,
        id=verdict.case,
        host=place.host,
        devices=place.devices,
        red=summary.is_red(verdict.outcome),
        seconds=round(verdict.duration, 6),
        attempts=tuple(map(_attempt, verdict.finishes)),
        second_devices=tuple(_row(SecondDevice, line) for line in verdict.second_devices),
    )


def _attempt(finish: Finish) -> Attempt:
    ruling = None if finish.ruling is None else _row(RulingRow, finish.ruling)
    texts = {name: truncate_middle(getattr(finish, name), MOST_TEXT) for name in ("detail", "stdout", "stderr", "log")}
    return _row(Attempt, finish, number=finish.attempt, ended=finish.t, seconds=finish.duration, ruling=ruling, **texts)
