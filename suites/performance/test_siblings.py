"""Speed of two devices of one model, compared with each other. No hardware file is needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from ..known_answers import expected_product, integers
from ..sizes import SIZES
from .siblings import Siblings

pytestmark = [
    pytest.mark.requires(accelerator=True, devices=2),
    pytest.mark.serial,
    pytest.mark.parametrize("full", SIZES),
]


@pytest.fixture
def siblings(device: torch.device, full: bool, floors: Any, record_property: Callable[[str, object], None]) -> Siblings:
    devices = device, torch.device(device.type, 1)
    if device.type == "cuda" and len(names := {torch.cuda.get_device_name(each) for each in devices}) > 1:
        pytest.skip(f"the devices are of two models: {', '.join(sorted(names))}")
    return Siblings(devices, full, floors, record_property)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_product_is_as_fast_as_on_a_sibling(siblings: Siblings, full: bool, dtype: torch.dtype) -> None:
    """The speed of a matrix product differs by less than a fifth between two devices of one model.

    The case fails if the same device is slow twice. Each product of small integers is exact.
    """
    size = (8192 if dtype.itemsize == 2 else 4096) if full else 64
    matrices = [[integers((size, size), seed, each, dtype) for seed in (1, 2)] for each in siblings.devices]
    outs = [torch.empty(size, size, device=each, dtype=dtype) for each in siblings.devices]

    siblings(
        "product_bf16" if dtype == torch.bfloat16 else "product_fp32",
        [partial(torch.mm, a, b, out=out) for (a, b), out in zip(matrices, outs, strict=True)],
        2 * size**3,
    )

    for (a, b), out in zip(matrices, outs, strict=True):
        assert torch.equal(out, expected_product(a, b, dtype))


def test_copy_is_as_fast_as_on_a_sibling(siblings: Siblings, full: bool) -> None:
    """The bandwidth of copies within a device differs by less than a fifth between two devices of one model.

    The case fails if the same device is slow twice. The last copy is complete.
    """
    size = (1 << 30) if full else (1 << 20)
    sources = [torch.arange(size // 4, dtype=torch.int32, device=each) for each in siblings.devices]
    targets = [torch.zeros_like(each) for each in sources]

    siblings(
        "d2d_bandwidth",
        [partial(target.copy_, source) for source, target in zip(sources, targets, strict=True)],
        2 * size,
    )

    for source, target in zip(sources, targets, strict=True):
        assert torch.equal(target, source)
