"""What NVML tells of a device's problems, and what a change in that means for the case that ran meanwhile.

What an Xid means is taken from NVIDIA's catalogue for Ampere and later, with the actions it recommends
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), and for older GPUs from the list in
https://docs.nvidia.com/deploy/xid-errors/; what a counter means from the NVML reference
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

from harness.devices.call_thread import NVML_LIMIT, CallThread, StuckError
from harness.devices.device import Device
from harness.text import one_line

T = TypeVar("T")

#: `note`: worth knowing; the device is none the worse. `suspect`: worth a health check. `fatal`: no more cases on it.
Severity = Literal["note", "suspect", "fatal"]


@dataclass(frozen=True, slots=True)
class HealthReading:
    """One device at one moment. None: this device, driver or user is not told. Of a MIG instance: what its GPU says.

    - `lost`: why the device does not answer, "" when it does.
    - `ecc_*`: errors since the driver was loaded; `ecc_uncorrected_ever` since the device was made.
    - `rows_*`: rows of memory remapped because of either kind of error, whether a remapping waits for a reset, and
      whether one ever failed. `pages_pending` is the same wait on GPUs before Ampere, which retire pages instead.
    - `throttled`: faults and temperatures that slow the clocks, in words; being idle or at a limit of power is neither.
    - `temperature`: of the GPU, in degrees Celsius. `replays`: the counter of PCIe packets sent again.
    - `xids`: pairs of an Xid and how often it came since the watch began, by number.
    - `faults`: questions that got an error instead of an answer.
    - `hang`: that NVML did not answer at all, told once; no later reading has anything to tell.
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
    """One thing that NVML told. `kind` is one word: lost, hang, ecc, rows, pages, xid, throttled, pcie, nvml."""

    kind: str
    text: str
    severity: Severity


def compare(before: HealthReading, after: HealthReading) -> tuple[HealthEvent, ...]:
    """What is new in `after`, the worst kinds first. What either of them was not told is not compared.

    A counter that went down (the driver was loaded anew) has nothing new to say.
    """
    return (
        *_flags(before, after, "fatal"),
        *_growth(before, after),
        *_xids(before, after),
        *_throttled(before, after),
        *(HealthEvent("nvml", fault, "suspect") for fault in after.faults if fault not in before.faults),
    )


def standing(signs: HealthReading) -> tuple[HealthEvent, ...]:
    """What is wrong already, with nothing to compare it to. A remapping that waits has no effect before the reset."""
    return tuple(_flags(HealthReading(rows_pending=False, rows_failed=False, pages_pending=False), signs, "suspect"))


def _flags(before: HealthReading, after: HealthReading, pending: Severity) -> Iterator[HealthEvent]:
    if after.lost and not before.lost:
        yield HealthEvent("lost", f"the device is lost: {after.lost}", "fatal")
    if after.hang and not before.hang:
        yield HealthEvent("hang", after.hang, "suspect")
    if after.rows_failed and before.rows_failed is False:
        yield HealthEvent("rows", "a row of memory could not be remapped: have the gpu replaced", "fatal")
    if after.rows_pending and before.rows_pending is False:
        yield HealthEvent("rows", "a row of memory waits to be remapped: reset the gpu", pending)
    if after.pages_pending and before.pages_pending is False:
        yield HealthEvent("pages", "a page of memory waits to be retired: reload the driver", pending)


def _growth(before: HealthReading, after: HealthReading) -> Iterator[HealthEvent]:
    def grown(name: str) -> str:
        was, now = getattr(before, name), getattr(after, name)
        return f"{was}, then {now}" if was is not None and now is not None and now > was else ""

    # A GPU counts the same error for its driver's time and for ever, and in MIG mode the latter alone can be asked.
    if counts := grown("ecc_uncorrected") or grown("ecc_uncorrected_ever"):
        yield HealthEvent("ecc", f"uncorrected memory errors: {counts}", "fatal")
    if counts := grown("rows_uncorrectable"):
        yield HealthEvent("rows", f"rows of memory remapped after uncorrected errors: {counts}", "fatal")
    if counts := grown("rows_correctable"):
        yield HealthEvent("rows", f"rows of memory remapped after corrected errors: {counts}", "suspect")
    if counts := grown("ecc_corrected"):
        yield HealthEvent("ecc", f"corrected memory errors: {counts}", "note")
    if counts := grown("replays"):
        yield HealthEvent("pcie", f"pcie packets sent again: {counts}", "note")


