"""All kinds of devices that this process knows: those of this tree, and those that are registered outside it.

A registration outside the tree is one `Backend` value: an entry point of the group ``gpu_conformance.backends``, named
after the kind, or ``BACKEND`` in a file that ``--backend`` names. A device that torch itself knows needs neither: its
name is enough. `activate` makes a kind known to this process and, through `VARIABLE`, to its child processes. An entry
point is only imported when its kind is looked up.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.backends import cuda, simcuda
from harness.backends.backend import Backend, DeviceKind
from harness.core.errors import HarnessError
from harness.core.text import single_line


class CpuBackend(Backend):
    """The CPU has no state of its own that could be initialised, seeded or counted."""

    def is_initialized(self, torch: ModuleType) -> bool:  # noqa: ARG002
        return False

    def device_count(self, torch: ModuleType) -> int:  # noqa: ARG002
        return 0

    def synchronize(self, torch: ModuleType, index: int) -> None:
        pass

    def seed(self, torch: ModuleType, seed: int) -> None:
        pass

    def empty_cache(self, torch: ModuleType) -> None:
        pass

    def properties(self, torch: ModuleType, index: int) -> Mapping[str, Any]:  # noqa: ARG002
        return {}

    def counters(self) -> None:
        return None


CPU = CpuBackend(
    kind="cpu",
    inventory="harness.devices.inventory:cpu_inventory",
    noun="the CPU",
    label="CPU",
    no_gpu="the device is the cpu",
    uuid_prefixes=("cpu",),
    hardware=False,
    implied={"devices": "==1", "device_count": "==1", "ranks": "==8"},
    ignored_meters=(),
)


#: The entry points with registrations.
GROUP = "gpu_conformance.backends"
#: The environment variable with the kinds and files in use by a process and its ancestors.
VARIABLE = "GPU_CONFORMANCE_BACKENDS"
#: The environment variable of the option ``--backend``, for commands without that option.
OPTION_VARIABLE = "HARNESS_BACKEND"

_KIND = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
#: Kinds whose UUIDs would look like those of GPUs, and names with another meaning.
_TAKEN = frozenset({"auto", "gpu", "mig", "nvml", "meta"})


class RegistrationError(HarnessError):
    """A registration of a device cannot be used."""


class BackendTable(Mapping[DeviceKind, Backend]):
    """The backends by kind, in the order of reports. A lookup of the kind of an entry point imports it."""

    def __init__(self, own: tuple[Backend, ...]) -> None:
        self._own = {backend.kind: backend for backend in own}
        self._outside: dict[DeviceKind, Backend] = {}
        self._files: dict[str, DeviceKind] = {}

    def __getitem__(self, kind: DeviceKind) -> Backend:
        if kind in self._own:
            return self._own[kind]
        if kind not in self._outside:
            if not is_kind(kind) or kind not in registered_kinds():
                raise KeyError(kind)
            self._outside[kind] = _of_entry_point(kind)
        return self._outside[kind]

    def __iter__(self) -> Iterator[DeviceKind]:
        yield from self._own
        yield from self._outside

    def __len__(self) -> int:
        return len(self._own) + len(self._outside)

    def add(self, name: str) -> Backend:
        """Add the kind `name`, or the registration in the file `name`.

        A kind without a registration is torch's own name.

        Raise RegistrationError.
        """
        if is_file(name):
            place = str(Path(name).absolute())
            if place not in self._files:
                backend = _of_file(place)
                if self.get(backend.kind) is not None:
                    raise RegistrationError(f"--backend={name!r}: the kind {backend.kind!r} is registered already")
                self._outside[backend.kind] = backend
                self._files[place] = backend.kind
            return self._outside[self._files[place]]
        if (existing := self.get(name)) is not None:
            return existing
        if not is_kind(name):
            raise RegistrationError(
                f"{name!r} is no kind of device: expected {', '.join((*self, *registered_kinds()))}"
            )
        self._outside[name] = Backend(name)
        return self._outside[name]

    def forget(self, kind: DeviceKind) -> None:
        """Remove a kind from outside the tree: for tests, and for a name that torch turns out not to know."""
        self._outside.pop(kind, None)
        self._files = {place: registered for place, registered in self._files.items() if registered != kind}


#: By kind, in the order of reports.
BACKENDS = BackendTable((cuda.BACKEND, simcuda.BACKEND, CPU))


def is_file(name: str) -> bool:
    """Return whether a word of ``--backend`` names a file, not a kind."""
    return name.endswith(".py") or os.sep in name


def is_kind(name: str) -> bool:
    """Return whether a device may have this name: a Python name in lower case that is not taken."""
    return _KIND.fullmatch(name) is not None and name not in _TAKEN


def parse_device(text: str) -> str:
    """Return a value of ``--device``: ``auto`` or a kind, which this machine need not have.

    Raise ValueError with the expected values.
    """
    if text != "auto" and not (is_kind(text) or text in BACKENDS):
        raise ValueError(f"one of auto, {', '.join(known_kinds())}, or the kind of a device that torch knows")
    return text


@functools.cache  # 15 ms
def registered_kinds() -> tuple[DeviceKind, ...]:
    """Return the kinds of the installed entry points. No entry point is imported."""
    return tuple(dict.fromkeys(sorted(point.name for point in importlib.metadata.entry_points(group=GROUP))))


def own_kinds() -> tuple[DeviceKind, ...]:
    """Return the kinds of this project, without those that other packages register."""
    entries = importlib.metadata.entry_points(group=GROUP)
    ours = {*_OWN, *(entry.name for entry in entries if entry.value.startswith("harness."))}
    return tuple(kind for kind in known_kinds() if kind in ours)


def is_known(kind: str) -> bool:
    """Return whether a condition may name that kind. Entry points are only searched for an otherwise unknown kind."""
    return kind in _OWN or kind in known_kinds()


def known_kinds() -> tuple[DeviceKind, ...]:
    """Return all kinds that are known without a query to torch."""
    outside = sorted({*BACKENDS, *registered_kinds()} - {*_OWN})
    return (*(kind for kind in _OWN if kind != CPU.kind), *outside, CPU.kind)


def activate(name: str, environ: MutableMapping[str, str] = os.environ) -> Backend:
    """Return the backend of `name`, a file or a kind, and make it known to the processes that get `environ`.

    Raise RegistrationError.
    """
    backend = BACKENDS.add(name)
    if backend.kind not in _OWN:
        word = str(Path(name).absolute()) if is_file(name) else name
        used = [entry for entry in environ.get(VARIABLE, "").split(",") if entry]
        if word not in used and not any(BACKENDS.add(entry) is backend for entry in used):
            environ[VARIABLE] = ",".join((*used, word))
    return backend


def device_variables() -> tuple[str, ...]:
    """Return all environment variables that, together with the machine, determine the devices of a process."""
    variables = (
        name for backend in BACKENDS.values() for name in (backend.mask, *backend.variables) if name is not None
    )
    return tuple(dict.fromkeys(variables))


def backend_of(uuid: str) -> Backend | None:
    """Return the kind of device that a UUID names; None for an unknown UUID, as in the journal of a newer harness.

    The longest prefix decides, since UUIDs of simulated GPUs begin like those of GPUs.
    """
    fits = [
        (len(prefix), backend.kind)
        for backend in BACKENDS.values()
        for prefix in backend.uuid_prefixes
        if uuid.startswith(prefix)
    ]
    if fits:
        return BACKENDS[max(fits)[1]]
    kind = uuid.partition("-")[0].lower()
    return BACKENDS.get(kind) if kind in registered_kinds() and uuid.startswith(f"{kind.upper()}-") else None


def is_hardware(uuid: str) -> bool:
    """Return whether a UUID names a device that processes share."""
    backend = backend_of(uuid)
    return backend is not None and backend.hardware


def names(kind: DeviceKind) -> tuple[str, ...]:
    """Return the names of a device of this kind in requirements: its kind, and the kind that torch regards it as."""
    backend = BACKENDS.get(kind)
    return (kind,) if backend is None else tuple(dict.fromkeys((kind, backend.torch_type)))


def labels(uuids: tuple[str, ...] | list[str]) -> str:
    """Return the labels of those devices that are not GPUs, for reports; empty for runs on GPUs or the CPU."""
    texts = {
        backend.label
        for uuid in uuids
        if (backend := backend_of(uuid)) is not None and backend.accelerator and backend.label
    }
    return ", ".join(sorted(texts))


def _of_entry_point(kind: DeviceKind) -> Backend:
    """Import the registration of a kind. Raise RegistrationError."""
    entry = next(point for point in importlib.metadata.entry_points(group=GROUP) if point.name == kind)
    try:
        registration = entry.load()
    except Exception as error:  # noqa: BLE001 - a package may raise anything
        raise RegistrationError(
            f"the registration of the device {kind!r}, {entry.value!r}, cannot be imported: {single_line(repr(error))}"
        ) from None
    return _checked(registration, f"the entry point {kind!r} of {GROUP}, {entry.value!r},", kind)


def _of_file(place: str) -> Backend:
    """Import the registration in a file. Raise RegistrationError."""
    name = f"_harness_backend_{Path(place).stem}"
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None or not Path(place).is_file():
        raise RegistrationError(f"--backend={place!r}: there is no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001
        del sys.modules[name]
        raise RegistrationError(f"--backend={place!r}: its import raises {single_line(repr(error))}") from None
    if not hasattr(module, "BACKEND"):
        raise RegistrationError(f"--backend={place!r}: expected a Backend named BACKEND in the file")
    return _checked(module.BACKEND, f"--backend={place!r}: BACKEND", None)


def _checked(registration: Any, where: str, kind: DeviceKind | None) -> Backend:
    """Return a registration after checks. A text is a name without a registration. Raise RegistrationError."""
    if isinstance(registration, str) and is_kind(registration):
        registration = Backend(registration)
    if not isinstance(registration, Backend):
        raise RegistrationError(f"{where} is {registration!r:.80}, expected a harness.backends.backend.Backend")
    if not is_kind(registration.kind) or (kind is None and registration.kind in _OWN):
        raise RegistrationError(
            f"{where} has the kind {registration.kind!r}: expected a new name of small letters and digits"
        )
    if kind is not None and registration.kind != kind:
        raise RegistrationError(f"{where} has the kind {registration.kind!r}, expected the name of the entry point")
    return registration


_OWN = tuple(BACKENDS)
#: Errors of registrations in `VARIABLE`. They are raised when devices are first needed.
_problems: list[RegistrationError] = []


def raise_problems() -> None:
    """Raise RegistrationError if a registration of the environment cannot be used."""
    if _problems:
        raise _problems[0]


for _name in filter(None, ",".join(os.environ.get(name, "") for name in (OPTION_VARIABLE, VARIABLE)).split(",")):
    try:
        BACKENDS.add(_name.strip())
    except RegistrationError as _error:
        _problems.append(_error)
