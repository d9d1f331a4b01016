"""Reasons why the files of a run are not evidence. Each is a pure check of a run's record with its own sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from itertools import islice
from typing import TypeGuard

import msgspec

from harness.backends.table import BACKENDS, backend_of, labels, own_kinds
from harness.core.caseid import Shard, case_seed, digest_of_ids
from harness.core.outcome import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_USAGE, Outcome
from harness.core.text import escape_invalid_xml, format_count, format_exit_code, list_first, single_line
from harness.journal import environment, identity
from harness.journal.environment import mapping
from harness.journal.events import (
    Bisected,
    Collected,
    Confirmation,
    End,
    Event,
    Executor,
    Finding,
    Finish,
    MustPass,
    Node,
    RunStarted,
    SecondDevice,
    SecondStart,
    Start,
)
from harness.tools import conformance
from harness.tools.evidence.manifest import waiver_fields
from harness.tools.evidence.record import (
    EvidenceRecord,
    device_rows,
    is_gpu,
    is_software,
    junit_problems,
)

#: Seconds by which the clock of a machine may be adjusted during a run.
CLOCK = 5.0
#: Maximum number of lines or shards with the same fault that are named.
_SHOWN = 10
#: The reasons for the end of executors that ran cases of the run, and nothing else.
_CASES_RAN = frozenset({"retired", "unfit"})
_UNTRUE = frozenset(
    {"collections_differ", "collection_missing", "collection_wrong", "duplicate_ids", "not_collected", "unknown"}
)
Number = int
Attempt = tuple[str, int, str, str | None]


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason. `unfinished`: the run is incomplete, but not wrong."""

    text: str
    unfinished: bool = False


def run_problems(record: EvidenceRecord) -> Iterator[Problem]:
    """Yield every reason why a run directory with these files is not evidence."""
    for check in _UNFINISHED:
        yield from (Problem(text, unfinished=True) for text in check(record))
    for check in _WRONG:
        yield from (Problem(text) for text in check(record))


def _not_ended(record: EvidenceRecord) -> Iterator[str]:
    ledger = record.ledger
    if ledger.end is None:
        yield "the run did not finish: its journal has no line of kind 'end'; resume it with --resume"
        return
    status = ledger.end.exit_status
    uncollected = [finding for finding in ledger.findings if finding.kind == "collection_error"]
    if status == EXIT_INTERRUPTED and uncollected:
        yield f"the tests could not be collected: {single_line(uncollected[0].message)}; mend it and start a new run"
    elif status == EXIT_INTERRUPTED:
        yield "the run was interrupted: it ended with exit status 2; resume it with --resume"
    elif status in (EXIT_INTERNAL, EXIT_USAGE):
        yield f"the run ended with exit status {status}: the harness or pytest failed, so it may lack results"


def _without_verdict(record: EvidenceRecord) -> Iterator[str]:
    def cases(outcome: Outcome) -> list[str]:
        return [verdict.case for verdict in record.ledger.verdicts if verdict.outcome is outcome]

    if stopped := cases(Outcome.NOT_RUN):
        yield f"{format_count(len(stopped), 'case')} did not run before the run ended: {list_first(stopped)}"
    if lost := cases(Outcome.LOST):
        which = "which has" if len(lost) == 1 else "which have"
        yield f"the harness lost {format_count(len(lost), 'case')}, {which} no verdict: {list_first(lost)}"


def _shards(record: EvidenceRecord) -> Iterator[str]:
    if record.run.shard:
        yield (
            f"the run is only shard {record.run.shard}: merge all shards with harness report merge, and pack the "
            "merged run"
        )
    if not record.ledger.shards:
        return
    counts = Counter(shard.shard for shard in record.ledger.shards)
    try:
        count = Shard.parse(record.ledger.shards[0].shard).count
    except ValueError as error:
        yield f"the journal names shard {record.ledger.shards[0].shard!r}, expected {error}"
        return
    missing = (f"{index}/{count}" for index in range(1, count + 1) if f"{index}/{count}" not in counts)
    yield from (f"shard {name} is missing in the merged run" for name in islice(missing, _SHOWN))
    for name, times in counts.items():
        if times > 1:
            yield f"shard {name} is in the merged run {times} times"
        elif name.partition("/")[2] != str(count):
            yield f"shard {name} is not one of the {count} shards of the merged run"
    for shard in record.ledger.shards:
        if shard.exit_status is None:
            yield f"shard {shard.shard} did not finish"