def _xids(before: HealthReading, after: HealthReading) -> Iterator[HealthEvent]:
    if before.xids is None or after.xids is None:
        return
    known = dict(before.xids)
    for number, count in after.xids:
        new = count - known.get(number, 0)
        if new > 0:
            words, severity = meaning(number)
            yield HealthEvent("xid", f"xid {number} ({words})" + (f", {new} times" if new > 1 else ""), severity)


def _throttled(before: HealthReading, after: HealthReading) -> Iterator[HealthEvent]:
    if before.throttled is None or after.throttled is None:
        return
    if new := sorted({*after.throttled} - {*before.throttled}):
        heat = "" if after.temperature is None else f" at {after.temperature} °C"
        yield HealthEvent("throttled", f"clocks are slowed{heat}: {', '.join(new)}", "note")


def meaning(xid: int) -> tuple[str, Severity]:
    """What an Xid says, in a few words, and how bad it is. One that the table does not know is suspect."""
    return _XIDS.get(xid, ("not in this program's table, see nvidia's catalogue of xids", "suspect"))


# A note: the catalogue has the application restarted and looked at, or nothing done. Suspect: it wants more looked at,
# or the number covers both harmless and grave events. Fatal: it has the device or the link reset or the machine
# restarted, or memory has gone bad: for 63, 92 and 94 it leaves the device in use, where a next result would be no
# conformance result. 109 is suspect though it asks for a reset, since a case that hangs is enough to bring it about.
_XIDS: dict[int, tuple[str, Severity]] = {
    8: ("the gpu stopped processing", "suspect"),
    11: ("invalid or corrupted commands", "note"),
    13: ("exception in the graphics engine, mostly the application's", "note"),
    25: ("invalid commands", "note"),
    31: ("memory page fault, mostly the application's", "note"),
    32: ("invalid or corrupted commands", "note"),
    37: ("error in the driver's firmware", "note"),
    38: ("error in the driver's firmware", "suspect"),
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), ("copy engine error", "suspect")),
    43: ("the gpu stopped processing, mostly the application's", "note"),
    44: ("fault of the graphics engine during a context switch", "suspect"),
    45: ("clean-up after an earlier error, or after a process that was ended", "note"),
    46: ("the gpu stopped processing", "fatal"),
    48: ("uncorrected memory error", "fatal"),
    54: ("the board's auxiliary power is not connected", "fatal"),
    61: ("warning of an internal micro-controller", "suspect"),
    62: ("an internal micro-controller halted", "fatal"),
    63: ("a row or page of memory was marked as bad", "fatal"),
    64: ("a row or page of memory could not be marked as bad", "fatal"),
    66: ("illegal access by the driver", "suspect"),
    67: ("illegal access by the driver", "suspect"),
    **dict.fromkeys((68, 83, 84, 88, 89, *range(96, 99)), ("video decoder error", "suspect")),
    69: ("class error in the graphics engine, mostly the application's", "note"),
    74: ("nvlink error", "fatal"),
    78: ("a virtual gpu did not start", "suspect"),
    79: ("the gpu has fallen off the bus", "fatal"),
    80: ("corrupted data was sent to the gpu", "note"),
    **dict.fromkeys((82, *range(99, 106)), ("jpeg decoder error", "suspect")),
    86: ("optical flow engine error", "suspect"),
    92: ("many corrected memory errors", "fatal"),
    93: ("the inforom is written too often", "note"),
    94: ("memory error, contained to one application", "fatal"),
    95: ("memory error, not contained", "fatal"),
    106: ("a test message", "note"),
    107: ("a test message", "note"),
    109: ("a context switch took too long", "suspect"),
    110: ("security fault", "fatal"),
    119: ("the gpu's system processor does not answer", "fatal"),
    120: ("error of the gpu's system processor", "fatal"),
    121: ("error on the link to the cpu", "suspect"),
    136: ("an nvlink could not be trained", "fatal"),
    137: ("nvlink access fault, mostly the application's", "note"),
    139: ("optical flow engine error", "suspect"),
    140: ("unrecovered memory error", "fatal"),
    141: ("error on the fast path of cuda", "suspect"),
    142: ("video encoder error", "suspect"),
    143: ("the gpu could not be initialised", "fatal"),
    **dict.fromkeys(range(144, 151), ("nvlink error, grave or not as the kernel's log says", "suspect")),
    151: ("key rotation error", "suspect"),
    154: ("the gpu asks for another recovery action than before", "suspect"),
    155: ("nvlink error", "fatal"),
    156: ("a part of the gpu was retired", "fatal"),
    157: ("a part of the gpu could not be retired", "suspect"),
    158: ("the gpu timed out beyond recovery", "fatal"),
    **dict.fromkeys((162, 163), ("power smoothing was switched on or off", "note")),
    **dict.fromkeys((164, 165), ("power smoothing is worn out, or soon", "note")),
    167: ("pcie timed out beyond recovery", "fatal"),
    169: ("an internal micro-controller halted", "fatal"),
    171: ("uncorrected memory error", "fatal"),
    172: ("uncorrected error of on-chip memory", "fatal"),
}

_THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}

# Either name of a call, since drivers and pynvml gain the new one and lose the old one at different times.
_CLOCKS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_TEMPERATURE = ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV")

# Facts about the device, the driver or the user, no faults.
_NOT_TOLD = frozenset(
    {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION}
)
_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})

_ANY_INSTANCE = 0xFFFFFFFF
_MOST_EVENTS = 1000  # heard at one reading, so that a storm of them does not keep the reader; the rest waits


@dataclass(slots=True)
class _Watched:
    """A device as NVML knows it: its GPU's handle and where that points, its GPU instance, and the Xids it had."""

    handle: Any = None
    address: int | None = None
    instance: int | None = None
    xids: Counter[int] | None = None
    lost: str = ""


@dataclass(slots=True)
class _Questions:
    """Puts questions to NVML about one device, and none once it is lost. `begin` hears of each beforehand."""

    begin: Callable[[str], object]
    lost: str = ""
    faults: list[str] = field(default_factory=list)

    def __call__(self, what: str, call: Callable[..., T], *arguments: object) -> T | None:
        if self.lost:
            return None
        self.begin(what)
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            text = f"{what}: {one_line(str(error))}"
            if error.value in _LOST:
                self.lost = text
            elif error.value not in _NOT_TOLD:
                self.faults.append(text)
        return None


