"""What nodes send about cases, and the record of a cluster run: its journal and environment.json."""

from __future__ import annotations

import json
import os
import platform
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from harness.backends.table import labels
from harness.core.caseid import case_seed, digest_of_ids
from harness.core.outcome import Outcome
from harness.core.text import escape_invalid_xml, list_first
from harness.journal import environment, identity, journal
from harness.journal.events import (
    SCHEMA,
    Collected,
    Event,
    Finding,
    Finish,
    Late,
    Levels,
    Node,
    Reopened,
    RunStarted,
    SecondDevice,
    SecondStart,
    Start,
    StateOfNode,
    Suspect,
)
from harness.journal.journal import Journal
from harness.tools.cluster import sessions
from harness.tools.cluster.engine import Host
from harness.tools.cluster.jobs import Action
from harness.tools.cluster.link import Link, LinkProtocolError, Ready
from harness.tools.cluster.queue import CaseQueue
from harness.tools.cluster.sessions import Rules, SessionLines, cases_of

#: Seconds by which the clock of a node may be wrong, or its first message late.
_TOLERATED = 5.0


class ClusterRecord:
    """Writes the run's journal. `part`: 2 after one resumption. Raise WriteError if it cannot be written."""

    def __init__(self, run_dir: Path, part: int = 1, findings: Iterable[tuple[str, str]] = ()) -> None:
        self._journal = Journal(run_dir / journal.FILE_NAME)
        self._part = part
        self._findings = {*findings}
        self._highest: dict[str, int] = {}
        self._offset: dict[str, int] = {}
        self._latest: dict[str, Start | Finish] = {}
        self._skews: dict[str, float] = {}
        self._seed = 0
        self._begun = 0.0

    def begin(
        self,
        reference: SessionLines,
        rules: Rules,
        *,
        run_id: str,
        argv: Sequence[str],
        devices: Sequence[str],
        forced: Sequence[str] = (),
        attempts: Mapping[str, int] | None = None,
        resumed: Sequence[Event] = (),
    ) -> None:
        """Begin or resume the run. `reference`: the session that has the cases of the run.

        `resumed`: lines about attempts that were in flight when it was interrupted.
        """
        assert reference.run is not None
        fields = rules.run_fields(reference.run)
        self._seed = fields["seed"]
        self._highest = dict(attempts or {})
        self._begun = time.time()
        run = RunStarted(
            t=self._begun,
            schema_version=SCHEMA,
            run_id=run_id,
            argv=tuple(argv),
            host=platform.node(),
            pid=os.getpid(),
            devices=tuple(devices),
            label=labels([*devices]),
            part=self._part,
            forced=tuple(forced),
            **fields,
        )
        self._journal.append(run, *(rules.lists if self._part == 1 else ()), *resumed)
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
            text = f"node {node}: {event.message}" if event.kind in identity.OF_SESSION else event.message
            self.finding(event.kind, text, node, event.cases, event.reproduce)
            return
        changed: dict[str, Any] = {"host": node, "t": self._moment(node, event.t)}
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

    def lost(self, case: str, node: str, why: str, *, final: bool) -> None:
        """Record that the attempt at a case is lost: the attempt in flight, or the one that would have followed."""
        latest = self._latest.pop(case, None)
        if isinstance(latest, Finish):  # this attempt has ended; only the following one is lost
            if not final:
                return
            latest = None
        self._finish(case, Outcome.LOST, why, final=final, start=latest, node=node)

    def suspect(self, case: str, node: str) -> None:
        """Record that a case may have ended a node, so that a resumed run also runs it alone."""
        self._journal.append(Suspect(t=time.time(), case=case, host=node))

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
            t=self._moment(node, event.t),
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

    def _finish(
        self, case: str, outcome: Outcome, why: str, *, final: bool, start: Start | None = None, node: str = ""
    ) -> None:
        """Record the end of an attempt that no node has reported. `start`: its start, if a node has reported that."""
        number = self._highest.get(case, 0) + 1
        known = start or Start(t=0.0, host=node, case=case, attempt=number, seed=case_seed(self._seed, case))
        self._highest[case] = max(self._highest.get(case, 0), known.attempt)
        self._journal.append(known.ended(outcome, why, t=time.time(), final=final))

    def set_skew(self, node: str, seconds: float) -> None:
        """Set by how much the clock of a node is behind: its times are corrected."""
        self._skews[node] = seconds

    def _moment(self, node: str, said: float) -> float:
        """Return the time of a line of a node, within the run."""
        return min(max(said + self._skews.get(node, 0.0), self._begun), time.time())


