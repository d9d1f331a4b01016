"""Devices for workers: which worker gets which, which claims of a host are granted, and the board that has them all.

Pure decisions over plain values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any

import msgspec

from harness.core import linux
from harness.devices.device import Device


class LeaseBook:
    """The leases of devices. A worker gets the device with the fewest holders, the first one among equals.

    The worker's number has no influence: the replacement of a crashed worker has a new number, and gets the freed
    device.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        """`devices` by UUID, in order of preference; at least one."""
        if not devices:
            raise ValueError("leases need at least one device")
        self._devices = tuple(devices)
        self._holders: dict[str, str] = {}

    def take(self, worker: str) -> str:
        """Return the device that `worker` holds from now on.

        A worker that already holds a device gets the same one again.
        """
        if worker not in self._holders:
            held = list(self._holders.values())
            self._holders[worker] = min(self._devices, key=held.count)
        return self._holders[worker]

    def give_back(self, worker: str) -> None:
        """End the lease of `worker`, if it has one."""
        self._holders.pop(worker, None)


def devices_of_lease(leased: Device, count: int, usable: Sequence[Device]) -> tuple[Device, ...]:
    """Return the `count` devices of a case: the leased one first, then those after it in `usable`, cyclically.

    Raise ValueError if there are too few.
    """
    if count > len(usable):
        raise ValueError(f"{count} devices wanted, {len(usable)} can be held together with {leased.uuid}")
    start = list(usable).index(leased)
    return tuple(usable[(start + step) % len(usable)] for step in range(count))


# Which claims get their devices
#
# A claim requests one or more devices for the life of one executor. It gets all of them together or waits, so
# claims cannot deadlock. Claims are served in the order of arrival. A later claim may go first, but only on devices
# for which no earlier claim waits. No claim waits forever if each lease ends.

ALONE = Fraction(1)
#: A claim to at least this fraction of a device's memory gets the device alone.
MOST_OF_MEMORY = Fraction(1, 2)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim to `count` devices by UUID: `own`, and some of `others`, in order of preference.

    `share`: the part of each device, above 0 and up to 1; 1 means exclusive use. `memory`: bytes of each device; 0 if
    the case declares none.
    """

    own: str
    others: tuple[str, ...] = ()
    count: int = 1
    share: Fraction = ALONE
    memory: int = 0

    def exactly(self, devices: Sequence[str]) -> Claim:
        """Return the same claim, to exactly these devices."""
        return replace(self, own=devices[0], others=tuple(devices[1:]), count=len(devices))

    def within(self, lease: Lease) -> tuple[str, ...]:
        """Return the devices of a lease that meet the claim, `own` first. Empty if the lease does not meet it."""
        if self.own not in lease.devices or lease.share < self.share:
            return ()
        if lease.share < ALONE and lease.memory < self.memory:
            return ()
        devices = (self.own, *(device for device in self.others if device in lease.devices))
        return devices[: self.count] if len(devices) >= self.count else ()


@dataclass(frozen=True, slots=True)
class Lease:
    """The devices that a claim got, its own one first, with the claimed share and memory of each."""

    devices: tuple[str, ...]
    share: Fraction = ALONE
    memory: int = 0


@dataclass(frozen=True, slots=True)
class LeaseDecision:
    """By position in the list of waiting claims: the new `leases`, and the devices that the other claims wait for."""

    leases: Mapping[int, Lease]
    awaited: Mapping[int, tuple[str, ...]]


def grant_leases(waiting: Sequence[Claim], held: Iterable[Lease], memory: Mapping[str, int]) -> LeaseDecision:
    """Grant leases to waiting claims. `waiting`: the earliest first. `memory`: the bytes of each device, if known."""
    loads: dict[str, tuple[Fraction, int]] = {}  # share and memory in use
    for lease in held:
        _add(loads, lease)
    leases: dict[int, Lease] = {}
    awaited: dict[int, tuple[str, ...]] = {}
    reserved: set[str] = set()
    for position, claim in enumerate(waiting):
        free = {device for device in (claim.own, *claim.others) if _fits(claim, loads.get(device), memory.get(device))}
        free -= reserved
        # Free devices come first, so a waiting claim reserves devices that are available already.
        others = sorted(claim.others, key=lambda device: device not in free)
        devices = (claim.own, *others[: claim.count - 1])
        if free.issuperset(devices):
            leases[position] = Lease(devices, claim.share, claim.memory)
            _add(loads, leases[position])
        else:
            awaited[position] = devices
            reserved.update(devices)
    return LeaseDecision(leases, awaited)


def share_of(slots: int, memory: int, total: int | None, *, alone: bool) -> Fraction:
    """Return the share of a device with `slots` slots for a case that declares `memory` of `total` bytes."""
    if alone or (total and Fraction(memory, total) >= MOST_OF_MEMORY):
        return ALONE
    return Fraction(1, slots)


def _fits(claim: Claim, load: tuple[Fraction, int] | None, total: int | None) -> bool:
    if load is None:  # an unused device is granted even to a claim for more memory than it has
        return True
    return load[0] + claim.share <= ALONE and (total is None or load[1] + claim.memory <= total)


def _add(loads: dict[str, tuple[Fraction, int]], lease: Lease) -> None:
    for device in lease.devices:
        share, memory = loads.get(device, (Fraction(0), 0))
        loads[device] = share + lease.share, memory + lease.memory


# A board of leases: all claims of a host. `grant_leases` decides which of them are granted.

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


@dataclass(frozen=True, slots=True)
class LeaseBoard:
    """All entries, the earliest first. `memory`: bytes of each device, as far as workers have reported it."""

    boot: str
    turns: int = 0
    entries: tuple[BoardEntry, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> LeaseBoard:
        """Return the board in a text. Raise ValueError or MsgspecError if it is not a board of this format."""
        format_ = msgspec.json.decode(text, type=dict[str, Any]).get("format")
        if format_ != _FORMAT:
            raise ValueError(f"format {format_!r}")
        return msgspec.json.decode(text, type=cls, dec_hook=lambda kind, value: kind(value))

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
