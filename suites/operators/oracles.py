"""The oracles that check an operator's result: one per operator, with the reason if it is not NumPy's value.

`NUMPY` is the oracle of every operator that is not in one of the tables: the operator's Python code runs in the
interpreter of `references`, which computes with NumPy in 64 bits and calls no kernel of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from . import comparison, draws, identities, nested, samples, tolerances, types
from .comparison import WrongValueError
from .references import formats, running
from .references.interpreter import Host

NUMPY = "the value that NumPy computes"
IDENTITY = "an identity that every right result satisfies"
PICKS = "values of NumPy, and indices that point to them"
STATISTICS = "the statistics of many random numbers"
DENSE = "the value that NumPy computes for the dense matrix"
SHAPES = "types and shapes alone, because the values are not defined"
NONE = "none"

#: Operators whose results are not unique.
IDENTITIES: dict[str, Callable[[Any, Any], None]] = {
    "svd": identities.svd, "linalg.svd": identities.linalg_svd, "svd_lowrank": identities.svd_lowrank,
    "pca_lowrank": identities.svd_lowrank, "linalg.eig": identities.eig, "linalg.eigvals": identities.eigvals,
    "linalg.eigh": identities.eigh, "linalg.qr": identities.qr, "qr": identities.qr, "geqrf": identities.geqrf,
    "linalg.lstsq": identities.lstsq, "linalg.lstsq.grad_oriented": identities.lstsq, "argsort": identities.argsort,
    "logcumsumexp": identities.logcumsumexp, "resize_": identities.resized, "resize_as_": identities.resized,
    "linalg.ldl_factor": identities.ldl_factor,
    "linalg.ldl_factor_ex": identities.ldl_factor, "linalg.ldl_solve": identities.ldl_solve,
}  # fmt: skip
#: Operators that return values and their indices, of which equal values have several.
PICKING = frozenset(
    {
        "sort",
        "topk",
        "kthvalue",
        "mode",
        "median",
        "nanmedian",
        "max.reduction_with_dim",
        "min.reduction_with_dim",
        "msort",
    }
)
UNDEFINED = frozenset({"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted"})
DENSELY = frozenset({"sparse.sampled_addmm", "sparse.mm.reduce", "to_sparse"})
#: Operators without an oracle, and the reason.
WITHOUT = {
    "jiterator_unary": "its kernel is given as text by the sample, and only CUDA compiles it",
    "jiterator_binary": "its kernel is given as text by the sample, and only CUDA compiles it",
    "jiterator_4inputs_with_extra_args": "its kernel is given as text by the sample, and only CUDA compiles it",
    "jiterator_binary_return_by_ref": "its kernel is given as text by the sample, and only CUDA compiles it",
    "jiterator_2inputs_2outputs": "its kernel is given as text by the sample, and only CUDA compiles it",
    "torch.ops.aten._flash_attention_forward": "only CUDA has it, and scaled_dot_product_attention calls it",
    "torch.ops.aten._efficient_attention_forward": "only CUDA has it, and scaled_dot_product_attention calls it",
}


#: Operators that write into an argument: statistics of norms, which `test_options.py` compares, and the rows of an
#: embedding, for which `test_rare.py` compares `embedding_renorm_`.
WRITING = frozenset(
    {
        *("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "nn.functional.batch_norm"),
        *("nn.functional.instance_norm", "nn.functional.embedding", "nn.functional.embedding_bag"),
    }
)


def kind(name: str) -> str:
    """Return the kind of an operator's oracle."""
    if name in WITHOUT:
        return NONE
    tables = (
        (IDENTITIES, IDENTITY),
        (PICKING, PICKS),
        (draws.DRAWS, STATISTICS),
        (DENSELY, DENSE),
        (UNDEFINED, SHAPES),
    )
    return next((found for table, found in tables if name in table), NUMPY)


def call(info: Any) -> Callable[[Any], Any]:
    """Return a function that calls an operator with (input, positional arguments, named arguments)."""
    return lambda given: info.op(given[0], *given[1], **given[2])


def verify(name: str, info: Any, sample: Any, device: torch.device) -> Any:
    """Call the operator on the device and return the result.

    Raise WrongValueError if the result is wrong, or if an argument is changed that the operator does not write.
    """
    types.skip_if_lacking(name)
    function = call(info)
    given = samples.arguments(sample)
    moved = samples.move(given, device)
    result = function(moved)
    if name not in WRITING:
        _expect_unchanged(name, given, moved)
    judge(name, function, sample, result)
    return result


def _expect_unchanged(name: str, given: Any, moved: Any) -> None:
    """Raise WrongValueError if a tensor of `moved` does not have the bits of its original."""
    for place, (before, after) in enumerate(zip(nested.leaves(given), nested.leaves(moved), strict=True)):
        if not isinstance(before, torch.Tensor) or before.layout != torch.strided:
            continue
        if before.shape != after.shape or comparison.bits(before) != comparison.bits(after):
            raise WrongValueError(f"{name}: the call changes tensor {place} of its arguments")


