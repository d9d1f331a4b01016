"""Operators of aten that torch's catalogue does not list, or lists in other forms: values compared with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from . import comparison, known
from ._torch_private import overload
from .comparison import Bound, WrongValueError
from .references import formats
from .single import CPU_OR_CUDA, CPU_OR_GPU, exactly, given, same

INTS = ("int64", "int32", "int16", "int8", "uint8")


@pytest.mark.operator("__lshift__", "__rshift__")
@pytest.mark.parametrize("dtype", INTS)
def test_shifts_move_bits(dtype: str, device: torch.device, rng: np.random.Generator) -> None:
    """`<<` and `>>` of tensors and numbers, also in place, lose bits beyond the type and keep the sign."""
    kind = getattr(torch, dtype)
    info = np.iinfo(dtype)
    a = rng.integers(info.min, info.max, 33, dtype, endpoint=True)
    by = rng.integers(0, info.bits, 33).astype(dtype)
    for name, run in (("lshift", np.left_shift), ("rshift", np.right_shift)):
        for other, amount in ((given(by, kind, device), by), (3, np.asarray(3, dtype))):
            form = "Tensor" if isinstance(other, torch.Tensor) else "Scalar"
            x = given(a, kind, device)
            same(overload(f"__{name}__.{form}")(x, other), run(a, amount), name)
            overload(f"__i{name}__.{form}")(x, other)
            same(x, run(a, amount), f"{name} in place")


@pytest.mark.operator("bucketize", "searchsorted")
def test_searchsorted_and_bucketize_of_a_number(device: torch.device) -> None:
    """`searchsorted` and `bucketize` return the place of one number, on both sides of equal ones."""
    edges = np.array([1.0, 2.0, 2.0, 5.0])
    x = given(edges, torch.float32, device)
    for value in (0.5, 1.0, 2.0, 3.5, 5.0, 7.0):
        for right in (False, True):
            place = np.searchsorted(edges, value, "right" if right else "left")
            for found in (
                overload("bucketize.Scalar")(value, x, right=right),
                overload("searchsorted.Scalar")(x, value, right=right),
            ):
                same(found, place, f"the place of {value}")
            whole = overload("bucketize.Scalar")(value, x, out_int32=True, right=right)
            assert whole.dtype == torch.int32
            same(whole, place, f"the place of {value}")


@pytest.mark.operator("isin")
@CPU_OR_GPU
def test_isin_of_a_number(device: torch.device) -> None:
    """`isin` tells whether a number is in a tensor, and whether each element equals a number, also inverted."""
    a = np.array([[1, 2, 3], [2, 2, 9]])
    x = given(a, torch.int64, device)
    for value in (2, 7):
        for invert in (False, True):
            one = overload("isin.Scalar_Tensor")(value, x, invert=invert)
            two = overload("isin.Tensor_Scalar")(x, value, invert=invert)
            same(one, (value in a) != invert, "isin of a number")
            same(two, (a == value) != invert, "isin of a tensor")


@pytest.mark.operator("remainder")
@CPU_OR_GPU
def test_remainder_of_a_number(device: torch.device, rng: np.random.Generator) -> None:
    """`remainder` of a number by each element has the sign of the element."""
    a = rng.integers(1, 9, 17) * rng.choice([-1, 1], 17)
    for dtype in (torch.int64, torch.int32, torch.float32, torch.float64):
        for value in (7, -7):
            same(overload("remainder.Scalar_Tensor")(value, given(a, dtype, device)), np.mod(value, a), "remainder")


@pytest.mark.operator("fill", "range", "scatter", "norm")
@pytest.mark.types("float64")
def test_overloads_of_numbers(device: torch.device, rng: np.random.Generator) -> None:
    """`fill_` takes a tensor, `range` numbers, `scatter` adds or multiplies by a number, `norm` has another type."""
    for dtype in (torch.int64, torch.int32, torch.float32, torch.float64):
        x = given(np.zeros(17), dtype, device)
        for value in (5, -3):
            overload("fill_.Tensor")(x, given(value, dtype, device))
            same(x, np.full(17, value), "fill_")
        into = torch.empty(0, dtype=dtype, device=device)
        same(overload("range.out")(2, 11, 3, out=into), np.array([2, 5, 8, 11]), "range")
        base, index = rng.integers(1, 5, (3, 4)), rng.permutation(4)[None, :2].repeat(3, 0)
        for reduce in ("add", "multiply"):
            wanted = base.copy()
            for row in range(3):
                for column in index[row]:
                    wanted[row, column] = wanted[row, column] + 3 if reduce == "add" else wanted[row, column] * 3
            where = given(index, torch.int64, device)
            target = given(base, dtype, device)
            same(overload("scatter.value_reduce")(target, 1, where, 3, reduce=reduce), wanted, "scatter")
            overload("scatter_.value_reduce")(target, 1, where, 3, reduce=reduce)
            same(target, wanted, "scatter_")
    b = rng.uniform(-1, 1, (5, 70))
    found = overload("norm.ScalarOpt_dim_dtype")(given(b, torch.float32, device), 3, [1], False, dtype=torch.float64)
    exact = (np.abs(exactly(b, torch.float32)) ** 3).sum(1) ** (1 / 3)
    assert found.dtype == torch.float64
    same(found, exact, "norm", Bound(512))


@pytest.mark.operator("native_channel_shuffle", "channel_shuffle")
@pytest.mark.types("float64")
def test_native_channel_shuffle(device: torch.device, rng: np.random.Generator) -> None:
    """Channel g * n + i of n channels per group moves to place i * groups + g."""
    for shape, groups in (((2, 6, 5, 3), 3), ((1, 8, 7), 2), ((2, 4, 1, 2, 3), 4)):
        a = rng.integers(-99, 99, shape)
        wanted = a.reshape(shape[0], groups, -1, *shape[2:]).swapaxes(1, 2).reshape(shape)
        for dtype in (torch.float32, torch.float64):
            same(overload("native_channel_shuffle.default")(given(a, dtype, device), groups), wanted, "channels")


@pytest.mark.operator("embedding_renorm_", "nn.functional.embedding")
@pytest.mark.parametrize("order", [1.0, 2.0, float("inf")])
@pytest.mark.types("float64")
def test_embedding_renorm_shortens_the_rows_that_are_read(
    order: float, device: torch.device, rng: np.random.Generator
) -> None:
    """Rows that are read and longer than `max_norm` are shortened to it, once each; all others do not change."""
    for width in (1, 5, 130):
        a = rng.uniform(-1, 1, (9, width)) * rng.uniform(0.1, 4, (9, 1))
        places = np.array([[0, 3, 3], [8, 0, 5]])
        for dtype in (torch.float32, torch.float64):
            x = given(a, dtype, device)
            overload("embedding_renorm_.default")(x, given(places, torch.int64, device), 1.5, order)
            wanted = exactly(a, dtype)
            for row in np.unique(places):
                length = np.linalg.norm(wanted[row], order)
                if length > 1.5:
                    wanted[row] *= 1.5 / (length + 1e-7)
            same(x, wanted, "rows", Bound(1024 if dtype == torch.float64 else 64))


@pytest.mark.operator("set_", "is_set_to")
def test_set_makes_a_tensor_of_other_memory(device: torch.device) -> None:
    """`set_` takes nothing, a storage, a part of it, or a tensor: each sees what is written through the other."""
    source = given(np.arange(24), torch.float32, device)
    x = torch.empty(0, device=device)
    assert not overload("is_set_to.default")(x, source)
    overload("set_.source_Storage")(x, source.untyped_storage())
    same(x, np.arange(24), "the whole storage")
    assert overload("is_set_to.default")(x, source)
    overload("set_.source_Storage_storage_offset")(x, source.untyped_storage(), 5, [3, 2], [4, 2])
    same(x, np.array([[5, 7], [9, 11], [13, 15]]), "a part")
    assert not overload("is_set_to.default")(x, source)
    x[1, 1] = -1
    same(source[11], -1, "the element that was written")
    part = source[2:8].view(2, 3)
    overload("set_.source_Tensor")(x, part)
    assert overload("is_set_to.default")(x, part)
    same(x, np.arange(2, 8).reshape(2, 3), "a tensor")
    overload("set_.default")(x)
    same(x, np.zeros(0), "nothing")
    assert x.data_ptr() == 0


@pytest.mark.operator("sparse.spdiags", "_spdiags")
@pytest.mark.requires(not_={"accelerator": True})
@pytest.mark.parametrize("shape", [(5, 5), (4, 5), (7, 5), (7, 3)], ids="{0[0]}x{0[1]}".format)
def test_spdiags_places_diagonals(
    shape: tuple[int, int], device: torch.device, rng: np.random.Generator, request: pytest.FixtureRequest
) -> None:
    """Row i of the diagonals becomes diagonal offsets[i], by columns, in a sparse matrix."""
    if shape == (7, 3):
        link = "https://github.com/pytorch/pytorch/issues/171558"
        known.waive(request, f"places elements beyond the last column ({link})", device)
    a = rng.integers(1, 9, (3, 5))
    offsets = [0, -2, 1]
    wanted = {}
    for row, offset in enumerate(offsets):
        for column in range(min(5, shape[1])):
            if 0 <= column - offset < shape[0]:
                wanted[column - offset, column] = a[row, column]

    found = overload("_spdiags.default")(
        given(a, torch.float32, device), torch.tensor(offsets), list(shape), torch.sparse_coo
    )

    places = [tuple(each) for each in formats.read(found._indices()).T.tolist()]
    if dict(zip(places, formats.read(found._values()).tolist(), strict=True)) != wanted:
        raise WrongValueError(f"spdiags of {shape}: elements at {places}, expected {sorted(wanted)}")


@pytest.mark.operator("histogramdd")
@pytest.mark.requires(not_={"accelerator": True})
def test_histogramdd_from_bin_tensors_counts(device: torch.device, rng: np.random.Generator) -> None:
    """Counts, weights and densities are in cells of unequal edges; the last edge belongs to the last cell."""
    a = np.concatenate([rng.uniform(-0.2, 1.2, (200, 2)), [[1.0, 1.0], [0.0, 0.0]]])
    edges = [np.array([0, 0.25, 0.5, 1]), np.array([0, 0.125, 1])]
    weights = rng.integers(1, 5, 202)
    x, bins = given(a, torch.float64, device), [given(each, torch.float64, device) for each in edges]
    run = overload("_histogramdd_from_bin_tensors.default")
    same(run(x, bins), np.histogramdd(a, edges)[0], "counts")
    heavy = given(weights, torch.float64, device)
    same(run(x, bins, weight=heavy), np.histogramdd(a, edges, weights=weights)[0], "weights")
    dense = np.histogramdd(a, edges, density=True)[0]
    same(run(x, bins, density=True), dense, "densities", Bound(64))


@pytest.mark.operator("unique_consecutive", "unique_dim_consecutive")
@CPU_OR_CUDA
@pytest.mark.parametrize("dim", [0, 1])
def test_unique_dim_consecutive(dim: int, device: torch.device, rng: np.random.Generator) -> None:
    """Equal consecutive slices become one, in their order, with places and counts."""
    for width in (1, 3, 40):
        rows = rng.integers(0, 2, (70, width))
        rows[10:15], rows[30:31] = rows[9], rows[29]
        groups = np.concatenate([[0], np.cumsum((rows[1:] != rows[:-1]).any(1))])
        a = rows if dim == 0 else rows.T
        first = rows[np.unique(groups, return_index=True)[1]]
        for dtype in (torch.int64, torch.float32):
            found = overload("unique_dim_consecutive.default")(given(a, dtype, device), dim, True, True)
            for each, wanted in zip(found, (first if dim == 0 else first.T, groups, np.bincount(groups)), strict=True):
                same(each, wanted, "slices")


@pytest.mark.operator("native_dropout", "nn.functional.dropout")
@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 1.0])
def test_native_dropout_scales_what_its_mask_keeps(p: float, device: torch.device, rng: np.random.Generator) -> None:
    """The result is exactly the input times the mask times 1 / (1 - p); in evaluation it is the input."""
    for size in (1, 33, 5000):
        a = exactly(rng.uniform(0.5, 1.5, size), torch.float32)
        x = given(a, torch.float32, device)
        found, mask = overload("native_dropout.default")(x, p, True)
        kept = formats.read(comparison.on_host(mask))
        assert mask.dtype == torch.bool
        same(found, a * kept * (1 / (1 - p) if p < 1 else 0), "dropout", Bound(2.01))
        if size == 5000:
            assert abs(kept.mean() - (1 - p)) <= 5 * np.sqrt(p * (1 - p) / size)
        same(overload("native_dropout.default")(x, p, False)[0], a, "dropout in evaluation")
        slope = overload("native_dropout_backward.default")(x, mask, 1.25)
        same(slope, a * kept * 1.25, "gradient of dropout", Bound(2.01))


@pytest.mark.operator("_fused_dropout", "_masked_scale")
@pytest.mark.requires(device="cuda", silicon=True)
def test_fused_dropout_scales_what_its_mask_keeps(device: torch.device, rng: np.random.Generator) -> None:
    """In CUDA's own dropout, `p` is the share that is kept; `_masked_scale` is its gradient."""
    for size in (1, 33, 70_001):
        a = exactly(rng.uniform(0.5, 1.5, size), torch.float32)
        x = given(a, torch.float32, device)
        found, mask = overload("_fused_dropout.default")(x, 0.75)
        kept = formats.read(comparison.on_host(mask)).astype(bool)
        same(found, a * kept / 0.75, "dropout", Bound(2.01))
        if size > 5000:
            assert abs(kept.mean() - 0.75) <= 5 * np.sqrt(0.75 * 0.25 / size)
        same(overload("_masked_scale.default")(x, mask, 1.5), a * kept * 1.5, "gradient of dropout", Bound(2.01))


