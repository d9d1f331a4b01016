"""The program that reads: of the GPUs, through NVML, or of the host. One line of JSON per answer.

``python -m harness.ready.reader gpus`` lists the devices and then asks all GPUs at once, each in a thread of its own:
a GPU that does not answer does not hold up the others. A call that takes longer than its limit is reported, and the
program ends without waiting for it. The process is disposable: the driver may crash it, or keep it for ever.
``python -m harness.ready.reader host`` reads the host. Neither imports torch or creates a CUDA context.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.core import linux
from harness.core.text import single_line
from harness.devices import kernel_log
from harness.devices.call_thread import CallThread, StuckError

# Readings of the host: files below /proc, /sys and /dev, limits, clock, disk, processes that do not move.
#
# Effects only; `harness.ready.judge_node` decides. Each of these may hang on a sick host (a file system that does not
# answer), so they are read in a disposable process (`harness.ready.reader`). What may hang comes last.

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


#: Seconds that one call into the driver may take. Without persistence mode the driver first initialises the GPU, which
#: takes some seconds; a hang takes for ever.
CALL_LIMIT = 10.0
#: Seconds for the start of NVML and the list of the devices. The driver initialises up to eight GPUs one by one.
LIST_LIMIT = 25.0


class _Output:
    """Writes lines. The threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, **message: object) -> None:
        line = json.dumps(message) + "\n"
        with self._lock:
            os.write(sys.stdout.fileno(), line.encode())


def _list_devices(output: _Output) -> list[str]:
    """Start NVML, and say which devices there are. Return the UUIDs of the whole GPUs."""
    import pynvml

    from harness.devices.inventory import discover_devices

    try:
        pynvml.nvmlInit()  # stays open, since a driver without persistence mode gives up the GPUs at the last close
    except pynvml.NVMLError as error:
        output.say(nvml=int(error.value), text=single_line(str(error)))
        return []
    inventory = discover_devices()
    output.say(inventory=dataclasses.asdict(inventory))
    whole = [device.mig_parent or device.uuid for device in inventory.devices if device.backend.nvml]
    return list(dict.fromkeys(whole))


class _Gpu(threading.Thread):
    """Asks one GPU everything, in order, until it is lost or a call does not return."""

    def __init__(self, uuid: str, limit: float, output: _Output) -> None:
        super().__init__(name=uuid, daemon=True)
        self._uuid, self._limit, self._output = uuid, limit, output
        self._driver = CallThread("nvml", limit=limit)
        self.is_lost = False
        self.start()

    def run(self) -> None:
        import pynvml

        from harness.devices.nvml import QUERIES

        gpu = self._ask("handle", "handle", lambda: pynvml.nvmlDeviceGetHandleByUUID(self._uuid))
        for query in QUERIES if gpu is not None else ():
            found = self._ask(query.label, query.names[0], lambda query=query: query.ask(gpu))  # type: ignore[misc]
            if found is not None:
                answers = dict(zip(query.names, found, strict=True))
                self._output.say(gpu=self._uuid, readings=answers, names=_names(answers.get("process_ids")))
            elif self.is_lost:
                return

    def _ask(self, call: str, name: str, function: Callable[[], Any]) -> Any:
        """Return the answer; None after saying why there is none."""
        import pynvml

        from harness.devices.nvml import kind_of_error

        try:
            return self._driver.call(function)
        except StuckError:
            self.is_lost = True
            self._output.say(hang=call, seconds=self._limit, gpu=self._uuid)
        except (pynvml.NVMLError, ValueError) as error:  # ValueError: a text that is not UTF-8
            kind = kind_of_error(getattr(error, "value", -1))
            self.is_lost = kind in ("lost", "reset")
            self._output.say(gpu=self._uuid, query=name, error=kind, text=f"{call}: {single_line(str(error))}")
        return None

    @property
    def is_stuck(self) -> bool:
        """Whether a call did not return."""
        return self._driver.stuck


def _names(pids: object) -> dict[str, str]:

    return {pid: process_name(int(pid)) for pid in str(pids or "").split()}


def read_gpus(call_limit: float, list_limit: float) -> None:
    """Print the devices of the machine and the readings of its GPUs."""
    output = _Output()
    listing = CallThread("nvml", limit=list_limit)
    gpus: list[_Gpu] = []
    try:
        gpus = [_Gpu(uuid, call_limit, output) for uuid in listing.call(lambda: _list_devices(output))]
    except StuckError:
        output.say(hang="the list of devices", seconds=list_limit)
    for gpu in gpus:
        gpu.join()
    output.say(done=True)
    if listing.stuck or any(gpu.is_stuck for gpu in gpus):
        os._exit(0)  # without waiting for the thread in the driver


def read_host(log: Path, folder: Path | None) -> None:
    """Print the readings of the host."""

    output = _Output()
    for group in host_readings(log, folder):
        output.say(host=group)
    output.say(done=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read what the arguments say, and print it."""
    from harness.devices.kernel_log import KMSG

    parser = argparse.ArgumentParser(prog="python -m harness.ready.reader", description="Read GPUs or the host.")
    parser.add_argument("what", choices=("gpus", "host"))
    parser.add_argument("--call-limit", type=float, default=CALL_LIMIT, help="seconds for one call into the driver")
    parser.add_argument("--list-limit", type=float, default=LIST_LIMIT, help="seconds for the list of devices")
    parser.add_argument("--log", type=Path, default=KMSG, help="the kernel's log")
    parser.add_argument("--folder", type=Path, help="a folder on the disk whose free space is read")
    parser.add_argument("--parent", type=int, help="end when this process, the parent, ends")
    options = parser.parse_args(arguments)
    if options.parent is not None:
        linux.die_with_parent(options.parent)
    if options.what == "gpus":
        read_gpus(options.call_limit, options.list_limit)
    else:
        read_host(options.log, options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
