"""What NVML is asked about GPUs: by `harness ready` and the watch of a run, and when a capability is first used.

No query creates a CUDA context. Those about capabilities initialise NVML and shut it down again. They do not raise:
without an answer the capability is absent, and the detail is NVML's error.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import pynvml

from harness.core.text import single_line
from harness.devices.call_thread import StuckError, call_nvml
from harness.devices.device import Detected, Device

# What NVML is asked about a GPU, as a table, and what its errors mean. Creates no CUDA context.
#
# Each query is one call, or a few that belong together, and answers one or more readings.
# `harness.devices.health_events` asks some of them during a run, `harness.ready` asks all of them. Meanings and units
# are those of the NVML reference (https://docs.nvidia.com/deploy/nvml-api/).

Answer = int | str | bool | None

#: These errors are properties of the device or the driver, not faults.
NOT_OFFERED = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
#: The GPU answers no more.
LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})

#: Bits of the reasons for slow clocks that are faults, or heat. Idle clocks and power limits are not listed.
THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}

ErrorKind = Literal["absent", "denied", "lost", "reset", "failed"]


def kind_of_error(status: int) -> ErrorKind:
    """Return what a status of NVML says about a reading.

    absent: this device or driver does not have it. denied: this user may not read it. lost: the driver has lost the
    GPU. reset: the GPU answers after a reset only. failed: anything else.
    """
    if status in NOT_OFFERED:
        return "absent"
    if status == pynvml.NVML_ERROR_NO_PERMISSION:
        return "denied"
    if status == pynvml.NVML_ERROR_RESET_REQUIRED:
        return "reset"
    return "lost" if status == pynvml.NVML_ERROR_GPU_IS_LOST else "failed"


def first_known(names: Sequence[str]) -> Callable[..., int]:
    """Return the NVML call with the first of these names that both pynvml and the driver know.

    Drivers and pynvml add a new name and drop the old one in different releases.
    """

    def ask(*arguments: object) -> int:
        for call in filter(None, (getattr(pynvml, name, None) for name in names)):
            try:
                return int(call(*arguments))
            except pynvml.NVMLError_FunctionNotFound:
                continue
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    return ask


@dataclass(frozen=True, slots=True)
class GpuQuery:
    """A question about one GPU. `label`: for messages. `names`: of the readings, one for each value of `ask`'s answer.

    `units`: of the readings, "" for one without a unit.
    """

    label: str
    names: tuple[str, ...]
    ask: Callable[[Any], tuple[Answer, ...]]
    units: tuple[str, ...] = ()

    def unit(self, name: str) -> str:
        """Return the unit of a reading."""
        return dict(zip(self.names, self.units, strict=False)).get(name, "")


_clocks = first_known(("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"))
_temperature = first_known(("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"))


def _one(name: str, label: str, call: str, *arguments: object, unit: str = "", scale: int = 1) -> GpuQuery:
    """Return a query of one value. `scale`: divides a number, for example of milliwatts."""

    def ask(gpu: Any) -> tuple[Answer, ...]:
        answer: int | str | bytes = getattr(pynvml, call)(gpu, *arguments)
        if isinstance(answer, bytes):
            return (answer.decode(errors="replace"),)
        return (answer // scale if scale > 1 and isinstance(answer, int) else answer,)

    return GpuQuery(label, (name,), ask, (unit,))


def _flag(name: str, label: str, call: str) -> GpuQuery:
    return GpuQuery(label, (name,), lambda gpu: (bool(getattr(pynvml, call)(gpu)),))


def _errors(name: str, label: str, kind: int, counter: int) -> GpuQuery:
    return _one(name, label, "nvmlDeviceGetTotalEccErrors", kind, counter, unit="errors")


def _field(name: str, label: str, number: int, unit: str = "") -> GpuQuery:
    """Return a query of one of NVML's numbered fields."""

    def ask(gpu: Any) -> tuple[Answer, ...]:
        (value,) = pynvml.nvmlDeviceGetFieldValues(gpu, [number])
        if value.nvmlReturn == pynvml.NVML_ERROR_INVALID_ARGUMENT:  # a driver that does not know the field
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(value.nvmlReturn)
        return (int(value.value.uiVal),)

    return GpuQuery(label, (name,), ask, (unit,))


