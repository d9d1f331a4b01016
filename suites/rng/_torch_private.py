"""The undocumented or release-dependent torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch


def accelerator_default_generator(device: torch.device) -> torch.Generator:
    """Return the generator that operations on the device use by default."""
    module = torch.get_device_module(device)
    generators: Any = getattr(module, "default_generators", None)
    if generators is None:
        pytest.skip(f"torch.{device.type} has no default_generators")
    found: torch.Generator = generators[device.index]
    return found


def generic_default_generator() -> torch.Generator:
    """Return the default generator of the current device, through the accelerator-generic API."""
    getter: Any = getattr(torch._C, "_accelerator_getDefaultGenerator", None)
    if getter is None:
        pytest.skip(f"torch {torch.__version__} has no torch._C._accelerator_getDefaultGenerator")
    generator: torch.Generator = getter(torch.accelerator.current_device_index())
    return generator
