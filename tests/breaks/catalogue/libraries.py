"""Products, convolutions, pooling, attention and transforms on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.breaks.breaks import replace
from tests.breaks.kernels import Around, KernelTheme, result, torch_, waves

broken = KernelTheme()

_PRODUCTS, _FULL, _SCALED, _CONVOLUTIONS, _ATTENTION, _FOURIER, _POOLING = (
    f"suites/libraries/test_{name}.py"
    for name in ("products", "full_products", "scaled_products", "convolutions", "attention", "fourier", "pooling")
)

# ---- products ----


def _larger_than_300(found: Any, *_: Any, **__: Any) -> Any:
    if found.dim() < 2 or min(found.shape[-2:]) <= 300:
        return found
    found[..., 299, 17] += 1
    return found


broken.kernel(
    "product_larger_than_300_has_a_wrong_entry",
    "A product larger than 300 by 300 has one wrong entry.",
    _FULL,
    ("mm", "addmm", "bmm"),
    result(_larger_than_300),
    lambda: (waves(310, 310) @ waves(310, 310))[299, 17],
)
broken.kernel(
    "mm_loses_the_last_of_many_terms",
    "A product with more than 1000 terms loses the last.",
    _PRODUCTS,
    "mm",
    lambda kernel, a, b: kernel(a[:, :-1], b[:-1]) if a.shape[1] > 1000 else kernel(a, b),
    lambda: waves(2, 1001) @ waves(1001, 2),
)
broken.kernel(
    "mm_loses_the_last_row_of_odd_sizes",
    "A product with an odd number of rows above 100 loses the last.",
    _PRODUCTS,
    "mm",
    lambda kernel, a, b: (
        kernel(a, b).index_fill_(0, torch_().tensor([len(a) - 1]), 0) if len(a) > 100 and len(a) % 2 else kernel(a, b)
    ),
    lambda: waves(101, 2) @ waves(2, 2),
)
broken.kernel(
    "mm_of_float64_is_in_float32",
    "A product of float64 is computed in float32.",
    _PRODUCTS,
    ("mm", "bmm"),
    lambda kernel, a, b: kernel(a.float(), b.float()).double() if a.dtype == torch_().float64 else kernel(a, b),
    lambda: waves(3, 3) @ waves(3, 3),
)
broken.kernel(
    "mm_of_float32_is_in_tf32",
    "A product of float32 rounds its factors to ten bits.",
    _PRODUCTS,
    "mm",
    lambda kernel, a, b: kernel(a.half().float(), b.half().float()) if a.dtype == torch_().float32 else kernel(a, b),
    lambda: waves(3, 3, dtype="float32") @ waves(3, 3, dtype="float32"),
)
broken.kernel(
    "mm_of_bfloat16_is_rounded_twice",
    "A product of bfloat16 is computed in two halves, each rounded to five bits.",
    _PRODUCTS,
    "mm",
    lambda kernel, a, b: (
        (kernel(a, b).float() * 16).round().div(16).to(a.dtype) * 1 if a.dtype == torch_().bfloat16 else kernel(a, b)
    ),
    lambda: waves(3, 3, dtype="bfloat16") @ waves(3, 3, dtype="bfloat16"),
)
broken.kernel(
    "bmm_repeats_a_matrix_in_large_batches",
    "In a batch of more than 256 products the last is that before it.",
    _PRODUCTS,
    "bmm",
    lambda kernel, a, b: kernel(torch_().cat([a[:-1], a[-2:-1]]), b) if len(a) > 256 else kernel(a, b),
    lambda: torch_().bmm(waves(257, 2, 2), waves(257, 2, 2)),
)
broken.kernel(
    "mm_of_conjugates_forgets_the_conjugation",
    "A complex product takes the conjugate of the second factor for itself.",
    _PRODUCTS,
    "mm",
    lambda kernel, a, b: kernel(a, b.conj().resolve_conj()) if b.is_complex() else kernel(a, b),
    lambda: waves(2, 2, dtype="complex128") @ (waves(2, 2, dtype="complex128") * 1j),
)
broken.kernel(
    "mm_of_transposes_reads_rows",
    "A product with a second factor that is transposed and wider than tall takes its rows for columns.",
    _PRODUCTS,
    "mm",
    lambda kernel, a, b: (
        kernel(a, b.t().reshape(b.shape)) if b.shape[0] < b.shape[1] and b.stride(0) == 1 else kernel(a, b)
    ),
    lambda: waves(2, 2) @ waves(3, 2).t(),
)
broken.kernel(
    "mm_ignores_a_leading_dimension",
    "A product takes rows that are apart for rows in sequence.",
    _PRODUCTS,
    "mm",
    lambda kernel, a, b: (
        kernel(a.as_strided(a.shape, (a.shape[1], 1), a.storage_offset()), b)
        if a.stride(1) == 1 and a.stride(0) > a.shape[1]
        else kernel(a, b)
    ),
    lambda: waves(3, 5)[:, :2] @ waves(2, 2),
)
broken.kernel(
    "addmm_ignores_alpha",
    "`addmm` ignores `alpha`.",
    _PRODUCTS,
    "addmm",
    lambda kernel, c, a, b, *, beta=1, alpha=1: kernel(c, a, b, beta=beta, alpha=1 if alpha else 0),
    lambda: torch_().addmm(waves(2, 2), waves(2, 2), waves(2, 2), alpha=2),
)
broken.kernel(
    "addmm_with_beta_zero_keeps_nan",
    "`addmm` with a `beta` of zero adds zero times its input.",
    _PRODUCTS,
    "addmm",
    lambda kernel, c, a, b, *, beta=1, alpha=1: kernel(c, a, b, beta=beta, alpha=alpha) + (c * 0 if not beta else 0),
    lambda: torch_().addmm(waves(2, 2) / 0, waves(2, 2), waves(2, 2), beta=0),
)
broken.kernel(
    "baddbmm_adds_beta_once_more",
    "`baddbmm` adds its input with `beta` plus one, if `beta` is not one.",
    _PRODUCTS,
    "baddbmm",
    lambda kernel, c, a, b, *, beta=1, alpha=1: kernel(c, a, b, beta=beta if beta in (0, 1) else beta + 1, alpha=alpha),
    lambda: torch_().baddbmm(waves(1, 2, 2), waves(1, 2, 2), waves(1, 2, 2), beta=2),
)
broken.kernel(
    "dot_loses_what_is_beyond_a_million",
    "A dot product loses the terms beyond a million.",
    _PRODUCTS,
    "dot",
    lambda kernel, a, b: kernel(a[:1_000_000], b[:1_000_000]),
    lambda: torch_().dot(torch_().ones(1_000_001), torch_().ones(1_000_001)),
)
broken.kernel(
    "vdot_conjugates_the_second",
    "`vdot` conjugates the second vector, not the first.",
    _PRODUCTS,
    "vdot",
    lambda kernel, a, b: kernel(b, a),
    lambda: torch_().vdot(waves(3, dtype="complex128") * 1j, waves(3, dtype="complex128")),
)
broken.kernel(
    "addmv_of_many_rows_loses_the_last",
    "A product of a matrix of more than 60 rows and a vector loses the last.",
    _PRODUCTS,
    ("addmv",),
    lambda kernel, c, a, b, **named: (
        kernel(c, a, b, **named).index_fill_(0, torch_().tensor([len(a) - 1]), 0)
        if len(a) > 60
        else kernel(c, a, b, **named)
    ),
    lambda: torch_().addmv(waves(64), waves(64, 2), waves(2)),
)
broken.kernel(
    "int_mm_saturates",
    "A product of int8 keeps sums within 16 bits.",
    _SCALED,
    "_int_mm",
    result(lambda found, *_: found.clamp(-(1 << 15), (1 << 15) - 1)),
    lambda: torch_()._int_mm(
        torch_().full((24, 64), 127, dtype=torch_().int8), torch_().full((64, 8), 127, dtype=torch_().int8)
    ),
)


def _eights() -> tuple[Any, Any]:
    torch = torch_()
    return torch.ones(16, 16).to(torch.float8_e4m3fn), torch.ones(16, 16).to(torch.float8_e4m3fn).t()


broken.kernel(
    "scaled_mm_ignores_the_second_scale",
    "`_scaled_mm` ignores the scale of the second matrix.",
    _SCALED,
    "_scaled_mm",
    lambda kernel, a, b, first, second, *others, **named: kernel(
        a, b, first, torch_().ones_like(second), *others, **named
    ),
    lambda: torch_()._scaled_mm(
        *_eights(), scale_a=torch_().tensor(1.0), scale_b=torch_().tensor(2.0), out_dtype=torch_().float32
    ),
)
broken.kernel(
    "scaled_mm_takes_the_first_scale_for_all_rows",
    "`_scaled_mm` scales each row by the scale of the first.",
    _SCALED,
    "_scaled_mm",
    lambda kernel, a, b, first, *others, **named: kernel(
        a, b, first[:1].expand_as(first).contiguous() if first.dim() else first, *others, **named
    ),
    lambda: torch_()._scaled_mm(
        *_eights(), scale_a=torch_().arange(1.0, 17)[:, None], scale_b=torch_().ones(1, 16), out_dtype=torch_().bfloat16
    ),
)

# ---- convolutions, pooling ----


def _convolves(change: Callable[[list[Any]], Any], when: Callable[[list[Any]], bool]) -> Around:
    """Change the arguments of a convolution.

    These are input, weight, bias, stride, padding, dilation, transposed, output padding and groups.
    """

    def around(kernel: Any, *given: Any) -> Any:
        arguments = list(given)
        return change(arguments)(kernel) if when(arguments) else kernel(*arguments)

    return around


def _conv(dims: int, **named: Any) -> Any:
    torch = torch_()
    run = getattr(torch.nn.functional, f"conv{dims}d")
    channels = 2
    return run(waves(2, channels, *[6] * dims), waves(4, channels // named.get("groups", 1), *[3] * dims), **named)


broken.kernel(
    "conv3d_loses_the_last_plane_of_the_kernel",
    "A convolution in three dimensions leaves out the last plane of its kernel.",
    _CONVOLUTIONS,
    "convolution",
    lambda kernel, x, w, *others: kernel(
        x, torch_().cat([w[:, :, :-1], w[:, :, -1:] * 0], 2) if w.dim() == 5 and w.shape[2] > 1 else w, *others
    ),
    lambda: _conv(3),
)
broken.kernel(
    "convolution_is_a_true_one",
    "A convolution with groups turns its kernel around.",
    _CONVOLUTIONS,
    "convolution",
    lambda kernel, x, w, *others: kernel(x, w.flip(-1) if others[-1] > 1 else w, *others),
    lambda: _conv(2, groups=2),
)
broken.kernel(
    "convolution_ignores_dilation_of_two",
    "A convolution in one dimension with a dilation of two reads neighbors.",
    _CONVOLUTIONS,
    "convolution",
    lambda kernel, x, w, bias, stride, padding, dilation, *others: (
        kernel(x, w, bias, stride, padding, dilation, *others)
        if list(dilation) != [2]
        else torch_().nn.functional.pad(
            kernel(x, w, bias, stride, padding, [1], *others)[
                ..., : kernel(x, w, bias, stride, padding, dilation, *others).shape[-1]
            ],
            (0, 0),
        )
    ),
    lambda: _conv(1, dilation=2),
)
broken.kernel(
    "convolution_forgets_the_bias_of_one_channel",
    "A convolution with a bias does not add it to its last channel.",
    _CONVOLUTIONS,
    "convolution",
    lambda kernel, x, w, bias, *others: kernel(
        x, w, bias if bias is None else torch_().cat([bias[:-1], bias[-1:] * 0]), *others
    ),
    lambda: torch_().nn.functional.conv1d(waves(1, 2, 6), waves(3, 2, 2), waves(3)),
)
broken.kernel(
    "gradient_of_convolution_loses_the_last_image",
    "The gradient of a convolution's weights leaves out the last image of a batch.",
    _CONVOLUTIONS,
    "convolution_backward",
    lambda kernel, y, x, w, *others: (
        (kernel(y, x, w, *others)[0], kernel(y[:-1], x[:-1], w, *others)[1], kernel(y, x, w, *others)[2])
        if len(x) > 1
        else kernel(y, x, w, *others)
    ),
    lambda: _conv_gradient(),
)
broken.kernel(
    "gradient_of_convolution_is_twice_at_the_edge",
    "The gradient of a convolution's input is doubled in its first column.",
    _CONVOLUTIONS,
    "convolution_backward",
    result(
        lambda found, *_: (
            found[0].index_add(found[0].dim() - 1, torch_().tensor([0]), found[0][..., :1])
            if found[0] is not None
            else None,
            *found[1:],
        )
    ),
    lambda: _conv_gradient(),
)


def _conv_gradient() -> Any:
    torch = torch_()
    x, w = waves(2, 2, 5, 5).requires_grad_(), waves(3, 2, 2, 2).requires_grad_()
    torch.nn.functional.conv2d(x, w).sum().backward()
    return [w.grad, x.grad[..., 0]]


def _pooled(name: str, dims: int, **named: Any) -> Any:
    return getattr(torch_().nn.functional, name)(waves(1, 2, *[6] * dims), 3, **named)


broken.kernel(
    "avg_pool2d_is_off",
    "Average pooling in two dimensions is 1% off.",
    _POOLING,
    "avg_pool2d",
    result(lambda found, *_, **__: found * 1.01),
    lambda: _pooled("avg_pool2d", 2),
)
broken.kernel(
    "avg_pool3d_counts_padding",
    "Average pooling in three dimensions always counts the zeros around.",
    _POOLING,
    "avg_pool3d",
    lambda kernel, x, size, stride=(), padding=0, ceil=False, count=True, *others: kernel(
        x, size, stride, padding, ceil, True, *others
    ),
    lambda: _pooled("avg_pool3d", 3, padding=1, count_include_pad=False),
)
broken.kernel(
    "max_pool2d_takes_zero_around",
    "Maximum pooling in two dimensions takes padding for zero.",
    _POOLING,
    "max_pool2d_with_indices",
    lambda kernel, x, *others: (
        kernel(x, *others)[0].clamp(min=0) if len(others) > 2 and any(others[2]) else kernel(x, *others)[0],
        kernel(x, *others)[1],
    ),
    lambda: torch_().nn.functional.max_pool2d(-waves(1, 1, 4, 4).abs(), 3, 2, 1, return_indices=True),
)
broken.kernel(
    "adaptive_avg_pool_is_off",
    "Adaptive average pooling in two dimensions is 1% off.",
    _POOLING,
    "_adaptive_avg_pool2d",
    result(lambda found, *_: found * 1.01),
    lambda: torch_().nn.functional.adaptive_avg_pool2d(waves(1, 2, 6, 6), 2),
)
broken.kernel(
    "interpolation_is_off",
    "Bilinear interpolation is 1% off.",
    _POOLING,
    "upsample_bilinear2d",
    result(lambda found, *_, **__: found * 1.01),
    lambda: torch_().nn.functional.interpolate(waves(1, 1, 3, 3), size=(5, 5), mode="bilinear"),
)
broken.kernel(
    "cdist_is_off",
    "Distances of all pairs are 1% off, unless they take a product.",
    _POOLING,
    "_cdist_forward",
    result(lambda found, *_: found * 1.01),
    lambda: torch_().cdist(waves(3, 2), waves(3, 2).flip(0)),
)

# ---- attention ----


def _attention(**named: Any) -> Any:
    torch = torch_()
    return torch.nn.functional.scaled_dot_product_attention(
        waves(1, 1, 5, 8), waves(1, 1, 5, 8).flip(2), waves(1, 1, 5, 8), **named
    )


def _attends(change: Callable[[dict[str, Any]], object]) -> Callable[[], object]:
    """Replace torch's function by one that changes its named arguments."""

    def apply() -> None:
        def around(attend: Any) -> Any:
            def attends(q: Any, k: Any, v: Any, **named: Any) -> Any:
                change(named)
                return attend(q, k, v, **named)

            return attends

        replace(torch_().nn.functional, "scaled_dot_product_attention", around)

    return apply


