"""Merge the shards of a run into one run. The decisions are pure functions over the journals of the shards."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from harness.core.atomic import write_atomically
from harness.core.caseid import Shard, digest_of_ids
from harness.core.errors import HarnessError, WriteError
from harness.core.outcome import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_RED
from harness.core.secrets import mask_command
from harness.core.text import format_count, list_first
from harness.journal import environment, identity, journal, reader
from harness.journal.events import (
    Activity,
    Collected,
    End,
    Event,
    Finding,
    MergedShard,
    MustPass,
    RunStarted,
    Waiver,
)
from harness.journal.journal import encode_line
from harness.journal.ledger import Ledger
from harness.journal.reader import JournalContents

_NOT_COPIED = (RunStarted, MergedShard, Collected, MustPass, Waiver, Activity, End)


class MergeError(HarnessError):
    """There is nothing to merge, or the result cannot be stored."""


@dataclass(frozen=True, slots=True)
class Part:
    """One shard, from its journal.

    `name`: its run directory, as the user wrote it. `runs`: the ``run`` lines, several if it was resumed. `ids`: the
    cases of the shard. `selected`: the cases of all shards. `selection`: their hash; empty if nothing was collected.
    """

    name: str
    shard: Shard
    runs: tuple[RunStarted, ...]
    ids: tuple[str, ...]
    selected: tuple[str, ...]
    deselected: tuple[str, ...]
    unread: tuple[str, ...]
    selection: str
    lists: tuple[MustPass, ...]
    waivers: tuple[Waiver, ...]
    end: End | None
    events: tuple[Event, ...]
    damaged: int = 0

    @property
    def run(self) -> RunStarted:
        return self.runs[-1]

    @property
    def text(self) -> str:
        return f"shard {self.shard} ({self.name!r})"

    @property
    def facts(self) -> list[dict[str, str]]:
        """Return the facts that must be equal in all shards, by name, for each ``run`` line."""
        return [identity.identity_facts(run) for run in self.runs]


def part_of(name: str, contents: JournalContents) -> Part:
    """Return the shard in a run directory. Raise MergeError if the run is not a shard."""
    runs = tuple(event for event in contents.events if isinstance(event, RunStarted))
    if not runs[-1].shard:
        raise MergeError(
            f"{name!r} is not a shard: its run had all cases; give runs that were started with --shard I/N"
        )
    lines = [event for event in contents.events if isinstance(event, Collected)]
    ends = [event for event in contents.events if isinstance(event, RunStarted | End)]
    lists = {line.name: line for line in contents.events if isinstance(line, MustPass)}
    return Part(
        name=name,
        shard=Shard.parse(runs[-1].shard),
        runs=runs,
        ids=tuple(dict.fromkeys(case for line in lines for case in line.ids)),
        selected=tuple(dict.fromkeys(case for line in lines for case in line.selected)),
        deselected=tuple(dict.fromkeys(case for line in lines for case in line.deselected)),
        unread=tuple(dict.fromkeys(start for line in lines for start in line.unread)),
        selection=next((line.selection for line in reversed(lines)), ""),
        lists=tuple(lists.values()),
        waivers=tuple(event for event in contents.events if isinstance(event, Waiver)),
        end=ends[-1] if isinstance(ends[-1], End) else None,
        events=contents.events,
        damaged=len(contents.damaged),
    )


def merge_problems(parts: Sequence[Part]) -> list[str]:
    """Return why these shards are not the shards of one run, one line per reason. Empty if they are.

    Reasons are missing or duplicate shards and cases, and shards that ran something else.
    """
    problems = [*_twice(parts), *_other_counts(parts)]
    if problems:
        return problems  # further problems would only follow from these
    return [*_missing_shards(parts), *_unlike(parts), *_unlisted(parts), *_wrong_cases(parts)]


def _twice(parts: Sequence[Part]) -> Iterator[str]:
    first: dict[str, Part] = {}
    shards: dict[Shard, Part] = {}
    for part in parts:
        if part.run.run_id in first:
            other = first[part.run.run_id]
            yield f"{other.name!r} and {part.name!r} are the same run, {part.run.run_id}: give each shard once"
        elif part.shard in shards:
            yield f"shard {part.shard} is given twice, in {shards[part.shard].name!r} and {part.name!r}: leave one out"
        first.setdefault(part.run.run_id, part)
        shards.setdefault(part.shard, part)


def _other_counts(parts: Sequence[Part]) -> Iterator[str]:
    count = parts[0].shard.count
    for part in parts:
        if part.shard.count != count:
            yield f"{part.text} is one of {part.shard.count} shards, but {parts[0].text} is one of {count}"


def _missing_shards(parts: Sequence[Part]) -> Iterator[str]:
    count = parts[0].shard.count
    selected = next((part.selected for part in parts if part.selected), ())
    for index in range(1, count + 1):
        shard = Shard(index, count)
        if all(part.shard != shard for part in parts):
            cases = _cases([case for case in selected if shard.has(case)])
            yield f"shard {shard} is missing, with {cases}: run it, or give its run directory too"


def _unlike(parts: Sequence[Part]) -> Iterator[str]:
    """Yield problems with shards that differ from most of them."""
    every = [(part, facts) for part in parts for facts in part.facts]
    usual = {
        name: Counter(facts.get(name, "") for _, facts in every).most_common(1)[0][0]
        for name in dict.fromkeys(name for _, facts in every for name in facts)
    }
    for part in parts:
        for text in dict.fromkeys(
            difference.against("in most others")
            for facts in part.facts
            for difference in identity.differences(usual, facts)
        ):
            yield f"{part.text} is not like the others: {text}"


def _unlisted(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        if not part.selection:
            yield f"{part.text} has no list of its cases: it ended before they were collected; resume it"
        elif part.selection != digest_of_ids(sorted(part.selected)):
            yield f"{part.text} has a list of selected cases that does not match its hash: the journal is damaged"


def _wrong_cases(parts: Sequence[Part]) -> Iterator[str]:
    """Yield problems with cases: no shard has a selected one, two shards have the same, or the selections differ."""
    listed = [part for part in parts if part.selection]
    if not listed:
        return
    usual = Counter(part.selection for part in listed).most_common(1)[0][0]
    first = next(part for part in listed if part.selection == usual)
    for part in listed:
        if part.selection != usual:
            more = [case for case in part.selected if case not in {*first.selected}]
            less = [case for case in first.selected if case not in {*part.selected}]
            differences = [f"{_cases(more)} more"] * bool(more) + [f"{_cases(less)} less"] * bool(less)
            yield f"{part.text} selected other cases than {first.text}: {'; '.join(differences)}"
    times = Counter(case for part in listed for case in part.ids)
    for part in listed:
        missing = [case for case in first.selected if part.shard.has(case) and not times[case]]
        if missing and part.selection == usual:
            yield f"{part.text} lacks some of its cases: {_cases(missing)} missing"
    double = [case for case, number in times.items() if number > 1]
    if double:
        yield f"several shards have the same cases: {_cases(double)}"


def _cases(ids: Sequence[str]) -> str:
    return f"{format_count(len(ids), 'case')} ({list_first(ids)})" if ids else "no cases"


def merged_events(parts: Sequence[Part], *, run_id: str, argv: Sequence[str], now: float) -> list[Event]:
    """Return the events of the merged run, in the order before the split. `merge_problems(parts)` must be empty."""
    ordered = sorted(parts, key=lambda part: part.shard)
    first = ordered[0]
    begun = min(part.runs[0].t for part in parts)
    run = msgspec.structs.replace(
        first.run,
        t=begun,
        run_id=run_id,
        argv=tuple(mask_command(argv)),
        host=platform.node(),
        pid=os.getpid(),
        devices=tuple(dict.fromkeys(device for part in ordered for device in part.run.devices)),
        shard="",
        part=1,
        forced=tuple(dict.fromkeys(text for part in ordered for run in part.runs for text in run.forced)),
    )
    ids = first.selected
    collected = Collected(
        t=begun,
        worker="",
        count=len(ids),
        hash=digest_of_ids(ids),
        ids=ids,
        deselected=tuple(dict.fromkeys(case for part in ordered for case in part.deselected)),
        unread=tuple(dict.fromkeys(start for part in ordered for start in part.unread)),
    )
    head: list[Event] = [run, *(_shard_line(part) for part in ordered), *first.lists, *first.waivers, collected]
    events = [*head, *_copied(ordered)]
    if any(part.end is None for part in parts):
        return events
    duration = max(part.end.duration for part in parts if part.end is not None)
    status = _status(Ledger.from_lines(events), [part.end.exit_status for part in parts if part.end is not None])
    return [*events, End(t=now, exit_status=status, duration=duration)]


def _shard_line(part: Part) -> MergedShard:
    return MergedShard(
        t=part.runs[0].t,
        shard=str(part.shard),
        run_id=part.run.run_id,
        host=part.run.host,
        devices=part.run.devices,
        exit_status=None if part.end is None else part.end.exit_status,
    )


def _copied(parts: Sequence[Part]) -> list[Event]:
    """Return the other events of all shards by time, each finding once, with workers and executors named after their
    shard.
    """
    lines: list[Event] = []
    seen: set[tuple[str, str, tuple[str, ...]]] = set()
    for part in parts:
        for event in part.events:
            if isinstance(event, Finding):
                if event.kind in identity.OF_SESSION:
                    event = msgspec.structs.replace(event, message=f"shard {part.shard}: {event.message}")
                key = event.kind, event.message, event.cases
                if key in seen:
                    continue
                seen.add(key)
            if not isinstance(event, _NOT_COPIED):
                lines.append(_renamed(event, f"shard{part.shard.index}-"))
        if part.damaged:
            text = (
                f"the journal of {part.text} has {format_count(part.damaged, 'unreadable line')}: their events are lost"
            )
            lines.append(Finding(t=part.run.t, kind="damaged_journal", message=text))
    return sorted(lines, key=lambda event: event.t)


def _renamed(event: Event, prefix: str) -> Event:
    names = {name: getattr(event, name, None) for name in ("worker", "executor")}
    changed = {name: f"{prefix}{value}" for name, value in names.items() if value}
    return msgspec.structs.replace(event, **changed) if changed else event


def _status(ledger: Ledger, statuses: Sequence[int]) -> int:
    """Return the exit status of the merged run. A worse status of a shard wins: pytest counts more than cases."""
    worse = [status for status in statuses if status in (EXIT_RED, EXIT_INTERRUPTED, EXIT_INTERNAL)]
    return max([ledger.exit_status(), *worse]) if worse else ledger.exit_status()


def write_merged_run(
    out: Path, events: Sequence[Event], environments: Mapping[str, Mapping[str, Any]]
) -> JournalContents:
    """Write journal and environment of the merged run. `environments`: environment.json of each shard, by its text.

    Raise MergeError if `out` already contains a run, WriteError if it cannot be written.
    """
    path = out / journal.FILE_NAME
    if path.exists():
        raise MergeError(f"{str(out)!r} already contains a run: name another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot make the folder {str(out)!r}") from error
    if environments:
        first = next(iter(environments.values()))
        devices = [device for facts in environments.values() for device in environment.devices_of(facts)]
        by_uuid = {str(device.get("uuid")): device for device in devices}
        environment.write_environment(out, {**first, "devices": [*by_uuid.values()], "shards": dict(environments)})
    write_atomically(path, b"".join(map(encode_line, events)))
    return reader.read_run_journal(path)
