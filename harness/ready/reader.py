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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.core import linux
from harness.core.text import single_line
from harness.devices.call_thread import CallThread, StuckError

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

        from harness.devices.gpu_queries import QUERIES

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

        from harness.devices.gpu_queries import kind_of_error

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
    from harness.ready.host import process_name

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
