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
import tempfile
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.backends.backend import Backend
from harness.backends.table import BACKENDS, known_kinds
from harness.core.disposable import run_disposable
from harness.core.text import format_exit_code, single_line
from harness.devices import guard
from harness.devices.device import Device, DeviceError, Inventory

# What a census observes of a registered device: facts that neither its kind nor its registration tells.
#
# Each is a capability of the same name (`harness.devices.capabilities`) and is observed in a fork of its own, since a
# device without the part may crash or hang.

# Work whose launches take the host of a GPU a tenth of the GPU's time: each launch reads and writes 64 MiB.
_ELEMENTS, _LAUNCHES, _TRIALS = 1 << 24, 8, 3
_LONG = 1.0  # seconds
_CHILD_LIMIT = 20  # seconds
_LONG_SEED = 2**63 + 1


@dataclass(frozen=True, slots=True)
class Observation:
    """One fact.

    `observe` returns it, or raises. `if_it_fails` is the fact if it raises, or if its process ends; None leaves the
    capability as it is for GPUs. `lacks` follows the name of the device in the reason for False.
    """

    observe: Callable[[Backend, Any], bool]
    lacks: str
    if_it_fails: bool | None = False


def _has_graphs(_: Backend, torch: Any) -> bool:
    """Make a `torch.accelerator.Graph`: torch raises for a device without an implementation."""
    torch.accelerator.Graph()
    return True


def _is_asynchronous(backend: Backend, torch: Any) -> bool:
    """Find out whether, in one of several trials, work takes longer after its launches than the launches themselves.

    A pending event proves nothing: a device that computes in its launches may record events later.
    """
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
    return False


def _has_sparse(backend: Backend, torch: Any) -> bool:
    torch.eye(2).to(backend.first_device(torch)).to_sparse().to_dense().cpu()
    return True


def _has_process_groups(backend: Backend, _: Any) -> bool:
    """Find out whether torch.distributed has a registered and available backend for the type of the device."""
    distributed = importlib.import_module("torch.distributed")
    name = distributed.get_default_backend_for_device(backend.torch_type)
    return bool(distributed.is_backend_available(name))


def _has_caching_allocator(backend: Backend, torch: Any) -> bool:
    device = backend.first_device(torch)
    held = torch.zeros(1, device=device)
    return held.device == device and bool(torch.accelerator.memory_stats(device))


def _has_pinned_memory(_: Backend, torch: Any) -> bool:
    return bool(torch.zeros(1).pin_memory().is_pinned())


def _has_autocast(backend: Backend, torch: Any) -> bool:
    """Compute in an autocast region. A device may have the region, and no operator that uses it."""
    x = torch.ones(2, 2, device=backend.first_device(torch))
    with torch.autocast(backend.torch_type):
        found = x @ x
    return bool(found.dtype != x.dtype)


def _has_wide_seeds(backend: Backend, torch: Any) -> bool:
    generator = torch.Generator(device=backend.first_device(torch))
    generator.manual_seed(_LONG_SEED)
    return bool(generator.initial_seed() == _LONG_SEED)


def _has_device_properties(backend: Backend, torch: Any) -> bool:
    return bool(getattr(torch, backend.torch_type).get_device_properties(0).total_memory)


def _refuses_forks(backend: Backend, torch: Any) -> bool:
    """Find out whether a fork of a process with a used device can compute on it. Crashes and hangs refuse as well."""
    device = backend.first_device(torch)
    used = torch.ones(4, device=device)
    backend.synchronize(torch, 0)
    child = os.fork()
    if child == 0:
        signal.alarm(_CHILD_LIMIT)
        status = 1
        with contextlib.suppress(BaseException):
            status = int((used + torch.ones(4, device=device)).sum().item() != 8)
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def _has_inductor(backend: Backend, _: Any) -> bool:
    from harness import _compat  # imports pytest, which commands that run no case do not need

    return _compat.has_inductor(backend.torch_type)


