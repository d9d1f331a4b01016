"""Builds the library of the software device at its first use, caches and loads it. ``CMakeLists.txt`` has the build.

``python -m harness.sim.softdevice.build`` builds it by hand.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.core.errors import HarnessError
from harness.sim.native import build as native
from harness.sim.native import toolchain
from harness.sim.native.build import BuildRecipe, Progress
from harness.sim.native.provider import ProvidedDevice
from harness.sim.native.toolchain import Toolchain
from harness.sim.softdevice import registration as soft

#: Paths of sources are relative to this folder, since the simulated CUDA shares some of them.
ROOT = Path(__file__).parent.parent
CSRC = Path(__file__).with_name("csrc")
#: The name of the module in the library; Python calls its function ``PyInit__softdevice``.
MODULE = "_softdevice"
PARTS = ("softdevice",)

_NOUN = "the software device"


def build_softdevice(progress: Progress | None = None, *, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the library for this interpreter and its torch. Build it if it is not in the cache.

    See `harness.sim.native.build.build_libraries`. Raise BuildError.
    """
    made = softdevice_recipe(toolchain.find_torch_toolchain(environ, _NOUN))
    return native.build_libraries(made, progress, environ=environ) / f"{MODULE}.so"


def describe_build(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return compiler and key of the library that `build_softdevice` returns, for reports. Raise BuildError."""
    tools = toolchain.find_torch_toolchain(environ, _NOUN)
    return {"compiler": tools.compiler_text, "key": native.cache_key(softdevice_recipe(tools))}


def softdevice_recipe(tools: Toolchain, root: Path = ROOT) -> BuildRecipe:
    """Return the recipe of the library for this toolchain."""
    return BuildRecipe(_NOUN, "softdevice", root, ("softdevice",), PARTS, (f"{MODULE}.so",), tools)


# Loads the software device into this process, permanently.
#
# torch has one slot (PrivateUse1) for a third-party device.

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


def provide() -> ProvidedDevice:
    """Build the library unless the cache has it. Raise BuildError."""
    library = str(build_softdevice())
    return ProvidedDevice(library, {**describe_build(), "library": library})


def enter(library: str) -> None:
    """Load the library into this executor, and use every stream once."""

    load_software_device(library)
    warm_up_devices(os.environ.get(soft.INJECT, ""))


def enter_inline(library: str) -> None:
    """Load the library into this process. Raise SoftdeviceLoadError."""

    load_software_device(library)


def prepare(variables: Mapping[str, str]) -> None:
    """Do nothing: the software device needs no variables."""


def warm_up_devices(injections: str) -> None:
    """Run one piece of work on every visible device, then free memory and reset statistics.

    One-time memory then does not look like a leak of the first case: the first use of a device starts the threads of
    all streams, each of which allocates some 35 KiB for the thread-local state of torch's libraries, and the first
    tensor makes the device's first segment.

    No faults are injected meanwhile. The faults of `injections` (syntax of `harness.sim.native.faults`) are injected
    afterwards, so that their random sequences start at the beginning.
    """
    import torch

    soft: Any = torch.soft  # type: ignore[attr-defined]
    soft.inject("")
    for index in range(soft.device_count()):
        torch.zeros(1, device=torch.device("soft", index))
        soft.synchronize(index)
    torch.accelerator.set_device_index(0)
    torch.accelerator.empty_cache()
    for index in range(soft.device_count()):
        torch.accelerator.reset_accumulated_memory_stats(index)
        torch.accelerator.reset_peak_memory_stats(index)
    soft.inject(injections)


if __name__ == "__main__":
    sys.exit(native.build_from_command_line(build_softdevice))
