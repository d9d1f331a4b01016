"""Read a device's health from NVML, and rate each change for the case that ran at that time.

The meanings of Xids come from NVIDIA's catalogue for Ampere and later, with its recommended actions
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), and for older GPUs from the list in
https://docs.nvidia.com/deploy/xid-errors/. The meanings of counters come from the NVML reference
(https://docs.nvidia.com/deploy/nvml-api/).
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, TypeVar

import pynvml

from harness.core import linux
from harness.core.text import single_line
from harness.devices.call_thread import NVML_LIMIT, CallThread, StuckError
from harness.devices.device import Device
from harness.devices.nvml import QUERY_OF, THROTTLES, Answer, kind_of_error

T = TypeVar("T")

#: `note`: information; the device is fine. `suspect`: the device needs a health check. `fatal`: no more cases on it.
Severity = Literal["note", "suspect", "fatal"]


@dataclass(frozen=True, slots=True)
class HealthReading:
    """The health of one device at one moment.

    A value is None if the device or driver does not provide it, or the user may not read it. For a MIG instance, the
    values are those of its GPU.

    - `lost`: why the device does not answer; "" if it does.
    - `ecc_*`: memory errors since the driver was loaded; `ecc_uncorrected_ever`: since the device was made.
    - `rows_*`: memory rows remapped after corrected or uncorrected errors, whether a remapping is pending until a
      reset, and whether a remapping ever failed. `pages_pending`: the same for GPUs before Ampere, which retire pages.
    - `throttled`: hardware faults and temperatures that slow the clocks. Idle clocks and power limits are not listed.
    - `temperature`: of the GPU, in degrees Celsius. `replays`: the counter of PCIe replays.
    - `xids`: pairs of an Xid and its count since the watch started, sorted by Xid.
    - `faults`: NVML queries that returned an error.
    - `hang`: NVML did not answer at all. This is reported once; later readings are empty.
    """

    lost: str = ""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    ecc_uncorrected_ever: int | None = None
    rows_correctable: int | None = None
    rows_uncorrectable: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    pages_pending: bool | None = None
    throttled: tuple[str, ...] | None = None
    temperature: int | None = None
    replays: int | None = None
    xids: tuple[tuple[int, int], ...] | None = None
    faults: tuple[str, ...] = ()
    hang: str = ""


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """One event from NVML. `kind` is one word: lost, hang, ecc, rows, pages, xid, throttled, pcie, nvml."""

    kind: str
    text: str
    severity: Severity


def compare_readings(before: HealthReading, after: HealthReading) -> tuple[HealthEvent, ...]:
    """Return the events between two readings, the worst kinds first. A value that is None in either is not compared.

    A counter that decreased is not an event: the driver was reloaded.
    """
    return (
        *_flags(before, after, "fatal"),
        *_growth(before, after),
        *_xids(before, after),
        *_throttled(before, after),
        *(HealthEvent("nvml", fault, "suspect") for fault in after.faults if fault not in before.faults),
    )


def standing_problems(signs: HealthReading) -> tuple[HealthEvent, ...]:
    """Return the problems in a single reading.

    A pending remapping is only `suspect`: it has no effect before the reset.
    """
    return tuple(_flags(HealthReading(rows_pending=False, rows_failed=False, pages_pending=False), signs, "suspect"))


def _flags(before: HealthReading, after: HealthReading, pending: Severity) -> Iterator[HealthEvent]:
    if after.lost and not before.lost:
        yield HealthEvent("lost", f"the device is lost: {after.lost}", "fatal")
    if after.hang and not before.hang:
        yield HealthEvent("hang", after.hang, "suspect")
    if after.rows_failed and before.rows_failed is False:
        yield HealthEvent("rows", "a memory row could not be remapped: replace the GPU", "fatal")
    if after.rows_pending and before.rows_pending is False:
        yield HealthEvent("rows", "a memory row remapping is pending: reset the GPU", pending)
    if after.pages_pending and before.pages_pending is False:
        yield HealthEvent("pages", "a memory page retirement is pending: reload the driver", pending)


def _growth(before: HealthReading, after: HealthReading) -> Iterator[HealthEvent]:
    def grown(name: str) -> str:
        was, now = getattr(before, name), getattr(after, name)
        return f"{was}, then {now}" if was is not None and now is not None and now > was else ""

    # A GPU counts each error twice: since the driver was loaded, and for its lifetime. In MIG mode only the lifetime
    # counter can be read.
    if counts := grown("ecc_uncorrected") or grown("ecc_uncorrected_ever"):
        yield HealthEvent("ecc", f"uncorrected memory errors: {counts}", "fatal")
    if counts := grown("rows_uncorrectable"):
        yield HealthEvent("rows", f"memory rows remapped after uncorrected errors: {counts}", "fatal")
    if counts := grown("rows_correctable"):
        yield HealthEvent("rows", f"memory rows remapped after corrected errors: {counts}", "suspect")
    if counts := grown("ecc_corrected"):
        yield HealthEvent("ecc", f"corrected memory errors: {counts}", "note")
    if counts := grown("replays"):
        yield HealthEvent("pcie", f"PCIe replays: {counts}", "note")


def _xids(before: HealthReading, after: HealthReading) -> Iterator[HealthEvent]:
    if before.xids is None or after.xids is None:
        return
    counts_before = dict(before.xids)
    for number, count in after.xids:
        new = count - counts_before.get(number, 0)
        if new > 0:
            words, severity = xid_meaning(number)
            yield HealthEvent("xid", f"Xid {number} ({words})" + (f", {new} times" if new > 1 else ""), severity)


def _throttled(before: HealthReading, after: HealthReading) -> Iterator[HealthEvent]:
    if before.throttled is None or after.throttled is None:
        return
    if new := sorted({*after.throttled} - {*before.throttled}):
        temperature = "" if after.temperature is None else f" at {after.temperature} °C"
        yield HealthEvent("throttled", f"clocks are throttled{temperature}: {', '.join(new)}", "note")


def xid_meaning(xid: int) -> tuple[str, Severity]:
    """Return the meaning of an Xid in a few words, and its severity. An Xid that is not in the table is `suspect`."""
    return _XIDS.get(xid, ("not in this program's table, see NVIDIA's catalogue of Xids", "suspect"))


# `note`: the catalogue recommends to restart or check the application, or no action. `suspect`: it recommends further
# checks, or the number covers both harmless and serious events. `fatal`: it recommends to reset the device or the link
# or to restart the machine, or memory is bad. For 63, 92 and 94 the catalogue keeps the device in use. Here they are
# fatal, because later results would not be conformance results. 109 is only suspect, although the catalogue recommends
# a reset, because a case that hangs can cause it.
_XIDS: dict[int, tuple[str, Severity]] = {
    8: ("the GPU stopped processing", "suspect"),
    11: ("invalid or corrupted commands", "note"),
    13: ("graphics engine exception, mostly caused by the application", "note"),
    25: ("invalid commands", "note"),
    31: ("memory page fault, mostly caused by the application", "note"),
    32: ("invalid or corrupted commands", "note"),
    37: ("driver firmware error", "note"),
    38: ("driver firmware error", "suspect"),
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), ("copy engine error", "suspect")),
    43: ("the GPU stopped processing, mostly caused by the application", "note"),
    44: ("graphics engine fault during a context switch", "suspect"),
    45: ("clean-up after an earlier error or after a killed process", "note"),
    46: ("the GPU stopped processing", "fatal"),
    48: ("uncorrected memory error", "fatal"),
    54: ("the board's auxiliary power is not connected", "fatal"),
    61: ("warning from an internal micro-controller", "suspect"),
    62: ("an internal micro-controller halted", "fatal"),
    63: ("a memory row or page was marked as bad", "fatal"),
    64: ("a memory row or page could not be marked as bad", "fatal"),
    66: ("illegal access by the driver", "suspect"),
    67: ("illegal access by the driver", "suspect"),
    **dict.fromkeys((68, 83, 84, 88, 89, *range(96, 99)), ("video decoder error", "suspect")),
    69: ("graphics engine class error, mostly caused by the application", "note"),
    74: ("NVLink error", "fatal"),
    78: ("a virtual GPU did not start", "suspect"),
    79: ("the GPU has fallen off the bus", "fatal"),
    80: ("corrupted data was sent to the GPU", "note"),
    **dict.fromkeys((82, *range(99, 106)), ("JPEG decoder error", "suspect")),
    86: ("optical flow engine error", "suspect"),
    92: ("many corrected memory errors", "fatal"),
    93: ("the inforom is written too often", "note"),
    94: ("memory error, contained in one application", "fatal"),
    95: ("memory error, not contained", "fatal"),
    106: ("a test message", "note"),
    107: ("a test message", "note"),
    109: ("a context switch took too long", "suspect"),
    110: ("security fault", "fatal"),
    119: ("the GPU system processor does not answer", "fatal"),
    120: ("GPU system processor error", "fatal"),
    121: ("error on the link to the CPU", "suspect"),
    136: ("an NVLink could not be trained", "fatal"),
    137: ("NVLink access fault, mostly caused by the application", "note"),
    139: ("optical flow engine error", "suspect"),
    140: ("unrecovered memory error", "fatal"),
    141: ("CUDA fast path error", "suspect"),
    142: ("video encoder error", "suspect"),
    143: ("the GPU could not be initialised", "fatal"),
    **dict.fromkeys(range(144, 151), ("NVLink error, see the kernel log for its severity", "suspect")),
    151: ("key rotation error", "suspect"),
    154: ("the recovery action that the GPU requests has changed", "suspect"),
    155: ("NVLink error", "fatal"),
    156: ("a part of the GPU was retired", "fatal"),
    157: ("a part of the GPU could not be retired", "suspect"),
    158: ("fatal GPU timeout", "fatal"),
    **dict.fromkeys((162, 163), ("power smoothing was switched on or off", "note")),
    **dict.fromkeys((164, 165), ("power smoothing is at or near the end of its life", "note")),
    167: ("fatal PCIe timeout", "fatal"),
    169: ("an internal micro-controller halted", "fatal"),
    171: ("uncorrected memory error", "fatal"),
    172: ("uncorrected on-chip memory error", "fatal"),
}

#: The readings of a `HealthReading`, in the order in which they are queried.
_READ = (
    "ecc_corrected",
    "ecc_uncorrected",
    "ecc_uncorrected_ever",
    "rows_pending",
    "pages_pending",
    "throttle_reasons",
    "temperature",
    "pcie_replays",
)

_ANY_INSTANCE = 0xFFFFFFFF
_MOST_EVENTS = 1000  # per reading, so that very many events do not block the reader; the next reading gets the rest


@dataclass(slots=True)
class _Watched:
    """A device in NVML: the handle of its GPU, the handle's address, its GPU instance, and its Xids so far."""

    handle: Any = None
    address: int | None = None
    instance: int | None = None
    xids: Counter[int] | None = None
    lost: str = ""


