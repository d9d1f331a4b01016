"""Brings the soft device into this process, once and for ever: torch has one place for a device of a third party."""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from harness.errors import HarnessError
from harness.softdevice.build import MODULE

NAME = "soft"

_loaded: Path | None = None


class LoadError(HarnessError):
    """The soft device cannot be had in this process."""


def load(path: str | Path) -> None:
    """Make ``torch.soft`` and the device type ``soft`` known; `path` is the library that `build` gave.

    The variables ``SOFT_...`` must be as they are meant to be by now. A second call with the same library does
    nothing. Raises LoadError when the library cannot be loaded, or when another device has taken the place.
    """
    global _loaded
    place = Path(path).absolute()
    if _loaded is not None:
        if _loaded != place:
            raise LoadError(f"the soft device is loaded from {str(_loaded)!r}, and cannot be from {str(place)!r} too")
        return
    import torch
    from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise LoadError(f"the device {taken!r} has taken the one place that torch has for the soft device")
    native = _native(place)
    try:
        native.memory()  # reads the variables
    except ValueError as error:
        raise LoadError(str(error)) from None

    from harness.softdevice import backend

    atexit.register(native.abandon)
    rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, backend)  # type: ignore[no-untyped-call]
    generate_methods_for_privateuse1_backend(for_storage=True)
    _loaded = place


def library() -> Path | None:
    """What `load` has loaded into this process, if anything."""
    return _loaded


def _native(path: Path) -> ModuleType:
    """The library as a module, and in ``sys.modules``, where `backend` finds it."""
    name = f"{__package__}.{MODULE}"
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise LoadError(f"{str(path)!r} is no library of the soft device")
    try:
        native = importlib.util.module_from_spec(spec)
        loader.exec_module(native)
    except ImportError as error:
        raise LoadError(f"{str(path)!r} cannot be loaded ({error})") from None
    sys.modules[name] = native
    return native
