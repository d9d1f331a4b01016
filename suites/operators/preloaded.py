"""Imports torch's catalogue of operators before executors are forked; otherwise each takes three seconds for it.

The import checks whether there is a GPU. With a CUDA build of torch, that may initialize the driver, after which a
process must not be forked, so each executor imports the catalogue itself in this case.
"""

from __future__ import annotations

import contextlib

import pytest
import torch

from . import _torch_private

if not torch.backends.cuda.is_built():
    with contextlib.suppress(pytest.skip.Exception):  # without the catalogue, the cases skip themselves
        _torch_private.operators()