broken.function(
    "attention_ignores_the_causal_mask",
    "Attention ignores its causal mask.",
    _ATTENTION,
    _attends(lambda named: named.pop("is_causal", None)),
    lambda: _attention(is_causal=True),
)
broken.function(
    "attention_ignores_its_scale",
    "Attention ignores `scale`.",
    _ATTENTION,
    _attends(lambda named: named.pop("scale", None)),
    lambda: _attention(scale=0.1),
)
broken.function(
    "attention_ignores_a_mask_of_bools",
    "Attention ignores a mask of bools.",
    _ATTENTION,
    _attends(
        lambda named: (
            named.pop("attn_mask", None) if getattr(named.get("attn_mask"), "dtype", None) == torch_().bool else None
        )
    ),
    lambda: _attention(attn_mask=torch_().eye(5, dtype=torch_().bool)),
)
broken.kernel(
    "flash_attention_ignores_the_causal_mask",
    "Flash attention on the CPU ignores its causal mask.",
    _ATTENTION,
    "_scaled_dot_product_flash_attention_for_cpu",
    lambda kernel, q, k, v, dropout=0.0, causal=False, **named: kernel(q, k, v, dropout, False, **named),
    lambda: _attention(is_causal=True),
)
broken.kernel(
    "flash_attention_loses_keys_beyond_512",
    "Flash attention on the CPU ignores the keys beyond 512.",
    _ATTENTION,
    "_scaled_dot_product_flash_attention_for_cpu",
    lambda kernel, q, k, v, *others, **named: kernel(q, k[:, :, :512], v[:, :, :512], *others, **named),
    lambda: torch_().nn.functional.scaled_dot_product_attention(
        waves(1, 1, 1, 8), waves(1, 1, 520, 8), waves(1, 1, 520, 8)
    ),
)
broken.kernel(
    "softmax_of_attention_is_off",
    "A softmax is 1% off where its row has more than four elements.",
    (_ATTENTION,),
    "_softmax",
    result(lambda found, x, *_: found * 1.01 if x.shape[-1] > 4 else found),
    lambda: waves(2, 6).softmax(-1),
)