@pytest.mark.operator("_add_relu", "_addmm_activation")
@pytest.mark.types("float64")
def test_sums_with_an_activation(device: torch.device, rng: np.random.Generator) -> None:
    """A sum, or a product and a bias, is computed with its negative elements set to zero."""
    a, b = rng.integers(-9, 10, (2, 5, 33))
    c, d = rng.integers(-3, 4, (5, 7)), rng.integers(-3, 4, (7, 33))
    for dtype in (torch.float32, torch.float64):
        x, y = given(a, dtype, device), given(b, dtype, device)
        if device.type == "cpu":
            same(overload("_add_relu.Tensor")(x, y, alpha=2), np.maximum(a + 2 * b, 0), "sum")
            same(overload("_add_relu.Scalar")(x, 3, 2), np.maximum(a + 6, 0), "sum with a number")
            z = x.clone()
            overload("_add_relu_.Tensor")(z, y)
            same(z, np.maximum(a + b, 0), "sum in place")
        bias = given(a[0], dtype, device)
        found = overload("_addmm_activation.default")(bias, given(c, dtype, device), given(d, dtype, device))
        same(found, np.maximum(a[0] + c @ d, 0), "product with a bias")


@pytest.mark.operator("aminmax")
@CPU_OR_CUDA
def test_aminmax_and_cumulative_helpers(device: torch.device, rng: np.random.Generator) -> None:
    """The smallest and largest are of all elements or along a dimension; the running ones have their places."""
    a = rng.permutation(6 * 77).reshape(6, 77)
    for dtype in (torch.float32, torch.int64):
        x = given(a, dtype, device)
        for each, wanted in zip(overload("_aminmax.default")(x), (a.min(), a.max()), strict=True):
            same(each, wanted, "aminmax")
        for each, wanted in zip(overload("_aminmax.dim")(x, 1), (a.min(1), a.max(1)), strict=True):
            same(each, wanted, "aminmax of rows")
        for name, run in (("max", np.maximum), ("min", np.minimum)):
            values, places = torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)
            overload(f"_cum{name}_helper.default")(x, values, places, 1)
            running = run.accumulate(a, 1)
            same(values, running, f"running {name}")
            wanted = [[row.tolist().index(v) for v in line] for row, line in zip(a, running, strict=True)]
            same(places, wanted, f"places of the running {name}")
    b = rng.uniform(-3, 3, (3, 77))
    found = overload("_logcumsumexp.default")(given(b, torch.float64, device), 1)
    same(found, np.log(np.cumsum(np.exp(b), 1)), "logcumsumexp", Bound(512, 0, 1e-13))


