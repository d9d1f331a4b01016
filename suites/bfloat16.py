"""The devices that multiply matrices of bfloat16."""

from __future__ import annotations

import pytest

#: Older GPUs have no hardware for these products, and on some processors, mostly of virtual machines, they raise
#: SIGILL, which is not torch's fault. A software device computes on the processor.
NEEDS = {"any": [{"bf16": True}, {"not_": {"device": "cuda"}, "cpu_bf16": True}]}
BF16_PRODUCTS = pytest.mark.requires(**NEEDS)
