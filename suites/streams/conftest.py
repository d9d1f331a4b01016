"""Each case that takes `api` runs by the classes for any accelerator, and by CUDA's own where there is CUDA."""

from __future__ import annotations

import pytest

from .apis import APIS, Api


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> Api:
    """The classes and functions to use."""
    chosen: Api = request.param
    return chosen
