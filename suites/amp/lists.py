"""The operations that autocast handles, according to torch's own lists, as parameters of cases.

The names are written out here, so that the cases are the same on every machine and release; the arguments come from
torch's lists when a case runs. `complete` returns the entries of torch's lists that this table lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from ._torch_private import operator_lists

CPU, ACCELERATOR = "cpu", "accelerator"

#: {(of, list): operations}. An operation that a list has twice is here twice.
TABLE: dict[tuple[str, str], str] = {
    (CPU, "torch_16"): """conv1d conv2d conv3d bmm mm matmul baddbmm addmm _addmm_activation addbmm conv_tbc
        conv_transpose1d conv_transpose2d conv_transpose3d prelu _native_multi_head_attention""",
    (CPU, "torch_fp32"): """poisson_nll_loss cosine_embedding_loss hinge_embedding_loss margin_ranking_loss
        triplet_margin_loss binary_cross_entropy_with_logits""",
    (CPU, "nn_16"): "linear",
    (CPU, "nn_fp32"): """avg_pool3d binary_cross_entropy reflection_pad1d nll_loss nll_loss2d l1_loss smooth_l1_loss
        mse_loss multilabel_margin_loss soft_margin_loss multi_margin_loss huber_loss""",
    (CPU, "torch_need_autocast_promote"): "cat stack",
    (CPU, "torch_expect_builtin_promote"): "eq ge gt le lt ne add div mul",
    (CPU, "methods_expect_builtin_promote"): "__eq__ __ge__ __gt__ __le__ __lt__ __ne__ __add__ __div__ __mul__",
    (ACCELERATOR, "torch_fp16"): """_convolution _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
        conv_transpose2d conv_transpose3d convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv
        addr matmul einsum mm mv chain_matmul addbmm baddbmm bmm lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell""",
    (ACCELERATOR, "torch_fp32"): """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow
        pow softmax log_softmax layer_norm rms_norm group_norm norm norm norm norm cosine_similarity poisson_nll_loss
        cosine_embedding_loss hinge_embedding_loss kl_div margin_ranking_loss triplet_margin_loss
        binary_cross_entropy_with_logits cumprod cumsum dist pdist cdist prod prod renorm sum sum logsumexp""",
    (ACCELERATOR, "nn_fp16"): "linear",
    (ACCELERATOR, "nn_fp32"): """softplus nll_loss nll_loss2d l1_loss smooth_l1_loss mse_loss multilabel_margin_loss
        soft_margin_loss multi_margin_loss""",
    (ACCELERATOR, "linalg_fp16"): "linalg_vecdot linalg_multi_dot",
    (ACCELERATOR, "methods_fp16"): "__matmul__",
    (ACCELERATOR, "methods_fp32"): "__pow__",
    (ACCELERATOR, "torch_need_autocast_promote"): """addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler
        index_put index_put tensordot scatter_add scatter_add""",
    (ACCELERATOR, "torch_expect_builtin_promote"): "eq ge gt le lt ne add div mul cat equal stack",
    (ACCELERATOR, "methods_expect_builtin_promote"): (
        "__eq__ __ge__ __gt__ __le__ __lt__ __ne__ __add__ __div__ __mul__"
    ),
    (ACCELERATOR, "banned"): "binary_cross_entropy",
}


@dataclass(frozen=True)
class Listed:
    """One entry of a list: its operation, and its index among the list's entries for that operation."""

    of: str
    list: str
    operation: str
    nth: int

    def __str__(self) -> str:
        return f"{self.list}-{self.operation}" + (f"_{self.nth}" if self.nth else "")


@dataclass(frozen=True)
class Call:
    """The call that torch lists for an entry: arguments, and the dtype of the result if the list has it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: torch.dtype | None = None


def entries(of: str, *lists: str) -> list[Listed]:
    """Return the entries of the given lists, in order."""
    found: list[Listed] = []
    for name in lists:
        seen: Counter[str] = Counter()
        for operation in TABLE[of, name].split():
            found.append(Listed(of, name, operation, seen[operation]))
            seen[operation] += 1
    return found


def complete(of: str, device: torch.device) -> list[tuple[str, str]]:
    """Return the entries that torch lists and the table lacks, as (list, operation), once per missing entry."""
    listed = Counter((name, entry[0]) for name, all_ in operator_lists(of, device).items() for entry in all_)
    here = Counter(
        (name, operation) for (group, name), text in TABLE.items() if group == of for operation in text.split()
    )
    return sorted((listed - here).elements())


def call(entry: Listed, device: torch.device, dtype: torch.dtype) -> Call:
    """Return the call that torch lists for the entry, with 16-bit floating-point arguments converted to `dtype`.

    Skip the case if this release does not list it.
    """
    listed = [row for row in operator_lists(entry.of, device).get(entry.list, []) if row[0] == entry.operation]
    if entry.nth >= len(listed):
        pytest.skip(f"torch {torch.__version__} does not list {entry}")
    row = listed[entry.nth]
    found = (
        # The list has its equation in place of the arguments, and matrices that do not match it.
        Call(("bkhd,bqhd->bqkh", *(torch.randn(2, 3, 4, 5, device=device) for _ in range(2))), {})
        if entry.operation == "einsum"
        else _read(entry, row)
    )
    return replace(found, args=lowered(found.args, dtype))


def _read(entry: Listed, row: tuple[Any, ...]) -> Call:
    """Return the call in a row of torch's lists: operation, arguments, then list-specific fields."""
    args, rest = row[1], row[2:]
    if entry.of == CPU and "promote" in entry.list:  # the result's dtype for bfloat16 arguments, then for float16
        return Call(args, {}, rest[1] if len(rest) > 1 else None)
    if rest and isinstance(rest[0], dict):
        return Call(args, rest[0])
    if rest and isinstance(rest[0], torch.dtype):
        return Call(args, {}, rest[0])
    return Call(args, {})  # the remaining fields say where torch's own tests skip it, or its module


def converted(value: Any, dtype: torch.dtype, only: Iterable[torch.dtype] = ()) -> Any:
    """Convert the floating-point tensors in a value, also in tuples and lists.

    With `only`, convert only tensors of the given dtypes.
    """
    wanted = tuple(only)
    if isinstance(value, torch.Tensor):
        change = value.is_floating_point() and (not wanted or value.dtype in wanted)
        return value.to(dtype) if change else value
    if isinstance(value, tuple | list):
        return type(value)(converted(item, dtype, wanted) for item in value)
    return value


def lowered(value: Any, dtype: torch.dtype) -> Any:
    """Return a value with its 16-bit tensors converted to `dtype`."""
    return converted(value, dtype, (torch.float16, torch.bfloat16))


def dtypes(value: Any) -> set[torch.dtype]:
    """Return the dtypes of the tensors in a result."""
    if isinstance(value, torch.Tensor):
        return {value.dtype}
    if isinstance(value, tuple | list):
        return set().union(*(dtypes(item) for item in value))
    return set()


def same(left: Any, right: Any) -> bool:
    """Return whether two results are bitwise equal, including dtypes and nesting."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, tuple | list):
        return isinstance(right, tuple | list) and len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)
