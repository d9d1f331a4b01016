"""Loads the software device into this process, permanently.

torch has one slot (PrivateUse1) for a third-party device.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from harness.core.errors import HarnessError
from harness.sim.softdevice.build import MODULE

NAME = "soft"

_loaded: Path | None = None


class SoftdeviceLoadError(HarnessError):
    """The software device cannot be loaded into this process."""


def load_software_device(path: str | Path) -> None:
    """Register ``torch.soft`` and the device type ``soft``. `path` is the library from `build`.

    The variables ``SOFT_...`` must be set before. A second call with the same library does nothing. Raise
    SoftdeviceLoadError if the library cannot be loaded, or if another device is registered in torch's slot.
    """
    global _loaded
    place = Path(path).absolute()
    if _loaded is not None:
        if _loaded != place:
            raise SoftdeviceLoadError(
                f"cannot load the software device from {str(place)!r}: it is loaded from {str(_loaded)!r}"
            )
        return
    import torch
    from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise SoftdeviceLoadError(
            f"cannot load the software device: the device {taken!r} uses torch's only slot (PrivateUse1)"
        )
    native = _native(place)
    try:
        native.memory()  # reads the variables
    except ValueError as error:
        raise SoftdeviceLoadError(str(error)) from None

    from harness.sim.softdevice import backend

    atexit.register(native.abandon)
    rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, backend)  # type: ignore[no-untyped-call]
    generate_methods_for_privateuse1_backend(for_storage=True)
    _loaded = place


def loaded_library() -> Path | None:
    """Return the library that `load_software_device` has loaded into this process, or None."""
    return _loaded


def _native(path: Path) -> ModuleType:
    """Load the library as a module. It is also put into ``sys.modules``, where `backend` finds it."""
    name = f"{__package__}.{MODULE}"
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise SoftdeviceLoadError(f"{str(path)!r} is not a library of the software device")
    try:
        native = importlib.util.module_from_spec(spec)
        loader.exec_module(native)
    except ImportError as error:
        raise SoftdeviceLoadError(f"{str(path)!r} cannot be loaded ({error})") from None
    sys.modules[name] = native
    return native
