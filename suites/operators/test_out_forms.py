"""The overloads with `out=` of operators that the catalogue lacks: the same values as without, in any memory.

The cases of the operators without `out=` compare the values themselves with NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from . import comparison, known, lists
from ._torch_private import overload
from .comparison import WrongValueError
from .references import formats

Make = Callable[..., torch.Tensor]
#: The overload with `out=`, the overload without, and the arguments of both. A `generator` is seeded before each call.
FORMS: dict[str, tuple[str, Callable[[Make, torch.device], tuple[Any, ...]], dict[str, Any]]] = {
    "_add_relu.out": ("_add_relu.Tensor", lambda x, _: (x(3, 5), x(3, 5)), {"alpha": 2}),
    "_addmm_activation.out": ("_addmm_activation.default", lambda x, _: (x(5), x(3, 4), x(4, 5)), {}),
    "_compute_linear_combination.out": ("_compute_linear_combination.default", lambda x, _: (x(3, 4), x(2, 3)), {}),
    "_convert_indices_from_coo_to_csr.out": (
        "_convert_indices_from_coo_to_csr.default", lambda _, d: (torch.tensor([0, 0, 2, 5], device=d), 7), {}),
    "_convert_indices_from_csr_to_coo.out": (
        "_convert_indices_from_csr_to_coo.default",
        lambda _, d: (torch.tensor([0, 2, 2, 3], device=d), torch.tensor([1, 3, 0], device=d)), {}),
    "_int_mm.out": ("_int_mm.default", lambda _, d: (
        torch.arange(32 * 16, device=d).view(32, 16).to(torch.int8),
        torch.arange(16 * 24, device=d).view(16, 24).to(torch.int8)), {}),
    "_logcumsumexp.out": ("_logcumsumexp.default", lambda x, _: (x(3, 7), 1), {}),
    "_stack.out": ("_stack.default", lambda x, _: ([x(2, 3), x(2, 3)], 1), {}),
    "_slow_conv2d_forward.output": (
        "_slow_conv2d_forward.default",
        lambda x, _: (x(1, 2, 5, 6), x(3, 2, 2, 2), [2, 2], x(3), [1, 1], [1, 1]), {}),
    "slow_conv_transpose2d.out": (
        "slow_conv_transpose2d.default", lambda x, _: (x(1, 2, 4, 5), x(2, 3, 2, 2), [2, 2], x(3), [2, 2]), {}),
    "slow_conv_transpose3d.out": (
        "slow_conv_transpose3d.default",
        lambda x, _: (x(1, 2, 3, 4, 3), x(2, 3, 2, 2, 2), [2, 2, 2], x(3), [2, 2, 2]), {}),
    "_upsample_bicubic2d_aa.out": ("_upsample_bicubic2d_aa.default", lambda x, _: (x(1, 2, 7, 8), [4, 3], False), {}),
    "_upsample_lanczos2d_aa.out": ("_upsample_lanczos2d_aa.default", lambda x, _: (x(1, 2, 7, 8), [4, 3], False), {}),
    "_upsample_bicubic2d_aa_backward.grad_input": (
        "_upsample_bicubic2d_aa_backward.default", lambda x, _: (x(1, 2, 4, 3), [4, 3], [1, 2, 7, 8], False), {}),
    "_upsample_lanczos2d_aa_backward.grad_input": (
        "_upsample_lanczos2d_aa_backward.default", lambda x, _: (x(1, 2, 4, 3), [4, 3], [1, 2, 7, 8], False), {}),
    "adaptive_avg_pool2d.out": ("_adaptive_avg_pool2d.default", lambda x, _: (x(2, 3, 7, 8), [3, 2]), {}),
    "adaptive_avg_pool3d.out": ("_adaptive_avg_pool3d.default", lambda x, _: (x(2, 3, 5, 7, 8), [2, 3, 2]), {}),
    "adaptive_avg_pool3d_backward.grad_input": (
        "_adaptive_avg_pool3d_backward.default", lambda x, _: (x(2, 3, 2, 3, 2), x(2, 3, 5, 7, 8)), {}),
    "isin.Scalar_Tensor_out": ("isin.Scalar_Tensor", lambda _, d: (2, torch.arange(5, device=d)), {}),
    "isin.Tensor_Scalar_out": ("isin.Tensor_Scalar", lambda _, d: (torch.arange(5, device=d), 2), {}),
    "searchsorted.Scalar_out": ("searchsorted.Scalar", lambda _, d: (torch.arange(5.0, device=d), 2.5), {}),
    "scatter.value_reduce_out": ("scatter.value_reduce", lambda x, d: (
        x(3, 4), 1, torch.tensor([[0], [2], [1]], device=d), 3), {"reduce": "multiply"}),
    "norm.dtype_out": (
        "norm.ScalarOpt_dim_dtype", lambda x, _: (x(3, 7), 3, [1], False), {"dtype": torch.float64}),
    "normal.Tensor_float_out": ("normal.Tensor_float", lambda x, _: (x(3, 7), 2.0), {"generator": None}),
    "normal.float_Tensor_out": ("normal.float_Tensor", lambda x, _: (2.0, x(3, 7)), {"generator": None}),
    "normal.Tensor_Tensor_out": ("normal.Tensor_Tensor", lambda x, _: (x(3, 7), x(3, 7)), {"generator": None}),
    "nonzero_static.out": ("nonzero_static.default", lambda _, d: (
        torch.tensor([0, 1, 0, 2], device=d),), {"size": 3, "fill_value": -1}),
    "lerp.Tensor_out": ("lerp.Tensor", lambda x, _: (x(3, 5), x(3, 5), x(3, 5)), {}),
    "sort.values_stable": ("sort.stable", lambda _, d: (
        torch.arange(24, device=d).view(4, 6) % 5,), {"stable": True, "dim": 1, "descending": True}),
    "clamp_max.out": ("clamp_max.default", lambda x, _: (x(3, 5), 0.75), {}),
}  # fmt: skip
#: Simulated devices cannot run an operator whose first argument is a number, or whose `out` changes its shape.
_NOT_SIMULATED = frozenset({"isin.Scalar_Tensor_out", "_stack.out"})
#: The `out` of these must be contiguous; random numbers are drawn in another order if there are gaps.
_CONTIGUOUS = frozenset(
    {
        "_convert_indices_from_coo_to_csr.out",
        "_convert_indices_from_csr_to_coo.out",
        "_int_mm.out",
        "_compute_linear_combination.out",
        "normal.Tensor_float_out",
        "normal.float_Tensor_out",
        "normal.Tensor_Tensor_out",
    }
)
#: The `out` of these must have its shape: others are refused.
_KEEP_SHAPE = frozenset({"_compute_linear_combination.out", "_int_mm.out", "normal.Tensor_float_out"})
_IN_ORDER = "writes an `out` with gaps in the order of memory"
#: Deviations on the CPU.
_DEVIATE = dict.fromkeys(
    (
        "slow_conv_transpose2d.out",
        "slow_conv_transpose3d.out",
        "adaptive_avg_pool3d.out",
        "adaptive_avg_pool3d_backward.grad_input",
    ),
    _IN_ORDER,
)
#: CUDA has no such kernels.
_CPU_ONLY = frozenset(
    {"_add_relu.out", "_int_mm.out", "_upsample_lanczos2d_aa.out", "_upsample_lanczos2d_aa_backward.grad_input"}
)


def _cases(*, gaps: bool) -> list[Any]:
    found = []
    for name in FORMS:
        marks = [pytest.mark.operator(name.partition(".")[0])]
        if gaps and name in _DEVIATE:  # the simulated CUDA computes like the CPU
            marks.append(pytest.mark.requires(any=[{"not_": {"device": "cuda"}}, {"silicon": True}]))
        if name in _NOT_SIMULATED:
            marks.append(pytest.mark.requires(any=[{"not_": {"accelerator": True}}, {"silicon": True}]))
        if name in _CPU_ONLY:
            marks.append(pytest.mark.requires(not_={"accelerator": True}))
        if name == "norm.dtype_out":  # as float64
            marks.append(pytest.mark.types("float64"))
        found.append(pytest.param(name, id=name, marks=marks))
    return found


def _numbers(tensor: torch.Tensor) -> Any:
    return formats.read(comparison.on_host(tensor))


def _check(name: str, device: torch.device, seed: int, memory: Callable[[torch.Tensor, float], torch.Tensor]) -> None:
    """Compare what the overload writes into `memory(result, fill)` and returns with its sibling's results."""
    plain, arguments, named = FORMS[name]
    rng = np.random.default_rng(seed)

    def make(*shape: int) -> torch.Tensor:
        return lists.number(rng.uniform(0.25, 1, shape), torch.float32).to(device)

    given = arguments(make, device)
    call = overload(name)
    generator = torch.Generator(device)
    options = {key: generator.manual_seed(3) if key == "generator" else value for key, value in named.items()}
    results = comparison.tensors(overload(plain)(*given, **options))
    # `_compute_linear_combination` adds to the existing values.
    outs = [memory(each, int("combination" not in name)) for each in results]
    names = [each.name for each in call._schema.arguments if each.is_out]
    if "generator" in options:
        options["generator"] = generator.manual_seed(3)

    returned = comparison.tensors(call(*given, **options, **dict(zip(names, outs, strict=True))))

    for got, out, wanted in zip(returned, outs, results, strict=True):
        if got.data_ptr() != out.data_ptr():
            raise WrongValueError(f"{name}: out= is not what is returned")
        lists.check([out], [tuple(wanted.shape)], _numbers(wanted).ravel(), wanted.dtype, None, name)