class HealthWatch:
    """Reads the signs of some devices, and hears of their Xids, through an NVML that it holds open.

    For a process that lives, such as a supervisor; neither CUDA nor torch is woken. It raises nothing on account of a
    device or driver: `notes` says what cannot be watched, and such values are None. A reading takes as long as the
    driver does. NVML is asked in a thread of its own, and no more once it has not answered for `limit` seconds.
    """

    def __init__(self, devices: Sequence[Device], *, limit: float = NVML_LIMIT) -> None:
        """Watch `devices` from now on. The CPU has no signs; one that is at fault is lost."""
        self._watched = {device.uuid: _Watched(lost=device.fault or "") for device in devices}
        self._events: Any = None
        self._open = False
        self._notes: list[str] = []
        self._limit = limit
        self._thread = CallThread("nvml", limit=limit)
        self._asked = ""
        self._hang = ""
        whole = [device for device in devices if device.backend.hardware and device.fault is None]
        if whole:
            self._call(lambda: self._start(whole))

    @property
    def notes(self) -> tuple[str, ...]:
        """What cannot be watched, and why."""
        return tuple(self._notes)

    def read(self, uuid: str) -> HealthReading:
        """The signs of the device now. Raises KeyError for one that is not watched, and for any after `close`."""
        watched = self._watched[uuid]
        if not self._thread.stuck:
            if watched.handle is None:
                return HealthReading(lost=watched.lost)
            reading = self._call(lambda: self._read(watched))
            if reading is not None:
                return reading
        hang, self._hang = self._hang, ""
        return HealthReading(hang=hang)

    def close(self) -> None:
        """Let go of NVML. May be called more than once."""
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
        """What `function` returns, called in the thread; None when NVML does not answer, which is then noted."""
        try:
            return self._thread.call(function)
        except StuckError:
            self._hang = f"nvml did not answer within {self._limit:g} s ({self._asked}); it is not asked any more"
            self._notes.append(self._hang)
            return None

    # What follows runs in the thread.

    def _ask_about(self, what: str) -> None:
        self._asked = what

    def _start(self, devices: Sequence[Device]) -> None:
        self._ask_about("start")
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._notes.append(f"no signs of trouble are seen: nvml does not answer: {one_line(str(error))}")
            return
        self._open = True
        self._ask_about("event set")
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self._notes.append(f"no xids are seen: event set: {one_line(str(error))}")
        for device in devices:
            self._find(device)

    def _stop(self) -> None:
        self._ask_about("shutdown")
        try:
            if self._events is not None:
                pynvml.nvmlEventSetFree(self._events)
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            self._notes.append(f"nvml was not shut down: {one_line(str(error))}")

    def _read(self, watched: _Watched) -> HealthReading:
        gpu = watched.handle
        ask = _Questions(self._ask_about)
        corrected, uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        total, volatile = pynvml.nvmlDeviceGetTotalEccErrors, pynvml.NVML_VOLATILE_ECC
        ecc_corrected = ask("corrected errors", total, gpu, corrected, volatile)
        ecc_uncorrected = ask("uncorrected errors", total, gpu, uncorrected, volatile)
        ecc_ever = ask("uncorrected errors", total, gpu, uncorrected, pynvml.NVML_AGGREGATE_ECC)
        rows = ask("remapped rows", pynvml.nvmlDeviceGetRemappedRows, gpu) or (None, None, None, None)
        pages = ask("retired pages", pynvml.nvmlDeviceGetRetiredPagesPendingStatus, gpu)
        clocks = ask("clocks", _either(_CLOCKS), gpu)
        temperature = ask("temperature", _either(_TEMPERATURE), gpu, pynvml.NVML_TEMPERATURE_GPU)
        replays = ask("pcie replays", pynvml.nvmlDeviceGetPcieReplayCounter, gpu)
        self._hear(ask)
        return HealthReading(
            lost=ask.lost,
            ecc_corrected=ecc_corrected,
            ecc_uncorrected=ecc_uncorrected,
            ecc_uncorrected_ever=ecc_ever,
            rows_correctable=rows[0],
            rows_uncorrectable=rows[1],
            rows_pending=None if rows[2] is None else bool(rows[2]),
            rows_failed=None if rows[3] is None else bool(rows[3]),
            pages_pending=None if pages is None else bool(pages),
            throttled=None if clocks is None else tuple(w for bit, w in _THROTTLES.items() if clocks & bit),
            temperature=temperature,
            replays=replays,
            xids=None if watched.xids is None else tuple(sorted(watched.xids.items())),
            faults=tuple(ask.faults),
        )

    def _find(self, device: Device) -> None:
        """Get hold of the device's GPU, and have its Xids reported."""
        watched = self._watched[device.uuid]
        ask = _Questions(self._ask_about)
        watched.handle = ask("handle", pynvml.nvmlDeviceGetHandleByUUID, device.mig_parent or device.uuid)
        if watched.handle is None:
            watched.lost = ask.lost or next(iter(ask.faults), "handle: nvml gives none")
            return
        watched.address = _address(watched.handle)
        if device.mig_parent is not None:
            instance = ask("mig instance", pynvml.nvmlDeviceGetHandleByUUID, device.uuid)
            if instance is not None:
                watched.instance = ask("gpu instance", pynvml.nvmlDeviceGetGpuInstanceId, instance)
        if self._events is None:
            return
        self._ask_about("xids")
        kind = pynvml.nvmlEventTypeXidCriticalError
        try:
            pynvml.nvmlDeviceRegisterEvents(watched.handle, kind, self._events)
        except pynvml.NVMLError as error:
            self._notes.append(f"no xids of {device.uuid} are seen: {one_line(str(error))}")
        else:
            watched.xids = Counter()

    def _hear(self, ask: _Questions) -> None:
        """Take the Xids that have come. One of a GPU counts for all that is watched of it, of an instance for that."""
        if self._events is None:
            return
        self._ask_about("xids")
        for _ in range(_MOST_EVENTS):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError_Timeout:
                return
            except pynvml.NVMLError as error:
                # A lost GPU anywhere in the set: the questions put to each say which it is.
                if error.value not in _LOST:
                    ask.faults.append(f"xids: {one_line(str(error))}")
                return
            address = _address(event.device)
            instances = {event.gpuInstanceId, None} if event.gpuInstanceId != _ANY_INSTANCE else None
            for watched in self._watched.values():
                ours = watched.address == address and (instances is None or watched.instance in instances)
                if ours and watched.xids is not None:
                    watched.xids[int(event.eventData)] += 1


def _address(handle: Any) -> int | None:
    """What tells a handle from another: the same GPU has the same as long as NVML is open."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def _either(names: Sequence[str]) -> Callable[..., int]:
    """The call that goes by the first of these names which pynvml and the driver both know."""

    def ask(*arguments: object) -> int:
        for call in filter(None, (getattr(pynvml, name, None) for name in names)):
            try:
                return int(call(*arguments))
            except pynvml.NVMLError_FunctionNotFound:
                continue
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    return ask
