"""Decide which claims get their devices. A pure decision over plain values.

A claim requests one or more devices for the life of one executor. It gets all of them together or waits, so claims
cannot deadlock. Claims are served in the order of arrival. A later claim may go first, but only on devices for which no
earlier claim waits. No claim waits forever if each lease ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

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


@dataclass(frozen=True, slots=True)
class _Load:
    share: Fraction = Fraction(0)
    memory: int = 0

    def with_one_more(self, share: Fraction, memory: int) -> _Load:
        return replace(self, share=self.share + share, memory=self.memory + memory)


def grant_leases(waiting: Sequence[Claim], held: Iterable[Lease], memory: Mapping[str, int]) -> LeaseDecision:
    """Grant leases to waiting claims. `waiting`: the earliest first. `memory`: the bytes of each device, if known."""
    loads: dict[str, _Load] = {}
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


def _fits(claim: Claim, load: _Load | None, total: int | None) -> bool:
    if load is None:  # an unused device is granted even to a claim for more memory than it has
        return True
    after = load.with_one_more(claim.share, claim.memory)
    return after.share <= ALONE and (total is None or after.memory <= total)


def _add(loads: dict[str, _Load], lease: Lease) -> None:
    for device in lease.devices:
        loads[device] = loads.get(device, _Load()).with_one_more(lease.share, lease.memory)
