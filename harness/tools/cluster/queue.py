"""Decide which node runs which case: a state machine over plain values. It reads no clock and has no effects.

Cases are positions in the list of the run. A *job* is one run of one case: the case itself, or a second look at a red
case on another device. A node holds jobs under a lease, which ends with the job, the node's session, or the node.

A *suspect* is a case that may have ended its node, session or worker. A node can die before it reports which cases had
begun, so all cases leased to a lost node are suspects. Suspects run after all other cases, in sessions with one worker,
which begins a case once it knows the next one. Such a session has at most two cases, and only the first can have begun.
A suspect that loses its node again is lost for good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set

from harness.core.outcome import Outcome
from harness.scheduling.backlog import longest_short
from harness.tools.cluster.jobs import (
    Action,
    Drop,
    GiveJobs,
    Job,
    LostAttempt,
    Node,
    NodeState,
    NotRun,
    ReopenedCase,
    Suspected,
    Tell,
    Waiting,
)
from harness.tools.cluster.link import End, Open, Quit

#: A node whose sessions end this often without a finished case gets no other session.
MOST_FAILURES = 3
#: The cases that a session for suspects has: the one that runs, and the next one.
_ALONE = 2
#: Seconds after the first node is ready for which cases are held back until the others are ready.
SETTLE = 20.0


class CaseQueue:
    """The cases of a run, and the nodes that run them. Every event returns the resulting actions."""

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        silence: float,
        start_limit: float,
        now: float,
        stuck: float = math.inf,
        end_limit: float = math.inf,
        second_looks: int = 0,
    ) -> None:
        """`silence`: a node without a message for this many seconds is lost.

        `start_limit`: seconds until its first message.

        `stuck`: a node with cases is lost after this many seconds without a message about them. `end_limit`: seconds
        within which a node must end on request. `second_looks`: how many red cases may run again on another device.
        """
        self.nodes = {name: Node(name, seen=now, since=now, moved=now) for name in nodes}
        self._silence, self._start_limit, self._stuck, self._end_limit = silence, start_limit, stuck, end_limit
        self._looks_left = second_looks
        self.jobs: list[Job] = []
        self._is_loaded = False
        self._waiting, self._looks, self._suspects = Waiting(), Waiting(), Waiting()
        self._first_ready: float | None = None
        self._now = now
        #: The numbers of cases, and of second looks, that have not ended.
        self.left = self._open_looks = 0
        #: Why no further case is handed out; empty while cases are handed out.
        self.stopped = ""

    def load(
        self,
        seconds: Sequence[float],
        finished: frozenset[int] = frozenset(),
        suspects: Mapping[int, str] | None = None,
    ) -> None:
        """Set the cases. `seconds`: the expected duration of each. `finished`: those that have their verdict.

        `suspects`: of an earlier part of the run, each with the node that it may have ended.
        """
        lost_on = suspects or {}
        self.jobs = [Job(case, over=case in finished, lost_on=lost_on.get(case, "")) for case in range(len(seconds))]
        left = [case for case in range(len(seconds)) if case not in finished]
        self.left, self._is_loaded = len(left), True
        limit = longest_short([seconds[case] for case in left], sum(node.workers for node in self.nodes.values()))
        long = sorted((case for case in left if seconds[case] > limit), key=lambda case: (-seconds[case], case))
        for job in (*long, *(case for case in left if seconds[case] <= limit)):
            self._put(job)

    # Events of nodes.

    def seen(self, name: str, now: float) -> None:
        """Note a message of a node."""
        self.nodes[name].seen = now

    def ready(
        self, name: str, now: float, *, workers: int, gated: Mapping[int, str], kinds: Mapping[str, str]
    ) -> list[Action]:
        """Handle a node whose session has collected and accepts cases."""
        node = self.nodes[name]
        if node.state is not NodeState.STARTING:
            return []
        node.state, node.workers, node.gated, node.kinds = NodeState.OPEN, max(1, workers), gated, kinds
        self._first_ready = now if self._first_ready is None else self._first_ready
        for waiting in (self._waiting, self._looks, self._suspects):
            for job in waiting.take_all():
                waiting.put(job, self._unable(job))
        return self.tick(now)

    def wants(self, name: str, cases: int) -> list[Action]:
        """Handle a node that can take this many more cases."""
        self.nodes[name].free += max(0, cases)
        return self._go_on()

    def session_over(self, name: str, why: str, now: float) -> list[Action]:
        """Handle the end of a node's session. Its jobs go elsewhere, or into the node's next session."""
        node = self.nodes[name]
        self._now = now
        if node.state is NodeState.GONE:
            return []
        actions = self._give_back(node, f"the session on {name} ended: {why}", self._begun(node))
        if node.state is not NodeState.QUITTING:
            node.failures = 0 if node.state is NodeState.CLOSING or node.finished else node.failures + 1
            node.state, node.finished = NodeState.IDLE, 0
            if node.failures >= MOST_FAILURES or (node.failures and not node.kinds):
                node.over = node.over or why
        return [*actions, *self._go_on()]

    def refuse(self, name: str, why: str) -> list[Action]:
        """Give a node no more cases, because it differs from the others or is about to be stopped."""
        node = self.nodes[name]
        node.over = node.over or why
        return self._go_on()

    def lost(self, name: str, why: str) -> list[Action]:
        """Handle a node that is gone, or silent for too long."""
        node = self.nodes[name]
        if node.state is NodeState.GONE:
            return []
        node.over = node.over or why
        node.state = NodeState.GONE
        suspects = [*node.leased.values()][: 1 if node.alone else None]
        return [Drop(name, why), *self._give_back(node, f"node {name} was lost: {why}", suspects), *self._go_on()]

    def ended(self, name: str) -> list[Action]:
        """Handle the last message of a node."""
        node = self.nodes[name]
        if node.state is NodeState.GONE:
            return []
        actions = self._give_back(node, f"node {name} ended", self._begun(node))
        node.state, node.over = NodeState.GONE, node.over or "it ended"
        return [*actions, *self._go_on()]

    def stop(self, why: str) -> list[Action]:
        """Hand out no more cases; running cases get the grace period."""
        self.stopped = self.stopped or why
        remaining = [node for node in self.nodes.values() if node.state not in (NodeState.GONE, NodeState.QUITTING)]
        for node in remaining:
            node.state, node.moved = NodeState.QUITTING, self._now
        return [*(Tell(node.name, Quit(stop=why)) for node in remaining), *self._go_on()]

    def tick(self, now: float) -> list[Action]:
        """Handle timeouts."""
        self._now = now
        actions: list[Action] = []
        for node in self.nodes.values():
            if node.state is NodeState.GONE:
                continue
            limit = self._start_limit if node.seen == node.since else self._silence
            if now - node.seen > limit:
                actions += self.lost(node.name, f"it sent nothing for {now - node.seen:.0f} s")
            elif (node.leased or node.state is NodeState.STARTING) and now - node.moved > self._stuck:
                actions += self.lost(node.name, f"it sent nothing about its cases for {now - node.moved:.0f} s")
            elif node.state is NodeState.QUITTING and now - node.moved > self._end_limit:
                actions += self.lost(node.name, f"it did not end within {self._end_limit:.0f} s")
        return [*actions, *self._go_on()]

    # Events of jobs.

    def job_of(self, name: str, case: int) -> int | None:
        """Return the job on which a node may report for this case, otherwise None.

        It is a job that the node has leased, or one that it has done.
        """
        node = self.nodes[name]
        if case in node.leased:
            return node.leased[case]
        if node.state is NodeState.GONE or not 0 <= case < len(self.jobs):
            return None
        return case if self.jobs[case].over and self.jobs[case].on == name else None

    def gates(self, case: int) -> dict[str, list[str]]:
        """Return the nodes that cannot run a case, by reason."""
        by_reason: dict[str, list[str]] = {}
        for name, node in self.nodes.items():
            if case in node.gated:
                by_reason.setdefault(node.gated[case], []).append(name)
        return by_reason

    def began(self, name: str, job: int) -> None:
        """Note that an attempt of a job has begun."""
        self.jobs[job].begun = True
        self.nodes[name].moved = self._now

    def judged(self, job: int, outcome: Outcome) -> None:
        """Note a node's verdict on a job."""
        self.jobs[job].verdict = outcome

    def done(self, name: str, case: int, device: str = "") -> list[Action]:
        """Handle the end of a job that a node holds. `device`: where the job ran."""
        node = self.nodes[name]
        if case not in node.leased:
            return []
        job = node.leased.pop(case)
        entry = self.jobs[job]
        node.finished += 1
        node.moved = self._now
        actions: list[Action] = []
        if entry.look:
            self._close(job, name)
        elif entry.verdict is None or entry.verdict is Outcome.NOT_RUN:
            if not entry.begun or entry.verdict is not None:
                entry.shunned.add(name)
            why = f"its worker on {name} ended without a verdict on it"
            actions = self._returned(job, node, why, suspect=entry.begun)
        else:
            self._close(job, name)
            self._look_again(job, node, device)
        return [*actions, *self._go_on()]

    @property
    def is_over(self) -> bool:
        return all(node.state is NodeState.GONE for node in self.nodes.values())

    # Decisions.

    def _go_on(self) -> list[Action]:
        actions: list[Action] = []
        if not self.stopped:
            actions += self._without_node()
            if self._is_settled():
                actions += [*self._deal(), *self._turn()]
        elif self.is_over:
            for job in [number for number, queued in enumerate(self.jobs) if not queued.over]:
                if self.jobs[job].look:
                    self._close(job)
                else:
                    actions.append(self._not_run(job, self.stopped))
        nothing_left = self._is_loaded and not self.left and not self._open_looks
        for node in self.nodes.values():
            idle = node.state in (NodeState.STARTING, NodeState.IDLE) and node.over
            if node.state not in (NodeState.QUITTING, NodeState.GONE) and (nothing_left or idle):
                node.state, node.moved = NodeState.QUITTING, self._now
                actions.append(Tell(node.name, Quit()))
        return actions

    def _is_settled(self) -> bool:
        """Return whether cases may be handed out: no node is still starting, or the wait for it is over."""
        if not self.jobs or self._first_ready is None:
            return False
        waits = any(node.state is NodeState.STARTING and node.takes for node in self.nodes.values())
        return not waits or self._now - self._first_ready >= SETTLE

    def _unable(self, job: int) -> frozenset[str]:
        """Return the nodes that cannot run a job, as far as known.

        A job that all nodes gate goes to any node, for the reason.
        """
        entry = self.jobs[job]
        if entry.look:
            unable = {
                name
                for name, node in self.nodes.items()
                if not any(
                    kind == entry.kind and (name, uuid) != (entry.first_on, entry.first)
                    for uuid, kind in node.kinds.items()
                )
            }
        else:
            unable = {name for name, node in self.nodes.items() if entry.case in node.gated}
            if all(name in unable for name, node in self.nodes.items() if node.kinds):
                unable = set()
        return frozenset(unable | entry.shunned)

    def _deal(self) -> list[Action]:
        """Give each open node its share of the waiting jobs.

        A worker begins a case once it knows the next one. Therefore a node gets more than its share if only this node
        can continue.
        """
        given: dict[str, list[int]] = {}
        for node in self._at_work(NodeState.OPEN, alone=True):
            self._fill(node, min(node.free, _ALONE - len(node.leased)), frozenset(), given)
        opened = self._at_work(NodeState.OPEN, alone=False) if self._waiting or self._looks else []
        share = self._shares(opened)
        free = [node for node in opened if node.free]
        for node in free:
            self._fill(node, min(node.free, share[node.name] - len(node.leased)), frozenset(), given)
        for node in free:
            if len(node.leased) > node.workers or not node.free:
                continue
            hungry = (peer.name for peer in opened if len(peer.leased) < min(share[peer.name], 2 * peer.workers))
            self._fill(node, min(node.free, 2 * node.workers - len(node.leased)), {*hungry} - {node.name}, given)
        return [GiveJobs(name, tuple(jobs)) for name, jobs in given.items()]

    def _fill(self, node: Node, room: int, hungry: Set[str], given: dict[str, list[int]]) -> None:
        """Lease jobs to a node. `hungry`: other nodes that have less than their share, and will ask for it soon."""
        for _ in range(room):
            jobs = (waiting.take(node.name, hungry) for waiting in self._lists(alone=node.alone))
            job = next((job for job in jobs if job is not None), None)
            if job is None:
                return
            self._lease(node, job)
            given.setdefault(node.name, []).append(job)

    def _shares(self, opened: Sequence[Node]) -> dict[str, int]:
        """Return how many jobs each open node should have: its share of the unfinished ones.

        Leases do not change it.
        """
        unfinished = len(self._waiting) + len(self._looks) + sum(len(node.leased) for node in opened)
        workers = max(1, sum(node.workers for node in opened))
        return {node.name: math.ceil(unfinished * node.workers / workers) for node in opened}

    def _lease(self, node: Node, job: int) -> None:
        entry = self.jobs[job]
        node.leased[entry.case] = job
        node.free -= 1
        node.moved = self._now
        entry.begun, entry.verdict = False, None

    def _turn(self) -> list[Action]:
        """End sessions that get no more cases, and open others if there are cases again."""
        actions: list[Action] = []
        for node in self.nodes.values():
            if node.state is NodeState.OPEN:
                waits = node.takes and any(waiting.has_for(node.name) for waiting in self._lists(alone=node.alone))
                if not waits and not (node.alone and len(node.leased) == _ALONE):
                    node.state = NodeState.CLOSING
                    actions.append(Tell(node.name, End()))
            elif node.state is NodeState.IDLE and node.takes:
                alone = not self._lacks(node, alone=False)
                if not alone or self._lacks(node, alone=True):
                    node.state, node.sessions, node.free, node.alone = NodeState.STARTING, node.sessions + 1, 0, alone
                    node.workers = 1 if alone else node.workers
                    node.moved = self._now
                    actions.append(Tell(node.name, Open(alone=alone)))
        return actions

    def _lacks(self, node: Node, *, alone: bool) -> bool:
        """Return whether jobs wait that this idle node can run, and for which the sessions of others lack workers."""
        peers = self._at_work(NodeState.STARTING, NodeState.OPEN, alone=alone)
        return any(
            len(group) > sum(max(0, peer.workers - len(peer.leased)) for peer in peers if peer.name not in key)
            for waiting in self._lists(alone=alone)
            for key, group in waiting.groups.items()
            if node.name not in key
        )

    def _at_work(self, *states: NodeState, alone: bool) -> list[Node]:
        """Return the nodes that take cases and have a session of this kind."""
        return [node for node in self.nodes.values() if node.state in states and node.takes and node.alone is alone]

    def _lists(self, *, alone: bool) -> tuple[Waiting, ...]:
        """Return the jobs for a session of this kind, the first ones first."""
        return (self._suspects,) if alone else (self._waiting, self._looks)

    def _put(self, job: int, *, first: bool = False) -> None:
        waiting = self._suspects if self.jobs[job].lost_on else self._waiting
        waiting.put(job, self._unable(job), first=first)

    def _without_node(self) -> list[Action]:
        """Handle the jobs that no node can run any more. A node that has not collected yet may be able to run them."""
        takes = {name for name, node in self.nodes.items() if node.takes}
        if not self.jobs or any(not self.nodes[name].kinds for name in takes):
            return []
        actions: list[Action] = []
        for waiting in (self._waiting, self._looks, self._suspects):
            for key in [key for key, group in waiting.groups.items() if group and not takes - key]:
                for job in waiting.groups.pop(key):
                    if self.jobs[job].look:
                        self._close(job)
                    else:
                        actions.append(self._not_run(job, self._cause(job)))
        return actions

    def _cause(self, job: int) -> str:
        unable = self._unable(job) - self.jobs[job].shunned
        reasons = [f"{node.name}: {node.over or 'it returned the case'}" for node in self.nodes.values()]
        able = [text for text, name in zip(reasons, self.nodes, strict=True) if name not in unable]
        before = self.jobs[job].lost_on
        suspicion = f"; it was in flight when {before} ended" if before else ""
        return f"no node is left that could run it ({'; '.join(able or reasons)}){suspicion}"

    def _not_run(self, job: int, why: str) -> NotRun:
        self._close(job)
        return NotRun(self.jobs[job].case, why)

    def _close(self, job: int, on: str = "") -> None:
        entry = self.jobs[job]
        entry.over, entry.on = True, on
        if entry.look:
            self._open_looks -= 1
        else:
            self.left -= 1

    def _begun(self, node: Node) -> list[int]:
        """Return the jobs of a node that have begun, if the node has reported all of its journal."""
        return [job for job in node.leased.values() if self.jobs[job].begun]

    def _give_back(self, node: Node, why: str, suspects: Sequence[int]) -> list[Action]:
        """End the leases of a node. The most suspicious jobs are the last to run again: the first ones that it got."""
        jobs, node.leased, node.free = list(node.leased.values())[::-1], {}, 0
        jobs.sort(key=lambda job: self.jobs[job].begun)
        return [action for job in jobs for action in self._returned(job, node, why, suspect=job in suspects)]

    def _returned(self, job: int, node: Node, why: str, *, suspect: bool) -> list[Action]:
        """Handle a lease that ended without a verdict on the case, or without the message that the job is done."""
        entry = self.jobs[job]
        if entry.look or (entry.verdict is not None and entry.verdict is not Outcome.NOT_RUN):
            self._close(job, node.name)  # a second look decides nothing, so it is not repeated
            return []
        actions: list[Action] = []
        if entry.verdict is Outcome.NOT_RUN:
            entry.shunned.add(node.name)
            if self.stopped or not self._has_place(job):
                self._close(job, node.name)
                return []
            actions.append(ReopenedCase(entry.case))
        elif suspect and entry.lost_on:
            self._close(job, node.name)
            why = f"{why}, while only this case ran there; it was in flight when {entry.lost_on} ended"
            return [LostAttempt(entry.case, node.name, why, final=True)]
        elif suspect:
            if entry.begun:
                actions.append(LostAttempt(entry.case, node.name, why, final=False))
            entry.lost_on = node.name
            actions.append(Suspected(entry.case, node.name))
        entry.begun, entry.verdict = False, None
        self._put(job, first=not suspect)
        return actions

    def _has_place(self, job: int) -> bool:
        unable = self._unable(job)
        return any(node.takes and name not in unable for name, node in self.nodes.items())

    def _look_again(self, job: int, node: Node, device: str) -> None:
        """Run a red case once more on another device of the same kind, if there is one."""
        entry = self.jobs[job]
        kind = node.kinds.get(device)
        if kind is None or entry.verdict not in _OF_CASE or self._looks_left <= 0 or self.stopped:
            return
        look = Job(entry.case, look=True, first=device, first_on=node.name, kind=kind)
        self.jobs.append(look)
        self._open_looks += 1
        number = len(self.jobs) - 1
        if not self._has_place(number):
            self._close(number)
            return
        look.shunned.add(node.name)  # another node is better than another device of this one
        if not self._has_place(number):
            look.shunned.clear()
        self._looks_left -= 1
        self._looks.put(number, self._unable(number))


#: The red outcomes that give information about a case on a device.
_OF_CASE = frozenset(
    outcome for outcome in Outcome if outcome.is_red and outcome not in (Outcome.NOT_RUN, Outcome.LOST)
)
