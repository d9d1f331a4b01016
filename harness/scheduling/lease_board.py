"""A board of leases: all claims of a host, as plain values. `claims.grant_leases` decides which of them are granted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any

from harness.core import linux
from harness.scheduling.claims import Claim, Lease, grant_leases

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Process:
    """A process that uses leased devices. `started`: clock ticks since boot."""

    namespace: str
    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process with this id; None if there is none."""
        started = linux.process_start_time(pid)
        return None if started is None else cls(linux.pid_namespace(), pid, started)

    @property
    def lives(self) -> bool:
        """Whether the process is alive. A process in another pid namespace cannot be seen and counts as dead."""
        return self.namespace == linux.pid_namespace() and linux.process_start_time(self.pid) == self.started


@dataclass(frozen=True, slots=True)
class BoardEntry:
    """A claim on the board; a lease once it has been granted.

    `turn`: unique number of the entry. `holder`: the name of its worker's files. `who`: its worker, as a text for
    people. `processes`: the processes that use the devices. `ended`: the worker has given the lease back, which lasts
    until its processes are dead.
    """

    turn: int
    holder: str
    who: str
    claim: Claim
    lease: Lease | None = None
    processes: tuple[Process, ...] = ()
    ended: bool = False

    @property
    def in_use(self) -> bool:
        """Whether a process that uses the devices is alive."""
        return any(process.lives for process in self.processes)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BoardEntry:
        """Return the entry for JSON values. Raise KeyError or TypeError if a field is missing or has another type."""
        lease = data["lease"]
        return cls(
            turn=int(data["turn"]),
            holder=str(data["holder"]),
            who=str(data["who"]),
            claim=_from_json(Claim, data["claim"]),
            lease=None if lease is None else _from_json(Lease, lease),
            processes=tuple(Process(**process) for process in data["processes"]),
            ended=bool(data["ended"]),
        )


@dataclass(frozen=True, slots=True)
class LeaseBoard:
    """All entries, the earliest first. `memory`: bytes of each device, as far as workers have reported it."""

    boot: str
    turns: int = 0
    entries: tuple[BoardEntry, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> LeaseBoard:
        """Return the board in a text. Raise ValueError, KeyError or TypeError if it is not a board of this format."""
        data = json.loads(text)
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']!r}")
        entries = tuple(BoardEntry.from_json(entry) for entry in data["entries"])
        return cls(str(data["boot"]), int(data["turns"]), entries, {str(k): int(v) for k, v in data["memory"].items()})

    def to_json(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)}, default=str)

    def settled(self) -> LeaseBoard:
        """Return the board after all possible claims have been granted."""
        waiting = [entry for entry in self.entries if entry.lease is None]
        held = [entry.lease for entry in self.entries if entry.lease is not None]
        leases = grant_leases([entry.claim for entry in waiting], held, self.memory).leases
        granted = {waiting[position].turn: lease for position, lease in leases.items()}
        entries = (replace(entry, lease=granted.get(entry.turn, entry.lease)) for entry in self.entries)
        return replace(self, entries=tuple(entries))

    def awaited(self) -> dict[int, tuple[str, ...]]:
        """Return, by turn, the devices that each waiting claim waits for."""
        waiting = [entry for entry in self.entries if entry.lease is None]
        held = [entry.lease for entry in self.entries if entry.lease is not None]
        awaited = grant_leases([entry.claim for entry in waiting], held, self.memory).awaited
        return {waiting[position].turn: devices for position, devices in awaited.items()}

    def updated(self, entry: BoardEntry) -> LeaseBoard:
        """Return the board with another version of an entry."""
        return replace(self, entries=tuple(entry if other.turn == entry.turn else other for other in self.entries))

    def without(self, *turns: int) -> LeaseBoard:
        return replace(self, entries=tuple(entry for entry in self.entries if entry.turn not in turns))

    def find(self, turn: int) -> BoardEntry | None:
        """Return the entry with this turn; None if it has been removed."""
        return next((entry for entry in self.entries if entry.turn == turn), None)


def _from_json(kind: type[Any], data: Mapping[str, Any]) -> Any:
    """Return a Claim or a Lease: JSON has lists instead of tuples, and texts instead of fractions."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    return kind(**{**values, "share": Fraction(data["share"])})
