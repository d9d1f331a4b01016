"""What the sessions of a cluster run send about cases: which attempts count, and what goes into the run's journal.

A node may send anything. A line about a case that it does not have is kept as late and decides nothing, and too many
lines about none of its cases end its connection.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from harness.core.outcome import Outcome
from harness.core.text import list_first
from harness.journal.events import Finding, Finish, Start
from harness.tools.cluster import sessions
from harness.tools.cluster.engine import Host
from harness.tools.cluster.jobs import Action
from harness.tools.cluster.link import Link, LinkProtocolError, Ready
from harness.tools.cluster.queue import CaseQueue
from harness.tools.cluster.record import ClusterRecord
from harness.tools.cluster.sessions import SessionLines

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