def _ecc_mode(gpu: Any) -> tuple[Answer, ...]:
    current, pending = pynvml.nvmlDeviceGetEccMode(gpu)
    return current == pynvml.NVML_FEATURE_ENABLED, pending == pynvml.NVML_FEATURE_ENABLED


def _mig_mode(gpu: Any) -> tuple[Answer, ...]:
    current, pending = pynvml.nvmlDeviceGetMigMode(gpu)
    return current == pynvml.NVML_DEVICE_MIG_ENABLE, pending == pynvml.NVML_DEVICE_MIG_ENABLE


def _rows(gpu: Any) -> tuple[Answer, ...]:
    correctable, uncorrectable, pending, failed = pynvml.nvmlDeviceGetRemappedRows(gpu)
    return int(correctable), int(uncorrectable), bool(pending), bool(failed)


def _sram(gpu: Any) -> tuple[Answer, ...]:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(gpu, ctypes.byref(status))
    uncorrected = status.aggregateUncParity + status.aggregateUncSecDed
    return bool(status.bThresholdExceeded), int(uncorrected)


def _retired_pages(gpu: Any) -> tuple[Answer, ...]:
    causes = (
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    )
    return (sum(len(pynvml.nvmlDeviceGetRetiredPages(gpu, cause)) for cause in causes),)


def _pcie(gpu: Any) -> tuple[Answer, ...]:
    return (
        pynvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
        pynvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
        pynvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
        pynvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),
    )


def _nvlinks(gpu: Any) -> tuple[Answer, ...]:
    """Return how many links are active, the numbers of those that are not, and the errors of all links."""
    active, inactive, replays, recoveries = 0, [], 0, 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            is_active = pynvml.nvmlDeviceGetNvLinkState(gpu, link) == pynvml.NVML_FEATURE_ENABLED
        except pynvml.NVMLError_InvalidArgument:
            break  # the device has fewer links than the maximum
        except pynvml.NVMLError_NotSupported:
            if link == 0:
                raise
            continue
        if not is_active:
            inactive.append(str(link))
            continue
        active += 1
        replays += _link_errors(gpu, link, pynvml.NVML_NVLINK_ERROR_DL_REPLAY)
        recoveries += _link_errors(gpu, link, pynvml.NVML_NVLINK_ERROR_DL_RECOVERY)
    return active, " ".join(inactive), replays, recoveries


def _link_errors(gpu: Any, link: int, counter: int) -> int:
    try:
        return int(pynvml.nvmlDeviceGetNvLinkErrorCounter(gpu, link, counter))
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
        return 0  # links of later generations have other counters