@pytest.mark.parametrize("name", [each for each in _cases(gaps=True) if each.id not in _CONTIGUOUS])
def test_out_form_writes_what_the_operator_returns(
    name: str, device: torch.device, case_seed: int, request: pytest.FixtureRequest
) -> None:
    """`out=` gets the values of the overload without it, in a tensor with gaps, and is returned."""
    if name in _DEVIATE:
        known.waive(request, _DEVIATE[name], device)

    def apart(result: torch.Tensor, fill: float) -> torch.Tensor:
        return torch.full((*result.shape, 2), fill, dtype=result.dtype, device=device)[..., 0]

    _check(name, device, case_seed, apart)


@pytest.mark.parametrize("name", _cases(gaps=False))
def test_out_form_fills_a_tensor(name: str, device: torch.device, case_seed: int) -> None:
    """`out=` gets the values of the overload without it, in a tensor without gaps, and is returned."""

    def whole(result: torch.Tensor, fill: float) -> torch.Tensor:
        return torch.full_like(result, fill, memory_format=torch.contiguous_format)

    _check(name, device, case_seed, whole)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("shape", [(0,), ()], ids=["empty", "number"])
@pytest.mark.parametrize("name", [each for each in _cases(gaps=False) if each.id not in _KEEP_SHAPE])
def test_out_form_resizes_a_tensor(name: str, shape: tuple[int, ...], device: torch.device, case_seed: int) -> None:
    """`out=` of another shape gets shape and values of the overload without it, and is returned.

    torch deprecates this for a tensor with elements, and warns.
    """
    _check(name, device, case_seed, lambda result, _: torch.zeros(shape, dtype=result.dtype, device=device))
