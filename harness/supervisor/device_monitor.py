"""Checks the health of devices before they are used and after each attempt on them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from filelock import Timeout

from harness.core import clock
from harness.core.disposable import DisposableRun
from harness.core.errors import NoDeviceError
from harness.core.outcome import Outcome
from harness.devices import health
from harness.devices.device import Device
from harness.devices.health import DeviceHealth
from harness.journal.journal import WorkerJournal
from harness.protocol.endings import WATCHDOG_SIGNAL
from harness.scheduling.leases import ALONE
from harness.scheduling.stop_request import StoppedError
from harness.supervisor.attempt import GRACE, Attempt, leave
from harness.supervisor.case import Case
from harness.supervisor.device_pool import DevicePool
from harness.supervisor.executor_handle import Bindings, ExecutorHandle, NoMessage
from harness.supervisor.executor_slot import ExecutorSlot
from harness.zygote.client import ZygoteError

#: Seconds of one wait for another worker, between two checks for a request to stop the run.
_WAIT = 0.2


class DeviceMonitor:
    """Examines devices, reads their health events, and drains those that are sick."""

    def __init__(
        self,
        pool: DevicePool,
        slot: ExecutorSlot,
        bindings: Bindings,
        journal: WorkerJournal,
        *,
        seed: int,
        limit: float,
    ) -> None:
        """`limit`: the most seconds for an examination."""
        self._pool = pool
        self._slot = slot
        self._bindings = bindings
        self._journal = journal
        self._seed = seed
        self._limit = limit

    def missing(self, count: int) -> str | None:
        """Return why fewer than `count` healthy devices exist, or an empty string.

        Examines devices that are new to this worker. None: the current executor must end first, since it holds a device
        that this worker leaves, or one that it must examine. Raises StoppedError.
        """
        while True:
            if self._pool.move() and self._slot.current is not None:
                return None
            try:
                devices = self._pool.choose(count)
            except NoDeviceError as error:
                return str(error)
            if not self._pool.unexamined(devices):
                return ""
            if self._slot.current is not None:
                return None
            try:
                self.examine_new(devices)
            except NoDeviceError as error:
                return str(error)
            self._slot.release()

    def examine_new(self, devices: Sequence[Device]) -> None:
        """Examine those of `devices` that this worker has not examined. There must be no executor.

        Raises NoDeviceError, StoppedError.
        """
        for device in self._pool.unexamined(devices):
            self._examine_one(device)

    def _examine_one(self, device: Device) -> None:
        """Record what NVML reports about a new device, and examine it unless another worker found it healthy.

        Raises NoDeviceError.
        """
        for _, event in self._pool.new_events([device.uuid]):
            if event.severity == "fatal":
                self._pool.drain(device, event.text, "at the start", [])
            else:
                self._journal.add_finding("device_sign", f"device {device.uuid} at the start: {event.text}", [])
        if left := self._pool.users_left_before(device):
            listed = ", ".join(map(str, sorted(left)))
            text = f"NVML lists processes that have ended as its users: {listed}"
            self._journal.add_finding("device_sign", f"device {device.uuid} at the start: {text}", [])
        with self._first_turn(device):
            if self._pool.drained(device) is not None:
                return
            if self._pool.found_healthy(device):
                self._pool.leave_unexamined(device)
            else:
                self._examine(device, "at the start", [])

    @contextmanager
    def _first_turn(self, device: Device) -> Iterator[None]:
        """Keep other workers of this run from examining a device at the start. They can use this worker's result.

        Raises StoppedError.
        """
        lock = self._pool.first_turn(device)
        with suppress(Timeout):
            lock.acquire(blocking=False)
        if not lock.is_locked:
            with self._journal.doing(f"waiting for another worker's examination of device {device.uuid}"):
                while not lock.is_locked:
                    self._slot.stop.refuse()
                    with suppress(Timeout):
                        lock.acquire(timeout=_WAIT)
        try:
            yield
        finally:
            lock.release()

    def after_attempt(self, case: Case, handle: ExecutorHandle, attempt: Attempt) -> Attempt:
        """Read health events, and examine the suspect devices. Returns the attempt with notes about both.

        Raises NoDeviceError.
        """
        if not self._pool.monitored:
            return attempt
        moment = f"after {case.id} {'was ' if attempt.outcome is Outcome.POISONED else ''}{attempt.outcome}"
        notes = list(attempt.notes)
        broke = attempt.outcome in (Outcome.CRASHED, Outcome.TIMEOUT, Outcome.POISONED)
        suspect = set(handle.binding.devices) if broke else set()
        for device, event in self._pool.new_events(handle.binding.devices):
            when = "while the case ran" if case.share == ALONE else "while this case and others ran on it"
            notes.append(f"device {device.uuid} {when}: {event.text}")
            if event.severity == "fatal":
                self._pool.drain(device, event.text, moment, [case.id])
            elif event.severity == "suspect":
                suspect.add(device.uuid)
            if event.kind == "hang":  # later readings do not show it again
                self._journal.add_finding("device_sign", f"device {device.uuid} {moment}: {event.text}", [case.id])
        for device in self._pool.ordered(handle.binding.devices):
            if handle.unkillable:
                self._pool.drain(device, f"executor {handle.name} could not be killed", moment, [case.id])
            elif device.uuid in suspect and self._pool.drained(device) is None:
                try:
                    with self._slot.set_aside():
                        result = self._examine(device, moment, [case.id])
                except StoppedError as error:
                    notes.append(f"device {device.uuid} was not examined after the case: {error}")
                else:
                    notes.append(f"device {device.uuid} examined after the case: {result}")
        return replace(attempt, notes=tuple(notes))

    def _examine(self, device: Device, moment: str, cases: Sequence[str]) -> str:
        """Check in a separate process whether a device computes correctly, and drain it if not. Returns the result.

        A failure of the harness itself is no evidence about the device, so the check is then made a second time. Raises
        NoDeviceError, ZygoteError.
        """
        with self._journal.doing(f"examining device {device.uuid} {moment}"):
            try:
                handle, health = self._examine_once(device)
            except ZygoteError:
                self._slot.drop_zygote()
                handle, health = self._examine_once(device)
            if handle.harness_error is not None:
                handle, health = self._examine_once(device)
            if handle.harness_error is not None:
                self._pool.leave_unexamined(device)
                text = f"not known, because the harness failed: {handle.harness_error.error}"
                unexamined = f"device {device.uuid} {moment}: {text}; the device is used without an examination"
                self._journal.add_finding("unexamined_device", unexamined, cases)
                return text
            self._pool.record_examination(
                device, healthy=health.healthy, text=health.text, moment=moment, seconds=health.seconds, cases=cases
            )
            for _, event in self._pool.new_events([device.uuid]):
                if event.severity == "fatal":
                    self._pool.drain(device, event.text, f"while it was examined {moment}", cases)
                elif event.kind == "hang":
                    self._journal.add_finding(
                        "device_sign", f"device {device.uuid} examined {moment}: {event.text}", cases
                    )
            return health.text

    def _examine_once(self, device: Device) -> tuple[ExecutorHandle, DeviceHealth]:
        handle = self._slot.spawn(self._bindings.bind([device]))
        health = examine_device(handle, seed=self._seed, limit=self._limit)
        self._slot.dispose(handle, "examination", hold=True)
        return handle, health


#: The most seconds for an examination.
EXAMINATION_LIMIT = 60.0
_ERRORS_KEPT = 1 << 13


def examine_device(handle: ExecutorHandle, *, seed: int, limit: float) -> DeviceHealth:
    """Have a fresh executor examine its one device, then end the executor. Raises ZygoteError."""
    began = clock.monotonic()
    handle.send({"op": "examine", "seed": seed, "limit": limit})
    deadline = began + limit + GRACE
    answers: list[bytes] = []
    in_time = True
    while True:
        message = handle.receive(deadline)
        if not isinstance(message, dict):
            in_time = message is not NoMessage.DEADLINE
            break
        answers.append(json.dumps(message).encode())
        if "healthy" in message:
            in_time = leave(handle, limit, light=False)
            break
    if handle.exit_status is None:
        handle.kill()
    in_time = in_time and handle.exit_status != -WATCHDOG_SIGNAL
    errors = handle.outputs.err
    stderr = errors.read(max(0, errors.size() - _ERRORS_KEPT), errors.size(), _ERRORS_KEPT).encode()
    seconds = clock.monotonic() - began
    return health.judge_examination(DisposableRun(handle.exit_status, in_time, seconds, b"\n".join(answers), stderr))
