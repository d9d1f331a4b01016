"""NVML queries about known devices, made when a capability is first used. They create no CUDA context.

Each query initialises NVML and shuts it down again. Queries do not raise: without an answer the capability is absent,
and the detail is NVML's error.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from harness.core.text import single_line
from harness.devices.call_thread import StuckError, call_nvml
from harness.devices.device import Detected, Device

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
