"""Products of groups, of 16-bit types with 32-bit results, and of matrices with two zeros in each four elements.

Factors are whole numbers whose sums the types hold exactly, so each result is exact, rounded at most once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ._torch_private import aten
from .oracle import Array, assert_equal, assert_within, name, tensor, types, unit

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
HALVES = types(F16, BF16)
#: An NVIDIA library computes these, without an alternative.
GPU = pytest.mark.requires(device="cuda", silicon=True)
#: Ends of the groups, one of which is empty.
ENDS = [16, 16, 40, 64]


def _whole(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-2, 3, shape).astype(np.float64)


def _groups() -> list[slice]:
    return [slice(low, high) for low, high in zip([0, *ENDS[:-1]], ENDS, strict=True)]


def _grouped(form: str, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return factors of a form, with inner sizes of at most 32, and the result."""
    if form == "rows":  # of the first matrix; each group has its own second matrix
        a, b = _whole(rng, 64, 32), _whole(rng, 4, 32, 24)
        return a, b, np.concatenate([a[rows] @ b[place] for place, rows in enumerate(_groups())])
    if form == "columns":  # of the second matrix
        a, b = _whole(rng, 4, 24, 32), _whole(rng, 32, 64)
        return a, b, np.concatenate([a[place] @ b[:, rows] for place, rows in enumerate(_groups())], 1)
    if form == "terms":  # of the sums
        a, b = _whole(rng, 24, 64), _whole(rng, 64, 40)
        return a, b, np.stack([a[:, rows] @ b[rows] for rows in _groups()])
    a, b = _whole(rng, 4, 24, 32), _whole(rng, 4, 32, 40)
    return a, b, a @ b


@pytest.mark.operator("_grouped_mm", "nn.functional.grouped_mm")
@pytest.mark.requires(
    any=[{"not_": {"accelerator": True}, "cpu_bf16": True}, {"silicon": True, "compute_capability": ">=8.0"}]
)
@pytest.mark.parametrize("columns", [False, True], ids=["in_rows", "in_columns"])
@pytest.mark.parametrize("form", ["rows", "columns", "terms", "batch"])
def test_grouped_mm_multiplies_each_group(
    device: torch.device, rng: np.random.Generator, form: str, columns: bool
) -> None:
    """Groups of rows, of columns, of terms, or a batch are each multiplied by their matrix; a group may be empty."""
    a, b, wanted = _grouped(form, rng)
    second = tensor(b, BF16, device)
    if columns:
        second = second.mT.contiguous().mT
    ends = None if form == "batch" else torch.tensor(ENDS, dtype=torch.int32, device=device)

    found = aten("_grouped_mm.default")(tensor(a, BF16, device), second, ends)

    assert found.dtype == BF16
    assert_equal(found, wanted)


@pytest.mark.operator("_scaled_grouped_mm")
@pytest.mark.requires(device="cuda", silicon=True, compute_capability=">=9.0,<10.0")
def test_scaled_grouped_mm_multiplies_each_group_of_float8(device: torch.device, rng: np.random.Generator) -> None:
    """Groups of rows of float8 matrices have a scale per row of the first and per column of each second matrix."""
    a, b = _whole(rng, 64, 32), _whole(rng, 4, 32, 48)
    rows, columns = 2.0 ** rng.integers(-2, 3, 64), 2.0 ** rng.integers(-2, 3, (4, 48))
    wanted = np.concatenate([(a[part] @ b[place]) * columns[place] for place, part in enumerate(_groups())])

    found = aten("_scaled_grouped_mm.default")(
        tensor(a, torch.float8_e4m3fn, device),
        tensor(b, torch.float8_e4m3fn, device).mT.contiguous().mT,
        tensor(rows, F32, device),
        tensor(columns, F32, device),
        torch.tensor(ENDS, dtype=torch.int32, device=device),
        out_dtype=BF16,
    )

    assert_equal(found, wanted * rows[:, None])


@pytest.mark.operator("mm", "bmm", "addmm", "baddbmm")
@GPU
@pytest.mark.requires(compute_capability=">=8.0")
@HALVES
@pytest.mark.parametrize("kind", ["mm", "bmm", "addmm", "baddbmm"])
def test_product_of_16_bits_has_results_of_32(
    device: torch.device, rng: np.random.Generator, kind: str, dtype: torch.dtype
) -> None:
    """With `out_dtype=torch.float32`, sums that the factors' type cannot hold are exact."""
    for m, k, n in ((1, 7, 3), (65, 257, 33), (128, 1024, 256)):
        batch = (3,) if kind.endswith("bmm") else ()
        a, b = (rng.integers(-7, 8, (*batch, *shape)).astype(np.float64) for shape in ((m, k), (k, n)))
        c = rng.integers(-99, 100, (*batch, m, n)).astype(np.float64)
        x, y = tensor(a, dtype, device), tensor(b, dtype, device)
        run = aten(f"{kind}.dtype")
        if "add" in kind:
            for added in (F32, dtype):
                found = run(tensor(c, added, device), x, y, F32, beta=2, alpha=3)
                assert found.dtype == F32
                assert_equal(found, 2 * c + 3 * (a @ b))
            continue
        found = run(x, y, F32)
        assert found.dtype == F32
        assert_equal(found, a @ b)


def _two_of_four(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Return whole numbers with two zeros in each four of a row."""
    found = rng.choice([-3.0, -2, -1, 1, 2, 3], (rows, columns // 4, 4))
    order = rng.random(found.shape).argsort(-1)
    return np.where(order < 2, 0, found).reshape(rows, columns)


@pytest.mark.operator("_sparse_semi_structured_mm", "_cslt_sparse_mm")
@GPU
@pytest.mark.filterwarnings("ignore:The PyTorch API of SparseSemiStructuredTensor")
@pytest.mark.parametrize(
    "library",
    [
        pytest.param("CUTLASS", marks=pytest.mark.requires(compute_capability=">=8.0,<9.0")),
        pytest.param("CUSPARSELT", marks=pytest.mark.requires(compute_capability=">=8.0")),
    ],
)
@pytest.mark.parametrize("dtype", [F16, BF16, torch.int8], ids=name)
def test_to_sparse_semi_structured_has_the_product_of_the_matrix(
    device: torch.device, rng: np.random.Generator, library: str, dtype: torch.dtype
) -> None:
    """A matrix with two zeros in each four elements is kept exactly, and its products equal those of the dense one."""
    kind: Any = getattr(torch.sparse, f"SparseSemiStructuredTensor{library}")
    if library == "CUSPARSELT" and not torch.backends.cusparselt.is_available():
        pytest.skip("this build has no cuSPARSELt")
    a, b = _two_of_four(rng, 128, 256), _whole(rng, 256, 64)
    x = kind.from_dense(tensor(a, dtype, device))

    # Second factors are column-major: for int8, cuSPARSELt has no others, and therefore no `to_dense` either.
    identity = torch.eye(a.shape[1], dtype=dtype, device=device).t()
    assert_equal(torch.mm(x, identity), a)
    second = tensor(b.T, dtype, device).t()
    found = torch.mm(x, second)
    wanted = a @ b
    assert_within(found.float(), wanted, 0 if dtype == torch.int8 else unit(dtype) * np.abs(wanted))