@pytest.mark.operator("_compute_linear_combination", "_chunk_cat", "stack")
@CPU_OR_CUDA
def test_combinations_and_joins(device: torch.device, rng: np.random.Generator) -> None:
    """Weighted sums of matrices, tensors side by side in padded chunks, and stacks equal NumPy's."""
    a, weights = rng.integers(-5, 6, (3, 4, 5)), rng.integers(-5, 6, (2, 3))
    for dtype in (torch.float32, torch.float64):
        x = given(a, dtype, device)
        found = overload("_compute_linear_combination.default")(x, given(weights, dtype, device))
        same(found, np.einsum("ij,jkl->ikl", weights, a), "combination")
        same(overload("_stack.default")([x[0], x[1], x[2]], 1), np.stack(list(a), 1), "stack")
    parts = [rng.integers(-99, 99, shape) for shape in ((5, 3), (4,), (2, 2, 2))]
    for chunks in (1, 2, 4):
        rows = []
        for part in parts:
            tall = -(-len(part) // chunks) * chunks
            padded = np.zeros((tall, *part.shape[1:]))
            padded[: len(part)] = part
            rows.append(padded.reshape(chunks, -1))
        for dtype in (torch.float32, torch.bfloat16):
            found = overload("_chunk_cat.default")([given(each, dtype, device) for each in parts], 0, chunks)
            same(found, np.concatenate(rows, 1), "chunks")
            into = torch.empty_like(found)
            overload("_chunk_cat.out")([given(each, dtype, device) for each in parts], 0, chunks, out=into)
            same(into, np.concatenate(rows, 1), "chunks into a tensor")
    whole = rng.integers(-99, 99, (4, 100))
    sizes = [1, 33, 0, 66]
    x = given(whole, torch.float32, device)
    for dim, values in ((1, whole), (0, whole.T)):
        wanted = np.split(values, np.cumsum(sizes)[:-1], dim)
        outs = [torch.empty(part.shape, device=device) for part in wanted]
        overload("split_with_sizes_copy.out")(x if dim else x.T, sizes, dim, out=outs)
        for out, part in zip(outs, wanted, strict=True):
            same(out, part, "a part")


@pytest.mark.operator("sparse.csr")
@CPU_OR_CUDA
def test_convert_indices_between_coo_and_csr(device: torch.device, rng: np.random.Generator) -> None:
    """Row indices convert to the starts of rows, and back with columns, in 32 and 64 bits."""
    rows, columns = np.sort(rng.integers(0, 9, 50)), rng.integers(0, 7, 50)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=11))])
    for narrow in (False, True):
        given_rows = given(rows, torch.int64, device)
        found = overload("_convert_indices_from_coo_to_csr.default")(given_rows, 11, out_int32=narrow)
        assert found.dtype == (torch.int32 if narrow else torch.int64)
        same(found, starts, "starts")
        back = overload("_convert_indices_from_csr_to_coo.default")
        both = [given(each, torch.int64, device) for each in (starts, columns)]
        same(back(*both, out_int32=narrow), np.stack([rows, columns]), "places")
        same(back(*both, out_int32=narrow, transpose=True), np.stack([columns, rows]), "places, transposed")


