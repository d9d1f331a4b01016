"""The dtype in which each operation runs under autocast, according to torch's own lists.

Results are compared bitwise with the same call on explicitly converted arguments outside of autocast: autocast only
converts, so no tolerance is needed. cuDNN uses deterministic algorithms, because two of its algorithms may round
differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ..bfloat16 import BF16_PRODUCTS
from ._torch_private import nn_function
from .lists import ACCELERATOR, CPU, Call, Listed, call, complete, converted, dtypes, entries, lowered, same
from .lower import LOWER, LOWER_ON_HOST

#: Deprecated names and signatures in torch's lists.
OF_OLD_NAMES = pytest.mark.filterwarnings(
    "ignore:torch.chain_matmul is deprecated", "ignore:Using torch.cross without specifying the dim arg"
)

HOST = torch.device("cpu")
ON_ACCELERATOR = pytest.mark.requires(accelerator=True, autocast=True)

#: Operations with kernels for GPUs only.
CUDNN = pytest.mark.requires(device="cuda", cudnn=True, rocm=False)
FUSED = pytest.mark.requires(device="cuda")
NEEDS = {
    "cudnn_convolution": CUDNN,
    "cudnn_convolution_transpose": CUDNN,
    "lstm_cell": FUSED,
    "gru_cell": FUSED,
    **dict.fromkeys(("_convolution", "convolution", "conv2d", "conv3d"), BF16_PRODUCTS),
    "rms_norm": pytest.mark.requires(torch=">=2.13"),
}


@pytest.fixture
def steady(device: torch.device) -> Iterator[None]:
    """Make cuDNN, on a GPU, use deterministic algorithms without benchmarking."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield


def parameters(of: str, *lists: str) -> Any:
    """Return the lists' entries as parameters, with marks for those that need more than an accelerator."""
    return pytest.mark.parametrize(
        "entry",
        [pytest.param(entry, id=str(entry), marks=NEEDS.get(entry.operation, ())) for entry in entries(of, *lists)],
    )


def forms(entry: Listed) -> dict[str, Callable[..., Any]]:
    """Return the variants of an operation in torch: as a function and as a tensor method."""
    found: dict[str, Callable[..., Any]] = {}
    if entry.list.startswith("nn_") or entry.list == "banned":
        found["function"] = nn_function(entry.operation)
    elif entry.list.startswith("linalg_"):
        found["function"] = getattr(torch.linalg, entry.operation.removeprefix("linalg_"))
    elif not entry.list.startswith("methods_") and hasattr(torch, entry.operation):
        found["function"] = getattr(torch, entry.operation)
    if hasattr(torch.Tensor, entry.operation):
        found["method"] = lambda first, *rest, **kwargs: getattr(first, entry.operation)(*rest, **kwargs)
    assert found, f"torch has neither a function nor a method {entry.operation}"
    return found


def check(
    entry: Listed, listed: Call, device: torch.device, dtype: torch.dtype, runs_in: torch.dtype, gives: torch.dtype
) -> None:
    """Check that each variant of the call under autocast with `dtype` returns tensors of dtype `gives`.

    They must equal those of the call on arguments of dtype `runs_in` outside of autocast.
    """
    for form, function in forms(entry).items():
        with torch.autocast(device.type, dtype=dtype):
            inside = function(*listed.args, **listed.kwargs)
        by_hand = function(*converted(listed.args, runs_in), **listed.kwargs)

        assert dtypes(inside) in ({gives}, set()), f"{form}: {dtypes(inside)} instead of {gives}"
        assert same(inside, by_hand), f"{form}: {inside} instead of {by_hand}"


# ---- lower precision ----


@OF_OLD_NAMES
@LOWER_ON_HOST
@parameters(CPU, "torch_16", "nn_16")
def test_autocast_on_the_cpu_lower_precision(entry: Listed, dtype: torch.dtype) -> None:
    """On the CPU, operations of the lower-precision lists return the autocast dtype for float32 arguments."""
    check(entry, call(entry, HOST, dtype), HOST, dtype, runs_in=dtype, gives=dtype)


@pytest.mark.covers(
    "test_cuda::TestCuda::test_autocast_torch_fp16",
    "test_cuda::TestCuda::test_autocast_torch_bf16",
    "test_cuda::TestCuda::test_autocast_nn_fp16",
    "test_cuda::TestCuda::test_autocast_nn_bf16",
    "test_cuda::TestCuda::test_autocast_linalg_fp16",
    "test_cuda::TestCuda::test_autocast_methods_fp16",
)
@OF_OLD_NAMES
@ON_ACCELERATOR
@pytest.mark.usefixtures("steady")
@LOWER
@parameters(ACCELERATOR, "torch_fp16", "nn_fp16", "linalg_fp16", "methods_fp16")
def test_autocast_on_an_accelerator_lower_precision(device: torch.device, entry: Listed, dtype: torch.dtype) -> None:
    """On an accelerator, operations of the lower-precision lists return the autocast dtype for float32 arguments."""
    check(entry, call(entry, device, dtype), device, dtype, runs_in=dtype, gives=dtype)


# ---- float32 ----


@LOWER_ON_HOST
@parameters(CPU, "torch_fp32", "nn_fp32")
def test_autocast_on_the_cpu_float32(entry: Listed, dtype: torch.dtype) -> None:
    """On the CPU, operations of the float32 lists compute and return float32 for arguments of the autocast dtype."""
    check(entry, call(entry, HOST, dtype), HOST, dtype, runs_in=torch.float32, gives=torch.float32)