def _fabric_answers(gpu: Any) -> tuple[Answer, ...]:
    """Return the state of the fabric, NVML's status of it, and the mask of its health."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))
    return int(info.state), int(info.status), int(info.healthMask)


def _temperature_limit(gpu: Any) -> tuple[Answer, ...]:
    return (int(pynvml.nvmlDeviceGetTemperatureThreshold(gpu, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)),)


def _application_clocks(gpu: Any) -> tuple[Answer, ...]:
    domain = pynvml.NVML_CLOCK_GRAPHICS
    return (
        pynvml.nvmlDeviceGetApplicationsClock(gpu, domain),
        pynvml.nvmlDeviceGetDefaultApplicationsClock(gpu, domain),
    )


def _sm_clock(gpu: Any) -> tuple[Answer, ...]:
    return (
        pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM),
    )


def _memory(gpu: Any) -> tuple[Answer, ...]:
    """Return the memory in all, and the part in use without what the driver reserves for itself."""
    info = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
    return int(info.total), int(info.used)


def _processes(gpu: Any) -> tuple[Answer, ...]:
    """Return how many processes use the GPU, and for each its process id."""
    found = {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
    with contextlib.suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):  # without graphics
        found |= {process.pid for process in pynvml.nvmlDeviceGetGraphicsRunningProcesses(gpu)}
    return len(found), " ".join(map(str, sorted(found)))


_CORRECTED, _UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED

#: All queries, in the order in which they are made: what tells most comes first, in case the driver hangs later.
QUERIES: tuple[GpuQuery, ...] = (
    _field("recovery_action", "recovery action", pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
    _errors("ecc_uncorrected", "uncorrected errors", _UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
    GpuQuery(
        "remapped rows",
        ("rows_correctable", "rows_uncorrectable", "rows_pending", "rows_failed"),
        _rows,
        ("rows", "rows"),
    ),
    _flag("pages_pending", "retired pages", "nvmlDeviceGetRetiredPagesPendingStatus"),
    GpuQuery("nvlinks", ("nvlinks_active", "nvlinks_inactive", "nvlink_replays", "nvlink_recoveries"), _nvlinks),
    GpuQuery("fabric", ("fabric_state", "fabric_status", "fabric_health"), _fabric_answers),
    GpuQuery("PCIe link", ("pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max"), _pcie),
    GpuQuery("clocks", ("throttle_reasons",), lambda gpu: (_clocks(gpu),)),
    GpuQuery(
        "temperature",
        ("temperature",),
        lambda gpu: (_temperature(gpu, pynvml.NVML_TEMPERATURE_GPU),),
        ("°C",),
    ),
    GpuQuery("temperature limit", ("temperature_limit",), _temperature_limit, ("°C",)),
    GpuQuery("processes", ("processes", "process_ids"), _processes, ("processes",)),
    GpuQuery("memory in use", ("memory_total", "memory_used"), _memory, ("bytes", "bytes")),
    _one("compute_mode", "compute mode", "nvmlDeviceGetComputeMode"),
    GpuQuery("MIG mode", ("mig_mode", "mig_mode_pending"), _mig_mode),
    GpuQuery("ECC mode", ("ecc_mode", "ecc_mode_pending"), _ecc_mode),
    _flag("persistence", "persistence mode", "nvmlDeviceGetPersistenceMode"),
    _one("power_limit", "power limit", "nvmlDeviceGetEnforcedPowerLimit", unit="W", scale=1000),
    _one(
        "power_limit_default", "default power limit", "nvmlDeviceGetPowerManagementDefaultLimit", unit="W", scale=1000
    ),
    GpuQuery(
        "application clocks",
        ("application_clock", "application_clock_default"),
        _application_clocks,
        ("MHz", "MHz"),
    ),
    _one("performance_state", "performance state", "nvmlDeviceGetPerformanceState"),
    GpuQuery("SRAM errors", ("sram_threshold_exceeded", "sram_uncorrected"), _sram, ("", "errors")),
    _errors("ecc_corrected", "corrected errors", _CORRECTED, pynvml.NVML_VOLATILE_ECC),
    _errors("ecc_uncorrected_ever", "uncorrected errors", _UNCORRECTED, pynvml.NVML_AGGREGATE_ECC),
    GpuQuery("retired pages", ("pages_retired",), _retired_pages, ("pages",)),
    _one("pcie_replays", "PCIe replays", "nvmlDeviceGetPcieReplayCounter", unit="replays"),
    _field("memory_temperature", "memory temperature", pynvml.NVML_FI_DEV_MEMORY_TEMP, unit="°C"),
    _one("power", "power", "nvmlDeviceGetPowerUsage", unit="W", scale=1000),
    GpuQuery("sm clock", ("clock", "clock_max"), _sm_clock, ("MHz", "MHz")),
    _one("serial", "serial", "nvmlDeviceGetSerial"),
    _one("vbios", "vbios", "nvmlDeviceGetVbiosVersion"),
    _one("inforom", "inforom", "nvmlDeviceGetInforomImageVersion"),
    _one("gsp_firmware", "gsp firmware", "nvmlDeviceGetGspFirmwareVersion"),
)

#: The query that answers a reading.
QUERY_OF: Mapping[str, GpuQuery] = MappingProxyType({name: query for query in QUERIES for name in query.names})


# From nvml.h: pynvml makes a tuple of the first and spells the states in more than one way.
_P2P_WAYS = {"read": 0, "write": 1}
_P2P_NVLINK = 2
_P2P_OK = 0
_P2P_REASONS = {
    1: "the chipset does not support it",
    2: "the gpu does not support it",
    3: "the topology does not support it",
    4: "it is disabled in the driver",
    5: "it is not supported",
}
_FABRIC_DONE = 3
_FABRIC_STATES = {
    0: "the device has no fabric",
    1: "it has not begun to join its fabric",
    2: "it is joining its fabric",
    _FABRIC_DONE: "it has joined its fabric",
}
#: The most pairs of one kind that a detail names.
_NAMED = 8


def query_free_memory(device: Device) -> Detected:
    """Return bytes of the device's memory that are free now."""
    return _ask(lambda handle: Detected(int(pynvml.nvmlDeviceGetMemoryInfo(handle).free)), device)


