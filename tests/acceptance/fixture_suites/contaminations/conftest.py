"""Fixtures through which each case would notice changed state of the previous case."""

from __future__ import annotations

import os
import sys

import pytest
import torch


@pytest.fixture(autouse=True)
def as_it_was() -> None:
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_default_device() == torch.device("cpu")
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == "highest"
    assert "STATE_NEW" not in os.environ
    assert "/nowhere" not in sys.path
