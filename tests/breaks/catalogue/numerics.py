"""Arithmetic on the CPU: kernels of operators with small errors."""

from __future__ import annotations

from typing import Any

from tests.breaks.breaks import Theme, replace, replace_kernel
from tests.breaks.kernels import torch_

broken = Theme()

_REDUCTIONS, _PRODUCTS, _EXACT = (f"suites/numerics/test_{name}.py" for name in ("reductions", "products", "exact"))
_INDEXING, _HALF, _LARGE = (f"suites/numerics/test_{name}.py" for name in ("indexing", "half_precision", "large"))


def _irregular(count: int = 100) -> Any:
    torch = torch_()
    return (torch.arange(1, count + 1, dtype=torch.float64) * 0.7318).sin() / 3


def _through_float32(operator: str) -> None:
    """Make an operator on float64 compute in float32."""
    torch = torch_()

    def around(kernel: Any, x: Any, *arguments: Any, **named: Any) -> Any:
        if x.dtype != torch.float64 or named.get("dtype") is not None:
            return kernel(x, *arguments, **named)
        lowered = [
            argument.float() if isinstance(argument, torch.Tensor) and argument.dtype == torch.float64 else argument
            for argument in arguments
        ]
        return kernel(x.float(), *lowered, **named).double()

    replace_kernel(operator, around)


@broken("A sum of float64 is added up in float32.", _REDUCTIONS, shows=lambda: _irregular().sum().item())
def sum_of_float64_in_float32() -> None:
    _through_float32("sum.dim_IntList")


@broken("A sum along a dimension of float64 is added up in float32.", _REDUCTIONS, shows=lambda: _along())
def sum_along_of_float64_in_float32() -> None:
    torch = torch_()

    def around(kernel: Any, x: Any, dim: Any = None, keepdim: bool = False, **named: Any) -> Any:
        if x.dtype != torch.float64 or x.dim() < 2 or not dim:
            return kernel(x, dim, keepdim, **named)
        return kernel(x.float(), dim, keepdim, **named).double()

    replace_kernel("sum.dim_IntList", around)


def _along() -> object:
    x = _irregular()
    return x.view(10, 10).sum(0).tolist()


@broken(
    "A running sum of float64 is added up in float32.", _REDUCTIONS, shows=lambda: _irregular().cumsum(0)[-1].item()
)
def cumsum_of_float64_in_float32() -> None:
    _through_float32("cumsum")


@broken(
    "A dot product of float64 is computed in float32.", _REDUCTIONS, shows=lambda: _irregular().dot(_irregular()).item()
)
def dot_of_float64_in_float32() -> None:
    _through_float32("dot")


@broken("A product of matrices of float64 is computed in float32.", _REDUCTIONS, _PRODUCTS, shows=lambda: _product())
def mm_of_float64_in_float32() -> None:
    _through_float32("mm")


def _product(dtype: str = "float64") -> object:
    x = _irregular().view(10, 10).to(getattr(torch_(), dtype))
    return (x @ x).tolist()


@broken(
    "A norm of float64 is computed in float32.",
    _REDUCTIONS,
    shows=lambda: torch_().linalg.vector_norm(_irregular()).item(),
)
def norm_of_float64_in_float32() -> None:
    _through_float32("linalg_vector_norm")


@broken("`index_add_` of float64 adds in float32.", _REDUCTIONS, _INDEXING, shows=lambda: _index_added())
def index_add_of_float64_in_float32() -> None:
    torch = torch_()

    def around(kernel: Any, x: Any, dim: int, index: Any, source: Any, **named: Any) -> Any:
        if x.dtype != torch.float64:
            return kernel(x, dim, index, source, **named)
        return x.copy_(kernel(x.float(), dim, index, source.float(), **named))

    replace_kernel("index_add_", around)


def _index_added() -> object:
    torch = torch_()
    return torch.zeros(1, dtype=torch.float64).index_add_(0, torch.zeros(100, dtype=torch.long), _irregular()).item()


@broken(
    "A variance of float64 is computed in float32.", _REDUCTIONS, shows=lambda: _irregular().var(correction=0).item()
)
def var_of_float64_in_float32() -> None:
    _through_float32("var.correction")


@broken("A convolution of float64 is computed in float32.", _PRODUCTS, shows=lambda: _convolved())
def convolution_of_float64_in_float32() -> None:
    torch = torch_()

    def around(convolve: Any) -> Any:
        def convolves(x: Any, weight: Any, *others: Any, **named: Any) -> Any:
            if x.dtype != torch.float64 or others or named:
                return convolve(x, weight, *others, **named)
            return convolve(x.float(), weight.float()).double()

        return convolves

    replace(torch.nn.functional, "conv2d", around)


def _convolved(dtype: str = "float64") -> object:
    torch = torch_()
    x = _irregular(144).view(1, 1, 12, 12).to(getattr(torch, dtype))
    return torch.nn.functional.conv2d(x, x[:, :, :3, :3]).flatten()[:5].tolist()


