"""Tensors with more elements or bytes than 31 or 32 bits can count, on devices with sufficient memory.

Each case detects an index truncated to 32 bits: the differing elements are beyond that limit. Operations run on the
device, and the expected results are whole numbers.
"""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.requires(device="cuda"), pytest.mark.timeout(600)]

HALF_OF_32_BITS = 2**31


@pytest.mark.covers("test_cuda::TestCuda::test_arithmetic_large_tensor")
@pytest.mark.requires(free_memory=">=10GiB")
def test_arithmetic_in_place_on_a_billion_elements(device: torch.device) -> None:
    """In-place arithmetic reaches each of 2^30 elements, and their float32 sum, a power of two, is exact."""
    x = torch.empty(2**30, device=device)

    assert x.fill_(1).sum().item() == 2**30
    assert x.add_(1).sum().item() == 2**31
    assert x.fill_(1).sub_(0.5).sum().item() == 2**29
    assert x.fill_(1).mul_(2).sum().item() == 2**31
    assert x.fill_(1).div_(2).sum().item() == 2**29


@pytest.mark.covers("test_cuda::TestCuda::test_max_large_axis")
@pytest.mark.requires(free_memory=">=12GiB")
@pytest.mark.parametrize("place", [0, 2**31 - 1, 2**31, 2**32 - 1])
def test_max_and_min_along_four_billion_elements(device: torch.device, place: int) -> None:
    """`max` and `min` along 2^32 elements find the one that differs, with its index, around the 31-bit limit."""
    x = torch.zeros(2**32, device=device, dtype=torch.int8)
    x[place] = 1
    found = x.max(0)
    assert (found.values.item(), found.indices.item()) == (1, place)
    x[place] = -1
    found = x.min(0)
    assert (found.values.item(), found.indices.item()) == (-1, place)
    x[place] = 0
    assert not x.any().item()


@pytest.mark.covers("test_cuda::TestCuda::test_huge_index")
@pytest.mark.requires(free_memory=">=18GiB")
def test_indexing_rows_of_a_large_table(device: torch.device) -> None:
    """Indexing a table of 15 million rows of 45 integers (5.4 GB) by a permutation moves every row correctly.

    Each element encodes its row and column, so no copy on the host is needed.
    """
    rows, columns = 15_000_000, 45
    table = torch.arange(rows * columns, device=device).view(rows, columns)
    order = torch.randperm(rows, device=device)

    found = table[order]

    for column in (0, 22, 44):
        assert torch.equal(found[:, column], order * columns + column)
    sample = torch.randint(rows, (1000,))
    assert torch.equal(found[sample.to(device)].cpu(), order.cpu()[sample, None] * columns + torch.arange(columns))


@pytest.mark.covers("test_cuda::TestCuda::test_cuda_kernel_loop_overflow")
@pytest.mark.requires(free_memory=">=14GiB")
def test_avg_pool2d_loops_beyond_a_billion_elements(device: torch.device) -> None:
    """Pooling of 2^30 + 1 elements with size one is the identity: the kernel's grid-stride loop does not overflow."""
    x = torch.zeros(1, 1, 1, 2**30 + 1, dtype=torch.float16, device=device)
    marks = {0: 1.0, 2**29: 2.0, 2**30 - 1: 3.0, 2**30: 4.0}
    for place, value in marks.items():
        x[0, 0, 0, place] = value

    y = torch.nn.functional.avg_pool2d(x, kernel_size=1)

    assert {place: y[0, 0, 0, place].item() for place in marks} == marks
    assert y.count_nonzero().item() == len(marks)


@pytest.mark.covers("test_cuda::TestCuda::test_cuda_kernel_loop_overflow_large")
@pytest.mark.requires(free_memory=">=12GiB")
def test_avg_pool2d_at_the_end_of_31_bits(device: torch.device) -> None:
    """Pooling of 2^31 - 1 elements is correct.

    Of 2^31 it is correct or raises "out of range", and is never silently wrong.
    """
    x = torch.zeros(1, 1, 1, HALF_OF_32_BITS - 1, dtype=torch.float16, device=device)
    x[..., -1] = 5
    y = torch.nn.functional.avg_pool2d(x, kernel_size=1)
    assert y[0, 0, 0, -1].item() == 5
    y[..., -1] = 0
    assert not y.any().item()
    del x, y

    x = torch.zeros(1, 1, 1, HALF_OF_32_BITS, dtype=torch.float16, device=device)
    x[..., -1] = 5
    refused = pytest.RaisesExc(RuntimeError, match="out of range")
    try:
        y = torch.nn.functional.avg_pool2d(x, kernel_size=1)
    except RuntimeError as error:
        if not refused.matches(error):
            raise
        return
    assert y[0, 0, 0, -1].item() == 5
    y[..., -1] = 0
    assert not y.any().item()


@pytest.mark.covers("test_cuda::TestCuda::test_cuda_opaque_type")
@pytest.mark.requires(free_memory=">=20GiB")
def test_where_among_600_million_elements(device: torch.device) -> None:
    """`where` with 600 million int32 elements, 2.4 GB per operand, takes each element from the selected operand."""
    size = 600_000_000
    x = torch.arange(size, dtype=torch.int32, device=device)

    found = torch.where(x % 2 == 0, x, -x)

    assert torch.equal(found.abs(), x)
    assert found[-4:].tolist() == [size - 4, -(size - 3), size - 2, -(size - 1)]
    # Each pair of an even number and the next odd one sums to minus one.
    assert found.sum(dtype=torch.int64).item() == -size // 2


@pytest.mark.requires(free_memory=">=22GiB")  # the sum of int8 as int64 makes a copy of 16 GiB
@pytest.mark.parametrize("operation", ["clone", "flip", "cat", "cumsum", "compare"])
def test_elements_beyond_31_bits_are_reached(device: torch.device, operation: str) -> None:
    """Pointwise operations, copies and scans reach int8 elements beyond 2^31."""
    size = HALF_OF_32_BITS + 1000
    x = torch.zeros(size, dtype=torch.int8, device=device)
    x[-1], x[HALF_OF_32_BITS] = 3, 2

    if operation == "clone":
        found = x.clone()
    elif operation == "flip":
        found = x.flip(0)
        assert found[0].item() == 3
        assert found[999].item() == 2
    elif operation == "cat":
        found = torch.cat([x[:7], x[7:]])
    elif operation == "cumsum":
        found = x.cumsum(0, dtype=torch.int8)
        assert (found[HALF_OF_32_BITS - 1].item(), found[HALF_OF_32_BITS].item(), found[-1].item()) == (0, 2, 5)
        return
    else:
        found = x == 0
        assert found.logical_not().nonzero().flatten().tolist() == [HALF_OF_32_BITS, size - 1]
        return
    assert found.sum(dtype=torch.int64).item() == 5
    if operation != "flip":
        assert (found[HALF_OF_32_BITS].item(), found[-1].item()) == (2, 3)