def skew_of(clock: float, now: float) -> float:
    """Return by how many seconds the clock of a node is behind; 0 if it may be the time that its message took."""
    return now - clock if abs(now - clock) > _TOLERATED else 0.0


def skew_text(seconds: float) -> str:
    """Return a text about a wrong clock; empty for a right one."""
    if not seconds:
        return ""
    return f"its clock is {abs(seconds):.0f} s {'behind' if seconds > 0 else 'ahead'}, and its times are corrected"


class Environments:
    """The facts that the nodes have sent about themselves.

    The facts of the run come from the node `leading`, which most others resemble, with the command and the host of the
    head, and the devices of all nodes. Therefore they agree with the `run` line of the journal, as evidence requires.
    """

    def __init__(self, run_dir: Path, argv: Sequence[str]) -> None:
        """`argv`: the command of the whole run. The facts of each node have its own command."""
        self._run_dir = run_dir
        self._command = [escape_invalid_xml(word) for word in argv]
        self.leading = ""
        self._facts: dict[str, Mapping[str, Any]] = {}

    def keep_earlier(self, part: int) -> None:
        """Keep the file of the earlier part."""
        path = self._run_dir / environment.FILE_NAME
        if path.exists():
            path.rename(path.with_stem(f"{path.stem}-{part - 1}"))

    def add(self, node: str, text: str) -> None:
        """Rewrite the file with the facts of a node. A text that is not a JSON object is left out. Raise WriteError."""
        try:
            facts = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(facts, dict):
            return
        self._facts[node] = facts
        first = self._facts.get(self.leading, next(iter(self._facts.values())))
        devices = [device for facts_of_node in self._facts.values() for device in environment.devices_of(facts_of_node)]
        by_uuid = {str(device.get("uuid")): device for device in devices}
        own = {"command": self._command, "host": escape_invalid_xml(platform.node()), "devices": [*by_uuid.values()]}
        environment.write_environment(self._run_dir, {**first, **own, "nodes": dict(self._facts)})


# What the sessions of a cluster run send about cases: which attempts count, and what goes into the run's journal.
#
# A node may send anything. A line about a case that it does not have is kept as late and decides nothing, and too many
# lines about none of its cases end its connection.

#: Maximum lines of a node that are about none of its cases, in addition to some per case that it has done.
MOST_EXTRA = 10_000
#: Maximum attempts at a case within one session.
MOST_ATTEMPTS = 100_000


@dataclass(slots=True)
class Member:
    """A node, its connection, and its current session."""

    host: Host
    link: Link
    lines: SessionLines
    ready: Ready | None = None
    ready_at: float = 0.0
    lost: bool = False
    closed: bool = False
    done: int = 0
    #: The seconds by which its clock is behind the head's.
    skew: float = 0.0
    #: How many lines are about none of its cases.
    extra: int = 0
    #: The device of the last attempt at each of its cases, and the end of the attempt.
    devices: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, Finish] = field(default_factory=dict)