@dataclass(slots=True)
class _Queries:
    """Queries NVML about one device until the device is lost. `before` is called with the name of each query."""

    before: Callable[[str], object]
    lost: str = ""
    faults: list[str] = field(default_factory=list)

    def __call__(self, query: str, call: Callable[..., T], *arguments: object) -> T | None:
        if self.lost:
            return None
        self.before(query)
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            text = f"{query}: {single_line(str(error))}"
            match kind_of_error(error.value):
                case "lost" | "reset":
                    self.lost = text
                case "failed":
                    self.faults.append(text)
        return None

    def readings(self, gpu: Any, *names: str) -> dict[str, Answer]:
        """Return these readings of the GPU with this handle; None for those that it does not answer."""
        answers: dict[str, Answer] = {}
        for name in names:
            if name not in answers:
                query = QUERY_OF[name]
                found = self(query.label, query.ask, gpu)
                answers |= dict.fromkeys(query.names) if found is None else dict(zip(query.names, found, strict=True))
        return answers


class HealthWatch:
    """Reads the health of devices and collects their Xids. Keeps NVML open.

    The watch is for a long-lived process such as a supervisor, and initialises neither CUDA nor torch. Errors of a
    device or driver are not raised: `notes` says what cannot be watched, and those values are None. A separate thread
    calls NVML. After a call without an answer for `limit` seconds, NVML is not called again.
    """

    def __init__(self, devices: Sequence[Device], *, limit: float = NVML_LIMIT) -> None:
        """Watch `devices` from now on. The CPU has no readings. A device with a fault is lost."""
        self._watched = {device.uuid: _Watched(lost=device.fault or "") for device in devices}
        self._events: Any = None
        self._open = False
        self._notes: list[str] = []
        self._limit = limit
        self._thread = CallThread("nvml", limit=limit)
        self._query = ""
        self._hang = ""
        whole = [device for device in devices if device.backend.nvml and device.fault is None]
        if whole:
            self._call(lambda: self._start(whole))

    @property
    def notes(self) -> tuple[str, ...]:
        """What cannot be watched, and why."""
        return tuple(self._notes)

    def read(self, uuid: str) -> HealthReading:
        """Return the current reading of the device. Raise KeyError if it is not watched, and always after `close`."""
        watched = self._watched[uuid]
        if not self._thread.stuck:
            if watched.handle is None:
                return HealthReading(lost=watched.lost)
            reading = self._call(lambda: self._read(watched))
            if reading is not None:
                return reading
        hang, self._hang = self._hang, ""
        return HealthReading(hang=hang)

    def dead_users(self, uuid: str) -> frozenset[int]:
        """Return ids of processes that have ended, but still use the device according to the driver.

        The result is empty if this is unknown, for example if process ids are not those of the machine.
        """
        watched = self._watched[uuid]
        if self._thread.stuck or watched.handle is None or not linux.sees_all_processes():
            return frozenset()
        users = self._call(lambda: self._users(watched)) or frozenset()
        return frozenset(pid for pid in users if linux.process_start_time(pid) is None)

    def close(self) -> None:
        """Shut NVML down. May be called more than once."""
        self._watched.clear()
        if self._open and not self._thread.stuck:
            self._open = False
            self._call(self._stop)
        self._thread.close()

    def __enter__(self) -> HealthWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, function: Callable[[], T]) -> T | None:
        """Call `function` in the thread and return its result. If NVML does not answer, add a note and return None."""
        try:
            return self._thread.call(function)
        except StuckError:
            self._hang = f"NVML did not answer within {self._limit:g} s ({self._query}); it is not called again"
            self._notes.append(self._hang)
            return None

    # The methods below run in the thread.

    def _set_query(self, query: str) -> None:
        self._query = query

    def _start(self, devices: Sequence[Device]) -> None:
        self._set_query("start")
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            why = single_line(str(error))
            self._notes.append(f"device health is not watched: NVML could not be initialised: {why}")
            return
        self._open = True
        self._set_query("event set")
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self._notes.append(f"Xids are not watched: event set: {single_line(str(error))}")
        for device in devices:
            self._find(device)

    def _stop(self) -> None:
        self._set_query("shutdown")
        try:
            if self._events is not None:
                pynvml.nvmlEventSetFree(self._events)
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            self._notes.append(f"NVML was not shut down: {single_line(str(error))}")

    def _read(self, watched: _Watched) -> HealthReading:
        gpu = watched.handle
        ask = _Queries(self._set_query)
        values = ask.readings(gpu, *_READ)
        self._collect_xids(ask)
        return HealthReading(
            lost=ask.lost,
            ecc_corrected=_number(values["ecc_corrected"]),
            ecc_uncorrected=_number(values["ecc_uncorrected"]),
            ecc_uncorrected_ever=_number(values["ecc_uncorrected_ever"]),
            rows_correctable=_number(values["rows_correctable"]),
            rows_uncorrectable=_number(values["rows_uncorrectable"]),
            rows_pending=_flag(values["rows_pending"]),
            rows_failed=_flag(values["rows_failed"]),
            pages_pending=_flag(values["pages_pending"]),
            throttled=_reasons(values["throttle_reasons"]),
            temperature=_number(values["temperature"]),
            replays=_number(values["pcie_replays"]),
            xids=None if watched.xids is None else tuple(sorted(watched.xids.items())),
            faults=tuple(ask.faults),
        )

    def _users(self, watched: _Watched) -> frozenset[int]:
        ask = _Queries(self._set_query)
        processes = ask("processes", pynvml.nvmlDeviceGetComputeRunningProcesses, watched.handle) or ()
        here = (watched.instance, _ANY_INSTANCE)
        return frozenset(
            process.pid for process in processes if watched.instance is None or process.gpuInstanceId in here
        )

    def _find(self, device: Device) -> None:
        """Get the handle of the device's GPU, and register for its Xids."""
        watched = self._watched[device.uuid]
        ask = _Queries(self._set_query)
        watched.handle = ask("handle", pynvml.nvmlDeviceGetHandleByUUID, device.mig_parent or device.uuid)
        if watched.handle is None:
            watched.lost = ask.lost or next(iter(ask.faults), "handle: NVML returns none")
            return
        watched.address = _address(watched.handle)
        if device.mig_parent is not None:
            instance = ask("MIG instance", pynvml.nvmlDeviceGetHandleByUUID, device.uuid)
            if instance is not None:
                watched.instance = ask("GPU instance", pynvml.nvmlDeviceGetGpuInstanceId, instance)
        if self._events is None:
            return
        self._set_query("xids")
        kind = pynvml.nvmlEventTypeXidCriticalError
        try:
            pynvml.nvmlDeviceRegisterEvents(watched.handle, kind, self._events)
        except pynvml.NVMLError as error:
            self._notes.append(f"Xids of {device.uuid} are not watched: {single_line(str(error))}")
        else:
            watched.xids = Counter()

    def _collect_xids(self, ask: _Queries) -> None:
        """Count new Xids.

        An Xid of a GPU counts for each of its watched devices, an Xid of an instance only for that instance.
        """
        if self._events is None:
            return
        self._set_query("xids")
        for _ in range(_MOST_EVENTS):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError_Timeout:
                return
            except pynvml.NVMLError as error:
                # One GPU of the set is lost. The queries about each device show which one.
                if kind_of_error(error.value) not in ("lost", "reset"):
                    ask.faults.append(f"xids: {single_line(str(error))}")
                return
            address = _address(event.device)
            instances = {event.gpuInstanceId, None} if event.gpuInstanceId != _ANY_INSTANCE else None
            for watched in self._watched.values():
                ours = watched.address == address and (instances is None or watched.instance in instances)
                if ours and watched.xids is not None:
                    watched.xids[int(event.eventData)] += 1


def _address(handle: Any) -> int | None:
    """Return the identity of a handle. While NVML is open, the same GPU has the same address."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def _number(answer: Answer) -> int | None:
    return None if answer is None else int(answer)


def _flag(answer: Answer) -> bool | None:
    return None if answer is None else bool(answer)


def _reasons(answer: Answer) -> tuple[str, ...] | None:
    return None if answer is None else tuple(words for bit, words in THROTTLES.items() if int(answer) & bit)
