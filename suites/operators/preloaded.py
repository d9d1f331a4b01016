"""Imports torch's catalogue of operators before executors are forked: each of them would take three seconds for it.

The import asks whether there is a GPU. With a CUDA build of torch that may use the driver, after which a process must
not be forked, so there each executor imports the catalogue for itself.
"""

from __future__ import annotations

import contextlib

import pytest
import torch

from . import _torch_private

if not torch.backends.cuda.is_built():
    with contextlib.suppress(pytest.skip.Exception):  # without the catalogue, the cases skip themselves
        _torch_private.operators()
