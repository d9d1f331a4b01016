"""The head of a cluster run: starts an agent on each node, hands out the cases, and writes the run's journal.

`CaseQueue` makes the decisions; this module has their effects: processes, streams, signals, the clock and the journal.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

from harness.core.errors import WriteError
from harness.core.outcome import EXIT_NOTHING_RAN, EXIT_OK, EXIT_RED
from harness.core.text import format_count, list_first, single_line
from harness.journal.events import StateOfNode, Stopped
from harness.scheduling.resume import changed_conditions_message
from harness.scheduling.workers import Resumption
from harness.tools.cluster import sessions
from harness.tools.cluster.engine import Host
from harness.tools.cluster.jobs import (
    Action,
    Drop,
    GiveJobs,
    LostAttempt,
    NodeState,
    NotRun,
    ReopenedCase,
    Suspected,
    Tell,
)
from harness.tools.cluster.link import (
    BEAT,
    VERSION,
    Beat,
    Begin,
    Bye,
    CaseMessage,
    Done,
    Give,
    Hello,
    Lines,
    Link,
    LinkProtocolError,
    Quit,
    Ready,
    SessionOver,
    Stopping,
    ToHead,
    Want,
)
from harness.tools.cluster.queue import SETTLE, CaseQueue
from harness.tools.cluster.record import ClusterRecord, Environments, Intake, Member, skew_of, skew_text
from harness.tools.cluster.sessions import ClusterError, ClusterRequest, Earlier, Rules, SessionLines

#: Seconds between two progress lines.
PROGRESS = 10.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOGS = "nodes"


class Head:
    """One cluster run."""

    def __init__(
        self,
        wanted: ClusterRequest,
        rules: Rules,
        hosts: Sequence[Host],
        log: Callable[[str], None],
        earlier: Earlier | None = None,
    ) -> None:
        """`log`: prints a line for people, whatever it contains. Raise WriteError."""
        self._wanted = wanted
        self._rules = rules
        self._log = log
        self._earlier = earlier
        resumption = Resumption() if earlier is None else earlier.resumption
        self._resumption = resumption
        self._record: ClusterRecord | None = None
        self._queue = CaseQueue(
            [host.name for host in hosts],
            silence=wanted.silence,
            start_limit=wanted.start_limit,
            now=time.monotonic(),
            stuck=wanted.stuck,
            end_limit=wanted.end_limit,
            second_looks=wanted.second_looks,
        )
        self._selector = selectors.DefaultSelector()
        self._intake = Intake(self._queue, {host.name: host.text for host in hosts})
        self._reference: SessionLines | None = None
        self._environments = Environments(wanted.run_dir, wanted.argv)
        #: Lines from before the journal begins.
        self._early: list[Callable[[], object]] = []
        #: Why the run did not begin; empty if it did.
        self.refusal = ""
        self._signals: list[int] = []
        #: The name of the first signal; empty without a signal.
        self.stopped_by = ""
        self._shown = time.monotonic()
        self._beaten = 0.0
        proof = f".head-{wanted.run_id}"
        (wanted.run_dir / proof).touch()
        self._proof = proof
        self._members = {host.name: self._start(host) for host in hosts}

    def _start(self, host: Host) -> Member:
        try:
            link = Link(host.name, host.command, self._wanted.run_dir / LOGS / f"{host.name}.log")
        except OSError as error:
            raise ClusterError(f"cannot start {host.command[0]!r}: {error.strerror}") from None
        self._selector.register(link.source, selectors.EVENT_READ, host.name)
        wanted = self._wanted
        link.send(
            Begin(
                version=VERSION,
                token=link.token,
                node=host.name,
                folder=wanted.folder,
                run_dir=str(wanted.run_dir),
                proof=self._proof,
                arguments=wanted.arguments,
                variables=dict(wanted.variables),
                grace=wanted.grace,
                orphaned_after=wanted.orphaned_after,
            )
        )
        return Member(host, link, SessionLines(host.name, 1))

    @property
    def has_begun(self) -> bool:
        """Whether the run has a journal."""
        return self._record is not None

    def run(self) -> None:
        """Work until all nodes have ended. Raise WriteError if the journal cannot be written."""
        handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores one
        before = {number: signal.signal(number, self._on_signal) for number in handled}
        wake, write = os.pipe()
        os.set_blocking(write, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(write)
        self._selector.register(wake, selectors.EVENT_READ, "")
        try:
            while not self._queue.is_over:
                for key, _ in self._selector.select(0.5):
                    if key.data:
                        self._read(self._members[key.data])
                    else:
                        os.read(wake, 4096)
                self._look_after()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._close()
            os.close(wake)
            os.close(write)

    def _close(self) -> None:
        for member in self._members.values():
            member.link.close()
        (self._wanted.run_dir / self._proof).unlink(missing_ok=True)
        self._selector.close()
        if self._record is not None:
            self._record.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._signals.append(number)

    def _look_after(self) -> None:
        now = time.monotonic()
        while self._signals:
            self._stop(signal.Signals(self._signals.pop(0)).name)
        for member in self._members.values():
            if member.link.waits and not member.closed:
                member.link.flush()
        if now - self._beaten >= BEAT:
            self._beaten = now
            for member in self._members.values():
                if member.link.greeted and not member.closed:
                    self._send(member, Beat())
        if self._record is None:
            self._begin(now)
        self._act(self._queue.tick(now))
        if self._record is not None and now - self._shown >= PROGRESS:
            self._shown = now
            self._log(self._progress())

    def _stop(self, name: str) -> None:
        """Handle a signal.

        The first one gives running cases the grace period, the second one stops them immediately.
        """
        if self.stopped_by:
            for member in self._members.values():
                if not member.closed:
                    self._send(member, Quit(stop=f"stopped by {name}", now=True))
            return
        self.stopped_by = name
        self._log(f"stopped by {name}: running cases get {self._wanted.grace:g} s")
        if self._record is not None:
            self._record.append(Stopped(t=time.time(), by=name, grace=self._wanted.grace))
        self._act(self._queue.stop(f"the run was stopped by {name}"))

    # Messages of agents.

    def _read(self, member: Member) -> None:
        if member.closed:
            return
        name = member.host.name
        try:
            messages = member.link.receive()
        except LinkProtocolError as error:
            self._cut(member, str(error))
            return
        if messages is None:
            self._selector.unregister(member.link.source)
            member.closed = True
            if member.link.got_bye:
                self._ended(member)
            else:
                self._act(self._queue.lost(name, member.link.end()))
            return
        for message in messages:
            self._queue.seen(name, time.monotonic())
            self._guard(member, partial(self._take, member, message))

    def _ended(self, member: Member) -> None:
        """Handle the end of an agent's connection after its last message."""
        name = member.host.name
        if self._record is not None and not member.lost:
            self._record.node(name, "ended", message=f"it ran {format_count(member.done, 'case')}")
        self._act(self._queue.ended(name))

    def _guard(self, member: Member, handle: Callable[[], object]) -> None:
        """Handle something that a member has sent. An error that it causes ends this member, and not the run."""
        if member.closed:
            return
        try:
            handle()
        except WriteError:
            raise
        except Exception as error:  # noqa: BLE001
            self._cut(member, str(error) if isinstance(error, LinkProtocolError) else f"what it sent causes {error!r}")

    def _cut(self, member: Member, why: str) -> None:
        """Cut off an agent that violates the protocol; ignore its further messages."""
        if member.closed:
            return
        self._selector.unregister(member.link.source)
        member.closed = True
        member.link.kill()
        self._act(self._queue.lost(member.host.name, why))

    def _take(self, member: Member, message: ToHead) -> None:
        name = member.host.name
        match message:
            case Hello(host=host, pid=pid, clock=clock):
                self._intake.count_extra(member)
                member.skew = skew_of(clock, time.time())
                wrong = f"; {skew_text(member.skew)}" if member.skew else ""
                self._log(f"node {name}: agent {pid} on {single_line(host, 60)} has connected{wrong}")
            case Lines(lines=lines):
                for text in lines:
                    if not self._intake.enter(member, text):
                        self._early.append(partial(self._guard, member, partial(self._intake.enter, member, text)))
            case Ready():
                self._ready(member, message)
            case Want(cases=cases) if not member.lost:
                self._act(self._queue.wants(name, cases))
            case Done(case=case) if not member.lost:
                actions, said = self._intake.done(member, case)
                if said:
                    self._log(said)
                self._act(actions)
            case SessionOver():
                self._session_over(member, message)
            case Stopping(why=why):
                self._intake.count_extra(member)
                self._note(name, "stopping", why)
                self._act(self._queue.refuse(name, why))
            case Bye():
                member.link.got_bye = True

    def _session_over(self, member: Member, message: SessionOver) -> None:
        name = member.host.name
        node = self._queue.nodes[name]
        status = message.status
        self._intake.count_extra(member)
        is_expected = node.state in (NodeState.CLOSING, NodeState.QUITTING) or node.over or member.lost
        last = message.last_line
        why = f"pytest ended with status {status}{f': {last}' if last else ''}"
        unexplained = status == EXIT_RED and not member.lines.red
        if member.ready is None and not is_expected:
            self._finding("session", f"node {name}: the tests could not be collected: {last}", name)
        elif (status not in (EXIT_OK, EXIT_RED, EXIT_NOTHING_RAN) and not is_expected) or unexplained:
            text = why if not unexplained else f"pytest reported a failure outside the cases: {last}"
            self._finding("session", f"node {name}: session {member.lines.number}: {text}", name)
        actions = self._queue.session_over(name, why, time.monotonic())
        member.lines, member.ready = SessionLines(name, member.lines.number + 1), None
        self._act(actions)

    def _ready(self, member: Member, message: Ready) -> None:
        """Handle a session that has collected. Raise LinkProtocolError if what it sent does not fit together."""
        if member.ready is not None:
            raise LinkProtocolError("its session was ready twice")
        sessions.check_ready(member.lines, message)
        assert member.lines.run is not None
        if wrong := self._rules.difference(member.lines.run):
            self._exclude(member, f"the head's own files and options say otherwise: {wrong}")
            return
        member.ready, member.ready_at = message, time.monotonic()
        if self._record is not None:
            self._let_in(member)

    def _exclude(self, member: Member, wrong: str) -> None:
        name = member.host.name
        self._note(name, "refused", wrong)
        self._finding("unlike_node", f"node {name} is excluded: {wrong}", name)
        self._act(self._queue.refuse(name, wrong))

    # The start of the run.

    def _begin(self, now: float) -> None:
        """Begin the run once all nodes have collected or have timed out. The majority defines the run."""
        there = [member for member in self._members.values() if member.ready is not None and not member.lost]
        coming = [
            name
            for name, node in self._queue.nodes.items()
            if node.state is NodeState.STARTING and node.takes and self._members[name].ready is None
        ]
        if self.stopped_by or not there:
            return
        if coming and now - min(member.ready_at for member in there) < SETTLE:
            return
        reference = sessions.usual_session([member.lines for member in there])
        changed = () if self._earlier is None else sessions.changes_since(self._earlier, reference)
        if changed and self._earlier is not None and not self._earlier.force:
            self.refusal = changed_conditions_message(changed)
            self._act(self._queue.stop("the run cannot be resumed"))
            return
        self._reference = reference
        self._environments.leading = reference.name
        devices = dict.fromkeys(uuid for member in there if member.ready is not None for uuid in member.ready.devices)
        self._record = ClusterRecord(self._wanted.run_dir, self._resumption.part, self._resumption.findings)
        self._intake.begin(self._record, reference.ids)
        positions = self._intake.positions
        if self._earlier is not None:
            self._environments.keep_earlier(self._resumption.part)
        self._record.begin(
            reference,
            self._rules,
            run_id=self._wanted.run_id if self._earlier is None else self._earlier.run_id,
            argv=self._wanted.argv,
            devices=[*devices],
            forced=changed,
            attempts=self._resumption.attempts,
            resumed=() if self._earlier is None else self._earlier.lines,
        )
        finished = frozenset(positions[case] for case in self._resumption.finished if case in positions)
        seconds = next(
            member.ready.seconds for member in there if member.lines is reference and member.ready is not None
        )
        suspects = {} if self._earlier is None else self._earlier.suspects
        known = {positions[case]: node for case, node in suspects.items() if case in positions}
        self._queue.load(seconds, finished, known)
        self._log(f"{format_count(len(positions), 'case')}, {len(positions) - len(finished)} to run")
        early, self._early = self._early, []
        for handle in early:
            handle()
        for member in there:
            self._guard(member, partial(self._let_in, member))

    def _let_in(self, member: Member) -> None:
        """Handle a session that is ready. It takes part if it equals the others."""
        assert self._record is not None
        assert self._reference is not None
        ready, name = member.ready, member.host.name
        if ready is None or member.lost:
            return
        wrong = sessions.session_difference(member.lines, self._reference)
        if wrong:
            self._exclude(member, f"it differs from the others: {wrong}")
            return
        self._record.set_skew(name, member.skew)
        self._record.node(
            name,
            "ready",
            message=skew_text(member.skew),
            session=ready.session,
            folder=ready.folder,
            devices=list(ready.devices),
            gres=member.host.gres,
            features=list(member.host.features),
        )
        self._log(f"node {name}: ready, {format_count(ready.workers, 'worker')} on {list_first([*ready.devices], 8)}")
        self._environments.add(name, ready.environment)
        gated = {int(case): text for case, text in ready.gated.items()}
        self._act(
            self._queue.ready(name, member.ready_at, workers=ready.workers, gated=gated, kinds=dict(ready.devices))
        )

    # Effects.

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case GiveJobs(node=name, jobs=jobs):
                    self._give(self._members[name], jobs)
                case Tell(node=name, message=message):
                    self._send(self._members[name], message)
                case Drop(node=name, why=why):
                    self._drop(self._members[name], why)
                case LostAttempt(case=case, node=name, why=why, final=final):
                    if self._record is not None:
                        self._record.lost(self._intake.ids[case], name, why, final=final)
                case Suspected(case=case, node=name):
                    if self._record is not None:
                        self._record.suspect(self._intake.ids[case], name)
                case ReopenedCase(case=case):
                    if self._record is not None:
                        self._record.reopened(self._intake.ids[case])
                case NotRun(case=case, why=why):
                    if self._record is not None:
                        self._record.not_run(self._intake.ids[case], why)

    def _give(self, member: Member, jobs: Sequence[int]) -> None:
        assert self._record is not None
        entries = [self._queue.jobs[job] for job in jobs]
        for entry in entries:
            if not entry.look:
                self._record.lease(self._intake.ids[entry.case])
        name = member.host.name
        cases = tuple(
            CaseMessage(case=entry.case, avoid=entry.first if entry.first_on == name else "") for entry in entries
        )
        self._send(member, Give(cases=cases))

    def _send(self, member: Member, message: Any) -> None:
        if member.closed:
            return
        try:
            member.link.send(message)
        except LinkProtocolError as error:
            self._cut(member, str(error))

    def _drop(self, member: Member, why: str) -> None:
        """Drop a lost node. If it wakes up again, stop it, and record its messages as late."""
        member.lost = True
        name = member.host.name
        words = member.link.last_output()
        text = f"{why}{f' ({words})' if words and words not in why else ''}; see {LOGS}/{name}.log in the run directory"
        self._note(name, "lost", text)
        self._finding("node_lost", f"node {name} was lost: {text}", name)
        if not member.closed:
            self._send(member, Quit(stop="the head has abandoned this node", now=True))

    def _note(self, name: str, state: StateOfNode, message: str) -> None:
        self._log(f"node {name}: {state}: {message}")
        self._write_node(name, state, message)

    def _write_node(self, name: str, state: StateOfNode, message: str) -> None:
        if self._record is None:
            self._early.append(partial(self._write_node, name, state, message))
        else:
            self._record.node(name, state, message=message)

    def _finding(self, kind: str, message: str, node: str) -> None:
        if self._record is None:
            self.refusal = self.refusal or message
            self._early.append(partial(self._finding, kind, message, node))
        else:
            self._record.finding(kind, message, node)

    def _progress(self) -> str:
        total = len(self._intake.ids)
        nodes = ", ".join(
            f"{name} {len(node.leased)}" for name, node in self._queue.nodes.items() if node.state is not NodeState.GONE
        )
        count = 0 if self._record is None else self._record.findings
        findings = f", {format_count(count, 'finding')}" if count else ""
        done, red = total - self._queue.left, self._intake.red
        return f"{done} of {total} cases done, {red} red{findings}; at work: {nodes or 'no node'}"
