"""Counts the devices of one registered kind, in a disposable process that may use them.

``python -m harness.devices.census KIND FILE`` writes one JSON object to the file, again after each step, so that the
last step is known if the process dies. It imports torch and the modules of the registration once, and takes each answer
in a fork of itself, as executors are forks of the zygote.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.backends.backend import Backend
from harness.backends.table import BACKENDS
from harness.core.text import format_exit_code, single_line
from harness.devices import guard

_MOST_BYTES = 1 << 20

# Work whose launches take the host of a GPU a tenth of the GPU's time: each launch reads and writes 64 MiB.
_ELEMENTS, _LAUNCHES, _TRIALS = 1 << 24, 8, 3
_LONG = 1.0  # seconds


def mask_entries(backend: Backend, environ: Mapping[str, str], count: int) -> list[str]:
    """Return the names of `count` visible devices in the mask: the entries of an outer mask, or their indices."""
    outer = environ.get(backend.mask) if backend.mask is not None else None
    entries = [entry.strip() for entry in outer.split(",")] if outer else []
    return entries if len(entries) == count else [str(index) for index in range(count)]


def take_census(kind: str, tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Return the findings of this process.

    They are ``devices``, ``notes``, ``graphs``, ``asynchronous``, ``sparse``, ``process_groups``, ``touched`` and
    ``mask``; or an ``error``. `tell` gets each step before it begins.
    """
    backend = BACKENDS.add(kind)
    imported = ", ".join(("torch", *backend.modules))
    tell({"step": f"import of {imported}"})
    try:
        torch = backend.import_torch()
    except BaseException as error:  # noqa: BLE001 - a package may raise anything, SystemExit included
        return {"error": f"the import of {imported} raises {single_line(repr(error))}"}
    try:
        torch.device(backend.torch_type)
    except RuntimeError:
        return {
            "error": f"torch {torch.__version__} knows no device of the type {backend.torch_type!r}: install the "
            "package that registers it with torch, or name its modules in a registration (docs/backends.md)"
        }
    touched = guard.device_in_use(backend)
    tell({"step": "count of the devices"})
    ask = _directly if touched else in_fork
    counted = ask(lambda: _count(backend, torch), None)
    if "error" in counted:
        return counted
    tell({"step": "check whether work is pending behind its launch"})
    pending = ask(lambda: {"asynchronous": _is_asynchronous(backend, torch)}, None)
    sparse = ask(lambda: {"sparse": _has_sparse(backend, torch)}, None)
    groups = ask(lambda: {"process_groups": _has_process_groups(backend)}, None)
    answer = {
        **counted,
        "asynchronous": pending.get("asynchronous"),
        "sparse": sparse.get("sparse", False),
        "process_groups": groups.get("process_groups", False),
        "touched": touched or "",
        "mask": "",
    }
    count = len(counted["devices"])
    if backend.mask is not None and count > 1 and not touched:
        tell({"step": f"check of {backend.mask}"})
        last = mask_entries(backend, os.environ, count)[-1]
        alone = in_fork(lambda: {"count": int(backend.device_count(torch))}, {backend.mask: last})
        answer["mask"] = "works" if alone.get("count") == 1 else f"{last}: {alone.get('error') or alone.get('count')}"
    return answer


def _count(backend: Backend, torch: ModuleType) -> dict[str, Any]:
    """Count the devices of this process, and read their known facts."""
    try:
        count = backend.device_count(torch)
    except Exception as error:  # noqa: BLE001
        return {"error": f"device_count raises {single_line(repr(error))}"}
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        return {"error": f"device_count returns {count!r:.80}, not a number of devices"}
    if count == 0:
        value = os.environ.get(backend.mask) if backend.mask is not None else None
        mask = "" if value is None else f" ({backend.mask}={value!r})"
        return {"error": f"this machine has no such device: device_count is 0{mask}"}
    notes: dict[str, str] = {}
    devices = []
    for index in range(count):
        properties = dict(backend.properties(torch, index))
        memory = properties.get("total_memory")
        if memory is not None and (not isinstance(memory, int) or isinstance(memory, bool)):
            notes["memory"] = f"total_memory is {memory!r:.80}, not a number of bytes"
            memory = None
        uuid = properties.get("uuid")
        devices.append(
            {
                "name": single_line(str(properties.get("name") or backend.device_name or backend.noun)),
                "uuid": None if uuid is None else single_line(str(uuid)),
                "memory": memory,
            }
        )
    if backend.counters is not None:
        with contextlib.suppress(Exception):  # each run reads this again and reports the error
            backend.counters().read(torch, notes, full=False)
    return {
        "devices": devices,
        "graphs": _has_graphs(torch),
        "notes": [
            f"the leak check cannot read {', '.join(sorted(name for name in notes if notes[name] == why))}: {why}"
            for why in dict.fromkeys(notes.values())
        ],
    }