OBSERVATIONS: Mapping[str, Observation] = {
    "accelerator_graphs": Observation(_has_graphs, "torch has no graphs for {kind}"),
    "asynchronous": Observation(_is_asynchronous, "the work of {kind} is done when its launch returns", None),
    "sparse": Observation(_has_sparse, "torch has no sparse tensors on {kind}"),
    "process_groups": Observation(_has_process_groups, "torch.distributed has no backend for {kind}"),
    "inductor": Observation(_has_inductor, "inductor generates no code for {kind}"),
    "caching_allocator": Observation(_has_caching_allocator, "torch.accelerator.memory_stats has no {kind}"),
    "pinned_memory": Observation(_has_pinned_memory, "pin_memory() does not work with {kind}"),
    "autocast": Observation(_has_autocast, "autocast changes no type on {kind}"),
    "wide_seeds": Observation(_has_wide_seeds, "generators of {kind} refuse the seed 2**63 + 1"),
    "device_properties": Observation(_has_device_properties, "the module of {kind} has no get_device_properties"),
    "refuses_forks": Observation(_refuses_forks, "memory of {kind} survives a fork", True),
}


def observe(name: str, backend: Backend, torch: Any) -> bool | None:
    """Return one fact of `OBSERVATIONS`. This uses the device, and may end the process."""
    observation = OBSERVATIONS[name]
    try:
        return observation.observe(backend, torch)
    except Exception:  # noqa: BLE001 - a device may raise anything for a part that it lacks
        return observation.if_it_fails


_MOST_BYTES = 1 << 20


def mask_entries(backend: Backend, environ: Mapping[str, str], count: int) -> list[str]:
    """Return the names of `count` visible devices in the mask: the entries of an outer mask, or their indices."""
    outer = environ.get(backend.mask) if backend.mask is not None else None
    entries = [entry.strip() for entry in outer.split(",")] if outer else []
    return entries if len(entries) == count else [str(index) for index in range(count)]


