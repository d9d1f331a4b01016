"""Known differences between torch and the reference, found by running, each with its reason.

The cases of values and gradients leave these types out; `test_deviations.py` has a case for each, which is expected to
fail. `OUT`, `OUT_OF_ANY_TYPE`, `LAYOUTS`, `EMPTY` and `OVERLOADS` mark the case itself as expected to fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from suites.host_kernels import has_host_kernels

from .comparison import WrongValueError

ISSUE = "https://github.com/pytorch/pytorch/issues/"
_POLES = (
    "polygamma near its poles reflects with sin(pi x) in the type of the input, whose rounding is as large as the sine "
    f"({ISSUE}55357)"
)
_BESSEL = "the coefficients for |x| > 5 are good for 8 digits"


@dataclass(frozen=True, slots=True)
class Deviation:
    """The types for which an operator deviates with the CPU's kernels, and the reason.

    `everywhere`: whether it deviates on each processor. Kernels may differ between processors.
    """

    types: tuple[str, ...]
    reason: str
    everywhere: bool = True


def waive(
    request: pytest.FixtureRequest,
    reason: str,
    device: torch.device,
    *,
    everywhere: bool = False,
    raises: tuple[type[BaseException], ...] = (WrongValueError, pytest.fail.Exception),
) -> None:
    """Expect the case to fail for this reason: with the CPU's kernels, or `everywhere`.

    `raises`: the exceptions of the failure, by default those for a wrong value.
    """
    if everywhere or has_host_kernels(device):
        request.applymarker(pytest.mark.xfail(reason=reason, raises=raises, strict=False))


#: Deviations of values, by operator.
VALUES = {
    "special.bessel_j0": Deviation(("float64",), _BESSEL),
    "special.bessel_j1": Deviation(("float64",), _BESSEL),
    "special.bessel_y0": Deviation(("float64",), _BESSEL),
    "special.bessel_y1": Deviation(("float64",), _BESSEL),
    **{
        f"{name}_n_{n}": Deviation(("float64", "int8", "int16"), _POLES)
        for name in ("polygamma.polygamma",)
        for n in range(5)
    },
    "special.polygamma.special_polygamma_n_0": Deviation(("float64", "int8", "int16"), _POLES),
    "special.airy_ai": Deviation(("float64",), "the approximations are good for 10 digits"),
    "histc": Deviation(("bfloat16",), "the bins are computed in the type of the input"),
    "cov": Deviation(("float64", "complex128"), "integer weights are divided in float32"),
    "masked.logsumexp": Deviation(("int32",), "a row without elements is the least int32, computed in float32"),
    "torch._scaled_mm": Deviation(
        ("float8_e4m3fn", "float8_e5m2"),
        "oneDNN gives NaN for a product beyond 448; seen on one processor with AVX-512, and not on another",
        everywhere=False,
    ),
    "matrix_exp": Deviation(("bfloat16", "float16"), "the polynomials of the CPU overflow in types of 16 bits"),
    "nn.functional.soft_margin_loss": Deviation(
        ("float16",), f"log(1 + exp(-x y)) overflows in the type of the input ({ISSUE}77529)"
    ),
}


def left_out(name: str) -> tuple[str, ...]:
    """Return the groups of types whose gradients are known to differ, or are not unique."""
    return tuple(group for table in (GRADIENTS, NOT_UNIQUE) for group in table.get(name, ((), ""))[0])


def deviates(name: str, dtype: str, device: torch.device) -> bool:
    """Return whether the values of an operator are known to deviate."""
    entry = VALUES.get(name)
    return entry is not None and dtype in entry.types and has_host_kernels(device)


#: Derivatives that differ, with the groups of types.
GRADIENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "logcumsumexp": (
        ("float", "complex"),
        f"subtracts running sums of exponentials, and loses half of the digits ({ISSUE}196705)",
    ),
    "linalg.householder_product": (("complex",), "the derivative adds terms a thousand times larger than their sum"),
    "special.log_ndtr": (("float",), "differences of nearly equal logarithms"),
    **{f"mvlgamma.mvlgamma_p_{p}": (("float",), "trigamma is good for 9 digits near its poles") for p in (1, 3, 5)},
    "digamma": (("float",), "trigamma is good for 9 digits near its poles"),
    "nn.functional.hardsigmoid": (("float",), "1/6 is rounded to float32"),
}
#: Operators whose result, and therefore gradient, is not unique, with the groups of types.
NOT_UNIQUE = dict.fromkeys(("linalg.qr", "qr"), (("complex",), "the phases of Q are not unique"))


def _by_the_largest(sample: Any, dtype: torch.dtype) -> bool:
    return dtype == torch.complex64 and sample.args[0] == float("inf")


def _turned_by_rounding(sample: Any, dtype: torch.dtype) -> bool:
    """Return whether a rounding of the largest imaginary part turns an exponential by more than a thousandth."""
    return dtype.is_complex and float(sample.input.detach().imag.abs().max()) * torch.finfo(dtype).eps > 1e-3


#: Samples whose gradients differ with the CPU's kernels, by operator, and the reason.
GRADIENT_SAMPLES: dict[str, tuple[Callable[[Any, torch.dtype], bool], str]] = {
    "renorm": (_by_the_largest, "looks for the largest of 32-bit numbers among numbers of 64 bits, and finds none"),
}
#: Samples whose gradients have no correct digits, on any device, by operator, and the condition.
ILL_CONDITIONED: dict[str, tuple[Callable[[Any, torch.dtype], bool], str]] = {
    "logsumexp": (_turned_by_rounding, "exp(x - y) has no angle if the imaginary part of x is rounded to 0.1"),
}


def gradient_deviates(name: str, sample: Any, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the gradients of a sample are known to deviate, or have no correct digits."""
    if name in ILL_CONDITIONED and ILL_CONDITIONED[name][0](sample, dtype):
        return True
    return name in GRADIENT_SAMPLES and has_host_kernels(device) and GRADIENT_SAMPLES[name][0](sample, dtype)


