"""Child processes, for what a case cannot do in its own process: a permanent device failure, a first use, a fork.

A child has the case's environment and therefore the same devices, and can import the same modules. It writes no core
file. It is a new interpreter (`run`), or a fork of a process that has not used a device yet (`fork`), which saves the
import of torch.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, NoReturn

import torch

#: Seconds. The first use of a GPU takes several seconds on a large machine, and longer under load.
LIMIT = 120.0

#: The environment variables with settings of the allocator; the last one is for ROCm.
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")

#: The harness lists the modules here that register the device with torch, separated by commas.
MODULES = "HARNESS_DEVICE_MODULES"

#: The environment of a process without an accelerator. A package that registers devices is not imported.
HIDDEN = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "ZE_AFFINITY_MASK": "none",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
}

NO_CORE_FILE = "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"

#: Look for garbage less often: otherwise an import of torch takes a tenth longer.
_RARE_COLLECTIONS = "import gc\ngc.set_threshold(100_000)"

#: The end of a script that skips Python's finalization, and that of torch, which together take a quarter of the time of
#: a child that does little. A script whose last work is a backward pass on a GPU needs it: a thread of torch's engine
#: frees the pass a moment later and needs Python for that, because each pass holds the context in which it was called
#: (torch 2.13). Before 3.14, Python terminates such a thread during its own finalization, which aborts the process.
AT_ONCE = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"


@dataclass(frozen=True)
class Ended:
    """The result of a child: its exit status, negative for the signal that killed it, and its output."""

    status: int
    out: str
    err: str

    def text(self) -> str:
        """Return all output, for searches."""
        return f"{self.out}\n{self.err}"

    def lines(self) -> list[str]:
        """Return the lines of standard output. The child must have succeeded."""
        assert self.status == 0, f"the process ended with {self.status}: {self.err[-3000:]}"
        return self.out.splitlines()


def run(
    script: str,
    device: torch.device | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    limit: float = LIMIT,
) -> Ended:
    """Run a script to its end. With `device`, the script can use that device, under the name `DEVICE`.

    `environ` is added to the environment. After `limit` seconds, kill the child and raise subprocess.TimeoutExpired.
    """
    lines = [NO_CORE_FILE, _RARE_COLLECTIONS, bring(device), script]
    child = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **(environ or {})},
        check=False,
    )
    return Ended(child.returncode, child.stdout, child.stderr)


def fork(
    script: str,
    device: torch.device | None = None,
    *,
    settings: str | None = None,
    environ: Mapping[str, str] | None = None,
    limit: float = LIMIT,
) -> Ended:
    """Run a script like `run`, but in a fork of this process if it has not used torch yet.

    A case with the mark `own_process` has such a process. The allocator's `settings` replace those of this process. The
    fork has imported torch, so `environ` only affects variables that are read at the first use of the device. The fork
    ends without Python's finalization.
    """
    # Code that has read settings from the environment, at import or later, differs by setting and release.
    has_settings = settings is not None and any(os.environ.get(name) for name in SETTINGS)
    if has_settings or not can_be_forked(device or torch.accelerator.current_accelerator()):
        given = {} if settings is None else dict.fromkeys(SETTINGS, settings)
        return run(script, device, environ={**given, **(environ or {})}, limit=limit)
    if settings:
        script = f"import torch\ntorch._C._accelerator_setAllocatorSettings({settings!r})\n{script}"
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            names: dict[str, object] = {"__name__": "__main__"}
            if device is not None:
                names["DEVICE"] = str(device)
            _become(script, names, environ or {}, out, err)
        status = _wait(pid, limit)
        return Ended(status, _text(out), _text(err))


def can_be_forked(device: torch.device | None) -> bool:
    """Return whether a fork of this process can use the device, as far as the kernel, torch and the driver tell."""
    if len(os.listdir("/proc/self/task")) > 1:  # threads of a pool, for which a fork would wait
        return False
    if device is None or device.type == "cpu":
        return True
    if device.type == "cuda":
        return not torch.version.hip and not _has_cuda_started()
    is_initialized = getattr(torch.get_device_module(device), "is_initialized", None)
    return is_initialized is not None and not is_initialized()


def _has_cuda_started() -> bool:
    """Return whether the driver is initialized. torch does not notice if it only had the driver count the devices."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # a build for CUDA on a machine without a driver
        return False
    not_initialized = 3  # CUDA_ERROR_NOT_INITIALIZED
    return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != not_initialized


def _become(
    script: str, names: dict[str, object], environ: Mapping[str, str], out: IO[bytes], err: IO[bytes]
) -> NoReturn:
    """Turn a fork into the child, with the standard streams, signals and warnings of an interpreter."""
    status = 1
    try:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, number in ((null, 0), (out.fileno(), 1), (err.fileno(), 2)):
            os.dup2(source, number)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
        warnings.resetwarnings()
        os.environ.update(environ)
        tempfile.tempdir = None
        status = _execute(script, names)
    finally:
        os._exit(status)


def _execute(script: str, names: dict[str, object]) -> int:
    """Execute a script, and return the exit status that an interpreter would have."""
    status: object = None
    try:
        exec(compile(script, "<child>", "exec"), names)
    except SystemExit as left:
        status = left.code
    except BaseException:  # noqa: BLE001 - what an interpreter does with it
        traceback.print_exc()
        status = 1
    if not isinstance(status, int | None):
        print(status, file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status or 0


def _wait(pid: int, limit: float) -> int:
    """Return the exit status of a child. After `limit` seconds, kill it and raise subprocess.TimeoutExpired."""
    descriptor = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    has_ended = poll.poll(limit * 1000)
    os.close(descriptor)
    if not has_ended:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not has_ended:
        raise subprocess.TimeoutExpired("a forked child", limit)
    return os.waitstatus_to_exitcode(status)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def import_device_modules() -> None:
    """Import the modules that register the case's device with torch, in a new interpreter.

    Without a list, torch itself has the device, or imports its package.
    """
    for name in filter(None, os.environ.get(MODULES, "").split(",")):
        importlib.import_module(name)


def _loading(device: torch.device) -> str:
    """Return the code with which an interpreter can use a device."""
    if device.type in ("cpu", "cuda"):
        return ""
    module = torch.get_device_module(device)
    if hasattr(module, "loading_code"):  # the software device, which each process must load
        return str(module.loading_code())
    return "".join(f"import {name}\n" for name in ("torch", *filter(None, os.environ.get(MODULES, "").split(","))))


def bring(device: torch.device | None) -> str:
    """Return the start of a script that provides the device."""
    if device is None:
        return ""
    return f"{_loading(device)}\nDEVICE = {str(device)!r}\n"