def take_census(kind: str, tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Return the findings of this process.

    They are ``devices``, ``notes``, ``observed``, ``touched`` and ``mask``; or an ``error``. `tell` gets each step
    before it begins.
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
    observed: dict[str, bool | None] = {}
    for name, observation in OBSERVATIONS.items():
        if name in backend.capabilities:
            continue  # declared
        tell({"step": f"observation of {name}"})
        found = ask(lambda name=name: {"observed": observe(name, backend, torch)}, None)  # type: ignore[misc]
        observed[name] = found.get("observed", observation.if_it_fails)
    answer = {**counted, "observed": observed, "touched": touched or "", "mask": ""}
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
    with contextlib.suppress(Exception):  # each run reads this again and reports the error
        if (counters := backend.counters()) is not None:
            counters.read(torch, notes, full=False)
    return {
        "devices": devices,
        "notes": [
            f"the leak check cannot read {', '.join(sorted(name for name in notes if notes[name] == why))}: {why}"
            for why in dict.fromkeys(notes.values())
        ],
    }


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


# The inventory of a kind that is registered outside this tree, from a census in a disposable process

#: The environment variable with the census of a run, so that its workers need not take it again.
VARIABLE = "GPU_CONFORMANCE_CENSUS"
#: Seconds for a census. An import of torch may come from a network file system, and a driver may start slowly.
LIMIT = 180.0


def inventory(backend: Backend, environ: Mapping[str, str]) -> Inventory:
    """Return the devices that a run with ``--device=KIND`` may use.

    Raise DeviceError with one sentence if it can use none.

    The outer mask applies, since the census has the same environment.
    """
    answer = _kept_answer(backend, environ) or _ask(backend, environ)
    if (wrong := answer.get("error")) is not None:
        raise DeviceError(f"--device={backend.kind}: {wrong}")
    count = len(answer["devices"])
    if answer["mask"] not in ("", "works"):
        _check_mask(backend, environ, count, answer)
    _remember(backend, environ, answer)
    entries = mask_entries(backend, environ, count)
    devices = tuple(
        Device(
            uuid=f"{backend.uuid_prefixes[0]}{entries[index] if row['uuid'] is None else row['uuid']}",
            kind=backend.kind,
            name=row["name"],
            index=index,
            memory=row["memory"],
            mask_entry=entries[index],
            observed=answer["observed"],
        )
        for index, row in enumerate(answer["devices"])
    )
    notes = [f"{backend.kind}: {note}" for note in answer["notes"]]
    if backend.mask is None and count > 1:
        notes.append(
            f"{backend.kind}: the registration names no mask, so every process sees all {count} devices, and cases "
            f"use {devices[0].uuid}"
        )
    return Inventory(devices=devices, nvml_error=f"not used: the run is on {backend.kind}", notes=tuple(notes))


def _check_mask(backend: Backend, environ: Mapping[str, str], count: int, answer: dict[str, Any]) -> None:
    """Check the mask in a fresh process, since it had no effect in a fork.

    Raise DeviceError if it has none there either.
    """
    assert backend.mask is not None
    entry = mask_entries(backend, environ, count)[-1]
    alone = _ask(backend, {**environ, backend.mask: entry})
    if len(alone.get("devices", ())) == 1:
        answer["notes"].append(f"{backend.mask} works only if it is set before the import of torch: use --start=cold")
        return
    raise DeviceError(
        f"--device={backend.kind}: the mask {backend.mask} does nothing: with {backend.mask}={entry} a process sees "
        f"{len(alone.get('devices', ())) or alone.get('error')} of {count} devices, expected 1; correct the "
        "registration, or leave `mask` out"
    )


def _key(backend: Backend, environ: Mapping[str, str]) -> list[str | None]:
    return [backend.kind, *(environ.get(name) for name in (backend.mask, *backend.variables) if name is not None)]


def _kept_answer(backend: Backend, environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the census that an earlier process of this run has made; None without one."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        kept = json.loads(environ.get(VARIABLE, ""))
        if kept["key"] == _key(backend, environ):
            return dict(kept["answer"])
    return None


def _remember(backend: Backend, environ: Mapping[str, str], answer: Mapping[str, Any]) -> None:
    if isinstance(environ, MutableMapping):
        environ[VARIABLE] = json.dumps({"key": _key(backend, environ), "answer": answer})


def _ask(backend: Backend, environ: Mapping[str, str], limit: float = LIMIT) -> dict[str, Any]:
    """Take a census in a new process. Return its answer; an ``error`` also if the process dies or hangs."""
    with tempfile.TemporaryDirectory(prefix="harness-census-") as folder:
        place = Path(folder, "census.json")
        command = [sys.executable, "-m", "harness.devices.census", backend.kind, str(place)]
        paths = os.pathsep.join(filter(None, [*sys.path, environ.get("PYTHONPATH")]))
        try:
            run = run_disposable(command, limit, environ={**environ, "PYTHONPATH": paths})
        except OSError as error:
            return {"error": f"the census does not start: {error.strerror}"}
        if not run.in_time or run.status is None:
            return {"error": f"hangs during {_step(place)}: did not end within {limit:.0f} s"}
        answer = _read(place)
        if "error" in answer:
            return _with_advice(backend, answer)
        if "devices" in answer:
            return answer
        last = f"; last output: {single_line(run.last_error)}" if run.last_error else ""
        return {"error": f"ends with {format_exit_code(run.status)} during {_step(place)}{last}"}


def _with_advice(backend: Backend, answer: dict[str, Any]) -> dict[str, Any]:
    """Add the kinds that need no torch to an error, since the user may have misspelt the kind."""
    if "knows no device" in answer["error"]:
        answer["error"] += f"; known here: auto, {', '.join(kind for kind in known_kinds() if kind != backend.kind)}"
    return answer


def _read(place: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        answer = json.loads(place.read_text(encoding="utf-8"))
        if isinstance(answer, dict):
            return answer
    return {}


def _step(place: Path) -> str:
    return str(_read(place).get("step", "start"))


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # skip exit handlers: the end of a driver is not tested here