_TRIANGLE = "reads one triangle of a symmetric matrix, and the direction is not symmetric"
_TWICE = "writes an element more than once"
#: Operators whose gradient is not the slope along an arbitrary direction.
NO_SLOPES = {
    **dict.fromkeys(
        (
            "cholesky",
            "linalg.cholesky",
            "linalg.cholesky_ex",
            "linalg.eigh",
            "linalg.eigvalsh",
            "linalg.pinv.hermitian",
            "cholesky_inverse",
            "cholesky_solve",
        ),
        _TRIANGLE,
    ),
    "as_strided_scatter": _TWICE,
    "nn.functional.max_unpool1d": _TWICE,
    "nn.functional.max_unpool2d": _TWICE,
    "nn.functional.max_unpool3d": _TWICE,
    "__rpow__": "powers of negative numbers have no derivative by the exponent",
    "nn.functional.ctc_loss": "expects logarithms of probabilities, and a step along a direction leaves these",
}

#: Operators whose forward derivatives the reference cannot compute.
NO_FORWARD = {
    **dict.fromkeys(
        (
            "nn.functional.gaussian_nll_loss",
            "nn.functional.local_response_norm",
            "nn.functional.multi_head_attention_forward",
            "nn.functional.multilabel_soft_margin_loss",
            "nn.functional.softsign",
            "nn.functional.triplet_margin_with_distance_loss",
        ),
        "autograd makes a tangent of zeros without memory, which the reference cannot read",
    ),
    "linalg.lstsq.grad_oriented": "the reference has no tangent of the residuals",
}


_NO_SETUP = "its autograd.Function has no setup_context"
_READS = "it reads a value of a tensor"
_UPDATES = "it updates statistics that are not batched"
#: Operators that wrappers of `wrappers.py` cannot run, for some samples or all: these wrappers, and the reason.
_NOT_WRAPPED: dict[str, tuple[tuple[str, ...], str]] = {
    "nn.functional.linear_cross_entropy.chunked": (("functional", "batched"), _NO_SETUP),
    "nn.functional.linear_cross_entropy.chunked_none": (("functional", "batched"), _NO_SETUP),
    "tensor_split": (("functional", "batched"), _READS),
    **dict.fromkeys(
        (
            *("svd", "linalg.svd", "index_reduce.prod", "scatter_reduce.prod"),
            "nn.functional.gaussian_nll_loss",
        ),
        (("batched",), _READS),
    ),
    **dict.fromkeys(
        (
            *("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"),
            *("nn.functional.instance_norm", "nn.functional.batch_norm"),
        ),
        (("batched",), _UPDATES),
    ),
    "cov": (("batched", "offloaded"), f"{_READS}, and leaves a result that `save_on_cpu` keeps for good on the host"),
    "as_strided_scatter": (("batched",), "it depends on the strides, which a batch changes"),
    "to": (("batched",), "a memory format depends on the number of dimensions, which a batch changes"),
    "nn.functional.ctc_loss": (("batched",), "the choice of cuDNN has no rule, on CUDA"),
}


