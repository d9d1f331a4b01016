"""The devices of one worker during a run: the one in use, events from NVML, and drained devices.

The workers of a run share this state through files in a folder, so none of them gives further cases to a drained
device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal

from filelock import FileLock

from harness.core import clock
from harness.core.errors import NoDeviceError
from harness.devices.call_thread import NVML_LIMIT
from harness.devices.device import Device, combinable_devices
from harness.devices.health_events import HealthEvent, HealthReading, HealthWatch, compare_readings, standing_problems
from harness.journal.events import Device as DeviceLine
from harness.journal.journal import WorkerJournal
from harness.scheduling import leases
from harness.scheduling.leases import Claim

#: Seconds within which the driver must release the devices of a process that has ended.
RELEASE_LIMIT = 10.0
_PAUSE = 0.02  # seconds between two queries, since the driver sends no message


class DevicePool:
    """The devices that this worker may use. `device` is the one that it uses now."""

    def __init__(
        self,
        leased: Device,
        usable: Sequence[Device],
        journal: WorkerJournal,
        *,
        folder: Path,
        examine: bool,
        nvml_limit: float = NVML_LIMIT,
        release_limit: float = RELEASE_LIMIT,
    ) -> None:
        """`usable` are the devices of the run, including the leased one. With `examine`, GPUs are monitored.

        `nvml_limit`: the most seconds that NVML may take to report the state of a device. `release_limit`: the most
        seconds for which a driver may list a process that has ended.
        """
        self.device = leased
        self._usable = tuple(usable)
        self._journal = journal
        self._folder = folder
        #: Whether devices are monitored at all.
        self.monitored = examine and leased.backend.hardware
        self._examined: set[str] = set()
        self._readings: dict[str, HealthReading] = {}
        #: By count, the devices for a case. Without monitoring they never change.
        self._combined: dict[int, tuple[Device, ...]] = {}
        self._release_limit = release_limit
        #: By device, the processes that had ended before this worker's first case there, and that the driver still
        #: lists.
        self._left_before: dict[str, frozenset[int]] = {}
        watched = self.monitored and leased.backend.nvml
        self._watch = HealthWatch(self._usable, limit=nvml_limit) if watched else None

    def move(self) -> bool:
        """If the current device is drained, move to the next healthy one, if any. Returns whether it moved."""
        if not self.monitored or self.drained(self.device) is None:
            return False
        start = self._usable.index(self.device)
        others = (*self._usable[start + 1 :], *self._usable[:start])
        healthy = next((device for device in others if self.drained(device) is None), None)
        if healthy is None:
            return False
        self.device = healthy
        return True

    def choose(self, count: int) -> tuple[Device, ...]:
        """Return devices for a case that needs `count`, this worker's own first. Raises NoDeviceError."""
        return leases.devices_of_lease(self.device, count, self._combinable(count))

    def claim(self, count: int, share: Fraction, memory: int) -> Claim:
        """Return what a case needs: this worker's device, and other healthy ones. See `Claim`.

        Raises NoDeviceError with the reason.
        """
        usable = self._combinable(count)
        own, *others = leases.devices_of_lease(self.device, len(usable), usable)
        return Claim(own.uuid, tuple(device.uuid for device in others), count, share, memory)

    def _combinable(self, count: int) -> tuple[Device, ...]:
        """Return the healthy devices that one process can use together with this worker's device, at least `count`.

        Raises NoDeviceError.
        """
        if self.monitored:
            return self._combine(count)
        if count not in self._combined:
            self._combined[count] = self._combine(count)
        return self._combined[count]

    def _combine(self, count: int) -> tuple[Device, ...]:
        drained = {d.uuid: why for d in self._usable if (why := self.drained(d)) is not None} if self.monitored else {}
        together = combinable_devices([device for device in self._usable if device.uuid not in drained])
        if self.device.uuid not in drained and self.device not in together:
            together = (self.device,)
        if self.device.uuid not in drained and count <= len(together):
            return together
        reasons = "; ".join(f"{uuid} is drained: {why}" for uuid, why in drained.items())
        missing = f"{count} healthy devices wanted, {len(together)} left"
        raise NoDeviceError(f"{missing}; {reasons}" if reasons else missing)

    def ordered(self, uuids: Sequence[str]) -> tuple[Device, ...]:
        """Return the devices with these UUIDs, in the same order."""
        return tuple(device for uuid in uuids for device in self._usable if device.uuid == uuid)

    def unexamined(self, devices: Sequence[Device]) -> list[Device]:
        """Return those of `devices` that this worker must examine before it uses them."""
        return [device for device in devices if device.uuid not in self._examined] if self.monitored else []

    def record_examination(
        self, device: Device, *, healthy: bool, text: str, moment: str, seconds: float, cases: Sequence[str] = ()
    ) -> None:
        """Record the result of an examination, and drain a sick device."""
        self._examined.add(device.uuid)
        self._record_state(device, "healthy" if healthy else "sick", text, moment, seconds)
        if healthy:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file(device, ".healthy").touch()
        else:
            self.drain(device, text, moment, cases)

    def leave_unexamined(self, device: Device) -> None:
        """Allow the use of a device that was not examined by this worker: the harness failed, or another worker did."""
        self._examined.add(device.uuid)

    def first_turn(self, device: Device) -> FileLock:
        """Return the lock that a worker of this run holds while it examines a device at the start."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self._file(device, ".turn"))

    def found_healthy(self, device: Device) -> bool:
        """Return whether a worker of this run has examined a device and found it healthy."""
        return self._file(device, ".healthy").exists()

    def drain(self, device: Device, why: str, moment: str, cases: Sequence[str]) -> None:
        """Give this device no more cases, and make the run red. `cases` are the possible causes."""
        self._folder.mkdir(parents=True, exist_ok=True)
        mine = self._folder / f".{self._journal.worker}"
        mine.write_text(f"{why}, {moment}", encoding="utf-8", errors="backslashreplace")
        try:
            os.link(mine, self._file(device))  # atomic: only one worker is first, and no reader gets a partial file
        except FileExistsError:
            return
        finally:
            mine.unlink()
        self._record_state(device, "drained", why, moment, None)
        message = f"device {device.uuid} ({device.name}) is drained: {why}, {moment}"
        self._journal.add_finding("sick_device", message, cases)

    def drained(self, device: Device) -> str | None:
        """Return why a device is drained, or None if it is not."""
        try:
            return self._file(device).read_text(encoding="utf-8", errors="backslashreplace")
        except FileNotFoundError:
            return None

    def new_events(self, uuids: Sequence[str]) -> list[tuple[Device, HealthEvent]]:
        """Return the NVML events of these devices since the last call; on the first call, the existing faults."""
        if self._watch is None:
            return []
        events = []
        for device in self.ordered(uuids):
            # Compare with the last call, not with a reading right before the case: Xids may arrive late.
            before, now = self._readings.get(device.uuid), self._watch.read(device.uuid)
            self._readings[device.uuid] = now
            events += [
                (device, sign) for sign in (standing_problems(now) if before is None else compare_readings(before, now))
            ]
        return events

    def users_left_before(self, device: Device) -> frozenset[int]:
        """Return the ids of ended processes that the driver lists as users of a device.

        Call this before the device is used.

        These processes are not blamed on this run.
        """
        if self._watch is None:
            return frozenset()
        self._left_before[device.uuid] = self._watch.dead_users(device.uuid)
        return self._left_before[device.uuid]

    def await_release(self, uuids: Sequence[str], executor: str, cases: Sequence[str]) -> None:
        """Wait until the driver lists no ended process as a user of these devices.

        All processes of `executor` have ended.

        A device with such a process after the limit is drained: remaining work or memory could harm the next case.
        `cases` are those of the executor.
        """
        if self._watch is None:
            return
        deadline = clock.monotonic() + self._release_limit
        for device in self.ordered(uuids):
            if self.drained(device) is not None:
                continue
            before = self._left_before.get(device.uuid, frozenset())
            while left := self._watch.dead_users(device.uuid) - before:
                if clock.monotonic() > deadline:
                    why = (
                        f"NVML lists ended processes as its users {self._release_limit:g} s after the end of executor "
                        f"{executor}: {', '.join(map(str, sorted(left)))}"
                    )
                    self.drain(device, why, f"after {cases[-1]}" if cases else "before any case", cases)
                    break
                time.sleep(_PAUSE)

    def close(self) -> None:
        """Close the connection to NVML."""
        if self._watch is not None:
            self._watch.close()

    def _file(self, device: Device, suffix: str = "") -> Path:
        return self._folder / f"{device.uuid.replace('/', '_')}{suffix}"

    def _record_state(
        self,
        device: Device,
        state: Literal["healthy", "sick", "drained"],
        message: str,
        moment: str,
        seconds: float | None,
    ) -> None:
        line = DeviceLine(
            t=clock.now(),
            device=device.uuid,
            state=state,
            worker=self._journal.worker,
            moment=moment,
            message=message,
            seconds=None if seconds is None else round(seconds, 6),
        )
        self._journal.record(line)
