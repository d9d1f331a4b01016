"""Readings of the host: files below /proc, /sys and /dev, limits, clock, disk, processes that do not move.

Effects only; `harness.ready.judge_host` decides. Each of these may hang on a sick host (a file system that does not
answer), so they are read in a disposable process (`harness.ready.reader`). What may hang comes last.
"""

from __future__ import annotations

import os
import platform
import resource
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.core import linux
from harness.devices import kernel_log

_NVIDIA, _DISPLAY = "0x10de", "0x03"
#: Seconds between the two looks at processes that seem to be stuck.
BETWEEN_LOOKS = 0.5
_KILL_BIT = 1 << (signal.SIGKILL - 1)
_PF_KTHREAD = 0x200000  # <linux/sched.h>
#: The most processes and lines of the log that are reported.
_MOST = 1000


def host_readings(log: Path, folder: Path | None) -> Iterator[dict[str, Any]]:
    """Yield the readings of the host in groups, each a mapping of names to plain values.

    A reading that fails is ``{"error": reason}``. `log`: the kernel's log. `folder`: of the files that a run writes;
    the one for temporary files if None.
    """
    yield _attempt("driver_module", _driver_module)
    yield _attempt("pci", _pci_gpus)
    yield _attempt("log", lambda: _log(log))
    yield _attempt("clock", _clock)
    yield {"uptime": time.clock_gettime(time.CLOCK_BOOTTIME), "kernel": platform.release(), "limits": _limits()}
    yield {"all_processes": linux.sees_all_processes()}
    yield _attempt("stuck", _stuck)
    yield _attempt("shared_memory", lambda: _space(Path("/dev/shm")))
    yield _attempt("disk", lambda: _space(folder or Path(tempfile.gettempdir())))


def process_name(pid: int) -> str:
    """Return the name of a process, up to 15 characters; "" if it is gone. Waits for no lock of the process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="backslashreplace").strip()
    except OSError:
        return ""


def _attempt(name: str, read: Any) -> dict[str, Any]:
    try:
        return {name: read()}
    except (OSError, ValueError) as error:
        return {name: {"error": str(error)}}


def _driver_module() -> str:
    """Return the version line of the driver's kernel module; "" if it is not loaded."""
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0].strip()
    except FileNotFoundError:
        return ""


def _pci_gpus() -> list[dict[str, Any]]:
    """Return the NVIDIA GPUs on the PCI bus: address, kernel driver ("" for none), and whether they answer."""
    found: list[dict[str, Any]] = []
    devices = Path("/sys/bus/pci/devices")
    for device in sorted(devices.iterdir()) if devices.is_dir() else []:
        if _text(device / "vendor") == _NVIDIA and _text(device / "class").startswith(_DISPLAY):
            link = device / "driver"
            driver = os.path.basename(os.readlink(link)) if link.is_symlink() else ""
            found.append({"address": device.name, "driver": driver, "answers": _answers(device)})
    return found


def _answers(device: Path) -> bool:
    """Return whether the configuration space of a PCI device can be read: without a device, all bits are ones."""
    with (device / "config").open("rb") as file:
        return file.read(4) != b"\xff\xff\xff\xff"


def _text(path: Path) -> str:
    return path.read_text().strip()


def _log(path: Path) -> dict[str, Any]:
    log = kernel_log.read_gpu_log(path)
    return {"begins": log.begins, "lines": list(log.lines[-_MOST:])}


def _clock() -> dict[str, Any]:
    synchronised, error = linux.clock_error()
    return {"synchronised": synchronised, "error_us": error, "time": time.time()}


def _limits() -> dict[str, Any]:
    """Return soft and hard limits; None for no limit."""
    kinds = {
        "open_files": resource.RLIMIT_NOFILE,
        "locked_memory": resource.RLIMIT_MEMLOCK,
        "processes": resource.RLIMIT_NPROC,
        "stack": resource.RLIMIT_STACK,
        "core": resource.RLIMIT_CORE,
    }
    return {
        name: [None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(kind)]
        for name, kind in kinds.items()
    }


def _space(folder: Path) -> dict[str, Any]:
    state = os.statvfs(folder)
    return {
        "folder": str(folder),
        "size": state.f_blocks * state.f_frsize,
        "free": state.f_bavail * state.f_frsize,
        "writable": not state.f_flag & os.ST_RDONLY,
    }


def _stuck() -> list[dict[str, Any]]:
    """Return the processes that did not move between two looks: they wait in the kernel, or do not die of SIGKILL."""
    first = dict(_suspects(int(name) for name in os.listdir("/proc") if name.isdecimal()))
    if not first:
        return []
    time.sleep(BETWEEN_LOOKS)
    second = dict(_suspects(first))
    return [
        {"pid": pid, "name": process_name(pid), "killed": state["killed"], "where": linux.kernel_wait_channel(pid)}
        for pid, state in second.items()
        if state == first.get(pid)
    ][:_MOST]


def _suspects(pids: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the processes that wait in the kernel or were killed, with what changes when they move."""
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/status").read_text(errors="backslashreplace").splitlines()
            stat = Path(f"/proc/{pid}/stat").read_text(errors="backslashreplace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended, or is hidden from this user
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if suspect := suspicion(status, int(stat[6]), int(stat[19])):
            yield pid, suspect


def suspicion(status: dict[str, str], flags: int, start: int) -> dict[str, Any] | None:
    """Return what identifies a process that may be stuck, and changes when it moves; None for any other process.

    `status`: the fields of ``/proc/PID/status``. `flags`, `start`: the process's flags and start time.
    """
    state, threads = status["State"][0], int(status.get("Threads", "1"))
    pending = int(status.get("SigPnd", "0"), 16) | int(status.get("ShdPnd", "0"), 16)
    # A process whose first thread has ended is killed for good, but some thread of it does not go.
    killed = (bool(pending & _KILL_BIT) and state != "Z") or (state == "Z" and threads > 1)
    if flags & _PF_KTHREAD or not (killed or state == "D"):
        return None
    switches = status.get("voluntary_ctxt_switches", ""), status.get("nonvoluntary_ctxt_switches", "")
    return {"killed": killed, "state": state, "start": start, "switches": switches}
