"""Copies from and to pageable memory, after which the host may reuse it immediately."""

from __future__ import annotations

import pytest
import torch

from ..streams.busy import POISON, TRIALS, calibrate, sleep_on

pytestmark = pytest.mark.requires(accelerator=True)

#: A few elements are passed with the launch, more elements through a staging buffer, and many in pieces.
SIZES = pytest.mark.parametrize("elements", [1, 1000, 16_384, 1_000_000, 5_000_001])


@SIZES
@pytest.mark.parametrize("non_blocking", [False, True], ids=["blocking", "non_blocking"])
def test_copy_from_pageable_memory_has_read_its_source_on_return(
    device: torch.device, elements: int, non_blocking: bool
) -> None:
    """A copy from pageable memory has read its source when it returns (CUDA stages it).

    The source is overwritten with poison right after the call, while the stream sleeps, in each of several trials.
    """
    stream = torch.Stream(device)
    source = torch.empty(elements, dtype=torch.int32)
    target = torch.empty(elements, dtype=torch.int32, device=device)
    calibrate(device)

    for value in range(1, TRIALS + 1):
        source.fill_(value)
        target.zero_()
        torch.accelerator.synchronize(device)
        sleep_on(stream)
        with stream:
            target.copy_(source, non_blocking=non_blocking)
        source.fill_(POISON)
        stream.synchronize()
        assert (target == value).all()


@SIZES
def test_copy_to_pageable_memory_is_complete_on_return(device: torch.device, elements: int) -> None:
    """A blocking copy into pageable memory returns after its delayed stream has written the values, in each trial."""
    stream = torch.Stream(device)
    target = torch.empty(elements, dtype=torch.int32)
    source = torch.empty(elements, dtype=torch.int32, device=device)
    calibrate(device)

    for value in range(1, TRIALS + 1):
        target.fill_(POISON)
        source.fill_(POISON)
        torch.accelerator.synchronize(device)
        sleep_on(stream)
        with stream:
            source.fill_(value)
            target.copy_(source)
        assert (target == value).all()


def test_item_and_tolist_wait_for_the_stream(device: torch.device) -> None:
    """`item`, `tolist` and `bool` of a tensor wait for the stream that computes it."""
    stream = torch.Stream(device)
    x = torch.empty(3, dtype=torch.int64, device=device)
    calibrate(device)

    for value in range(1, TRIALS + 1):
        x.fill_(POISON)
        torch.accelerator.synchronize(device)
        sleep_on(stream)
        with stream:
            x.fill_(value)
            read = {"item": x[1].item(), "tolist": x.tolist(), "bool": bool(x.eq(value).all()), "int": int(x[2])}
        assert read == {"item": value, "tolist": [value] * 3, "bool": True, "int": value}


def test_torch_tensor_and_as_tensor_take_the_values_at_the_call(device: torch.device) -> None:
    """`torch.tensor` and `torch.as_tensor` on the device read the values at the call; later changes have no effect."""
    import numpy as np

    stream = torch.Stream(device)
    calibrate(device)
    for value in range(1, TRIALS + 1):
        values, array = [value] * 1000, np.full(1000, value)
        sleep_on(stream)
        with stream:
            from_list = torch.tensor(values, device=device)
            from_array = torch.as_tensor(array, device=device)
            full = torch.full((1000,), value, device=device)
        array[:] = POISON
        values[:] = [POISON] * 1000
        stream.synchronize()
        assert all(bool((x == value).all()) for x in (from_list, from_array, full))
