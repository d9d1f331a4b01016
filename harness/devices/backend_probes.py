"""The probes of ``harness backend check``.

They find out in a disposable process what a run can measure on a registered device.

``python -m harness.devices.backend_probes KIND FILE`` writes one JSON object to the file, again after each probe. It
imports torch and the modules of the registration once, and makes each probe in a fork of itself, as executors are forks
of the zygote. A probe that crashes or hangs therefore affects only its own process.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.backends import accelerator
from harness.backends.backend import Backend
from harness.backends.table import BACKENDS
from harness.core.text import single_line
from harness.devices import census, guard

#: The results. Works; is missing, so that a run lacks a feature; or is wrong, so that a run would be wrong or
#: impossible.
WORKS, MISSING, WRONG = "works", "missing", "wrong"
_ELEMENTS = 1 << 16


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of one probe: one of `WORKS`, `MISSING` and `WRONG`, and what was found."""

    name: str
    state: str
    found: str


def probe_all(kind: str, tell: Callable[[list[Probed]], None]) -> list[Probed]:
    """Make all probes of one kind. `tell` gets the results so far. Stop after a device that cannot be counted."""
    results: list[Probed] = []

    def add(name: str, state: str, text: str) -> None:
        results.append(Probed(name, state, text))
        tell(results)

    backend = BACKENDS.add(kind)
    answer = census.take_census(kind, lambda _: None)
    if "error" in answer:
        broken = "import" if "import" in answer["error"] or "knows no device" in answer["error"] else "count"
        if broken == "count":
            add("import", WORKS, _imported(backend))
        add(broken, WRONG, answer["error"])
        return results
    torch = backend.import_torch()
    add("import", WRONG if answer["touched"] else WORKS, answer["touched"] or _imported(backend))
    names = ", ".join(dict.fromkeys(device["name"] for device in answer["devices"]))
    add("count", WORKS, f"{len(answer['devices'])}: {names}")
    add("mask", *_mask(backend, answer))
    threads = guard.threads_lost_in_fork()
    add("fork", WRONG if threads else WORKS, ", ".join(threads) or "no thread and no device before the fork")
    for name, probe in _PROBES.items():
        result = census.in_fork(lambda probe=probe: _answer(probe, backend, torch), None)  # type: ignore[misc]
        add(name, str(result.get("state", WRONG)), str(result.get("found", result.get("error"))))
    return results


def _imported(backend: Backend) -> str:
    return f"{', '.join(('torch', *backend.modules))}, without the use of a device"


def _mask(backend: Backend, answer: dict[str, Any]) -> tuple[str, str]:
    if backend.mask is None:
        return MISSING, "the registration names none"
    if len(answer["devices"]) < 2:
        return MISSING, f"{backend.mask} cannot be tried with one device"
    if answer["mask"] == "works":
        return WORKS, f"{backend.mask} shows one device of {len(answer['devices'])} to a fork"
    return WRONG, f"{backend.mask} does not show one device to a fork ({answer['mask']})"


def _answer(probe: Callable[[Backend, Any], tuple[str, str]], backend: Backend, torch: ModuleType) -> dict[str, Any]:
    try:
        state, text = probe(backend, torch)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
        state, text = MISSING, accelerator.brief(error)
    except Exception as error:  # noqa: BLE001
        state, text = WRONG, single_line(repr(error))
    return {"state": state, "found": text}


def _memory(backend: Backend, torch: Any) -> tuple[str, str]:
    """Copy to the device, on it, and back."""
    try:
        device = backend.first_device(torch)
        here = torch.arange(_ELEMENTS, dtype=torch.int32)
        there = torch.empty(_ELEMENTS, dtype=torch.int32, device=device)
        there.copy_(here)
        other = torch.empty(_ELEMENTS, dtype=torch.int32, device=device)
        other.copy_(there)
        backend.synchronize(torch, 0)
        back = other.cpu()
    except Exception as error:  # noqa: BLE001 - nothing runs without it
        return WRONG, accelerator.brief(error)
    if not torch.equal(back, here):
        return WRONG, f"{int((back != here).sum())} of {_ELEMENTS} elements differ after a copy there and back"
    return WORKS, f"{_ELEMENTS * 4 >> 10} KiB there and back are equal"


def _stream(backend: Backend, torch: Any) -> tuple[str, str]:
    device = backend.first_device(torch)
    stream = torch.Stream(device=device)
    before = torch.accelerator.current_stream(device)
    with stream:
        inside = torch.accelerator.current_stream(device)
        torch.zeros(8, device=device)
    stream.synchronize()
    if inside != stream or torch.accelerator.current_stream(device) != before:
        return WRONG, "`with stream:` does not change the current stream, or does not change it back"
    return WORKS, "a new stream can be made current, and waited for"


def _event(backend: Backend, torch: Any) -> tuple[str, str]:
    device = backend.first_device(torch)
    torch.zeros(1, device=device)
    begin, end = (torch.Event(device=device, enable_timing=True) for _ in range(2))
    begin.record()
    torch.zeros(_ELEMENTS, device=device)
    end.record()
    end.synchronize()
    if not end.query():
        return WRONG, "an event is not complete after its synchronize()"
    elapsed = begin.elapsed_time(end)
    if not elapsed >= 0:
        return WRONG, f"elapsed_time is {elapsed!r} ms"
    return WORKS, "an event is recorded, waited for, and has a time"


