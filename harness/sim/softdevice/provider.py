"""The provider of the software device; see `harness.sim.native.provider`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from harness.sim.native.provider import ProvidedDevice
from harness.sim.softdevice import build
from harness.sim.softdevice import registration as soft


def provide() -> ProvidedDevice:
    """Build the library unless the cache has it. Raise BuildError."""
    library = str(build.build_softdevice())
    return ProvidedDevice(library, {**build.describe_build(), "library": library})


def enter(library: str) -> None:
    """Load the library into this executor, and use every stream once."""
    from harness.sim.softdevice import loading, warming  # they need torch

    loading.load_software_device(library)
    warming.warm_up_devices(os.environ.get(soft.INJECT, ""))


def enter_inline(library: str) -> None:
    """Load the library into this process. Raise SoftdeviceLoadError."""
    from harness.sim.softdevice import loading

    loading.load_software_device(library)


def prepare(variables: Mapping[str, str]) -> None:
    """Do nothing: the software device needs no variables."""