class Intake:
    """Takes what nodes send about cases. `ids`, `positions`: the cases of the run; `red`: how many are red."""

    def __init__(self, queue: CaseQueue, texts: Mapping[str, str]) -> None:
        """`texts`: each node with its facts, by name."""
        self._queue = queue
        self._texts = texts
        self._record: ClusterRecord | None = None
        self.ids: tuple[str, ...] = ()
        self.positions: dict[str, int] = {}
        self.red = 0

    def begin(self, record: ClusterRecord, ids: tuple[str, ...]) -> None:
        """Begin the run, which has these cases."""
        self._record, self.ids = record, ids
        self.positions = {case: position for position, case in enumerate(ids)}

    def enter(self, member: Member, text: str) -> bool:
        """Handle a line of the journal of a session. Return False for one that must wait for the begin of the run.

        Raise LinkProtocolError for a line that its node must not send.
        """
        event = sessions.read_line(text)
        name = member.host.name
        if event is None:
            return True
        if sessions.is_head_of_session(event):
            if member.ready is None and (member.lines.run is None or event.event != "run"):
                sessions.enter_session_line(member.lines, event)
            return True
        cases = sessions.cases_of(event)
        if cases == () and not isinstance(event, Finding):
            return True  # the head has no use for lines such as `activity` and `end`
        if isinstance(event, Finding):
            member.lines.red = True
        if self._record is None:
            self.count_extra(member)
            return False
        positions = [self.positions.get(case, -1) for case in cases or ()]
        jobs = [self._queue.job_of(name, position) for position in positions]
        if not jobs:
            self.count_extra(member)
        if member.lost or any(job is None for job in jobs):
            self.count_extra(member)
            self._record.late(name, event)
            return True
        if isinstance(event, Start | Finish):
            self._attempt(member, event, positions[0], jobs[0] or 0)
            return True
        if jobs and all(self._queue.jobs[job].look for job in jobs if job is not None):
            return True  # an attempt on a second device decides nothing
        self._record.copy(name, member.lines.number, event)
        return True

    def count_extra(self, member: Member) -> None:
        """Count a line that is about no case of its node. Raise LinkProtocolError for too many."""
        member.extra += 1
        if member.extra > MOST_EXTRA + 10 * member.done:
            raise LinkProtocolError(f"it sent {member.extra} lines that are about none of its cases")

    def _attempt(self, member: Member, event: Start | Finish, case: int, job: int) -> None:
        """Handle a line about an attempt at a case that the node has."""
        assert self._record is not None
        if event.attempt > MOST_ATTEMPTS:
            raise LinkProtocolError(f"it sent attempt {event.attempt} at a case, expected at most {MOST_ATTEMPTS}")
        self._queue.began(member.host.name, job)
        if event.devices:
            member.devices[case] = event.devices[0]
        if isinstance(event, Finish) and self._is_lost(member, event):
            # The queue decides whether the case runs again, so the line must not end it.
            event = msgspec.structs.replace(event, final=False, outcome=Outcome.LOST)
        elif isinstance(event, Finish) and event.final:
            outcome = event.outcome if event.ruling is None else event.ruling.outcome
            earlier = self._queue.jobs[job].verdict
            worst = outcome if earlier is None or outcome.severity > earlier.severity else earlier
            self._queue.judged(job, worst)
            member.finishes[case] = event
            member.lines.red = member.lines.red or outcome.is_red
        if isinstance(event, Finish) and event.gate is not None:
            event = msgspec.structs.replace(event, notes=(*event.notes, *self._gates(case)))
        if not self._queue.jobs[job].look:
            self._record.copy(member.host.name, member.lines.number, event)
        elif isinstance(event, Start):
            self._record.second_start(member.host.name, member.lines.number, event)

    def _gates(self, case: int) -> list[str]:
        """Return why each node cannot run a case, if the reasons differ."""
        gates = self._queue.gates(case) if len(self._queue.gates(case)) > 1 else {}
        hosts = {reason: [self._texts[name] for name in names] for reason, names in gates.items()}
        return [f"on {list_first(names, 8)}: {reason}" for reason, names in hosts.items()]

    def _is_lost(self, member: Member, event: Finish) -> bool:
        """Return whether an attempt has no result for its case: the harness lost it, or a stop of the node killed it.

        Slurm sends SIGTERM to every process of a step.
        """
        is_stopped = self._queue.stopped or self._queue.nodes[member.host.name].over
        return event.outcome is Outcome.LOST or bool(is_stopped and event.exit_status == -signal.SIGTERM)

    def done(self, member: Member, case: int) -> tuple[Sequence[Action], str]:
        """Handle the end of a case on a node. Return what to do, and a line for people, or ""."""
        name = member.host.name
        job = self._queue.nodes[name].leased.get(case)
        if job is None or self._record is None:
            return (), ""
        entry = self._queue.jobs[job]
        device = member.devices.pop(case, "")
        finish = member.finishes.pop(case, None)
        said = self._second_device(member, job, device, finish) if entry.look else ""
        actions = self._queue.done(name, case, device)
        if entry.over and not entry.look:
            self._record.done(self.ids[case])
            member.done += 1
            self.red += entry.verdict is not None and entry.verdict.is_red
        return actions, said

    def _second_device(self, member: Member, job: int, device: str, finish: Finish | None) -> str:
        entry = self._queue.jobs[job]
        outcome = entry.verdict
        if self._record is None or finish is None or outcome is None:
            return ""
        if outcome in (Outcome.NOT_RUN, Outcome.LOST, Outcome.GATED, Outcome.SKIPPED):
            return ""
        comparison = "red on both" if outcome.is_red else "red on this device only"
        self._record.second_device(
            self.ids[entry.case],
            first=entry.first,
            second=device,
            host=member.host.name,
            outcome=outcome.value,
            finding=comparison,
            message=finish.message,
        )
        return f"{self.ids[entry.case]} was red on {entry.first}: {comparison} ({outcome} on {device})"
