"""The names of torch, undocumented or not in every release, that this suite depends on. Nothing else reaches for one.

A release that lacks a name makes the case *skipped*, with the name in the reason, not failed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch


def accelerator_default_generator(device: torch.device) -> torch.Generator:
    """The generator that operations on the device draw from when they are given none."""
    module = torch.get_device_module(device)
    generators: Any = getattr(module, "default_generators", None)
    if generators is None:
        pytest.skip(f"torch.{device.type} does not show its default generators")
    found: torch.Generator = generators[device.index]
    return found


def generic_default_generator() -> torch.Generator:
    """The same, by the interface for any accelerator, of the current device."""
    getter: Any = getattr(torch._C, "_accelerator_getDefaultGenerator", None)
    if getter is None:
        pytest.skip(f"torch {torch.__version__} has no torch._C._accelerator_getDefaultGenerator")
    generator: torch.Generator = getter(torch.accelerator.current_device_index())
    return generator
