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
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.core import linux
from harness.core.text import single_line

#: Seconds that one call into the driver may take. Without persistence mode the driver first initialises the GPU, which
#: takes some seconds; a hang takes for ever.
CALL_LIMIT = 10.0
#: Seconds for the start of NVML and the list of the devices. The driver initialises up to eight GPUs one by one.
LIST_LIMIT = 25.0
_PAUSE = 0.01


class _Output:
    """Writes lines. The threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, **message: object) -> None:
        line = json.dumps(message) + "\n"
        with self._lock:
            os.write(sys.stdout.fileno(), line.encode())


class _Work(threading.Thread):
    """A thread that calls into the driver. `call`: the call that it makes now; `since`: when that began."""

    def __init__(self, what: str) -> None:
        super().__init__(name=what, daemon=True)
        self.call = what
        self.since = time.monotonic()

    def begin(self, call: str) -> None:
        self.call, self.since = call, time.monotonic()

    def is_stuck(self, limit: float) -> bool:
        return self.is_alive() and time.monotonic() - self.since > limit


class _Listing(_Work):
    """Starts NVML, and lists the devices."""

    def __init__(self, output: _Output) -> None:
        super().__init__("the list of devices")
        self._output = output
        self.uuids: list[str] = []

    def run(self) -> None:
        import pynvml

        from harness.devices.inventory import discover_devices

        try:
            pynvml.nvmlInit()  # stays open, since a driver without persistence mode gives up the GPUs at the last close
        except pynvml.NVMLError as error:
            self._output.say(nvml=int(error.value), text=single_line(str(error)))
            return
        inventory = discover_devices()
        self._output.say(inventory=dataclasses.asdict(inventory))
        whole = [device.mig_parent or device.uuid for device in inventory.devices if device.backend.nvml]
        self.uuids = list(dict.fromkeys(whole))


class _Gpu(_Work):
    """Asks one GPU everything, in order, until it is lost."""

    def __init__(self, uuid: str, output: _Output) -> None:
        super().__init__("handle")
        self._uuid = uuid
        self._output = output

    def run(self) -> None:
        import pynvml

        from harness.devices.gpu_queries import QUERIES

        gpu = self._ask("handle", lambda: pynvml.nvmlDeviceGetHandleByUUID(self._uuid))
        if gpu is None:
            return
        for query in QUERIES:
            self.begin(query.label)
            try:
                answers = dict(zip(query.names, query.ask(gpu), strict=True))
            except (pynvml.NVMLError, ValueError) as error:  # ValueError: a text that is not UTF-8
                if self._report(query.names[0], error):
                    return
            else:
                self._output.say(gpu=self._uuid, readings=answers, names=_names(answers.get("process_ids")))

    def _ask(self, call: str, function: Any) -> Any:
        import pynvml

        self.begin(call)
        try:
            return function()
        except pynvml.NVMLError as error:
            self._report(call, error)
            return None

    def _report(self, name: str, error: Exception) -> bool:
        """Report why a query failed. Return whether the GPU is lost."""
        from harness.devices.gpu_queries import kind_of_error

        kind = kind_of_error(getattr(error, "value", -1))
        self._output.say(gpu=self._uuid, query=name, error=kind, text=f"{self.call}: {single_line(str(error))}")
        return kind in ("lost", "reset")


def _names(pids: object) -> dict[str, str]:
    from harness.ready.host import process_name

    return {pid: process_name(int(pid)) for pid in str(pids or "").split()}


def _finish(work: Sequence[_Work], limit: float, output: _Output) -> bool:
    """Wait for the threads, each call for at most `limit` seconds. Report those that are stuck; return if there are."""
    while waiting := [each for each in work if each.is_alive()]:
        if all(each.is_stuck(limit) for each in waiting):
            for each in waiting:
                gpu = {} if isinstance(each, _Listing) else {"gpu": each._uuid}  # type: ignore[attr-defined]
                output.say(hang=each.call, seconds=limit, **gpu)
            return True
        next(each for each in waiting if not each.is_stuck(limit)).join(_PAUSE)
    return False


def read_gpus(call_limit: float, list_limit: float) -> None:
    """Print the devices of the machine and the readings of its GPUs."""
    output = _Output()
    listing = _Listing(output)
    listing.start()
    stuck = _finish([listing], list_limit, output)
    gpus = [_Gpu(uuid, output) for uuid in listing.uuids]
    for gpu in gpus:
        gpu.start()
    stuck = _finish(gpus, call_limit, output) or stuck
    output.say(done=True)
    if stuck:
        os._exit(0)  # without waiting for the thread in the driver


def read_host(log: Path, folder: Path | None) -> None:
    """Print the readings of the host."""
    from harness.ready.host import host_readings

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
