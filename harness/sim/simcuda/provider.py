"""The provider of the simulated CUDA; see `harness.sim.native.provider`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from harness.sim.native.provider import ProvidedDevice
from harness.sim.simcuda import build, loading


def provide() -> ProvidedDevice:
    """Build the libraries unless the cache has them. Raise BuildError."""
    built = build.build_simcuda()
    facts = {**build.describe_build(), "library": str(built.folder)}
    return ProvidedDevice(str(built.operators), facts, loading.simcuda_environment(built, os.environ))


def enter(library: str) -> None:
    """Check that this executor has the simulated CUDA, which is loaded at the start of the process.

    Raise SimcudaLoadError.
    """
    loading.check_simcuda_loaded(library)


def enter_inline(library: str) -> None:
    """Check that this process has the simulated CUDA, see `enter`."""
    loading.check_simcuda_loaded(library)


def prepare(variables: Mapping[str, str]) -> None:
    """Load CUDA's libraries into this process, before it imports torch. Raise SimcudaLoadError."""
    loading.load_into_this_process(variables)
