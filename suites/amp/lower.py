"""The types of lower precision that autocast goes to, as parameters of cases."""

from __future__ import annotations

import pytest
import torch

#: GPUs before compute capability 8.0 lack products in bfloat16.
BF16 = pytest.mark.requires(any=[{"bf16": True}, {"not_": {"device": "cuda"}}])

#: What multiplies or convolves as much as a model does. On some processors, of virtual machines above all, that is an
#: illegal instruction, which is theirs to mend; a software device computes with the processor.
BF16_PRODUCTS = pytest.mark.requires(any=[{"bf16": True}, {"not_": {"device": "cuda"}, "cpu_bf16": True}])

LOWER = pytest.mark.parametrize(
    "dtype", [pytest.param(torch.bfloat16, id="bf16", marks=BF16), pytest.param(torch.float16, id="fp16")]
)
#: The same for cases on the host whatever the device.
LOWER_ON_HOST = pytest.mark.parametrize(
    "dtype", [pytest.param(torch.bfloat16, id="bf16"), pytest.param(torch.float16, id="fp16")]
)


def other(dtype: torch.dtype) -> torch.dtype:
    """The one of the two types that `dtype` is not."""
    return torch.float16 if dtype == torch.bfloat16 else torch.bfloat16