def _torn(record: EvidenceRecord) -> Iterator[str]:
    contents = record.contents
    for damaged in contents.damaged[:_SHOWN]:
        yield f"journal line {damaged.number} cannot be read as an event: {single_line(damaged.reason)}"
    if len(contents.damaged) > _SHOWN:
        yield f"{len(contents.damaged) - _SHOWN} more lines of the journal cannot be read as events"
    for unknown in contents.unknown[:_SHOWN]:
        yield (
            f"journal line {unknown.number} has the kind {single_line(unknown.kind)!r}, which this harness does "
            "not know: use the harness that wrote it, or a newer one"
        )
    if not record.data.endswith(b"\n"):
        yield "the last line of the journal was cut off: it has no line break at its end"
    if b"\n\n" in record.data:
        number = record.data.index(b"\n\n")
        yield f"the journal has an empty line after line {record.data.count(bytes([10]), 0, number) + 1}"


def _parts(record: EvidenceRecord) -> Iterator[str]:
    runs = record.ledger.runs
    if record.contents.events[0].event != "run":
        yield f"the journal begins with a line of kind {record.contents.events[0].event!r}, expected 'run'"
    parts = [run.part for run in runs]
    if parts != [*range(1, len(runs) + 1)]:
        yield f"the journal has the parts {', '.join(map(str, parts))} of the run, expected 1 to {len(runs)}"
    first = {**identity.identity_facts(runs[0]), "devices": ", ".join(runs[0].devices)}
    for run in runs[1:]:
        now = {**identity.identity_facts(run), "devices": ", ".join(run.devices)}
        for difference in identity.differences(first, now):
            yield f"part {run.part} of the run is not like part 1: {difference.text}"


def _forced(record: EvidenceRecord) -> Iterator[str]:
    for change in record.ledger.forced:
        yield f"the run was resumed by force though something had changed: {single_line(change)}"


def _after_the_end(record: EvidenceRecord) -> Iterator[str]:
    """Check that only ``harness bisect`` results, or the lists and the part of a resumed run, follow the end."""
    numbered = record.numbered()
    ends = [position for position, (_, event) in enumerate(numbered) if isinstance(event, End)]
    if not ends:
        return
    for number, event in numbered[ends[-1] + 1 :]:
        if not isinstance(event, Bisected):
            yield f"journal line {number} ({event.event}) comes after the end of the run"
    for position in ends[:-1]:
        following = next(
            (event for _, event in numbered[position + 1 :] if not isinstance(event, Collected | Bisected)), None
        )
        if not isinstance(following, RunStarted):
            yield f"journal line {numbered[position][0]} ends the run, and the run goes on after it"


def _times(record: EvidenceRecord) -> Iterator[str]:
    begun, last = record.ledger.runs[0].t, record.ledger.end
    until = None if last is None else last.t
    if until is not None and until < record.run.t - CLOCK:
        yield f"the run ended {record.run.t - until:.0f} s before it started"
        return
    started: dict[Attempt, Start] = {}
    for number, event in record.numbered():
        if isinstance(event, Bisected):
            continue
        if event.t < begun - CLOCK:
            yield f"journal line {number} ({event.event}) is {begun - event.t:.0f} s older than the run"
        elif until is not None and event.t > until + CLOCK:
            yield f"journal line {number} ({event.event}) is {event.t - until:.0f} s younger than its end"
        if isinstance(event, Start):
            started[_attempt(event)] = event
        elif isinstance(event, Finish) and (start := started.get(_attempt(event))) and event.t < start.t - CLOCK:
            yield f"journal line {number}: {event.case} ended {start.t - event.t:.0f} s before it started"


