"""Tensors with more elements or bytes than 31 or 32 bits can count, on devices with sufficient memory.

Each case detects an index truncated to 32 bits, since the differing elements are beyond that limit. Operations run on
the device, and the expected results are whole numbers.
"""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.requires(accelerator=True), pytest.mark.timeout(600)]

HALF_OF_32_BITS = 2**31


@pytest.mark.covers("test_cuda::TestCuda::test_arithmetic_large_tensor")
@pytest.mark.requires(free_memory=">=10GiB")
def test_arithmetic_in_place_on_a_billion_elements(device: torch.device) -> None:
    """In-place arithmetic reaches each of 2^30 elements, and their float32 sum, a power of two, is exact.

    A float32 sum would hide an omitted element, so the least and the greatest element are checked too.
    """
    x = torch.empty(2**30, device=device)

    for change, by, value in ((x.add_, 1, 2.0), (x.sub_, 0.5, 0.5), (x.mul_, 2, 2.0), (x.div_, 2, 0.5)):
        x.fill_(1)
        change(by)
        assert [each.item() for each in x.aminmax()] == [value, value]
        assert x.sum().item() == value * 2**30


@pytest.mark.covers("test_cuda::TestCuda::test_max_large_axis")
@pytest.mark.requires(free_memory=">=12GiB")
@pytest.mark.parametrize("place", [0, 2**31 - 1, 2**31, 2**32 - 1])
def test_max_and_min_along_four_billion_elements(device: torch.device, place: int) -> None:
    """`max` and `min` along 2^32 elements find the differing element, with its index, around the 31-bit limit."""
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
@pytest.mark.types("float16")
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
@pytest.mark.types("float16")
def test_avg_pool2d_at_the_end_of_31_bits(device: torch.device) -> None:
    """Pooling of 2^31 - 1 elements is correct.

    Pooling of 2^31 elements is correct or raises "out of range", and is never silently wrong.
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


# ---- sizes at which releases of torch were wrong ----

BEYOND = HALF_OF_32_BITS + 4099


@pytest.mark.requires(free_memory=">=14GiB")
@pytest.mark.types("float16")
def test_matmul_with_more_entries_than_31_bits_count(device: torch.device) -> None:
    """A product with 2^31 entries and more has each of them: entry (i, j) is i % 7 + 2 * (j % 5).

    Whole numbers up to 14 are exact in float16. Each entry is compared, some rows at a time.
    """
    rows, columns = (1 << 16) + 3, (1 << 15) + 8
    i, j = torch.arange(rows, device=device) % 7, torch.arange(columns, device=device) % 5
    a = torch.stack([i, torch.ones_like(i)], dim=1).half()
    b = torch.stack([torch.ones_like(j), 2 * j]).half()

    found = a @ b

    assert found.numel() > HALF_OF_32_BITS
    for begin in range(0, rows, 4096):
        part = found[begin : begin + 4096]
        assert torch.equal(part, (i[begin : begin + 4096, None] + 2 * j).half()), f"rows from {begin} are wrong"


@pytest.mark.requires(free_memory=">=40GiB")
def test_arange_beyond_31_bits_has_each_number(device: torch.device) -> None:
    """`arange` of more than 2^31 numbers of 64 bits has each number at its place: neighbors differ by one."""
    x = torch.arange(BEYOND, device=device)

    assert (x[0].item(), x[HALF_OF_32_BITS].item(), x[-1].item()) == (0, HALF_OF_32_BITS, BEYOND - 1)
    for begin in range(0, BEYOND, 1 << 28):
        part = x[begin : begin + (1 << 28) + 1]
        assert part[0].item() == begin
        assert (part[1:] - part[:-1] == 1).all()


@pytest.mark.requires(free_memory=">=40GiB")
def test_cumsum_beyond_31_bits_counts_each_element(device: torch.device) -> None:
    """The cumulative sum of more than 2^31 ones is their number at each place, along the first and last dimension."""
    ones = torch.ones(BEYOND, dtype=torch.int8, device=device)

    found = ones.cumsum(0)

    for begin in range(0, BEYOND, 1 << 28):
        part = found[begin : begin + (1 << 28)]
        assert torch.equal(part, torch.arange(begin + 1, begin + 1 + len(part), device=device))
    del found
    tall = ones[: BEYOND // 3 * 3].view(-1, 3)
    last = tall.cumsum(0)[-1]
    assert last.tolist() == [BEYOND // 3] * 3


@pytest.mark.requires(free_memory=">=16GiB")
@pytest.mark.parametrize("dim", [0, 1])
def test_cat_and_stack_beyond_32_bits_keep_each_element(device: torch.device, dim: int) -> None:
    """`cat` and `stack` to more than 2^32 elements keep each element; whole parts are compared."""
    columns = 1 << 16
    first = _remainders(HALF_OF_32_BITS // columns + 5, columns, device)
    second = first.neg()

    joined = torch.cat([first, second], dim=dim)
    assert joined.numel() > 2**32
    left, right = joined.chunk(2, dim=dim)
    assert torch.equal(left, first)
    assert torch.equal(right, second)
    del joined, left, right
    stacked = torch.stack([first, second], dim=dim)
    assert torch.equal(stacked.select(dim, 0), first)
    assert torch.equal(stacked.select(dim, 1), second)


def _remainders(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Return a matrix of int8 whose entry (i, j) is (i + j) % 127, without a larger intermediate matrix."""
    found = torch.empty(rows, columns, dtype=torch.int8, device=device)
    steps = torch.arange(columns, device=device)
    for row in range(0, rows, 1024):
        places = torch.arange(row, min(row + 1024, rows), device=device)
        found[row : row + 1024] = (places[:, None] + steps).remainder(127).to(torch.int8)
    return found


@pytest.mark.requires(free_memory=">=16GiB")
def test_randint_beyond_32_bits_fills_each_part(device: torch.device) -> None:
    """`randint` of more than 2^32 numbers has equal shares in each part, and no part repeats another."""
    x = torch.randint(0, 100, (2**32 + 4096,), dtype=torch.int8, device=device)
    parts = [x[begin : begin + (1 << 20)] for begin in (0, 2**31 - (1 << 19), 2**31, 2**32 - (1 << 20), 2**32 - 4096)]

    for part in parts:
        counts = torch.bincount(part.long(), minlength=100)
        assert len(counts) == 100
        mean = len(part) / 100
        assert ((counts - mean).abs() <= 6 * mean**0.5).all()
    for place, part in enumerate(parts):
        for other in parts[place + 1 :]:
            size = min(len(part), len(other))
            equal = (part[:size] == other[:size]).sum().item() / size
            if part.data_ptr() + size <= other.data_ptr():
                assert abs(equal - 0.01) <= 6 * (0.0099 / size) ** 0.5