@pytest.mark.operator("linalg.vector_norm", "linalg__powsum")
@pytest.mark.types("float64")
def test_linalg_powsum_is_a_norm_without_its_root(device: torch.device, rng: np.random.Generator) -> None:
    """`linalg_powsum` is the sum of powers of magnitudes, of all or of some dimensions."""
    a = rng.uniform(-1, 1, (3, 5, 70))
    run: Callable[..., Any] = overload("linalg__powsum.default")
    for dtype in (torch.float32, torch.float64):
        x, exact = given(a, dtype, device), np.abs(exactly(a, dtype))
        for order in (1, 2, 3.0):
            same(run(x, order), (exact**order).sum(), "sum", Bound(600))
            same(run(x, order, [0, 2], True), (exact**order).sum((0, 2), keepdims=True), "sums", Bound(300))


@pytest.mark.operator("_assert_async")
@pytest.mark.requires(not_={"accelerator": True})
def test_assert_async_refuses_zero(device: torch.device) -> None:
    """One nonzero element passes; zero and several elements raise, with the given text."""
    for name, text in (("_assert_async.default", ()), ("_assert_async.msg", ("a reason of ours",))):
        run = overload(name)
        run(given(1, torch.int64, device), *text)
        run(given([0.5], torch.float32, device), *text)
        with pytest.raises(RuntimeError, match=text[0] if text else "Expected Tensor with single nonzero value"):
            run(given(0, torch.int64, device), *text)
        with pytest.raises(RuntimeError):
            run(given([1, 2], torch.int64, device), *text)
