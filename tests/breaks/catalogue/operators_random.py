"""Breaks of operators that were drawn at random: an overload and an error, each for a part of its inputs."""

from __future__ import annotations

from typing import Any

from tests.breaks.kernels import KernelTheme, result, torch_, waves

broken = KernelTheme()

_SIZES, _VARIANTS, _GRADIENTS, _OVERLOADS, _VALUES = (
    f"suites/operators/test_{name}.py::test_{case}"
    for name, case in (
        ("sizes", "magnitudes"),
        ("variants", "inplace"),
        ("gradients", "gradients"),
        ("overloads", "overloads"),
        ("values", "values"),
    )
)
_EXTREMES, _MORE = "suites/operators/test_sizes.py::test_extremes", f"{_GRADIENTS}_of_more_samples"


def _large_off(x: Any, *_: Any, **__: Any) -> Any:
    return torch_().where(x.abs() > 30, x * 1.01, x) if x.is_floating_point() else x


def _without_tail(x: Any, *_: Any, **__: Any) -> Any:
    """Return the tensor with 0 as its last element, if the number of elements is not a multiple of 16."""
    found = x.clone()
    if x.numel() > 16 and x.numel() % 16:
        found[(-1,) * found.dim()] = 0
    return found


def _as_it_lies(kernel: Any, x: Any) -> Any:
    """Compute in place in the order of memory, as if the tensor had no gaps."""
    size = x.untyped_storage().nbytes() // x.element_size()
    if x.is_contiguous() or x.storage_offset() + x.numel() > size:
        return kernel(x)
    kernel(x.as_strided((x.numel(),), (1,), x.storage_offset()))
    return x


def _nothing_for_nan(x: Any, *_: Any, **__: Any) -> Any:
    return torch_().where(x.isnan(), torch_().zeros_like(x), x) if x.is_floating_point() else x


for _name, _operator, _shows in (
    ("sub", "sub.Tensor", lambda: torch_().tensor([50.0]) - torch_().tensor([1.0])),
    ("sinh", "sinh", lambda: torch_().tensor([6.0]).sinh()),
    ("square_root", "sqrt", lambda: torch_().tensor([4096.0]).sqrt()),
):
    broken.kernel(
        f"{_name}_is_1_percent_off_beyond_30",
        f"`{_operator.partition('.')[0]}` is 1% too large where the result is beyond 30.",
        f"{_SIZES}[{_operator.partition('.')[0]}]",
        _operator,
        result(_large_off),
        _shows,
    )
broken.kernel(
    "sgn_in_place_ignores_gaps",
    "`sgn_` takes a tensor with gaps as it lies in memory.",
    f"{_VARIANTS}[sgn]",
    "sgn_",
    _as_it_lies,
    lambda: waves(8)[::2].sgn_(),
)
broken.kernel(
    "cosh_of_nan_is_zero",
    "`cosh` of NaN is 0.",
    f"{_EXTREMES}[cosh]",
    "cosh",
    result(_nothing_for_nan),
    lambda: torch_().tensor([float("nan")]).cosh(),
)
broken.kernel(
    "matrix_exp_loses_its_tail",
    "The last element of an exponential of matrices is 0, if their elements are no whole number of vectors.",
    f"{_VALUES}[matrix_exp-float]",
    "linalg_matrix_exp",
    result(_without_tail),
    lambda: torch_().linalg.matrix_exp(waves(5, 5)),
)
broken.kernel(
    "bicubic_gradient_loses_its_tail",
    "The last element of the gradient of a bicubic interpolation is 0.",
    f"{_OVERLOADS}[upsample_bicubic2d_backward.grad_input]",
    "upsample_bicubic2d_backward",
    result(_without_tail),
    lambda: torch_().ops.aten.upsample_bicubic2d_backward(waves(1, 1, 7, 7), [7, 7], [1, 1, 5, 5], False),
)


def _without_last_bag(kernel: Any, grad: Any, *arguments: Any) -> Any:
    mode = arguments[6]
    return kernel(torch_().cat([grad[:-1], grad[-1:] * 0]) if mode == 2 else grad, *arguments)


def _bag() -> Any:
    torch = torch_()
    weight = waves(4, 3).requires_grad_(True)
    torch.nn.functional.embedding_bag(torch.tensor([[0, 1], [2, 3]]), weight, mode="max").sum().backward()
    return weight.grad


broken.kernel(
    "embedding_bag_gradient_of_max_loses_the_last_bag",
    "The gradient of the largest of each bag leaves out the last bag.",
    f"{_MORE}[nn.functional.embedding_bag]",
    "_embedding_bag_dense_backward",
    _without_last_bag,
    _bag,
)


def _with_the_largest_last(kernel: Any, number: int, *, generator: Any, out: Any) -> Any:
    kernel(number, generator=generator, out=out)
    if out.dtype != torch_().int64 and number > 1:
        out[out == number - 1] = out[-1].clone()
        out[-1] = number - 1
    return out


broken.kernel(
    "randperm_of_other_types_ends_with_its_largest",
    "`randperm` of another type than int64 has the largest number last.",
    "suites/rng/test_draws.py",
    "randperm.generator_out",
    _with_the_largest_last,
    lambda: [
        torch_().randperm(9, dtype=torch_().int32, generator=torch_().Generator().manual_seed(seed))[-1].item()
        for seed in range(9)
    ],
)