def judge(name: str, function: Callable[[Any], Any], sample: Any, result: Any) -> None:
    """Raise WrongValueError if `result` is wrong for the sample, whose tensors are on the host and unchanged."""
    found = kind(name)
    if found == IDENTITY:
        IDENTITIES[name](sample, result)
        return
    given = samples.arguments(sample)
    if found == DENSE:
        sparse_as_dense(name, given, result)
        return
    expected = running.run(_reference(name, function), running.on_reference(given))
    if found == SHAPES:
        _same_shapes(result, expected)
        return
    if found == PICKS and len(comparison.tensors(result)) == 2:
        identities.picks(sample, result, expected, counts=name in ("topk", "kthvalue"))
        return
    amount = tolerances.disturbance(name)

    def disturbed() -> Any:
        return running.all_disturbed(_reference(name, function), running.on_reference(given), amount)

    comparison.check(result, expected, lambda dtype: tolerances.bound(name, dtype), disturbed, name)


def _reference(name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return OWN.get(name, function)


def _same_shapes(result: Any, expected: Any) -> None:
    for one, two in zip(comparison.tensors(result), comparison.tensors(expected), strict=True):
        if one.dtype != two.dtype or one.shape != two.shape:
            raise WrongValueError(
                f"{one.dtype} of shape {tuple(one.shape)}, expected {two.dtype} of {tuple(two.shape)}"
            )


def dense(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the values of a tensor of any layout, by its indices."""
    tensor = tensor.detach().cpu()
    if tensor.layout == torch.strided:
        return formats.read(tensor)
    values = formats.read(tensor._values() if tensor.layout == torch.sparse_coo else tensor.values())
    found = np.zeros(tuple(tensor.shape), values.dtype)
    if tensor.layout == torch.sparse_coo:
        places = formats.read(tensor._indices())
        np.add.at(found, tuple(places), values)
        return found
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    starts = formats.read(tensor.crow_indices() if by_row else tensor.ccol_indices())
    other = formats.read(tensor.col_indices() if by_row else tensor.row_indices())
    tall, broad = values.shape[-2:] if values.ndim > other.ndim else (1, 1)
    for lead in np.ndindex(*starts.shape[:-1]):
        for line in range(starts.shape[-1] - 1):
            for place in range(starts[lead][line], starts[lead][line + 1]):
                row, column = (line, other[lead][place]) if by_row else (other[lead][place], line)
                found[lead][row * tall : (row + 1) * tall, column * broad : (column + 1) * broad] = values[lead][place]
    return found


def sparse_as_dense(name: str, given: Any, result: Any) -> None:
    """Raise WrongValueError if the result of an operator of sparse matrices differs from that of the dense ones."""
    x, args, named = given
    found = dense(result)
    if name == "to_sparse":
        wanted = dense(x)
    elif name == "sparse.mm.reduce":
        a, b = dense(x), dense(args[0])
        wanted = _reduced_product(a, b, args[1] if len(args) > 1 else named.get("reduce", "sum"))
    else:
        a, b = dense(args[0]), dense(args[1])
        beta, alpha = named.get("beta", 1), named.get("alpha", 1)
        mask = (
            dense(torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), torch.ones(x.values().shape), x.shape))
            != 0
        )
        wanted = (beta * dense(x) + alpha * (a @ b)) * mask
    dtype = result.dtype
    bad = comparison.excess(found, wanted, dtype, tolerances.bound(name, dtype))
    if bad.any():
        raise WrongValueError(f"{name}: {comparison.describe(found, wanted, bad)}")


def _reduced_product(a: Any, b: Any, reduce: str) -> Any:
    terms = a[:, :, None] * b[None, :, :]
    there = (a != 0)[:, :, None]
    count = np.maximum(1, there.sum(1))
    if reduce in ("sum", "mean"):
        return terms.sum(1) / (count if reduce == "mean" else 1)
    worst = -np.inf if reduce == "amax" else np.inf
    found = np.where(there, terms, worst)
    found = found.max(1) if reduce == "amax" else found.min(1)
    return np.where(np.isinf(found), 0, found)


def _tensor_split(given: Any) -> Any:
    x, args, named = given
    plain = [each.array.tolist() if isinstance(each, Host) else each for each in args]
    return torch.tensor_split(x, *[tuple(each) if isinstance(each, list) else each for each in plain], **named)


def _unchunked(given: Any) -> Any:
    x, args, named = given
    options = {key: value for key, value in named.items() if key not in ("chunking_strategy", "chunk_size", "options")}
    return torch.nn.functional.linear_cross_entropy(x, *args, **options)


#: References for operators whose Python code reads memory, or calls an operator that torch registers only for it.
OWN: dict[str, Callable[[Any], Any]] = {
    "tensor_split": _tensor_split,
    "nn.functional.linear_cross_entropy.chunked": _unchunked,
    "nn.functional.linear_cross_entropy.chunked_none": _unchunked,
}