def _attempts(record: EvidenceRecord) -> Iterator[str]:
    """Check that each attempt starts once and ends once, in a live executor.

    A case that no remaining node could run ends without a start. An attempt on a second device needs no end.
    """
    starts: dict[Attempt, Number] = {}
    finishes: dict[Attempt, Number] = {}
    executors: set[str] = set()
    for number, event in record.numbered():
        if isinstance(event, Executor) and event.state == "started":
            executors.add(event.executor)
        elif isinstance(event, Start):
            key = _attempt(event)
            if key in starts:
                yield f"journal lines {starts[key]} and {number} start attempt {event.attempt} at {event.case} twice"
            starts.setdefault(key, number)
        elif isinstance(event, Finish):
            key = _attempt(event)
            if key in finishes:
                lines = f"journal lines {finishes[key]} and {number}"
                yield f"{lines} are two verdicts on attempt {event.attempt} at {event.case}"
            elif event.gate is None and key not in starts and not _never_came(event):
                yield f"journal line {number}: attempt {event.attempt} at {event.case} ended, but never started"
            finishes.setdefault(key, number)
            if event.executor and event.executor not in executors:
                yield f"journal line {number}: {event.case} ran in executor {event.executor}, which never started"
    for key, number in starts.items():
        if key not in finishes:
            yield f"journal line {number}: attempt {key[1]} at {key[0]} started, but never ended"
    yield from _second_devices(record, executors)


def _never_came(event: Finish) -> bool:
    """Return whether the line ends a case because no node could run it, rather than an attempt."""
    return event.final and event.executor is None and event.outcome in (Outcome.NOT_RUN, Outcome.LOST)


def _second_devices(record: EvidenceRecord, executors: Set[str]) -> Iterator[str]:
    """Check that results on second devices come from these devices. `executors`: those that started."""
    seen: set[tuple[str, str, str]] = set()
    for number, event in record.numbered():
        if isinstance(event, SecondStart):
            seen.update((event.case, event.host, uuid) for uuid in event.devices)
            if event.executor and event.executor not in executors:
                yield f"journal line {number}: {event.case} ran in executor {event.executor}, which never started"
        elif isinstance(event, SecondDevice) and (event.case, event.host, event.second) not in seen:
            where = f"device {event.second} of {event.host}"
            yield f"journal line {number}: {event.case} is {event.outcome} on {where}, but never started there"


def _executors(record: EvidenceRecord) -> Iterator[str]:
    """Check that an executor's own count of attempts matches, and that its end is recorded.

    The end may be missing if its worker, its session or its node died, which is a finding, or if the run, or a shard of
    it, was interrupted and resumed.
    """
    attempts = Counter(event.executor for event in record.contents.events if isinstance(event, Start | SecondStart))
    alive: dict[str, Number] = {}
    nodes: dict[str, str] = {}
    for number, event in record.numbered():
        if isinstance(event, RunStarted):
            alive.clear()
        if _ends_all_on(event):
            alive = {name: line for name, line in alive.items() if nodes[name] != event.host}
        if not isinstance(event, Executor):
            continue
        nodes[event.executor] = event.host
        if event.state == "started":
            alive[event.executor] = number
            continue
        alive.pop(event.executor, None)
        counts = attempts[event.executor] or event.reason in _CASES_RAN  # other executors rehearse and examine
        if counts and event.cases != attempts[event.executor]:
            ran = format_count(event.cases, "attempt")
            have = attempts[event.executor]
            yield f"journal line {number}: executor {event.executor} ran {ran}, but the journal has {have}"
    if not record.ledger.shards and all(finding.kind != "worker" for finding in record.ledger.findings):
        for executor, number in alive.items():
            yield f"journal line {number}: executor {executor} started, but its end is not in the journal"


def _ends_all_on(event: Event) -> TypeGuard[Finding]:
    """Return whether a line states that all processes on a node are gone, or that their state is unknown."""
    return isinstance(event, Finding) and event.kind in ("node_lost", "session") and event.host != ""