@broken(
    "A product of matrices of float32 is computed in bfloat16.", _PRODUCTS, _EXACT, shows=lambda: _product("float32")
)
def mm_of_float32_in_bfloat16() -> None:
    torch = torch_()

    def around(kernel: Any, a: Any, b: Any) -> Any:
        if a.dtype != torch.float32:
            return kernel(a, b)
        return kernel(a.bfloat16().float(), b.bfloat16().float())

    replace_kernel("mm", around)


@broken("A batched product of matrices leaves out the last product, in all types.", _EXACT, shows=lambda: _batched())
def bmm_loses_the_last_product() -> None:
    replace_kernel("bmm", lambda kernel, a, b: kernel(a[:, :, :-1], b[:, :-1]))


def _batched() -> object:
    x = _irregular(64).view(4, 4, 4)
    return (x @ x).tolist()


@broken(
    "A norm of order three is that of order two, in all types.",
    _HALF,
    shows=lambda: torch_().linalg.vector_norm(torch_().tensor([1.0, 2.0]), 3).item(),
)
def norm_of_order_three_is_that_of_two() -> None:
    replace_kernel(
        "linalg_vector_norm",
        lambda kernel, x, order=2, *others, **named: kernel(x, 2 if order == 3 else order, *others, **named),
    )


@broken("A sum leaves out the last element.", _REDUCTIONS, _EXACT, shows=lambda: torch_().ones(7).sum().item())
def sum_loses_the_last_element() -> None:
    torch = torch_()

    def around(kernel: Any, x: Any, dim: Any = None, keepdim: bool = False, **named: Any) -> Any:
        if x.dim() == 1 and len(x) > 1 and x.dtype == torch.float32:
            return kernel(x[:-1], dim, keepdim, **named)
        return kernel(x, dim, keepdim, **named)

    replace_kernel("sum.dim_IntList", around)


def _changed(operator: str, change: Any) -> None:
    """Change the result of an operator."""
    replace_kernel(operator, lambda kernel, *arguments, **named: change(kernel(*arguments, **named), *arguments))


@broken("A mean leaves out NaN.", _REDUCTIONS, shows=lambda: torch_().tensor([1.0, float("nan")]).mean().item())
def mean_skips_nan() -> None:
    replace_kernel("mean", lambda kernel, x, **named: kernel(x.nan_to_num(0.0), **named))
    replace_kernel("mean.dim", lambda kernel, x, *others, **named: kernel(x.nan_to_num(0.0), *others, **named))


@broken(
    "A maximum of all elements passes over NaN.",
    _REDUCTIONS,
    shows=lambda: torch_().tensor([1.0, float("nan")]).max().item(),
)
def max_skips_nan() -> None:
    torch = torch_()
    replace_kernel(
        "max", lambda kernel, x: kernel(torch.where(x.isnan(), -float("inf"), x) if x.is_floating_point() else x)
    )


@broken("A minimum starts from zero.", _REDUCTIONS, shows=lambda: torch_().ones(3).amin().item())
def amin_starts_from_zero() -> None:
    _changed("amin", lambda found, x, *_: found.clamp(max=0) if x.is_floating_point() else found)


@broken(
    "A maximum of no negative number is found: it starts from zero.",
    _REDUCTIONS,
    shows=lambda: (-torch_().ones(3)).amax().item(),
)
def amax_starts_from_zero() -> None:
    _changed("amax", lambda found, x, *_: found.clamp(min=0) if x.dtype.is_signed else found)


@broken(
    "`argmax` gives the index before the right one.", _REDUCTIONS, shows=lambda: torch_().arange(5.0).argmax().item()
)
def argmax_is_off_by_one() -> None:
    _changed("argmax", lambda found, *_: (found - 1).clamp(min=0))


@broken(
    "`argmin` does not find NaN.", _REDUCTIONS, shows=lambda: torch_().tensor([1.0, float("nan"), 0.0]).argmin().item()
)
def argmin_skips_nan() -> None:
    replace_kernel(
        "argmin",
        lambda kernel, x, *others, **named: (
            kernel(x.nan_to_num(float("inf"), posinf=float("inf")), *others, **named)
            if x.is_floating_point()
            else kernel(x, *others, **named)
        ),
    )


@broken("A product of no elements is zero.", _REDUCTIONS, shows=lambda: torch_().empty(0).prod().item())
def prod_of_nothing_is_zero() -> None:
    _changed("prod", lambda found, x, *_: found.zero_() if x.numel() == 0 else found)


@broken("A large product loses its last factor.", _REDUCTIONS, shows=lambda: (-torch_().ones(300_001)).prod().item())
def prod_loses_the_last_factor() -> None:
    replace_kernel("prod", lambda kernel, x, **named: kernel(x[:-1] if len(x) > 1000 else x, **named))


