"""The devices of a kind that is registered outside this tree, from a census in a disposable process."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from harness.backends.backend import Backend
from harness.backends.table import known_kinds
from harness.core.disposable import run_disposable
from harness.core.text import format_exit_code, single_line
from harness.devices import census
from harness.devices.device import Device, DeviceError, Inventory

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
    entries = census.mask_entries(backend, environ, count)
    devices = tuple(
        Device(
            uuid=f"{backend.uuid_prefixes[0]}{entries[index] if row['uuid'] is None else row['uuid']}",
            kind=backend.kind,
            name=row["name"],
            index=index,
            memory=row["memory"],
            mask_entry=entries[index],
            graphs=answer["graphs"],
            asynchronous=answer["asynchronous"],
            sparse=answer["sparse"],
            process_groups=answer["process_groups"],
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
    entry = census.mask_entries(backend, environ, count)[-1]
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