def _nodes(record: EvidenceRecord) -> Iterator[str]:
    """Check that a lost node makes the run red."""
    reported = {
        event.host for event in record.contents.events if isinstance(event, Finding) and event.kind == "node_lost"
    }
    for number, event in record.numbered():
        if isinstance(event, Node) and event.state == "lost" and event.host not in reported:
            yield f"journal line {number}: node {event.host} was lost, but the journal has no finding about that"


def _contradictions(record: EvidenceRecord) -> Iterator[str]:
    """Check each line for contradictions."""
    # The traceback of a process that broke in a repetition, of a case that had passed.
    broke = {event.case for event in record.contents.events if isinstance(event, Confirmation) and event.failure}
    for number, event in record.numbered():
        if isinstance(event, Start | Finish | SecondStart) and event.seed != case_seed(record.run.seed, event.case):
            expected = f"{event.case} in a run with seed {record.run.seed}"
            yield f"journal line {number}: seed {event.seed} is not that of {expected}"
        if isinstance(event, Finish) and event.outcome is Outcome.PASSED and event.detail and event.case not in broke:
            yield f"journal line {number}: {event.case} passed, but has a traceback: {single_line(event.detail)}"
        if isinstance(event, Finish) and event.outcome is Outcome.PASSED and event.exit_status:
            ended = format_exit_code(event.exit_status)
            yield f"journal line {number}: {event.case} passed, but its process ended with {ended}"
        if isinstance(event, MustPass) and event.hash != digest_of_ids(event.ids):
            yield (
                f"journal line {number}: the {format_count(len(event.ids), 'case')} of must-pass list {event.name} "
                f"do not have the hash {event.hash[:19]} of the list"
            )


def _collected(record: EvidenceRecord) -> Iterator[str]:
    for finding in record.ledger.findings:
        if finding.kind in _UNTRUE:
            yield f"the lists of cases contradict each other: {single_line(finding.message)}"
    recorded = {(event.kind, event.message) for event in record.contents.events if isinstance(event, Finding)}
    for kind, message in recorded:
        if kind == "damaged_journal":
            yield f"a part of the run had a damaged journal: {single_line(message)}"


def _status(record: EvidenceRecord) -> Iterator[str]:
    end = record.ledger.end
    if end is None or end.exit_status in (EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_USAGE):
        return
    status = record.ledger.exit_status()
    if end.exit_status != status:
        yield (
            f"the run ended with exit status {end.exit_status}, but {status} follows from its journal: lines are "
            "missing or were edited, or something that is not a case failed"
        )


def _lists(record: EvidenceRecord) -> Iterator[str]:
    """Check that must-pass lists and waivers match the run's identity."""
    facts = record.ledger.runs[0].identity
    lists = [event for event in record.contents.events if isinstance(event, MustPass)]
    listed = ", ".join(f"{must_pass.name} {must_pass.hash[:19]}" for must_pass in lists) or "none"
    if identity.MUST_PASS in facts and listed != facts[identity.MUST_PASS]:
        wanted = facts[identity.MUST_PASS]
        yield f"the run was started with the must-pass lists {wanted!r}, but its journal has {listed!r}"
    hashed = identity.waivers_digest([waiver_fields(waiver) for waiver in record.waivers])
    if identity.WAIVERS in facts and hashed != facts[identity.WAIVERS]:
        yield (
            f"the run was started with waivers of the hash {facts[identity.WAIVERS][:19]}, but those in its journal "
            f"have {hashed[:19]}: they were edited"
        )
        return
    sources = {waiver.source for waiver in record.waivers}
    for number, event in record.numbered():
        if isinstance(event, Finish) and event.ruling is not None and event.ruling.outcome is Outcome.WAIVED:
            source = event.ruling.source
            if source not in sources and not _is_a_rule(source, record.run):
                yield f"journal line {number}: {event.case} is waived by {source!r}, which is no waiver of the run"


