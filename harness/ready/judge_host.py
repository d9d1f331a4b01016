"""From the readings of the host and of the driver as a whole to what is wrong. Pure functions over plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from harness.core.text import format_bytes, format_count, list_first, single_line
from harness.devices.device import Device, Inventory
from harness.ready.rules import Finding, Findings
from harness.ready.xids import Xid

_GIB = 1 << 30
#: A worker of a DataLoader passes its tensors through /dev/shm. Docker gives a container 64 MiB.
LEAST_SHARED_MEMORY = 1 * _GIB
LEAST_SHARED_FREE = _GIB // 4
#: With fewer, a job that passes tensors between processes by file descriptors runs out of them.
LEAST_OPEN_FILES = 1024
FULL_DISK, LOW_DISK = _GIB // 4, 2 * _GIB
#: Microseconds. Journals and logs of several nodes are merged by time.
MOST_CLOCK_ERROR = 1_000_000
#: NVML's statuses, from nvml.h.
_DRIVER_NOT_LOADED, _NO_PERMISSION, _LIBRARY_NOT_FOUND, _VERSION_MISMATCH = 9, 4, 12, 18

Host = Mapping[str, Any]


class NotKnownError(Exception):
    """There is no such reading on this machine. The text has the reason."""


def judge_driver(status: int | None, text: str, inventory: Inventory | None, host: Host) -> Iterator[Finding]:
    """Yield what is wrong with the driver as a whole. `status`, `text`: NVML's error at its start; None without one."""
    bus = [gpu for gpu in _listed(host, "pci") if not isinstance(gpu, str)]
    if status == _VERSION_MISMATCH:
        detail = "reload the driver's module, or reboot; a driver was installed without it"
        yield Finding("driver_mismatch", "one version of driver and library", text, detail)
    elif status is not None:
        on_bus = f"; {format_count(len(bus), 'NVIDIA GPU')} on the PCI bus" if bus else "; no NVIDIA GPU on the PCI bus"
        detail = "install NVIDIA's driver, or load its module" if bus else "check that the node has a GPU at all"
        yield Finding("no_driver", "NVIDIA's driver", f"{text}{on_bus}", detail)
    elif inventory is not None and not gpus(inventory) and not inventory.hidden:
        yield Finding("no_gpu", "at least one GPU", inventory.nvml_error or "the driver shows none")
    elif inventory is not None and not gpus(inventory):
        yield Finding("no_gpu", "at least one GPU", f"CUDA_VISIBLE_DEVICES hides all {len(inventory.hidden)}")


def judge_bus(host: Host) -> Iterator[Finding]:
    """Yield the GPUs that are on the PCI bus and do not answer, or that no driver has, while it has others."""
    bus = [gpu for gpu in _listed(host, "pci") if not isinstance(gpu, str)]
    taken = any(gpu["driver"] == "nvidia" for gpu in bus)
    for gpu in bus:
        if not gpu["answers"]:
            yield Finding("gpu_missing", f"an answer of the GPU at {gpu['address']}", "none on the PCI bus")
        elif taken and not gpu["driver"]:
            yield Finding("gpu_missing", f"a driver for the GPU at {gpu['address']}", "none has taken it")


def judge_xids(xids: Iterable[Xid]) -> Iterator[Finding]:
    """Yield the Xids that say something about the GPU."""
    for xid in xids:
        if xid.kind is not None:
            found = f"{xid.meaning} at {xid.last:.0f} s after the boot"
            detail = single_line(xid.text, 300)
            yield Finding(xid.kind, "no Xid of a fault since the boot", found, detail, str(xid.number))


def judge_stuck(host: Host) -> Iterator[Finding]:
    """Yield the processes that do not move."""
    for process in _listed(host, "stuck"):
        where = f" in {process['where']}" if process["where"] else ""
        what = f"process {process['pid']} ({process['name']})"
        if process["killed"]:
            yield Finding("unkillable", "processes that end when they are killed", f"{what} does not end{where}", what)
        else:
            yield Finding("stuck_process", "no process that waits without end", f"{what} waits{where}", what)


