"""The journal of a cluster run: the lines of its nodes, each with the node's name, and the lines of the head."""

from __future__ import annotations

import functools
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core.caseid import case_seed, digest_of_ids
from harness.core.outcome import Outcome
from harness.journal import finding_kinds, identity, journal, lines, reader
from harness.journal.events import (
    Batch,
    Collected,
    Confirmation,
    Device,
    Event,
    Executor,
    Finding,
    Finish,
    Levels,
    MustPass,
    RunStarted,
    Start,
    Wait,
    Waiver,
)
from harness.journal.journal import Journal
from harness.journal.reader import Damaged, Unknown

#: Facts that may differ between the nodes of one run. The lines of each case name its node.
FREE = ("device", "driver")
_ABOUT_CASE = Start | Finish | Levels | Confirmation
_ABOUT_NODE = Executor | Device | Wait


@dataclass(slots=True)
class SessionLines:
    """The first lines of a session's journal."""

    name: str
    number: int
    run: RunStarted | None = None
    raw_run: dict[str, Any] = field(default_factory=dict)
    ids: tuple[str, ...] = ()
    deselected: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    lists: list[dict[str, Any]] = field(default_factory=list)
    red: bool = False

    @property
    def facts(self) -> dict[str, str]:
        """Return the facts that must be equal in all sessions of the run."""
        facts = {} if self.run is None else identity.identity_facts(self.run)
        return {name: text for name, text in facts.items() if name not in FREE}


def read_line(text: str) -> tuple[Event | None, dict[str, Any]]:
    """Return the event in a line of an agent, and its fields; None if the line is not an event."""
    try:
        event = _parser()(1, text.encode("utf-8", "backslashreplace"))
        fields = json.loads(text)
    except (journal.JournalError, ValueError, RecursionError):
        return None, {}
    if isinstance(event, Damaged | Unknown) or not isinstance(fields, dict):
        return None, {}
    return event, fields


@functools.cache
def _parser() -> Callable[[int, bytes], Event | Damaged | Unknown]:
    return reader.line_parser(Path("of an agent"))


def cases_of(event: Event) -> tuple[str, ...] | None:
    """Return the cases that a line is about; None if a node may write it about itself."""
    if isinstance(event, _ABOUT_CASE):
        return (event.case,)
    if isinstance(event, Batch | Finding):
        return event.cases
    return None if isinstance(event, _ABOUT_NODE) else ()


def is_head_of_session(event: Event) -> bool:
    """Return whether the line belongs to the start of a session, so that it is not copied."""
    return isinstance(event, RunStarted | Collected | MustPass | Waiver)


def enter_session_line(session: SessionLines, event: Event, fields: dict[str, Any]) -> None:
    """Record a line of the start of a session."""
    match event:
        case RunStarted():
            session.run, session.raw_run = event, fields
        case Collected() if event.ids or not event.count:
            session.ids, session.deselected, session.unread = event.ids, event.deselected, event.unread
        case MustPass() | Waiver():
            session.lists.append(fields)