def is_wrapped(name: str, wrapper: str) -> bool:
    """Return whether a wrapper can run an operator."""
    return wrapper not in _NOT_WRAPPED.get(name, ((), ""))[0]


#: Operators whose compiled gradients are wrong.
COMPILED = dict.fromkeys(
    ("pinverse", "linalg.pinv", "linalg.pinv.singular"),
    f"a conjugate view that the kernel makes is not resolved where a mode of dispatch is active ({ISSUE}197084)",
)
#: Operators that accept a number as the second argument, which the catalogue lists as invalid. Torch's own test of the
#: catalogue's errors expects that.
ACCEPT_NUMBERS = ("clamp_max", "clamp_min")
#: Operators whose `out=` differs from their result.
OUT = {
    "fft.ihfft2": "`out=` keeps its old values",
    "fft.ihfftn": "`out=` keeps its old values",
    "nn.functional.avg_pool3d": f"`out=` with strides is written in the order of memory ({ISSUE}84577)",
    "nn.functional.gelu": "`out=` with strides keeps its old values",
    "narrow_copy": f"`out=` with strides is written in the order of memory ({ISSUE}84577)",
    "nn.functional.linear": "`out=` of three dimensions in the order of columns is refused",
}
#: Those that consist of other operators, in the same way on each device.
OUT_EVERYWHERE = frozenset({"nn.functional.linear"})
#: Operators that refuse some strides of their inputs, on each device.
LAYOUTS = {"take_along_dim": "without `dim`, inputs that cannot be viewed in one dimension are refused"}
#: Operators whose `out=` has no kernel on CUDA.
OUT_WITHOUT_CUDA = ("narrow_copy",)
#: Operators that write floats into `out=` of integers.
OUT_OF_ANY_TYPE = {
    "cumsum": "the type of `out=` is the type of the sum",
    "cumprod": "the type of `out=` is the type of the product",
    "torch._scaled_mm": "the type of `out=` is not looked at",
}
#: Operators with a non-float result, whatever the inputs are: `out=` of integers can be correct for it.
NOT_FLOATS_ALONE = frozenset(
    (
        *("all", "any", "eq", "ge", "gt", "isin", "isneginf", "isposinf", "le", "lt", "ne", "signbit"),
        *("logical_and", "logical_not", "logical_or", "logical_xor"),
        *("bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor"),
        *("argmax", "argmin", "bucketize", "gcd", "hash_tensor", "lcm", "nonzero", "searchsorted"),
        *("cummax", "cummin", "kthvalue", "max.reduction_with_dim", "min.reduction_with_dim", "mode", "sort", "topk"),
        *("frexp", "lu", "linalg.lu_factor", "linalg.lu_factor_ex", "linalg.ldl_factor", "linalg.ldl_factor_ex"),
        *("linalg.cholesky_ex", "linalg.inv_ex", "linalg.lstsq", "linalg.solve_ex"),
        *("linalg.matrix_rank", "linalg.matrix_rank.hermitian"),
    )
)
#: Operators whose results without elements have another shape than torch declares.
EMPTY = {"nn.functional.pixel_unshuffle": "the CPU returns the shape of the input if that has no elements"}
#: Operators and types for which vectors of many lengths are outside of the domain.
LENGTHS: dict[str, Deviation] = {
    f"polygamma.polygamma_n_{n}": Deviation(("bool",), "the pole at 0 is an infinity of another sign")
    for n in range(1, 5)
}
#: Operators that give other values than NumPy at the ends of a type.
_BEYOND = ("float32", "float64", "bfloat16")
EXTREMES = {
    **{f"polygamma.polygamma_n_{n}": Deviation(_BEYOND, _POLES) for n in range(5)},
    "special.polygamma.special_polygamma_n_0": Deviation(_BEYOND, _POLES),
    **{
        name: Deviation(_BEYOND, "a quotient beyond the type, or by a subnormal number, has no common value")
        for name in ("fmod", "remainder", "floor_divide", "__rmod__", "div.floor_rounding")
    },
    **{
        name: Deviation(_BEYOND, "infinities and NaN have no common value in integers")
        for name in ("int", "long", "short", "char", "byte")
    },
    **{
        name: Deviation(_BEYOND, "the reference does not converge at the ends of the type")
        for name in ("igamma", "igammac", "special.zeta")
    },
    **{
        name: Deviation(_BEYOND, "approximations of torch end before the type does, or flush subnormal numbers")
        for name in (
            "special.ndtri",
            "special.log_ndtr",
            "special.erfcx",
            "special.airy_ai",
            "special.bessel_j0",
            "special.bessel_j1",
            "special.bessel_y0",
            "special.bessel_y1",
            "sinc",
            "__rdiv__",
            "special.modified_bessel_k0",
            "special.modified_bessel_k1",
            "special.scaled_modified_bessel_k0",
            "special.scaled_modified_bessel_k1",
        )
    },
    **{
        f"special.{name}": Deviation(_BEYOND, "a degree that is no small number has no value")
        for name in (
            *(f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"),
            "hermite_polynomial_h",
            "hermite_polynomial_he",
            "laguerre_polynomial_l",
            "legendre_polynomial_p",
        )
    },
    "signbit": Deviation(_BEYOND, "the sign of NaN is not promised"),
    "heaviside": Deviation(_BEYOND, "NaN is taken for a positive number"),
    "copysign": Deviation(("bfloat16",), "the sign of NaN in the second argument is lost"),
    "polar": Deviation(_BEYOND, "the sine and cosine of infinity are NaN in one part only"),
}


#: Operators that are known to differ at infinity: `test_extremes` leaves infinities out, and `test_deviations.py` has
#: them.
AT_INFINITY = dict.fromkeys(
    ("i0", "special.i1", "special.modified_bessel_i0", "special.modified_bessel_i1"),
    f"is NaN for an infinite argument ({ISSUE}187332)",
)


def lengths_differ(name: str, dtype: str) -> bool:
    """Return whether an operator's values in `test_lengths` are known to differ for a type."""
    return name in LENGTHS and dtype in LENGTHS[name].types


def extremes_differ(name: str, dtype: str) -> bool:
    """Return whether an operator's values at the ends of a type are known to differ."""
    return name in EXTREMES and dtype in EXTREMES[name].types


def extremes_differ_in(*dtypes: str) -> frozenset[str]:
    """Return the operators whose values at the ends of all of these types are known to differ."""
    return frozenset(name for name, deviation in EXTREMES.items() if set(dtypes).issubset(deviation.types))


#: Overloads that write into an argument and differ from their functional siblings.
OVERLOADS = {"binary_cross_entropy.out": "reduces what `out` was before it is resized, which is its first element"}


_FLAT = f"reads `indices` as if they were contiguous ({ISSUE}197888)"
#: Gradient kernels that read an argument with gaps as if it were contiguous.
STRIDED = {
    "adaptive_max_pool3d_backward": _FLAT,
    "fractional_max_pool2d_backward": _FLAT,
    "fractional_max_pool3d_backward": _FLAT,
    "native_group_norm_backward": "reads `input` as if it were contiguous",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "takes elements of a head to be neighbours",
}

_POLYNOMIALS = " ".join(
    f"special.{kind}chebyshev_polynomial_{letter}" for kind in ("", "shifted_") for letter in "tuvw"
)
_SINGULAR = "no value is defined for a matrix that is not finite, and LAPACK refuses some"
_WEIGHT_0 = "the reference multiplies elements that a kernel leaves out by a weight of 0"
_DEGREE = "the number is a position or a degree, which must be finite"
_COMPARED = "a comparison leaves NaN out"
_COMPLEX = "the reference computes with complex numbers, in whose products an infinity or NaN is in both parts"
_RANGE = "refused, or not defined, outside of a range"
_OVERFLOWS = "overflows"
#: By what an argument has (`test_special_inputs`): reasons, and the operators that are left out for each.
SPECIAL: dict[str, dict[str, str]] = {
    "nan": {
        _SINGULAR: "cholesky cholesky_inverse lu lu_solve ormqr triangular_solve pinverse norm.nuc matrix_exp"
        " linalg.cholesky linalg.cholesky_ex linalg.cond linalg.eigvalsh linalg.inv linalg.inv_ex linalg.lu"
        " linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve linalg.matrix_rank linalg.matrix_rank.hermitian"
        " linalg.pinv linalg.pinv.hermitian linalg.pinv.singular linalg.slogdet linalg.solve linalg.solve_ex"
        " linalg.solve_triangular linalg.svdvals",
        _COMPLEX: "view_as_complex stft fft.fft fft.rfft fft.ifft fft.ihfft",
        _WEIGHT_0: "nn.functional.conv3d _upsample_bilinear2d_aa nn.functional.grid_sample grid_sampler_2d"
        " grid_sampler_3d",
        _COMPARED: "heaviside cdist nn.functional.multi_margin_loss nn.functional.multilabel_margin_loss bucketize"
        " searchsorted",
        _DEGREE: "nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d int"
        " special.hermite_polynomial_h special.hermite_polynomial_he special.laguerre_polynomial_l"
        f" special.legendre_polynomial_p {_POLYNOMIALS}",
        _RANGE: "nn.functional.binary_cross_entropy histogram histogramdd quantile nanquantile cov",
        "`test_attention_keeps_nan` has it": "nn.functional.scaled_dot_product_attention",
    },
    "rows of -inf": {
        _SINGULAR: "cholesky cholesky_inverse ormqr pinverse norm.nuc matrix_exp linalg.cholesky linalg.cholesky_ex"
        " linalg.cond linalg.eigvalsh linalg.householder_product linalg.matrix_rank linalg.matrix_rank.hermitian"
        " linalg.pinv linalg.pinv.hermitian linalg.pinv.singular linalg.slogdet linalg.svdvals linalg.lu_solve"
        " linalg.solve_triangular",
        _COMPLEX: "view_as_complex stft fft.fft fft.hfft fft.rfft fft.ifft fft.ihfft fft.irfft",
        _WEIGHT_0: "nn.functional.conv3d nn.functional.interpolate.linear _upsample_bilinear2d_aa"
        " nn.functional.grid_sample grid_sampler_2d grid_sampler_3d",
        _COMPARED: "nn.functional.multi_margin_loss nn.functional.multilabel_margin_loss",
        "an infinite mean becomes NaN when it is updated element by element": "var_mean var_mean.unbiased std_mean"
        " std_mean.unbiased native_group_norm native_layer_norm native_batch_norm _native_batch_norm_legit"
        " _batch_norm_with_update nn.functional.batch_norm nn.functional.instance_norm",
        _DEGREE: "nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d int",
        "NaN at an infinity": "i0 lerp cdist div.floor_rounding floor_divide prod special.i1 special.airy_ai"
        " special.modified_bessel_i0 special.modified_bessel_i1 polygamma.polygamma_n_0 polygamma.polygamma_n_1"
        " polygamma.polygamma_n_2 polygamma.polygamma_n_3 polygamma.polygamma_n_4"
        " special.polygamma.special_polygamma_n_0",
        _RANGE: "nn.functional.binary_cross_entropy histogram histogramdd nn.functional.gaussian_nll_loss cov quantile"
        " nanquantile",
        "the row becomes NaN, which `test_attention_keeps_nan` has": "nn.functional.scaled_dot_product_attention",
    },
    "far mean": {
        _RANGE: "nn.functional.binary_cross_entropy quantile nanquantile",
        "`test_soft_margin_loss_of_large_numbers` has it": "nn.functional.soft_margin_loss",
        "a matrix of nearly one rank has no stable inverse": "linalg.pinv.singular linalg.pinv.hermitian",
        _OVERFLOWS: f"special.hermite_polynomial_h special.legendre_polynomial_p {_POLYNOMIALS}",
    },
}


def special(name: str, what: str) -> str:
    """Return why an operator is left out for a NaN, a row of -inf, or a mean far from zero; empty if it is not."""
    return next((reason for reason, names in SPECIAL[what].items() if name in names.split()), "")
