"""Each case that takes `api` runs with the accelerator-generic classes, and with CUDA's own if CUDA is present."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .apis import Api


@pytest.fixture(params=["generic", pytest.param("cuda", marks=pytest.mark.requires(device="cuda"))])
def api(request: pytest.FixtureRequest) -> Api:
    """Return the classes and functions to use."""
    from .apis import APIS  # imported here, because supervisors import this file and must not import torch

    return APIS[request.param]
