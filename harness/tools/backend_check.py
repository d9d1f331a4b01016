"""What a run can measure on a registered device: the probes of a disposable process, and their meanings."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.backends import accelerator
from harness.backends.backend import Backend
from harness.backends.table import BACKENDS
from harness.core.disposable import run_disposable
from harness.core.text import format_exit_code, single_line
from harness.devices import census, guard

# The probes of ``harness backend check``.
#
# They find out in a disposable process what a run can measure on a registered device.
#
# ``python -m harness.tools.backend_check KIND FILE`` writes one JSON object to the file, again after each probe. It
# imports torch and the modules of the registration once, and makes each probe in a fork of itself, as executors are
# forks of the zygote. A probe that crashes or hangs therefore affects only its own process.

#: The results. Works; is missing, so that a run lacks a feature; or is wrong, so that a run would be wrong or
#: impossible.
WORKS, MISSING, WRONG = "works", "missing", "wrong"
_ELEMENTS = 1 << 16


def probe_all(kind: str, tell: Callable[[list[Checked]], None]) -> list[Checked]:
    """Make all probes of one kind. `tell` gets the results so far. Stop after a device that cannot be counted."""
    results: list[Checked] = []

    def add(name: str, state: str, text: str) -> None:
        results.append(Checked(name, state, text))
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

    def tell(results: list[Checked]) -> None:
        place.write_text(json.dumps([asdict(result) for result in results]), encoding="utf-8")

    tell(probe_all(kind, tell))
    return 0


#: Seconds for all probes. The first import of torch may come from a network file system.
LIMIT = 300.0


@dataclass(frozen=True, slots=True)
class Meaning:
    """The effect of a probed feature on a run if present, the effect if missing, and what to implement."""

    has: str
    lacks: str
    implement: str


#: By name of a probe, in order.
MEANINGS: Mapping[str, Meaning] = {
    "import": Meaning(
        "cases are collected once, and executors are forks",
        "no run starts, or executors must collect the cases themselves (--start=cold)",
        "a package that registers the device with torch when it is imported, and first uses it for a tensor",
    ),
    "count": Meaning(
        "one worker per device with -n auto",
        "no run starts",
        "`device_count` in the device's module, or a method of a `Backend`",
    ),
    "mask": Meaning(
        "each worker has a device for itself",
        "all workers compute on the first device, in turn",
        "a variable that the driver reads when a process first uses it: Backend(mask=…)",
    ),
    "fork": Meaning(
        "a fresh process per crash costs milliseconds",
        "executors must collect the cases themselves (--start=cold)",
        "start threads at the first use of a device, not at the import",
    ),
    "memory": Meaning("cases run", "no case runs", "empty, copy_ and the copy to the CPU for torch's types"),
    "synchronize": Meaning(
        "a sticky error is attributed to its case",
        "a sticky error makes the next cases red",
        "`synchronizeDevice` in the device guard, or `synchronize` in the device's module",
    ),
    "stream": Meaning("the cases of streams run", "the cases of streams are red", "the streams of the device guard"),
    "event": Meaning("the cases of events run", "the cases of events are red", "the events of the device guard"),
    "statistics": Meaning(
        "leaks of device memory are found",
        "leaks of device memory are not found; tensors are still counted",
        "a c10::DeviceAllocator, or `counters` of a `Backend`",
    ),
    "seeds": Meaning(
        "each case has the same random numbers in each run",
        "random numbers of the device differ between runs",
        "`manual_seed_all` in the device's module, or `seed` of a `Backend`",
    ),
    "pinned": Meaning(
        "the cases of pinned memory run",
        "the cases of pinned memory are red",
        "a host allocator: `getPinnedMemoryAllocator` of the device's hooks",
    ),
    "conjugate": Meaning(
        "conjugated tensors are copied",
        "a case that copies a conjugated tensor is red, or ends its process",
        "a fallthrough of `_copy_from` for the keys Conjugate and Negative, and both marks in `_copy_from`",
    ),
    "autocast": Meaning(
        "the cases of autocast run",
        "the cases of `amp` are red",
        "`get_amp_supported_dtype` in the device's module, and operators for the key AutocastPrivateUse1",
    ),
    "convolution": Meaning(
        "the cases of convolutions run",
        "the cases of convolutions are red",
        "`convolution_overrideable` and its backward",
    ),
    "crash": Meaning(
        "the case after a crash runs on a good device",
        "a crash of one case may make the next ones red",
        "release what a process held when the driver sees its end",
    ),
}


@dataclass(frozen=True, slots=True)
class Checked:
    """One line of the report."""

    name: str
    state: str
    found: str

    @property
    def meaning(self) -> Meaning:
        return MEANINGS[self.name]

    @property
    def then(self) -> str:
        """The consequence for a run."""
        return self.meaning.has if self.state == WORKS else self.meaning.lacks


def check_backend(backend: Backend, environ: Mapping[str, str] | None = None) -> list[Checked]:
    """Make all probes. If the device cannot be counted, stop."""
    environ = os.environ if environ is None else environ
    results, ended = _probe(backend, environ)
    if ended:
        unfinished = next(name for name in MEANINGS if name not in {result.name for result in results})
        results.append(Checked(unfinished, WRONG, ended))
        return results
    if len(results) < len(MEANINGS) - 1 or any(result.name == "memory" and result.state != WORKS for result in results):
        return results
    return [*results, _after_crash(backend, environ)]


def failed(results: Sequence[Checked]) -> bool:
    """Return whether anything is wrong. A missing feature is no failure, since the device may lack it."""
    return any(result.state == WRONG for result in results)


def report_lines(results: Sequence[Checked]) -> list[str]:
    """Return the lines of the report: each probe, its meaning for a run, and what to implement."""
    lines = []
    for result in results:
        lines.append(f"{result.state:8}{result.name:12}{result.found}")
        lines.append(f"{'':20}a run: {result.then}")
        if result.state != WORKS:
            lines.append(f"{'':20}implement: {result.meaning.implement}")
    counts = ", ".join(f"{sum(probe.state == state for probe in results)} {state}" for state in (WORKS, MISSING, WRONG))
    return [*lines, f"{len(results)} of {len(MEANINGS)} probes: {counts}"]


def _probe(backend: Backend, environ: Mapping[str, str]) -> tuple[list[Checked], str]:
    """Return the results of the process with the probes, and how it ended if it did not complete them."""
    with tempfile.TemporaryDirectory(prefix="harness-probes-") as folder:
        place = Path(folder, "probes.json")
        status, errors = _start(backend, environ, str(place))
        results: list[Checked] = []
        with contextlib.suppress(OSError, ValueError):
            results = [Checked(**fields) for fields in json.loads(place.read_text(encoding="utf-8"))]
    if status == 0:
        return results, ""
    how = f"did not end within {LIMIT:.0f} s" if status is None else f"ended with {format_exit_code(status)}"
    return results, f"the process {how}{f'; last output: {errors}' if errors else ''}"


def _after_crash(backend: Backend, environ: Mapping[str, str]) -> Checked:
    """Crash a process that uses the device, then use the device in another process."""
    status, _ = _start(backend, environ, "crash")
    if status != -signal.SIGSEGV:
        how = "did not end" if status is None else f"ended with {format_exit_code(status)}"
        return Checked("crash", WRONG, f"a process that was to crash by SIGSEGV {how}")
    results, ended = _probe(backend, environ)
    after = next((result for result in results if result.name == "memory"), None)
    if after is None or after.state != WORKS:
        return Checked("crash", WRONG, f"after a crash: {ended or (after.found if after else 'no device')}")
    return Checked("crash", WORKS, "a new process copies correctly after another one has crashed")


def _start(backend: Backend, environ: Mapping[str, str], argument: str) -> tuple[int | None, str]:
    """Run the program with the probes. Return its status (None if it had to be killed) and its last error line."""
    paths = os.pathsep.join(filter(None, [*sys.path, environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "harness.tools.backend_check", backend.kind, argument]
    run = run_disposable(command, LIMIT, environ={**environ, "PYTHONPATH": paths})
    return run.status if run.in_time else None, single_line(run.last_error)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
