"""Tests that need a CUDA build of torch, and builds that tests pretend."""

from __future__ import annotations

import pytest

from harness.devices import software
from harness.devices.device import Detected

_BUILT_FOR = software.torch_cuda_version()

needs_cuda_build = pytest.mark.skipif(
    _BUILT_FOR.value is None, reason=f"needs a CUDA build of torch: {_BUILT_FOR.detail or 'there is one'}"
)


def pretend_build(monkeypatch: pytest.MonkeyPatch, cuda: Detected) -> None:
    """Let torch be built for this version of CUDA."""
    monkeypatch.setattr(software, "torch_cuda_version", lambda: cuda)
