"""The journal of a cluster run: the lines of its nodes, each with the node's name, and the lines of the head."""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from harness.core.caseid import case_seed, digest_of_ids
from harness.core.outcome import Outcome
from harness.journal import finding_kinds, identity, journal, reader
from harness.journal.events import (
    Batch,
    Collected,
    Confirmation,
    Device,
    Event,
    Executor,
    Finding,
    Finish,
    Late,
    Levels,
    MustPass,
    Node,
    Reopened,
    RunStarted,
    SecondDevice,
    SecondStart,
    Start,
    StateOfNode,
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
    ids: tuple[str, ...] = ()
    deselected: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    lists: list[MustPass | Waiver] = field(default_factory=list)
    red: bool = False

    @property
    def facts(self) -> dict[str, str]:
        """Return the facts that must be equal in all sessions of the run."""
        facts = {} if self.run is None else identity.identity_facts(self.run)
        return {name: text for name, text in facts.items() if name not in FREE}


def read_line(text: str) -> Event | None:
    """Return the event in a line of an agent; None if the line is not an event."""
    try:
        event = _parser()(1, text.encode("utf-8", "backslashreplace"))
    except journal.JournalError:
        return None
    return None if isinstance(event, Damaged | Unknown) else event


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


def enter_session_line(session: SessionLines, event: Event) -> None:
    """Record a line of the start of a session."""
    match event:
        case RunStarted():
            session.run = event
        case Collected() if event.ids or not event.count:
            session.ids, session.deselected, session.unread = event.ids, event.deselected, event.unread
        case MustPass() | Waiver():
            session.lists.append(event)


class ClusterRecord:
    """Writes the run's journal. `part`: 2 after one resumption. Raise WriteError if it cannot be written."""

    def __init__(self, run_dir: Path, part: int = 1, findings: Iterable[tuple[str, str]] = ()) -> None:
        self._journal = Journal(run_dir / journal.FILE_NAME)
        self._part = part
        self._findings = {*findings}
        self._highest: dict[str, int] = {}
        self._offset: dict[str, int] = {}
        self._latest: dict[str, Start | Finish] = {}
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
        resumed: Sequence[Event] = (),
    ) -> None:
        """Begin or resume the run. `resumed`: lines about attempts that were in flight when it was interrupted."""
        assert reference.run is not None
        self._seed = reference.run.seed
        self._highest = dict(attempts or {})
        self._begun = time.time()
        run = msgspec.structs.replace(
            reference.run,
            t=self._begun,
            run_id=run_id,
            argv=tuple(argv),
            host=platform.node(),
            pid=os.getpid(),
            devices=tuple(devices),
            part=self._part,
            forced=tuple(forced),
        )
        self._journal.append(run, *(reference.lists if self._part == 1 else ()), *resumed)
        ids = reference.ids
        self._journal.append(
            Collected(
                t=time.time(),
                worker="",
                count=len(ids),
                hash=digest_of_ids(ids),
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

    def copy(self, node: str, session: int, event: Event) -> None:
        """Copy a line of a node."""
        if isinstance(event, Finding):
            text = f"node {node}: {event.message}" if event.kind in finding_kinds.OF_SESSION else event.message
            self.finding(event.kind, text, node, event.cases, event.reproduce)
            return
        changed: dict[str, Any] = {"host": node, "t": self._moment(event.t)}
        for name in ("worker", "executor"):
            if value := getattr(event, name, None):
                changed[name] = f"{self.prefix(node, session)}{value}"
        if isinstance(event, Start | Finish | Levels):
            changed["attempt"] = event.attempt + self._offset.get(event.case, 0)
            self._highest[event.case] = max(self._highest.get(event.case, 0), changed["attempt"])
        copied = msgspec.structs.replace(event, **changed)
        if isinstance(copied, Start | Finish):
            self._latest[copied.case] = copied
        self._journal.append(copied)

    def done(self, case: str) -> None:
        """Record that the end of a case is written."""
        self._latest.pop(case, None)

    def lost(self, case: str, why: str, *, final: bool) -> None:
        """Record that the attempt at a case is lost: the attempt in flight, or the one that would have followed."""
        latest = self._latest.pop(case, None)
        if isinstance(latest, Finish):  # this attempt has ended; only the following one is lost
            if not final:
                return
            latest = None
        self._finish(case, Outcome.LOST, why, final=final, start=latest)

    def not_run(self, case: str, why: str) -> None:
        """Record that a case will not run."""
        self._finish(case, Outcome.NOT_RUN, why, final=True)

    def reopened(self, case: str) -> None:
        """Record that a case that ended without a verdict runs again."""
        self._latest.pop(case, None)
        self._journal.append(Reopened(t=time.time(), case=case))

    def node(self, name: str, state: StateOfNode, **fields: Any) -> None:
        """Record a change of a node's state."""
        self._journal.append(Node(t=time.time(), host=name, state=state, **fields))

    def late(self, node: str, event: Event) -> None:
        """Record that a node reported a case that it does not have."""
        outcome = event.outcome.value if isinstance(event, Finish) else ""
        message = event.message if isinstance(event, Finish | Finding) else ""
        cases = cases_of(event) or ("",)
        self._journal.append(
            Late(t=time.time(), host=node, case=cases[0], what=event.event, outcome=outcome, message=message)
        )

    def second_start(self, node: str, session: int, event: Start) -> None:
        """Record that an attempt at a red case starts on a second device. It is not an attempt of the run."""
        prefix = self.prefix(node, session)
        line = SecondStart(
            t=self._moment(event.t),
            case=event.case,
            attempt=event.attempt,
            devices=event.devices,
            seed=event.seed,
            host=node,
            worker=f"{prefix}{event.worker}" if event.worker else "",
            executor=f"{prefix}{event.executor}" if event.executor else None,
        )
        self._journal.append(line)

    def second_device(self, case: str, **fields: Any) -> None:
        """Record that a red case ran again on another device."""
        self._journal.append(SecondDevice(t=time.time(), case=case, **fields))

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
        self._journal.append(
            Finding(t=time.time(), kind=kind, message=message, cases=tuple(cases), reproduce=reproduce, host=node)
        )

    def append(self, line: Event) -> None:
        """Append a line of the head."""
        self._journal.append(line)

    def close(self) -> None:
        self._journal.close()

    def _finish(self, case: str, outcome: Outcome, why: str, *, final: bool, start: Start | None = None) -> None:
        """Record the end of an attempt that no node has reported. `start`: its start, if a node has reported that."""
        known = start or Start(t=0.0, case=case, attempt=self._highest.get(case, 0) + 1, seed=self._case_seed(case))
        self._highest[case] = max(self._highest.get(case, 0), known.attempt)
        self._journal.append(
            Finish(
                t=time.time(),
                host=known.host,
                case=case,
                attempt=known.attempt,
                alone=known.alone,
                worker=known.worker,
                executor=known.executor,
                devices=known.devices,
                seed=known.seed,
                outcome=outcome,
                final=final,
                duration=0.0,
                message=why,
            )
        )

    def _moment(self, said: float) -> float:
        """Return the time of a line of a node, whose clock may be wrong."""
        return min(max(said, self._begun), time.time())

    def _case_seed(self, case: str) -> int:
        return case_seed(self._seed, case)