def _is_a_rule(source: str, run: RunStarted) -> bool:
    """Return whether a ruling may come from this source: a mark in a test file, or an option for a case with a mark."""
    option = source.partition(" ")[0]
    if option in ("repeat", "--verify"):
        return bool(run.settings.get(option.removeprefix("--")))
    return source.partition(":")[0].endswith(".py")


def _devices(record: EvidenceRecord) -> Iterator[str]:
    run = record.run
    nodes = (event for event in record.contents.events if isinstance(event, Node) and event.state == "ready")
    later = (uuid for event in nodes for uuid in event.devices)  # a node may join after the run began
    devices = tuple(dict.fromkeys((*run.devices, *later)))
    described = {uuid for facts in record.environments.values() for uuid in device_rows(facts)}
    for uuid in devices:
        if uuid not in described and uuid not in run.devices and uuid != "cpu":
            yield f"no environment file has device {uuid}, which a node of the run names"
    kinds: dict[str, list[str]] = {}
    for uuid in devices:
        backend = backend_of(uuid)
        kinds.setdefault(backend.kind if backend else "unknown", []).append(uuid)
    if "unknown" in kinds:
        yield f"the kind of device {list_first(kinds['unknown'])} is unknown"
    if len(kinds) > 1:
        groups = "; ".join(f"{kind}: {list_first(uuids)}" for kind, uuids in kinds.items())
        yield f"the run mixes kinds of devices: {groups}"
    rows = device_rows(record.environment)
    models: dict[str, list[str]] = {}
    for uuid in devices:
        if uuid in rows:
            models.setdefault(rows[uuid]["model"], []).append(uuid)
    if len(models) > 1 and len(kinds) == 1:
        groups = "; ".join(f"{model}: {list_first(uuids)}" for model, uuids in models.items())
        yield f"the run mixes models of devices, so it is evidence for none of them: {groups}"
    strangers: dict[str, Number] = {}
    for number, event in record.numbered():
        if isinstance(event, Start | Finish | Executor | SecondStart):
            for uuid in event.devices:
                if uuid not in devices:
                    strangers.setdefault(uuid, number)
    for uuid, number in strangers.items():
        yield f"journal line {number}: something ran on device {uuid}, which is not a device of the run"


def _imported(record: EvidenceRecord) -> Iterator[str]:
    if record.run.imported is not None:
        yield f"its cases were run {record.run.imported.text}: only a run of the harness is evidence"


def _software(record: EvidenceRecord) -> Iterator[str]:
    """Check that a run that claims a GPU has no trace of a simulated one."""
    run, facts = record.run, record.environment
    if run.label != labels(run.devices):
        expected = labels(run.devices)
        yield f"the journal labels the devices {run.label!r}, expected {expected!r} for {list_first(run.devices)}"
    rows = device_rows(facts)
    for uuid, row in rows.items():
        backend = backend_of(uuid)
        if backend is not None and row["kind"] != backend.kind:
            yield (
                f"environment.json says that device {uuid} is of the kind {row['kind']!r}, but its UUID is "
                f"that of a {backend.kind} device"
            )
    if not is_gpu(record.kind):
        return
    wanted = str(run.settings.get("device") or "")
    if is_software(wanted):
        yield f"the run claims a GPU, but was started with --device={wanted}, which is {BACKENDS[wanted].label}"
    if injected := run.settings.get("inject"):
        yield f"the run claims a GPU, but faults were injected into it: {injected}"
    if facts.get("software_device") is not None:
        yield "the run claims a GPU, but environment.json describes the library of a software device"
    kinds = [BACKENDS[kind] for kind in own_kinds()]
    names = {name for backend in kinds if backend.software for name in (backend.label, backend.device_name) if name}
    for uuid, row in rows.items():
        if uuid in run.devices and row["name"] in names:
            yield f"the run claims a GPU, but environment.json calls {uuid} {row['name']!r}"
    if facts and facts.get("driver") is None:
        yield "the run claims a GPU, but environment.json has no driver"