class ClusterRecord:
    """Writes the run's journal. `part`: 2 after one resumption. Raise WriteError if it cannot be written."""

    def __init__(self, run_dir: Path, part: int = 1, findings: Iterable[tuple[str, str]] = ()) -> None:
        self._journal = Journal(run_dir / journal.FILE_NAME)
        self._part = part
        self._findings = {*findings}
        self._highest: dict[str, int] = {}
        self._offset: dict[str, int] = {}
        self._latest: dict[str, dict[str, Any]] = {}
        self._seed = 0
        self._begun = 0.0

    def begin(
        self,
        reference: SessionLines,
        *,
        run_id: str,
        argv: Sequence[str],
        devices: Sequence[str],
        forced: Sequence[str] = (),
        attempts: Mapping[str, int] | None = None,
        resumed: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Begin or resume the run. `resumed`: lines about attempts that were in flight when it was interrupted."""
        assert reference.run is not None
        self._seed = reference.run.seed
        self._highest = dict(attempts or {})
        self._begun = time.time()
        line = {
            **reference.raw_run,
            "t": self._begun,
            "run_id": run_id,
            "argv": list(argv),
            "host": platform.node(),
            "pid": os.getpid(),
            "devices": list(devices),
            "part": self._part,
            "forced": list(forced),
        }
        self._journal.append(line, *(reference.lists if self._part == 1 else ()), *resumed)
        ids = reference.ids
        self._journal.append(
            lines.collected(
                "",
                count=len(ids),
                digest=digest_of_ids(ids),
                part=self._part,
                ids=ids,
                deselected=reference.deselected,
                unread=reference.unread,
            )
        )

    def prefix(self, node: str, session: int) -> str:
        """Return the prefix of worker names, unique among all nodes, sessions and parts of the run."""
        return f"{node}-" if (self._part, session) == (1, 1) else f"{node}-{self._part}.{session}-"

    def lease(self, case: str) -> None:
        """Record that a case is leased to a node: its attempts are numbered from here."""
        self._offset[case] = self._highest.get(case, 0)

    def copy(self, node: str, session: int, event: Event, fields: dict[str, Any]) -> None:
        """Copy a line of a node."""
        if isinstance(event, Finding):
            text = f"node {node}: {event.message}" if event.kind in finding_kinds.OF_SESSION else event.message
            self.finding(event.kind, text, node, event.cases, event.reproduce)
            return
        prefix = self.prefix(node, session)
        for name in ("worker", "executor"):
            if fields.get(name):
                fields[name] = f"{prefix}{fields[name]}"
        if isinstance(event, Start | Finish | Levels):
            fields["attempt"] = event.attempt + self._offset.get(event.case, 0)
            self._highest[event.case] = max(self._highest.get(event.case, 0), fields["attempt"])
        fields["host"] = node
        fields["t"] = self._moment(event.t)
        if isinstance(event, Start | Finish):
            self._latest[event.case] = fields
        self._journal.append(fields)

    def done(self, case: str) -> None:
        """Record that the end of a case is written."""
        self._latest.pop(case, None)

    def lost(self, case: str, node: str, why: str, *, final: bool) -> None:
        """Record that the attempt at a case is lost: the attempt in flight, or the one that would have followed."""
        latest = self._latest.pop(case, {})
        if "outcome" in latest:  # this attempt has ended; only the following one is lost
            if not final:
                return
            latest = {}
        latest = latest or {"attempt": self._highest.get(case, 0) + 1, "seed": self._case_seed(case), "host": node}
        kept = ("attempt", "alone", "worker", "executor", "devices", "seed", "host")
        fields = {name: latest[name] for name in kept if name in latest}
        self._finish(case, {**fields, "outcome": Outcome.LOST.value, "final": final, "message": why})

    def suspect(self, case: str, node: str) -> None:
        """Record that a case may have ended a node, so that a resumed run also runs it alone."""
        self._journal.append({"event": "suspect", "case": case, "host": node})

    def not_run(self, case: str, why: str) -> None:
        """Record that a case will not run."""
        fields = {"attempt": self._highest.get(case, 0) + 1, "seed": self._case_seed(case)}
        self._finish(case, {**fields, "outcome": Outcome.NOT_RUN.value, "final": True, "message": why})

    def reopened(self, case: str) -> None:
        """Record that a case that ended without a verdict runs again."""
        self._latest.pop(case, None)
        self._journal.append({"t": time.time(), **lines.reopened(case)})

    def node(self, name: str, state: str, **fields: Any) -> None:
        """Record a change of a node's state."""
        self._journal.append({"event": "node", "host": name, "state": state, **fields})

    def late(self, node: str, event: Event) -> None:
        """Record that a node reported a case that it does not have."""
        outcome = event.outcome.value if isinstance(event, Finish) else ""
        message = event.message if isinstance(event, Finish | Finding) else ""
        cases = cases_of(event) or ("",)
        self._journal.append(
            {
                "event": "late",
                "host": node,
                "case": cases[0],
                "what": event.event,
                "outcome": outcome,
                "message": message,
            }
        )

    def second_start(self, node: str, session: int, event: Start) -> None:
        """Record that an attempt at a red case starts on a second device. It is not an attempt of the run."""
        prefix = self.prefix(node, session)
        kept = event.model_dump(mode="json", include={"case", "attempt", "devices", "seed"})
        line = {"event": "second_start", "t": self._moment(event.t), **kept, "host": node}
        line["worker"] = f"{prefix}{event.worker}" if event.worker else ""
        line["executor"] = f"{prefix}{event.executor}" if event.executor else None
        self._journal.append(line)

    def second_device(self, case: str, **fields: Any) -> None:
        """Record that a red case ran again on another device."""
        self._journal.append({"event": "second_device", "case": case, **fields})

    @property
    def findings(self) -> int:
        """The number of findings so far."""
        return len(self._findings)

    def finding(
        self, kind: str, message: str, node: str = "", cases: Sequence[str] = (), reproduce: str | None = None
    ) -> None:
        """Record a finding, once."""
        if (kind, message) in self._findings:
            return
        self._findings.add((kind, message))
        self._journal.append(lines.finding(kind, message, cases, reproduce=reproduce, host=node))

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line of the head."""
        self._journal.append(line)

    def close(self) -> None:
        self._journal.close()

    def _finish(self, case: str, fields: Mapping[str, Any]) -> None:
        self._highest[case] = max(self._highest.get(case, 0), int(fields["attempt"]))
        line = {"event": "finish", "t": time.time(), "case": case, **fields, "duration": 0.0}
        self._journal.append(line)

    def _moment(self, said: float) -> float:
        """Return the time of a line of a node, whose clock may be wrong."""
        return min(max(said, self._begun), time.time())

    def _case_seed(self, case: str) -> int:
        return case_seed(self._seed, case)