@pytest.mark.covers(
    "test_cuda::TestCuda::test_autocast_torch_fp32",
    "test_cuda::TestCuda::test_autocast_nn_fp32",
    "test_cuda::TestCuda::test_autocast_methods_fp32",
)
@ON_ACCELERATOR
@pytest.mark.usefixtures("steady")
@LOWER
@parameters(ACCELERATOR, "torch_fp32", "nn_fp32", "methods_fp32")
def test_autocast_on_an_accelerator_float32(device: torch.device, entry: Listed, dtype: torch.dtype) -> None:
    """On an accelerator, operations of the float32 lists compute float32 for arguments of the autocast dtype."""
    check(entry, call(entry, device, dtype), device, dtype, runs_in=torch.float32, gives=torch.float32)


# ---- the widest dtype ----


@LOWER_ON_HOST
@parameters(CPU, "torch_need_autocast_promote")
def test_autocast_on_the_cpu_promotes_to_the_widest_type(entry: Listed, dtype: torch.dtype) -> None:
    """On the CPU, operations of the promotion list run in float32 if an argument is, else in the autocast dtype."""
    listed = call(entry, HOST, dtype)

    check(entry, listed, HOST, dtype, runs_in=torch.float32, gives=torch.float32)
    check(entry, Call(converted(listed.args, dtype), listed.kwargs), HOST, dtype, runs_in=dtype, gives=dtype)


@pytest.mark.covers("test_cuda::TestCuda::test_autocast_torch_need_autocast_promote")
@OF_OLD_NAMES
@ON_ACCELERATOR
@pytest.mark.usefixtures("steady")
@LOWER
@parameters(ACCELERATOR, "torch_need_autocast_promote")
def test_autocast_on_an_accelerator_promotes_to_the_widest_type(
    device: torch.device, entry: Listed, dtype: torch.dtype
) -> None:
    """On an accelerator, operations of the promotion list run in float32 if an argument is, else in the lower dtype."""
    listed = call(entry, device, dtype)
    check(entry, listed, device, dtype, runs_in=torch.float32, gives=torch.float32)

    for form, function in forms(entry).items():
        with torch.autocast(device.type, dtype=dtype):
            narrow = function(*converted(listed.args, dtype), **listed.kwargs)
        assert dtypes(narrow) == {dtype}, form


def check_builtin(entry: Listed, device: torch.device, dtype: torch.dtype) -> None:
    """Check that the call gives the same with and without autocast, with the dtype that torch lists."""
    listed = call(entry, device, dtype)
    for form, function in forms(entry).items():
        with torch.autocast(device.type, dtype=dtype):
            inside = function(*listed.args, **listed.kwargs)
        outside = function(*listed.args, **listed.kwargs)

        assert dtypes(inside) in ({listed.result}, set()), form
        assert same(inside, outside), form


@LOWER_ON_HOST
@parameters(CPU, "torch_expect_builtin_promote", "methods_expect_builtin_promote")
def test_autocast_on_the_cpu_leaves_promotion_to_the_operation(entry: Listed, dtype: torch.dtype) -> None:
    """On the CPU, an operation that promotes its arguments itself does the same under autocast."""
    check_builtin(entry, HOST, dtype)


@pytest.mark.covers(
    "test_cuda::TestCuda::test_autocast_torch_expect_builtin_promote",
    "test_cuda::TestCuda::test_autocast_methods_expect_builtin_promote",
)
@ON_ACCELERATOR
@pytest.mark.usefixtures("steady")
@LOWER
@parameters(ACCELERATOR, "torch_expect_builtin_promote", "methods_expect_builtin_promote")
def test_autocast_on_an_accelerator_leaves_promotion_to_the_operation(
    device: torch.device, entry: Listed, dtype: torch.dtype
) -> None:
    """On an accelerator, an operation that promotes its arguments itself does the same under autocast.

    If it does not support mixed arguments, autocast converts them to the common dtype.
    """
    check_builtin(entry, device, dtype)


# ---- banned ----


@pytest.mark.covers("test_cuda::TestCuda::test_autocast_banned")
@ON_ACCELERATOR
@pytest.mark.usefixtures("steady")
@parameters(ACCELERATOR, "banned")
def test_autocast_on_an_accelerator_refuses_banned_operations(device: torch.device, entry: Listed) -> None:
    """A banned operation raises RuntimeError under autocast, names a replacement, and works with autocast disabled."""
    listed = call(entry, device, torch.float16)
    (function,) = forms(entry).values()

    with torch.autocast(device.type, dtype=torch.float16):
        with pytest.raises(RuntimeError, match="with_logits"):
            function(*listed.args)
        with torch.autocast(device.type, enabled=False):
            assert function(*listed.args).isfinite().all()


# ---- the lists themselves ----


@pytest.mark.requires(torch=">=2.11")
@pytest.mark.parametrize("of", [CPU, ACCELERATOR])
def test_autocast_lists_of_torch_are_complete(of: str) -> None:
    """Every operation in torch's lists has a case in this suite."""
    assert complete(of, torch.device("cpu")) == []


def test_autocast_lists_arguments_are_lowered() -> None:
    """`lowered` converts a call's 16-bit tensors to the requested dtype, and no others."""
    args = ([torch.ones(1, dtype=torch.float16)], torch.ones(1), torch.ones(1, dtype=torch.int64), 2.0, "sum")

    found = lowered(args, torch.bfloat16)

    assert [found[0][0].dtype, *(item.dtype for item in found[1:3])] == [torch.bfloat16, torch.float32, torch.int64]
    assert found[3:] == (2.0, "sum")
