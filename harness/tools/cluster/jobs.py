"""The plain values of the queue of a cluster run: nodes, jobs, jobs without a lease, and actions."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import Enum, auto

from harness.core.outcome import Outcome
from harness.tools.cluster.link import End, Open, Quit


class NodeState(Enum):
    """The state of a node.

    - STARTING: its session collects.
    - OPEN: it takes cases.
    - CLOSING: it gets no more cases in this session.
    - IDLE: its session is over, and another one can be opened.
    - QUITTING: it has been asked to end.
    - GONE: it has ended, or was lost.
    """

    STARTING = auto()
    OPEN = auto()
    CLOSING = auto()
    IDLE = auto()
    QUITTING = auto()
    GONE = auto()


@dataclass(slots=True)
class Node:
    """The known state of a node.

    `seen`, `moved`: times of its last message, and of its last message about cases. `since`: when it was started.
    `kinds`: the kind of each of its devices, by UUID. `free`: how many more jobs it can take. `leased`: the job of each
    case that it has, in the order in which it got them. `gated`: the cases that it cannot run, each with the reason.
    `alone`: its session is for suspects.
    """

    name: str
    state: NodeState = NodeState.STARTING
    seen: float = 0.0
    since: float = 0.0
    moved: float = 0.0
    workers: int = 1
    free: int = 0
    alone: bool = False
    leased: dict[int, int] = field(default_factory=dict)
    gated: Mapping[int, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    failures: int = 0
    finished: int = 0
    sessions: int = 1
    #: Why the node gets no more cases; empty while it gets some.
    over: str = ""

    @property
    def takes(self) -> bool:
        """Whether the node may still run cases, now or in another session."""
        return not self.over and self.state not in (NodeState.QUITTING, NodeState.GONE)


@dataclass(slots=True)
class Job:
    """A job. `look`: a second look at a red case; `first`: the device on which it was red, on the node `first_on`.

    `lost_on`: the node that it may have ended; empty unless it is a suspect. `shunned`: nodes that have given it back.
    """

    case: int
    look: bool = False
    first: str = ""
    first_on: str = ""
    kind: str = ""
    lost_on: str = ""
    begun: bool = False
    verdict: Outcome | None = None
    on: str = ""
    over: bool = False
    shunned: set[str] = field(default_factory=set)


# The actions of the queue, in this order.


@dataclass(frozen=True, slots=True)
class GiveJobs:
    """Give these jobs to a node."""

    node: str
    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to a node: open another session, end the supply of cases, or quit."""

    node: str
    message: Open | End | Quit


@dataclass(frozen=True, slots=True)
class Drop:
    """Cut the connection to a node that is lost."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """An attempt at a case was in flight when its node, or its worker, was lost. `final`: it does not run again."""

    case: int
    node: str
    why: str
    final: bool


@dataclass(frozen=True, slots=True)
class Suspected:
    """A case may have ended a node, session or worker. It runs alone from now on."""

    case: int
    node: str


@dataclass(frozen=True, slots=True)
class ReopenedCase:
    """A case that ended without a verdict runs again elsewhere."""

    case: int


@dataclass(frozen=True, slots=True)
class NotRun:
    """No remaining node can run a case."""

    case: int
    why: str


Action = GiveJobs | Tell | Drop | LostAttempt | Suspected | ReopenedCase | NotRun


class Waiting:
    """Jobs without a lease, grouped by the nodes that cannot run them (the key)."""

    def __init__(self) -> None:
        self.groups: dict[frozenset[str], deque[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.groups.values()))

    def put(self, job: int, key: frozenset[str], *, first: bool = False) -> None:
        group = self.groups.setdefault(key, deque())
        (group.appendleft if first else group.append)(job)

    def take(self, node: str, others: Set[str] = frozenset()) -> int | None:
        """Return a job for a node: the first of those that the fewest nodes can run. `others` keep the jobs that they
        can run.
        """
        keys = [key for key, group in self.groups.items() if group and node not in key and others <= key]
        return self.groups[max(keys, key=len)].popleft() if keys else None

    def has_for(self, node: str) -> bool:
        return any(group and node not in key for key, group in self.groups.items())

    def take_all(self) -> list[int]:
        jobs = [job for group in self.groups.values() for job in group]
        self.groups.clear()
        return jobs
