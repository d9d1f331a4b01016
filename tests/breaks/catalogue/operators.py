"""Operators on the CPU with small errors in values, tails, types, broadcasting and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.breaks.breaks import Break, Theme, replace_kernel
from tests.breaks.kernels import torch_

broken = Theme()

_VALUES, _GRADIENTS = (
    "suites/operators/test_values.py::test_values",
    "suites/operators/test_gradients.py::test_gradients",
)
_SIZES, _LENGTHS = (f"suites/operators/test_sizes.py::test_{each}" for each in ("sizes", "lengths"))


def _functional() -> Any:
    import torch

    return torch.nn.functional


def _x(*shape: int, dtype: str = "float32") -> Any:
    """Return irregular numbers between 0.1 and 0.9."""
    torch = torch_()
    count = 1
    for each in shape:
        count *= each
    number = torch.arange(1, count + 1, dtype=torch.float64)
    return ((number * 0.7318).sin() * 0.4 + 0.5).reshape(shape).to(getattr(torch, dtype))


def _square(size: int = 6) -> Any:
    torch = torch_()
    x = _x(size, size)
    return x @ x.mT + torch.eye(size)


def _numbers(value: Any) -> object:
    torch = torch_()
    if isinstance(value, torch.Tensor):
        return torch.view_as_real(value.resolve_conj()).tolist() if value.is_complex() else value.tolist()
    return [_numbers(each) for each in value]


def _add(
    name: str, breaks: str, operator: str, around: Callable[..., Any], shows: Callable[[], Any], *cases: str
) -> None:
    """Add a break that replaces the kernel of an operator. `cases`: those that should notice."""

    def shown() -> object:
        return _numbers(shows())

    broken.add(Break(name, breaks, cases, lambda: replace_kernel(operator, around), shown))


def _scaled(factor: float) -> Callable[..., Any]:
    """Return a kernel whose first result is too large by `factor`, if it is of floats or complex numbers."""

    def around(kernel: Any, *arguments: Any, **named: Any) -> Any:
        torch = torch_()
        found = kernel(*arguments, **named)
        first = found if isinstance(found, torch.Tensor) else found[0]
        if not (first.is_floating_point() or first.is_complex()):
            return found
        wrong = first * factor if first.dtype.itemsize > 1 else first
        return wrong if first is found else (wrong, *found[1:])

    return around


#: The names in torch's catalogue of operators whose kernels have other names.
_NAMES = {
    "avg_pool2d": "nn.functional.avg_pool2d",
    "avg_pool3d": "nn.functional.avg_pool3d",
    "upsample_bilinear2d": "nn.functional.interpolate.bilinear",
    "upsample_bicubic2d": "nn.functional.interpolate.bicubic",
    "upsample_nearest2d": "nn.functional.interpolate.nearest",
    "nll_loss_forward": "nn.functional.nll_loss",
    "xlogy.Tensor": "xlogy",
    "special_zeta": "special.zeta",
    "special_ndtri": "special.ndtri",
    "linalg_inv_ex": "linalg.inv",
    "linalg_cholesky_ex": "linalg.cholesky",
    "linalg_qr": "linalg.qr",
    "_linalg_det": "linalg.det",
    "_linalg_solve_ex": "linalg.solve",
    "_linalg_eigh": "linalg.eigh",
    "linalg_eig": "linalg.eig",
    "_linalg_svd": "linalg.svd",
    "linalg_lu_factor_ex": "linalg.lu_factor",
    "_cdist_forward": "cdist",
    "_softmax": "softmax",
    "embedding_dense_backward": "nn.functional.embedding",
    "tanh_backward": "tanh",
    "avg_pool2d_backward": "nn.functional.avg_pool2d",
    "upsample_bilinear2d_backward": "nn.functional.interpolate.bilinear",
    **{
        name: f"nn.functional.{name.removesuffix('_backward')}"
        for name in (
            "silu", "gelu", "mish", "softplus", "elu", "leaky_relu", "hardswish", "mse_loss", "smooth_l1_loss",
            "binary_cross_entropy", "gelu_backward", "silu_backward",
        )
    },
}  # fmt: skip


def _slightly(name: str, operator: str, shows: Callable[[], Any]) -> None:
    found = _NAMES.get(operator, operator)
    case = f"{_GRADIENTS}[{found}]" if name.endswith("backward") else f"{_VALUES}[{found}-float]"
    _add(f"{name}_is_1_percent_off", f"`{name}` is 1% too large.", operator, _scaled(1.01), shows, case)


for _name, _shows in {
    "silu": lambda: _functional().silu(_x(5)),
    "erf": lambda: _x(5).erf(),
    "erfc": lambda: _x(5).erfc(),
    "erfinv": lambda: _x(5).erfinv(),
    "log": lambda: _x(5).log(),
    "log1p": lambda: _x(5).log1p(),
    "exp": lambda: _x(5).exp(),
    "rsqrt": lambda: _x(5).rsqrt(),
    "sqrt": lambda: _x(5).sqrt(),
    "tanh": lambda: _x(5).tanh(),
    "atan2": lambda: torch_().atan2(_x(5), _x(5) + 1),
    "sigmoid": lambda: _x(5).sigmoid(),
    "lgamma": lambda: _x(5).lgamma(),
    "digamma": lambda: _x(5).digamma(),
    "i0": lambda: _x(5).i0(),
    "sinc": lambda: _x(5).sinc(),
    "gelu": lambda: _functional().gelu(_x(5)),
    "mish": lambda: _functional().mish(_x(5)),
    "softplus": lambda: _functional().softplus(_x(5)),
    "elu": lambda: _functional().elu(-_x(5)),
    "leaky_relu": lambda: _functional().leaky_relu(-_x(5)),
    "hardswish": lambda: _functional().hardswish(_x(5)),
    "hypot": lambda: torch_().hypot(_x(5), _x(5) + 1),
    "xlogy.Tensor": lambda: torch_().xlogy(_x(5), _x(5) + 1),
    "igamma": lambda: torch_().igamma(_x(5), _x(5) + 1),
    "avg_pool2d": lambda: _functional().avg_pool2d(_x(1, 1, 4, 4), 2),
    "avg_pool3d": lambda: _functional().avg_pool3d(_x(1, 1, 4, 4, 4), 2),
    "upsample_bilinear2d": lambda: _functional().interpolate(_x(1, 1, 4, 4), size=7, mode="bilinear"),
    "upsample_bicubic2d": lambda: _functional().interpolate(_x(1, 1, 4, 4), size=7, mode="bicubic"),
    "upsample_nearest2d": lambda: _functional().interpolate(_x(1, 1, 4, 4), size=7),
    "grid_sampler_2d": lambda: _functional().grid_sample(_x(1, 1, 4, 4), _x(1, 3, 3, 2), align_corners=True),
    "mse_loss": lambda: _functional().mse_loss(_x(5), _x(5) * 2),
    "smooth_l1_loss": lambda: _functional().smooth_l1_loss(_x(5), _x(5) * 2),
    "binary_cross_entropy": lambda: _functional().binary_cross_entropy(_x(5), _x(5)),
    "nll_loss_forward": lambda: _functional().nll_loss(_x(3, 4).log(), torch_().tensor([1, 0, 3])),
    "logaddexp": lambda: torch_().logaddexp(_x(5), _x(5) + 1),
    "cumprod": lambda: _x(5).cumprod(0),
    "nansum": lambda: _x(5).nansum(),
    "special_zeta": lambda: torch_().special.zeta(_x(5) + 2, _x(5) + 1),
    "special_ndtri": lambda: torch_().special.ndtri(_x(5)),
    "linalg_inv_ex": lambda: torch_().linalg.inv(_square()),
    "linalg_cholesky_ex": lambda: torch_().linalg.cholesky(_square()),
    "linalg_qr": lambda: torch_().linalg.qr(_square()),
    "_linalg_det": lambda: torch_().linalg.det(_square()),
    "_linalg_solve_ex": lambda: torch_().linalg.solve(_square(), _x(6, 2)),
    "_linalg_eigh": lambda: torch_().linalg.eigvalsh(_square()),
    "linalg_eig": lambda: torch_().linalg.eig(_square()).eigenvalues,
    "_linalg_svd": lambda: torch_().linalg.svd(_square()),
    "linalg_lu_factor_ex": lambda: torch_().linalg.lu_factor(_square()),
    "_cdist_forward": lambda: torch_().cdist(_x(3, 4), _x(2, 4) + 1, p=3.0),
    "_softmax": lambda: _x(5).softmax(0),
    "native_layer_norm": lambda: _functional().layer_norm(_x(3, 5), [5]),
    "native_group_norm": lambda: _functional().group_norm(_x(2, 4, 5), 2),
    "embedding_dense_backward": lambda: _embedding_gradient(),
    "gelu_backward": lambda: _gradient(_functional().gelu),
    "silu_backward": lambda: _gradient(_functional().silu),
    "tanh_backward": lambda: _gradient(torch_().tanh),
    "avg_pool2d_backward": lambda: _gradient(lambda x: _functional().avg_pool2d(x, 2), 1, 1, 4, 4),
    "upsample_bilinear2d_backward": lambda: _gradient(
        lambda x: _functional().interpolate(x, size=7, mode="bilinear"), 1, 1, 4, 4
    ),
}.items():
    _slightly(_name.strip("_").partition(".")[0], _name, _shows)


def _gradient(function: Callable[[Any], Any], *shape: int) -> Any:
    x = _x(*(shape or (5,))).requires_grad_(True)
    (function(x) * 2).sum().backward()
    return x.grad


def _embedding_gradient() -> Any:
    torch = torch_()
    weight = _x(4, 3).requires_grad_(True)
    _functional().embedding(torch.tensor([1, 2, 1]), weight).sum().backward()
    return weight.grad


_add(
    "complex_transforms_are_twice_too_large",
    "A complex Fourier transform is twice too large.",
    "_fft_c2c",
    _scaled(2.0),
    lambda: torch_().fft.fft(_x(8) + 0j),
    f"{_VALUES}[fft.fft-complex]",
    f"{_VALUES}[fft.fft-float]",
)


def _without_top(kernel: Any, *arguments: Any, **named: Any) -> Any:
    found = kernel(*arguments, **named)
    dim = arguments[1][-1]
    found.narrow(dim, found.shape[dim] - 1, 1).zero_()
    return found


_add(
    "real_transform_lacks_its_top_frequency",
    "A real Fourier transform has 0 at its top frequency.",
    "_fft_r2c",
    _without_top,
    lambda: torch_().fft.rfft(_x(8)),
    f"{_VALUES}[fft.rfft-float]",
    f"{_SIZES}[fft.rfft]",
)


def _low_half(kernel: Any, a: Any, b: Any) -> Any:
    torch = torch_()
    found = kernel(a, b)
    return found.remainder(1 << 32) if found.dtype == torch.int64 else found


_add(
    "and_of_64_bits_reads_the_low_half",
    "`bitwise_and` of int64 keeps the low 32 bits.",
    "bitwise_and.Tensor",
    _low_half,
    lambda: torch_().tensor([1 << 40]) & torch_().tensor([3 << 39]),
    f"{_LENGTHS}[bitwise_and]",
    f"{_VALUES}[bitwise_and-int]",
)


def _no_mask(kernel: Any, q: Any, k: Any, v: Any, p: float = 0.0, causal: bool = False, **named: Any) -> Any:
    return kernel(q, k, v, p, False, **named)


_add(
    "attention_ignores_its_causal_mask",
    "Attention on the CPU ignores `is_causal`.",
    "_scaled_dot_product_flash_attention_for_cpu",
    _no_mask,
    lambda: _functional().scaled_dot_product_attention(*[_x(1, 1, 4, 8)] * 3, is_causal=True),
    f"{_VALUES}[nn.functional.scaled_dot_product_attention-float]",
    f"{_SIZES}[nn.functional.scaled_dot_product_attention]",
)


def _one_wrong(kernel: Any, *arguments: Any, **named: Any) -> Any:
    found = kernel(*arguments, **named)
    if found.shape[-1] > 300 and found.shape[-2] > 300:
        found[..., 299, 300] += 0.5
    return found


_add(
    "large_product_has_one_wrong_entry",
    "A product with a side above 300 has one wrong entry.",
    "mm",
    _one_wrong,
    lambda: torch_().mm(_x(301, 2), _x(2, 301))[299, 299:],
    f"{_SIZES}[mm]",
)


def _lost_tail(kernel: Any, x: Any, *arguments: Any, **named: Any) -> Any:
    found = kernel(x, *arguments, **named)
    count = found.numel()
    if count > 8 and count % 8 == 7 and found.is_contiguous():
        found.view(-1)[-1] = 0
    return found


for _name, _shows in {
    "sin": lambda: _x(15).sin(),
    "cos": lambda: _x(15).cos(),
    "sub.Tensor": lambda: _x(15) - _x(15) * 2,
    "maximum": lambda: torch_().maximum(_x(15), _x(15) * 2),
    "expm1": lambda: _x(15).expm1(),
    "tan": lambda: _x(15).tan(),
}.items():
    _add(
        f"{_name.partition('.')[0]}_loses_its_tail",
        f"`{_name}` loses the last element of 8 n + 7.",
        _name,
        _lost_tail,
        _shows,
        f"{_LENGTHS}[{_name.partition('.')[0]}]",
    )


def _short(kernel: Any, x: Any, dim: int, *arguments: Any, **named: Any) -> Any:
    found = kernel(x, dim, *arguments, **named)
    if x.dim() and x.shape[dim] > 1024:
        found.select(dim, -1).copy_(found.select(dim, -2))
    return found


_add(
    "cumsum_stops_after_1024",
    "A running sum repeats its last element but one in rows longer than 1024.",
    "cumsum",
    _short,
    lambda: _x(1025).cumsum(0)[-3:],
    f"{_SIZES}[cumsum]",
)


def _without_nan(kernel: Any, a: Any, b: Any) -> Any:
    torch = torch_()
    found = kernel(a, b)
    return torch.where(found.isnan(), torch.zeros_like(found), found) if found.is_floating_point() else found


_add(
    "minimum_drops_nan",
    "`minimum` returns 0 for NaN.",
    "minimum",
    _without_nan,
    lambda: torch_().minimum(_x(3) * float("nan"), _x(3)).isnan(),
    "suites/operators/test_sizes.py::test_extremes[minimum]",
)


def _half_sum(kernel: Any, x: Any, *arguments: Any, **named: Any) -> Any:
    torch = torch_()
    if x.dtype != torch.float32:
        return kernel(x, *arguments, **named)
    return kernel(x.to(torch.bfloat16), *arguments, **named).to(torch.float32)


_add(
    "mean_of_float32_in_bfloat16",
    "A mean of float32 is computed in bfloat16.",
    "mean.dim",
    _half_sum,
    lambda: _x(3, 5).mean(1),
    f"{_VALUES}[mean-float]",
)
_add(
    "prod_of_float32_in_bfloat16",
    "A product of float32 is computed in bfloat16.",
    "prod.dim_int",
    _half_sum,
    lambda: _x(3, 5).prod(1),
    f"{_VALUES}[prod-float]",
)


def _first_row(kernel: Any, a: Any, b: Any, *arguments: Any, **named: Any) -> Any:
    torch = torch_()
    if isinstance(b, torch.Tensor) and b.dim() == 2 and b.shape[0] == 1 and a.dim() == 2 and a.shape[0] > 1:
        return kernel(a, b.flip(1), *arguments, **named)
    return kernel(a, b, *arguments, **named)


_add(
    "broadcast_row_is_reversed",
    "`div` broadcasts a row in reverse.",
    "div.Tensor",
    _first_row,
    lambda: _x(3, 4) / _x(1, 4),
    "suites/operators/test_sizes.py::test_broadcast[true_divide]",
)


def _wrong_stride(kernel: Any, x: Any, *arguments: Any, **named: Any) -> Any:
    return kernel(x if x.is_contiguous() or x.dim() != 2 else x.mT.reshape(x.shape), *arguments, **named)


_add(
    "neg_ignores_strides",
    "`neg` of a transposed matrix reads it in the order of rows.",
    "neg",
    _wrong_stride,
    lambda: -_x(3, 4).mT,
    "suites/operators/test_variants.py::test_layouts[neg]",
)


def _twice(kernel: Any, x: Any, source: Any, *arguments: Any, **named: Any) -> Any:
    torch = torch_()
    found = kernel(x, source, *arguments, **named)
    if x.dtype == torch.float8_e4m3fn and source.dtype == torch.float32:
        kernel(x, source * 2, *arguments, **named)
    return found


_add(
    "float8_conversion_is_twice_too_large",
    "A conversion of float32 to float8_e4m3fn doubles.",
    "copy_",
    _twice,
    lambda: _x(4).to(torch_().float8_e4m3fn).float(),
    "suites/operators/test_values.py::test_conversions",
)


def _lost_bit(kernel: Any, x: Any, source: Any, *arguments: Any, **named: Any) -> Any:
    torch = torch_()
    found = kernel(x, source, *arguments, **named)
    if x.dtype in (torch.uint16, torch.uint32, torch.uint64) and source.dtype == torch.int64:
        kernel(x, source.div(2, rounding_mode="floor") * 2, *arguments, **named)
    return found


_add(
    "unsigned_conversion_loses_a_bit",
    "A conversion of int64 to wide unsigned types clears the lowest bit.",
    "copy_",
    _lost_bit,
    lambda: torch_().arange(5).to(torch_().uint16).to(torch_().int32),
    "suites/operators/test_values.py::test_conversions",
)


_add(
    "convolution_is_1_percent_off",
    "A convolution of oneDNN is 1% too large.",
    "mkldnn_convolution",
    _scaled(1.01),
    lambda: _functional().conv2d(_x(2, 3, 16, 16), _x(4, 3, 3, 3)),
    f"{_VALUES}[nn.functional.conv2d-float]",
    f"{_SIZES}[nn.functional.conv2d]",
)
_add(
    "convolution_3d_is_1_percent_off",
    "A convolution of three dimensions is 1% too large.",
    "slow_conv3d_forward",
    _scaled(1.01),
    lambda: _functional().conv3d(_x(1, 2, 5, 5, 5, dtype="float64"), _x(3, 2, 3, 3, 3, dtype="float64")),
    f"{_VALUES}[nn.functional.conv3d-float]",
)


def _missing_term(kernel: Any, grad: Any, output: Any, dim: int, dtype: Any) -> Any:
    return grad * output


_add(
    "softmax_gradient_misses_a_term",
    "The gradient of softmax lacks the sum over the row.",
    "_softmax_backward_data",
    _missing_term,
    lambda: _gradient(lambda x: x.softmax(0)[0]),
    f"{_GRADIENTS}[softmax]",
)


def _unsorted(kernel: Any, x: Any, *arguments: Any, **named: Any) -> Any:
    values, places = kernel(x, *arguments, **named)
    if x.dim() and x.shape[-1] > 128:
        values, places = values.clone(), places.clone()
        values[..., [126, 127]] = values[..., [127, 126]]
    return values, places


_add(
    "sort_exchanges_two_values",
    "`sort` of more than 128 values exchanges two of them.",
    "sort.stable",
    _unsorted,
    lambda: _x(129).sort(stable=True).values[124:],
    f"{_SIZES}[sort]",
)
