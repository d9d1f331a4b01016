"""Results that are exact in floating point, so that one lost term or one wrong bit is visible.

Whole numbers below 2^24 are exact in float32. Their sums and products are exact too, in any order of addition, if all
partial results stay below 2^24. No tolerance is needed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 17, 64, 1000, 4096])


def whole(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32, below: int = 8) -> torch.Tensor:
    """Return whole numbers from 1 to `below`, so that every lost term changes the result."""
    return torch.randint(1, below + 1, shape).to(dtype).to(device)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product of matrices by elementwise multiplication and a sum, without a matrix product kernel."""
    there = b.cpu().long()
    return torch.stack([(row.unsqueeze(-1) * there).sum(-2) for row in a.cpu().long().unbind(-2)], -2)


@SIZES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=["float32", "float64", "int64"])
def test_sum_of_whole_numbers_has_every_term(device: torch.device, size: int, dtype: torch.dtype) -> None:
    """A sum over all elements equals that of Python integers.

    The numbers have 48 bits in int64 and 40 in float64, which float32 cannot represent, and are small in float32.
    """
    below = {torch.float32: 8, torch.float64: 1 << 40, torch.int64: 1 << 48}[dtype]
    x = whole(size, device=device, dtype=dtype, below=below)

    assert x.sum().item() == sum(int(value) for value in x.cpu().tolist())


REDUCTIONS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum": lambda x, dim: x.sum(dim),
    "sum_keepdim": lambda x, dim: x.sum(dim, keepdim=True).select(dim, 0),
    "mean": lambda x, dim: x.mean(dim) * x.shape[dim],
}


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("reduce", REDUCTIONS.values(), ids=REDUCTIONS.keys())
def test_sum_and_mean_along_a_dimension_have_every_term(
    device: torch.device, dim: int, reduce: Callable[[torch.Tensor, int], torch.Tensor]
) -> None:
    """Sum and mean along each dimension equal those in Python. Sizes are powers of two, so the mean is exact."""
    x = whole(16, 32, 64, device=device)

    rows = x.cpu().movedim(dim, -1).flatten(0, 1).tolist()
    assert reduce(x, dim).flatten().tolist() == [sum(row) for row in rows]


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 4), (16, 16, 16), (33, 65, 17), (128, 64, 96)], ids=str)
def test_matmul_of_whole_numbers_is_exact(device: torch.device, shape: tuple[int, int, int]) -> None:
    """A float32 product of whole-number matrices equals the int64 product."""
    rows, inner, columns = shape
    a, b = whole(rows, inner, device=device), whole(inner, columns, device=device)

    assert torch.equal((a @ b).cpu(), product(a, b).float())


def test_bmm_baddbmm_and_addmm_of_whole_numbers_are_exact(device: torch.device) -> None:
    """`bmm`, `baddbmm` and `addmm` of whole numbers are exact."""
    a, b, c = (whole(4, *shape, device=device) for shape in ((16, 9), (9, 17), (16, 17)))
    expected = product(a, b)

    assert torch.equal(torch.bmm(a, b).cpu(), expected.float())
    assert torch.equal(torch.baddbmm(c, a, b).cpu(), (expected + c.cpu().long()).float())
    assert torch.equal(torch.addmm(c[0], a[0], b[0]).cpu(), (expected[0] + c[0].cpu().long()).float())


@pytest.mark.parametrize("size", [1, 7, 64, 1023, 4097, 100_000])
def test_to_and_back_preserves_every_byte(device: torch.device, size: int) -> None:
    """A copy to the device and back, and a clone on the device, preserve every byte."""
    data = torch.randint(0, 256, (size,), dtype=torch.uint8)

    there = data.to(device)

    assert torch.equal(there.cpu(), data)
    assert torch.equal(there.clone().cpu(), data)


@pytest.mark.parametrize("elements", [5, 1000])
@pytest.mark.types("float64")
def test_copy_of_strided_views_preserves_every_element(device: torch.device, elements: int) -> None:
    """Copies of transposed and strided views preserve each element's position, also with a dtype change."""
    data = torch.arange(elements * 6, dtype=torch.int32).reshape(elements, 6)

    transposed, stepped = data.t().to(device), data[::2, 1::2].to(device, torch.float64)
    back = torch.zeros(6, elements, dtype=torch.int64)
    back.copy_(transposed)

    assert torch.equal(transposed.cpu(), data.t())
    assert torch.equal(stepped.cpu(), data[::2, 1::2].double())
    assert torch.equal(back, data.t().long())