def _environments(record: EvidenceRecord) -> Iterator[str]:
    """Check that the environment files belong to this journal."""
    for name in record.unreadable:
        yield f"{name} is not the environment file of a run: expected a JSON object"
    runs, merged = record.ledger.runs, bool(record.ledger.shards)
    for run in runs:
        last = run is runs[-1]
        name = environment.FILE_NAME if last else f"environment-{run.part}.json"
        facts = record.environments.get(name)
        if facts is None:
            if name not in record.unreadable:
                yield f"{name} is missing: it says on which machine part {run.part} of the run was"
            continue
        if not merged:
            for noun, said, expected in _pairs(run, facts):
                if expected is not None and said != expected:
                    yield f"{name} says that {noun} is {_shown(said)}, but the journal says {_shown(expected)}"
        for uuid in run.devices:
            if uuid != "cpu" and uuid not in device_rows(facts):
                yield f"{name} does not have device {uuid}, which the journal names"
    parts = {f"environment-{run.part}.json" for run in runs[:-1]}
    for name in record.environments.keys() - parts - {environment.FILE_NAME}:
        yield f"{name} is the environment of a part that the run does not have"
    if merged:
        yield from _merged_environments(record)


def _pairs(run: RunStarted, recorded: object) -> Iterator[tuple[str, object, object]]:
    """Yield facts: name, value in an environment file, and value in the journal (None if it has none)."""
    facts = mapping(recorded)
    versions, same = mapping(facts.get("versions")), run.identity
    names = {row["name"] for uuid, row in device_rows(facts).items() if uuid in run.devices}
    yield "the seed", facts.get("seed"), run.seed
    yield "the isolation", facts.get("isolation"), run.isolation
    yield "the host", facts.get("host"), escape_invalid_xml(run.host)
    yield "the root folder", facts.get("rootdir"), escape_invalid_xml(run.rootdir)
    yield "the command", facts.get("command"), [escape_invalid_xml(word) for word in run.argv]
    yield "the driver", facts.get("driver") or "none", same.get("driver")
    for name in ("torch", "python", "harness"):
        yield f"the version of {name}", versions.get(name) or "none", same.get(name)
    if "cpu" not in run.devices:
        yield "the model of the devices", ", ".join(sorted(names)), same.get("device")


def _merged_environments(record: EvidenceRecord) -> Iterator[str]:
    shards = mapping(record.environment.get("shards"))
    for shard in record.ledger.shards:
        if shard.shard not in shards:
            yield f"environment.json has no facts of shard {shard.shard}"
            continue
        facts = mapping(shards[shard.shard])
        run = msgspec.structs.replace(record.run, host=shard.host, devices=shard.devices)
        for noun, said, expected in _pairs(run, facts):
            if noun not in ("the command", "the root folder") and expected is not None and said != expected:
                yield (
                    f"environment.json says that {noun} of shard {shard.shard} is {_shown(said)}, but the journal says "
                    f"{_shown(expected)}"
                )


def _shown(value: object) -> str:
    return repr(single_line(value if isinstance(value, str) else str(value), 200))


def _attempt(event: Start | Finish) -> Attempt:
    return event.case, event.attempt, event.worker, event.executor


def _conformance(record: EvidenceRecord) -> Iterator[str]:
    """Check that a kept statement follows from the journal, by the definitions and lists beside it."""
    if record.conformance is None:
        return
    software = conformance.software_of(record.environment)
    if problem := conformance.kept_problem(record.conformance, record.ledger, software):
        yield problem


_Check = Callable[[EvidenceRecord], Iterator[str]]
_UNFINISHED: tuple[_Check, ...] = (_not_ended, _without_verdict, _shards)
_WRONG: tuple[_Check, ...] = (
    _imported,
    _torn,
    _parts,
    _forced,
    _after_the_end,
    _times,
    _attempts,
    _executors,
    _nodes,
    _contradictions,
    _collected,
    _status,
    _lists,
    _devices,
    _software,
    _environments,
    junit_problems,
    _conformance,
)