def _has_graphs(torch: ModuleType) -> bool:
    """Return whether torch.accelerator.Graph can be made: torch raises for a device without an implementation."""
    try:
        torch.accelerator.Graph()
    except Exception:  # noqa: BLE001
        return False
    return True


def _is_asynchronous(backend: Backend, torch: ModuleType) -> bool | None:
    """Return whether, in one of several trials, work takes longer after its launches than the launches themselves.

    None for a device on which the trial fails: cases that need this then show the error.

    A pending event proves nothing: a device that computes in its launches may record events later.
    """
    try:
        block = torch.ones(_ELEMENTS, device=backend.first_device(torch))
        stream = torch.accelerator.current_stream()
        for _ in range(_TRIALS):
            stream.synchronize()
            event = torch.Event(block.device)
            began = time.monotonic()
            for _ in range(_LAUNCHES):
                block.neg_()
            launched = time.monotonic()
            event.record(stream)
            event.synchronize()
            if time.monotonic() - launched > launched - began:
                return True
            if launched - began > _LONG:
                break
    except Exception:  # noqa: BLE001
        return None
    return False


def _has_sparse(backend: Backend, torch: ModuleType) -> bool:
    """Return whether a tensor on the device can be made sparse and dense again."""
    try:
        torch.eye(2).to(backend.first_device(torch)).to_sparse().to_dense().cpu()
    except Exception:  # noqa: BLE001
        return False
    return True


def _has_process_groups(backend: Backend) -> bool:
    """Return whether torch.distributed has a registered and available backend for the type of the device."""
    try:
        distributed = importlib.import_module("torch.distributed")
        name = distributed.get_default_backend_for_device(backend.torch_type)
        return bool(distributed.is_backend_available(name))
    except Exception:  # noqa: BLE001 - torch may be built without it
        return False


def _directly(ask: Callable[[], dict[str, Any]], environment: Mapping[str, str] | None) -> dict[str, Any]:
    os.environ.update(environment or {})
    return ask()


def in_fork(
    ask: Callable[[], dict[str, Any]], environment: Mapping[str, str] | None, limit: int = 60
) -> dict[str, Any]:
    """Call `ask` in a fork of this process with these variables. Return its answer, or the `error` that ended the fork.

    A fork that has no answer within `limit` seconds is ended by SIGALRM.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(limit)
        status = 1
        try:
            answer = _directly(ask, environment)
            os.write(writing, json.dumps(answer).encode()[:_MOST_BYTES])
            status = 0
        except BaseException as error:  # noqa: BLE001
            with contextlib.suppress(OSError):
                os.write(writing, json.dumps({"error": f"the query raises {single_line(repr(error))}"}).encode())
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        data = file.read(_MOST_BYTES)
    _, ended = os.waitpid(child, 0)
    try:
        reply = json.loads(data)
    except ValueError:
        code = os.waitstatus_to_exitcode(ended)
        if code == -signal.SIGALRM:
            return {"error": f"hangs: no answer within {limit} s, after a fork"}
        return {"error": f"the process ends with {format_exit_code(code)}, after a fork"}
    return reply if isinstance(reply, dict) else {"error": "the process sends no answer, after a fork"}


def main(arguments: list[str]) -> int:
    """Write the census of the kind ``arguments[0]`` to the file ``arguments[1]``."""
    kind, name = arguments
    place = Path(name)

    def tell(answer: Mapping[str, Any]) -> None:
        place.write_text(json.dumps(answer), encoding="utf-8")

    tell(take_census(kind, tell))
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # skip exit handlers: the end of a driver is not tested here
