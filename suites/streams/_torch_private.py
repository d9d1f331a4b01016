"""The names of torch, undocumented, that this suite depends on. Nothing else in the suite reaches for one.

A release that lacks a name makes the case *skipped*, with the name in the reason, not failed. (`busy` asks for
`torch.cuda._sleep` itself.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


def queue_callback(callback: Callable[[], object]) -> None:
    """Have the engine call back when the backward pass that is running ends. To be called within one."""
    engine: Any = getattr(torch.autograd.Variable, "_execution_engine", None)
    if engine is None:
        pytest.skip(f"torch {torch.__version__} has no torch.autograd.Variable._execution_engine")
    engine.queue_callback(callback)
