"""The lower-precision dtypes of autocast, as parameters of cases."""

from __future__ import annotations

import pytest
import torch

#: GPUs before compute capability 8.0 have no bfloat16 matrix products. Cases with as many products or convolutions as a
#: model need `BF16_PRODUCTS` of `suites/bfloat16.py`.
BF16 = pytest.mark.requires(any=[{"bf16": True}, {"not_": {"device": "cuda"}}])

LOWER = pytest.mark.parametrize(
    "dtype", [pytest.param(torch.bfloat16, id="bf16", marks=BF16), pytest.param(torch.float16, id="fp16")]
)
#: The dtypes for cases on the host, whatever the device.
LOWER_ON_HOST = pytest.mark.parametrize(
    "dtype", [pytest.param(torch.bfloat16, id="bf16"), pytest.param(torch.float16, id="fp16")]
)


def other(dtype: torch.dtype) -> torch.dtype:
    """Return the other one of the two dtypes."""
    return torch.float16 if dtype == torch.bfloat16 else torch.bfloat16