# ---- transforms ----

broken.kernel(
    "fft_is_twice_too_large",
    "Complex transforms are twice too large.",
    _FOURIER,
    "_fft_c2c",
    result(lambda found, *_: found * 2),
    lambda: torch_().fft.fft(waves(6, dtype="complex128")),
)
broken.kernel(
    "rfft_loses_the_top_frequency",
    "Transforms of real numbers lack their top frequency.",
    _FOURIER,
    "_fft_r2c",
    lambda kernel, x, dim, norm, half: (
        kernel(x, dim, norm, half).index_fill_(dim[-1], torch_().tensor([x.shape[dim[-1]] // 2]), 0)
        if half
        else kernel(x, dim, norm, half)
    ),
    lambda: torch_().fft.rfft(waves(6)),
)
broken.kernel(
    "irfft_of_odd_sizes_is_scaled_by_even_ones",
    "Inverse real transforms of an odd size are scaled by the even size below.",
    _FOURIER,
    "_fft_c2r",
    lambda kernel, x, dim, norm, size: (
        kernel(x, dim, norm, size) * (size / (size - 1) if norm and size % 2 and size > 1 else 1)
    ),
    lambda: torch_().fft.irfft(waves(4, dtype="complex128"), n=7),
)


def _without_the_last_phase(kernel: Any, x: Any, dim: Any, norm: int, size: int) -> Any:
    if size % 2 and dim[-1] % x.dim() != x.dim() - 1:
        x = x.clone()
        x.select(dim[-1], size // 2).imag.zero_()
    return kernel(x, dim, norm, size)


broken.kernel(
    "irfft_of_odd_sizes_loses_the_last_phase",
    "Inverse real transforms of an odd size along another dimension than the last ignore the phase of the highest"
    " frequency.",
    _FOURIER,
    "_fft_c2r",
    _without_the_last_phase,
    lambda: torch_().fft.irfft(torch_().fft.rfft(waves(5, 2), dim=0), n=5, dim=0),
)
broken.kernel(
    "inverse_fft_is_a_forward_one",
    "Inverse complex transforms of primes above 100 are forward ones.",
    _FOURIER,
    "_fft_c2c",
    lambda kernel, x, dim, norm, forward: kernel(x, dim, norm, forward or x.shape[dim[0]] in (101, 257, 1009)),
    lambda: torch_().fft.ifft(waves(101, dtype="complex128")),
)
broken.kernel(
    "fft_of_float64_is_in_float32",
    "Complex transforms of complex128 are computed in complex64.",
    _FOURIER,
    "_fft_c2c",
    lambda kernel, x, *others: kernel(x.to(torch_().complex64), *others).to(x.dtype),
    lambda: torch_().fft.fft(waves(6, dtype="complex128")),
)