def _statistics(backend: Backend, torch: Any) -> tuple[str, str]:
    counters = backend.counters()
    if counters is None:
        return MISSING, "the registration has no counters"
    device = backend.first_device(torch)
    torch.zeros(1, device=device)
    unreadable: dict[str, str] = {}
    before = counters.read(torch, unreadable, full=False)
    held = torch.zeros(_ELEMENTS, device=device)
    after = counters.read(torch, unreadable, full=False)
    del held
    if unreadable:
        wrong = any("not a whole number" in why for why in unreadable.values())
        return WRONG if wrong else MISSING, "; ".join(dict.fromkeys(unreadable.values()))
    grown = sorted(name for name, value in after.items() if value > before.get(name, 0))
    if not grown:
        return WRONG, f"none of {', '.join(sorted(after)) or 'no counter'} grows by a new tensor"
    return WORKS, f"a new tensor is seen by {', '.join(grown)}"


def _seeds(backend: Backend, torch: Any) -> tuple[str, str]:
    device = backend.first_device(torch)
    if not callable(getattr(getattr(torch, backend.torch_type, None), "manual_seed_all", None)):
        return MISSING, f"torch.{backend.torch_type} has no manual_seed_all, and the registration no seed"
    drawn = []
    for seed in (1, 1, 2):
        backend.seed(torch, seed)
        drawn.append(torch.rand(64, device=device).cpu())
    if not torch.equal(drawn[0], drawn[1]):
        return WRONG, "the same seed gives other numbers"
    if torch.equal(drawn[0], drawn[2]):
        return WRONG, "another seed gives the same numbers"
    return WORKS, "a seed decides what torch.rand gives"


def _pinned(backend: Backend, torch: Any) -> tuple[str, str]:
    host = torch.arange(_ELEMENTS, dtype=torch.int32).pin_memory()
    if not host.is_pinned():
        return MISSING, "pin_memory() returns memory that is not pinned"
    there = host.to(backend.first_device(torch), non_blocking=True)
    backend.synchronize(torch, 0)
    if not torch.equal(there.cpu(), host):
        return WRONG, "a copy of pinned memory has other numbers"
    return WORKS, "pinned memory is allocated, and copied without blocking"


def _conjugate(backend: Backend, torch: Any) -> tuple[str, str]:
    """Copy a tensor that is only marked as conjugated. A device without a fallthrough calls itself until it crashes."""
    given = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    found = given.to(backend.first_device(torch)).conj().cpu()
    if not torch.equal(found, given.conj().resolve_conj()):
        return WRONG, f"the copy of a conjugated tensor is {found.tolist()}"
    return WORKS, "a conjugated tensor is copied as such"


def _autocast(backend: Backend, torch: Any) -> tuple[str, str]:
    x = torch.ones(4, 4, device=backend.first_device(torch))
    try:
        region = torch.autocast(backend.torch_type)
    except AssertionError as error:  # the module lacks a function
        return MISSING, accelerator.brief(error)
    with region:
        found = (x @ x).dtype
    if found.itemsize != 2:
        return MISSING, f"a product of float32 is {found} in an autocast region"
    return WORKS, f"a product of float32 is {found} in an autocast region"


def _convolution(backend: Backend, torch: Any) -> tuple[str, str]:
    device = backend.first_device(torch)
    found = torch.nn.functional.conv1d(torch.ones(1, 1, 4, device=device), torch.ones(1, 1, 2, device=device))
    if found.cpu().tolist() != [[[2.0, 2.0, 2.0]]]:
        return WRONG, f"a convolution of ones is {found.cpu().tolist()}"
    return WORKS, "a convolution has the right values"


def _sticky(backend: Backend, torch: Any) -> tuple[str, str]:
    """Find out whether a process that has used the device ends by itself, and how the device is synchronized."""
    torch.zeros(1, device=backend.first_device(torch))
    backend.synchronize(torch, 0)
    if (others := threading.active_count() - 1) > 0:
        return WORKS, f"synchronize works; the devices keep {others} Python threads"
    return WORKS, "synchronize works: the harness calls it after each case to find sticky errors"


_PROBES: dict[str, Callable[[Backend, Any], tuple[str, str]]] = {
    "memory": _memory,
    "synchronize": _sticky,
    "stream": _stream,
    "event": _event,
    "statistics": _statistics,
    "seeds": _seeds,
    "pinned": _pinned,
    "conjugate": _conjugate,
    "autocast": _autocast,
    "convolution": _convolution,
}


def crash(kind: str) -> None:
    """Use the first device, and end this process as a crash does, with work and memory left on the device."""
    backend = BACKENDS.add(kind)
    torch: Any = backend.import_torch()
    held = [torch.zeros(_ELEMENTS, device=backend.first_device(torch)) for _ in range(16)]
    assert held
    ctypes.string_at(0)  # not a raised signal, because the handler of a driver may catch it and continue


def main(arguments: list[str]) -> int:
    """Write the probes of the kind ``arguments[0]`` to the file ``arguments[1]``; or crash, if that is ``crash``."""
    kind, name = arguments
    if name == "crash":
        crash(kind)
    place = Path(name)

    def tell(results: list[Probed]) -> None:
        place.write_text(json.dumps([asdict(result) for result in results]), encoding="utf-8")

    tell(probe_all(kind, tell))
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