def query_nvlink(device: Device) -> Detected:
    """Return whether the whole GPU `device` has an active link to a GPU or a switch."""
    return _ask(_links, device)


def query_fabric(device: Device) -> Detected:
    """Return whether the whole GPU `device` has joined the fabric of its NVLink switches."""
    return _ask(_fabric, device)


def query_peer_access(devices: Sequence[Device]) -> Detected:
    """Return whether each of the whole GPUs `devices`, two or more, can read and write the memory of every other
    one.
    """
    return _ask(lambda *handles: _pairs(devices, handles), *devices)


def query_peer_links(devices: Sequence[Device]) -> Detected:
    """Return the kinds of links between the whole GPUs `devices`, two or more. See `_kinds_of_links`."""
    return _ask(lambda *handles: _kinds_of_links(devices, handles), *devices)


def _ask(question: Callable[..., Detected], *devices: Device) -> Detected:
    try:
        return call_nvml(lambda: _answer(question, devices))
    except (pynvml.NVMLError, StuckError) as error:
        return Detected(None, f"nvml does not report it: {single_line(str(error))}")


def _answer(question: Callable[..., Detected], devices: Sequence[Device]) -> Detected:
    pynvml.nvmlInit()
    try:
        return question(*(pynvml.nvmlDeviceGetHandleByUUID(device.uuid) for device in devices))
    finally:
        pynvml.nvmlShutdown()


def _links(handle: object) -> Detected:
    active = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED
        except pynvml.NVMLError_NotSupported:
            if link == 0:
                return Detected(False, "the device has no nvlink")
        except pynvml.NVMLError_InvalidArgument:
            break  # the device has fewer links than the maximum
    return Detected(active > 0, f"{active} links active")


def _fabric(handle: object) -> Detected:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    try:
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return Detected(False, "the device has no fabric")
    state = _FABRIC_STATES.get(info.state, f"state {info.state}")
    if info.state == _FABRIC_DONE and info.status != 0:
        return Detected(False, f"its fabric reports nvml status {info.status}")
    return Detected(info.state == _FABRIC_DONE, state)


def _pairs(devices: Sequence[Device], handles: Sequence[Any]) -> Detected:
    for (device, handle), (peer, peer_handle) in itertools.permutations(zip(devices, handles, strict=True), 2):
        if refusal := _refusal(handle, peer_handle):
            way, reason = refusal
            return Detected(False, f"{device.uuid} cannot {way} {peer.uuid}: {reason}")
    return Detected(True, f"among {len(devices)} gpus")


def _refusal(handle: object, peer: object) -> tuple[str, str] | None:
    """Return what a GPU cannot do with another's memory, and why; None if it can read and write it."""
    for way, index in _P2P_WAYS.items():
        status = pynvml.nvmlDeviceGetP2PStatus(handle, peer, index)
        if status != _P2P_OK:
            return way, _P2P_REASONS.get(status, f"nvml status {status}")
    return None


def _kinds_of_links(devices: Sequence[Device], handles: Sequence[Any]) -> Detected:
    """Return the kinds of links of all pairs: "nvlink", "pcie" and "refused", in this order, with commas.

    The detail has the number of pairs of each kind, and names the first pairs of the rarer kinds, by index.
    """
    pairs: dict[str, list[str]] = {"nvlink": [], "pcie": [], "refused": []}
    for (device, handle), (peer, peer_handle) in itertools.combinations(zip(devices, handles, strict=True), 2):
        if _refusal(handle, peer_handle) or _refusal(peer_handle, handle):
            kind = "refused"
        else:
            status = pynvml.nvmlDeviceGetP2PStatus(handle, peer_handle, _P2P_NVLINK)
            kind = "nvlink" if status == _P2P_OK else "pcie"
        pairs[kind].append(f"{device.index}-{peer.index}")
    kinds = {kind: names for kind, names in pairs.items() if names}
    commonest = max(kinds.values(), key=len)
    parts = [
        f"{len(names)} {kind}" + ("" if names is commonest else f" ({_some(names)})") for kind, names in kinds.items()
    ]
    return Detected(", ".join(kinds), f"pairs: {', '.join(parts)}")


def _some(names: Sequence[str]) -> str:
    """Return the first names, and a mark if there are more."""
    return " ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
