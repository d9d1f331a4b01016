"""Registers OpenReg of PyTorch 2.6 with a later torch: the functions that torch expects of a device's module since 2.7.

PyTorch 2.6's module ``torch.openreg`` is an empty class. ``torch.accelerator`` calls ``device_count``, ``is_available``
and ``current_device`` there. Seeds are left out: nothing reaches the generators of the daemons.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import pytorch_openreg
import torch
from pytorch_openreg import _device_daemon

_driver = _device_daemon.driver
#: The process whose driver this is: its daemons answer no fork of it.
_owner = os.getpid()


def device_count() -> int:
    """Return how many devices the driver has. Starts no daemon."""
    return int(pytorch_openreg.NUM_DEVICES)


def is_available() -> bool:
    """Return whether there is a device."""
    return device_count() > 0


def is_initialized() -> bool:
    """Return whether the driver has started its daemons."""
    return bool(_driver.is_initialized)


def current_device() -> int:
    """Return the index of the current device."""
    return int(torch.accelerator.current_device_index())


def _is_in_bad_fork() -> bool:
    """Return whether this is a fork of a process that had started the daemons."""
    return is_initialized() and os.getpid() != _owner


def _after_fork() -> None:
    global _owner
    if not is_initialized():
        _owner = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


def _register(module: ModuleType) -> None:
    given: Any = torch.openreg  # type: ignore[attr-defined]
    given.__name__ = module.__name__  # what a child process of a case imports
    for name in ("device_count", "is_available", "is_initialized", "current_device", "_is_in_bad_fork"):
        if not hasattr(given, name):
            setattr(given, name, getattr(module, name))


_register(sys.modules[__name__])