def judge_shared_memory(host: Host) -> Iterator[Finding]:
    """Yield whether /dev/shm is too small, or full."""
    space = host["shared_memory"]
    detail = "docker run --shm-size, or a memory volume at /dev/shm"
    if space["size"] < LEAST_SHARED_MEMORY:
        found = format_bytes(space["size"])
        yield Finding("shared_memory", f"/dev/shm of at least {format_bytes(LEAST_SHARED_MEMORY)}", found, detail)
    elif space["free"] < LEAST_SHARED_FREE:
        wanted = f"at least {format_bytes(LEAST_SHARED_FREE)} free in /dev/shm"
        yield Finding("shared_memory", wanted, format_bytes(space["free"]), "remove what ended jobs have left there")


def judge_open_files(host: Host) -> Iterator[Finding]:
    """Yield whether few open files are allowed."""
    soft, hard = host["limits"]["open_files"]
    if soft is not None and soft < LEAST_OPEN_FILES:
        most = "no limit" if hard is None else hard
        yield Finding("open_files", f"at least {LEAST_OPEN_FILES} open files", f"{soft} (hard: {most})", "ulimit -n")


def judge_disk(host: Host) -> Iterator[Finding]:
    """Yield whether the disk for a run's files has room."""
    space = host["disk"]
    found = f"{format_bytes(space['free'])} in {space['folder']}"
    if not space["writable"]:
        yield Finding("disk_full", "a disk that can be written", f"{space['folder']} is read-only")
    elif space["free"] < FULL_DISK:
        yield Finding("disk_full", f"at least {format_bytes(FULL_DISK)} free", found)
    elif space["free"] < LOW_DISK:
        yield Finding("disk_low", f"at least {format_bytes(LOW_DISK)} free", found)


def judge_clock(host: Host) -> Iterator[Finding]:
    """Yield whether the kernel estimates a large error of its clock. Raise NotKnownError if it has no estimate.

    That is the case with time from PTP or the host of a virtual machine. A fleet compares the clocks themselves.
    """
    if not host["clock"]["synchronised"]:
        raise NotKnownError("the kernel has no estimate: nothing tells it that its clock is synchronised")
    if (error := host["clock"]["error_us"]) > MOST_CLOCK_ERROR:
        wanted = f"a clock that is right within {MOST_CLOCK_ERROR / 1e6:g} s"
        yield Finding("clock", wanted, f"an error of {error / 1e6:g} s", "repair chrony or ntpd")


#: The checks of the host: the reading that each needs, and its rule.
HostChecks = Mapping[str, tuple[str, Callable[[Host], Iterator[Finding]]]]
HOST_CHECKS: HostChecks = {
    "pci_bus": ("pci", judge_bus),
    "stuck_processes": ("stuck", judge_stuck),
    "shared_memory": ("shared_memory", judge_shared_memory),
    "open_files": ("limits", judge_open_files),
    "disk": ("disk", judge_disk),
    "clock": ("clock", judge_clock),
}


def judge_host(host: Host, end: str, found: Findings, checks: HostChecks = HOST_CHECKS) -> None:
    """Add the checks of the host and its problems. `end`: why the program that reads has ended early, or ""."""
    for name, (reading, rule) in checks.items():
        why = reading_error(host, reading) or ("" if reading in host else end or "the program that reads has no answer")
        if why:
            unread = Finding("unreadable", f"a reading of {reading.replace('_', ' ')}", why)
            found.add(name, [unread], state="unknown")
            continue
        try:
            findings = list(rule(host))
        except NotKnownError as error:
            found.add(name, state="skipped", text=str(error))
        else:
            found.add(name, findings, text=list_first([finding.found for finding in findings]))


def gpus(inventory: Inventory) -> list[Device]:
    """Return the GPUs, usable or not."""
    return [device for device in inventory.devices if device.backend.accelerator]


def _listed(host: Host, name: str) -> list[Any]:
    value = host.get(name)
    return value if isinstance(value, list) else []


def reading_error(host: Host, name: str) -> str:
    """Return why a reading of the host failed; "" if it did not, or was not made."""
    value = host.get(name)
    return single_line(str(value["error"])) if isinstance(value, dict) and "error" in value else ""