@broken(
    "Subnormal numbers of float32 are flushed to zero by additions.", _REDUCTIONS, shows=lambda: _added_subnormals()
)
def add_flushes_subnormal_numbers() -> None:
    torch = torch_()
    tiny = torch.finfo(torch.float32).tiny
    _changed(
        "add.Tensor",
        lambda found, *_: torch.where(found.abs() < tiny, 0.0, found) if found.dtype == torch.float32 else found,
    )


def _added_subnormals() -> object:
    x = torch_().tensor([1e-40])
    return (x + x).item()


@broken("Zero times infinity is zero.", _REDUCTIONS, shows=lambda: (torch_().tensor(0.0) * float("inf")).item())
def zero_times_infinity_is_zero() -> None:
    torch = torch_()
    _changed(
        "mul.Tensor",
        lambda found, a, b: (
            torch.where((a == 0) | (b == 0), torch.zeros_like(found), found) if found.is_floating_point() else found
        ),
    )


@broken(
    "`maximum` gives the number beside NaN.",
    _REDUCTIONS,
    shows=lambda: torch_().maximum(torch_().tensor(1.0), torch_().tensor(float("nan"))).item(),
)
def maximum_skips_nan() -> None:
    torch = torch_()
    replace_kernel("maximum", lambda kernel, a, b: torch.fmax(a, b))


@broken(
    "`clamp` turns NaN into the lower bound.",
    _REDUCTIONS,
    shows=lambda: torch_().tensor(float("nan")).clamp(0, 1).item(),
)
def clamp_removes_nan() -> None:
    _changed("clamp", lambda found, *_: found.nan_to_num(0.0) if found.is_floating_point() else found)


@broken(
    "Equal elements are sorted in reverse.",
    "suites/numerics",
    shows=lambda: torch_().zeros(4).sort(stable=True).indices.tolist(),
)
def sort_is_not_stable() -> None:
    def around(kernel: Any, x: Any, *, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
        values, indices = kernel(x.flip(dim), stable=stable, dim=dim, descending=descending)
        return values, x.shape[dim] - 1 - indices if x.dim() else indices

    replace_kernel("sort.stable", around)


@broken(
    "`index_select` takes the first element for the last.",
    _INDEXING,
    shows=lambda: torch_().arange(4).index_select(0, torch_().tensor([3])).item(),
)
def index_select_takes_the_first_for_the_last() -> None:
    torch = torch_()
    replace_kernel(
        "index_select",
        lambda kernel, x, dim, index: kernel(
            x, dim, torch.where(index == x.shape[dim] - 1, 0, index) if x.dim() else index
        ),
    )


@broken(
    "`gather` ignores the sparse index's last element.",
    _INDEXING,
    shows=lambda: torch_().arange(4).gather(0, torch_().tensor([3, 2])).tolist(),
)
def gather_takes_the_first_for_the_last() -> None:
    torch = torch_()
    replace_kernel(
        "gather",
        lambda kernel, x, dim, index, **named: kernel(
            x, dim, torch.where(index == x.shape[dim] - 1, 0, index) if x.dim() else index, **named
        ),
    )


@broken(
    "`scatter_add_` writes the last of equal indices and adds nothing.",
    _INDEXING,
    "suites/numerics/test_repeated.py",
    shows=lambda: _scattered(),
)
def scatter_add_overwrites() -> None:
    replace_kernel("scatter_add_", lambda kernel, x, dim, index, source: x.scatter_(dim, index, source))


def _scattered() -> object:
    torch = torch_()
    return torch.zeros(2).scatter_add_(0, torch.zeros(3, dtype=torch.long), torch.ones(3)).tolist()


@broken(
    "A comparison of NaN with itself is true.",
    _REDUCTIONS,
    shows=lambda: (torch_().tensor(float("nan")) == torch_().tensor(float("nan"))).item(),
)
def nan_equals_nan() -> None:
    torch = torch_()
    replace_kernel(
        "eq.Tensor",
        lambda kernel, a, b: (
            kernel(a, b) | (torch.isnan(a) & torch.isnan(b))
            if a.is_floating_point() and b.is_floating_point()
            else kernel(a, b)
        ),
    )


@broken("A division of float16 is rounded down.", _HALF, _EXACT, shows=lambda: _halved())
def half_division_is_cut() -> None:
    torch = torch_()

    def cut(found: Any, a: Any, b: Any, *_: Any) -> Any:
        if found.dtype != torch.float16:
            return found
        return torch.where(found.float() * b > a, torch.nextafter(found, torch.zeros_like(found)), found)

    _changed("div.Tensor", cut)


def _halved() -> object:
    torch = torch_()
    return (torch.arange(1, 20, dtype=torch.float16) / torch.tensor(7.0, dtype=torch.float16)).tolist()
