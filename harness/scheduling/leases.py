"""Assign devices to workers."""

from __future__ import annotations

from collections.abc import Sequence

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
