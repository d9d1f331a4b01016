"""Each case that takes `api` runs by the classes for any accelerator, and by CUDA's own where there is CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .apis import Api


@pytest.fixture(params=["generic", pytest.param("cuda", marks=pytest.mark.requires(device="cuda"))])
def api(request: pytest.FixtureRequest) -> Api:
    """The classes and functions to use."""
    from .apis import APIS  # here, since supervisors import this file and must not import torch

    return APIS[request.param]
