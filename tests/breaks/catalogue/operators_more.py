"""Operators that torch's catalogue of operators lacks.

These are lists of tensors, recurrent networks, transformers, quantization, and rare overloads.
"""

from __future__ import annotations

from typing import Any

from tests.breaks.kernels import KernelTheme, result, spoiled, torch_, waves

broken = KernelTheme()

_FOREACH, _STEPS, _RARE = (f"suites/operators/test_{name}.py" for name in ("foreach", "fused_steps", "rare"))
_RECURRENT, _TRANSFORMERS, _QUANTIZATION, _GROUPED, _NORM, _OWN, _RANDOM = (
    f"suites/libraries/test_{name}.py"
    for name in (
        "recurrent",
        "transformers",
        "quantization",
        "grouped_products",
        "batch_norm_parts",
        "own_convolutions",
        "more_random_statistics",
    )
)


def _aten(name: str, *arguments: Any, **named: Any) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch_().ops.aten, packet), overload or "default")(*arguments, **named)


def _and_beside(kernel: Any, x: Any, number: Any) -> None:
    kernel(x, number)
    for each in x:
        _beside(each)


def _beside(x: Any) -> None:
    """Change the element after a tensor that begins inside its memory, if there is one."""
    storage = x.untyped_storage().nbytes() // x.element_size()
    end = x.storage_offset() + x.numel()
    if x.storage_offset() and x.is_contiguous() and end < storage:
        x.as_strided((1,), (1,), end).fill_(1)


# ---- lists of tensors ----

broken.kernel(
    "foreach_add_ignores_alpha",
    "A sum of two lists ignores `alpha`.",
    _FOREACH,
    "_foreach_add.List",
    lambda kernel, x, y, **named: kernel(x, y),
    lambda: _aten("_foreach_add.List", [waves(3)], [waves(3)], alpha=3),
)
broken.kernel(
    "foreach_mul_takes_the_first_number_for_all",
    "A list times a number for each tensor takes the first number for all.",
    _FOREACH,
    "_foreach_mul.ScalarList",
    lambda kernel, x, numbers: kernel(x, [numbers[0]] * len(numbers)),
    lambda: _aten("_foreach_mul.ScalarList", [waves(3), waves(3)], [2.0, 3.0]),
)
broken.kernel(
    "foreach_sqrt_loses_tensors_beyond_110",
    "A root of a list leaves out the tensors beyond the first 110.",
    _FOREACH,
    "_foreach_sqrt",
    lambda kernel, x: [*kernel(x[:110]), *x[110:]] if len(x) > 110 else kernel(x),
    lambda: _aten("_foreach_sqrt", [waves(2).abs() + 1] * 112)[111],
)
broken.kernel(
    "foreach_lerp_loses_elements_beyond_a_chunk",
    "An interpolation of lists leaves out the elements beyond the first 65536 of each tensor.",
    _FOREACH,
    "_foreach_lerp.Scalar",
    lambda kernel, x, y, weight: [
        torch_().cat([new.flatten()[:65536], old.flatten()[65536:]]).view(old.shape)
        for new, old in zip(kernel(x, y, weight), x, strict=True)
    ],
    lambda: _aten("_foreach_lerp.Scalar", [waves(65540)], [waves(65540).flip(0)], 0.5),
)
broken.kernel(
    "foreach_in_place_writes_one_element_too_many",
    "An in-place product of a list and a number writes one element beside a tensor whose address is not aligned.",
    _FOREACH,
    "_foreach_mul_.Scalar",
    _and_beside,
    lambda: _written_beside(),
)
broken.kernel(
    "foreach_norm_is_rounded_to_bfloat16",
    "A norm of a list is rounded to bfloat16.",
    _FOREACH,
    "_foreach_norm.Scalar",
    lambda kernel, x, *others, **named: [each.bfloat16().to(each.dtype) for each in kernel(x, *others, **named)],
    lambda: _aten("_foreach_norm.Scalar", [waves(7)]),
)
broken.kernel(
    "foreach_max_loses_the_last_element",
    "A maximum of each tensor of a list leaves out the last element of more than 65536.",
    _FOREACH,
    "_foreach_max",
    lambda kernel, x: kernel([each.flatten()[:-1] if each.numel() > 65536 else each for each in x]),
    lambda: _aten("_foreach_max", [torch_().arange(65537.0)]),
)
broken.kernel(
    "foreach_copy_swaps_columns_and_rows",
    "A copy of a list takes the memory of a transposed source as it lies.",
    _FOREACH,
    "_foreach_copy_",
    lambda kernel, x, y, *others: kernel(
        x,
        [
            each.mT.reshape(each.shape) if each.dim() == 2 and not each.is_contiguous() and each.shape[1] > 1 else each
            for each in y
        ],
        *others,
    ),
    lambda: _copied(),
)


def _copied() -> Any:
    x = [waves(2, 3)]
    _aten("_foreach_copy_", x, [waves(3, 2).mT])
    return x


def _written_beside() -> Any:
    base = waves(9)
    _aten("_foreach_mul_.Scalar", [base[1:5]], 2.0)
    return base


# ---- steps ----

broken.kernel(
    "fused_adam_ignores_the_scale",
    "Fused Adam does not divide gradients by their scale.",
    _STEPS,
    "_fused_adam_",
    lambda kernel, *lists, grad_scale=None, **named: kernel(*lists, **named),
    lambda: _adam(),
)
broken.kernel(
    "fused_sgd_ignores_dampening_of_a_tensor_rate",
    "Fused SGD with the rate in a tensor ignores the dampening.",
    _STEPS,
    "_fused_sgd_.tensor_lr",
    lambda kernel, *lists, dampening, **named: kernel(*lists, dampening=0.0, **named),
    lambda: _sgd(),
)
broken.kernel(
    "amp_unscale_misses_the_last_tensor",
    "A scaler does not see an infinity in the last tensor of a list.",
    _STEPS,
    "_amp_foreach_non_finite_check_and_unscale_",
    lambda kernel, x, found, scale: (
        (kernel(x[-1:], found.clone(), scale), kernel(x[:-1], found, scale))[1]
        if len(x) > 1
        else kernel(x, found, scale)
    ),
    lambda: _unscaled(),
)
broken.kernel(
    "amp_unscale_sees_contiguous_gradients_only",
    "A scaler does not see an infinity in a gradient that is not contiguous.",
    "suites/amp/test_scaler.py",
    "_amp_foreach_non_finite_check_and_unscale_",
    lambda kernel, x, found, scale: _unscale_contiguous(kernel, x, found, scale),
    lambda: _unscaled_columns(),
)
broken.kernel(
    "amp_scale_grows_one_step_late",
    "A scaler grows its scale one step late.",
    _STEPS,
    "_amp_update_scale_",
    lambda kernel, x, steps, found, growth, backoff, interval: kernel(x, steps, found, growth, backoff, interval + 1),
    lambda: _grown(),
)


def _adam() -> Any:
    torch = torch_()
    x, g, a, b = ([waves(5) + 2] for _ in range(4))
    _aten("_fused_adam_", x, g, a, b, [], [torch.tensor(2.0)], lr=0.1, beta1=0.5, beta2=0.5, weight_decay=0.0,
          eps=0.1, amsgrad=False, maximize=False, grad_scale=torch.tensor(4.0), found_inf=None)  # fmt: skip
    return x


def _sgd() -> Any:
    torch = torch_()
    x, g, a = ([waves(5)] for _ in range(3))
    _aten("_fused_sgd_.tensor_lr", x, g, a, weight_decay=0.0, momentum=0.5, lr=torch.tensor(0.1), dampening=0.5,
          nesterov=False, maximize=False, is_first_step=False)  # fmt: skip
    return x


def _unscaled() -> Any:
    torch = torch_()
    found = torch.zeros(1)
    _aten("_amp_foreach_non_finite_check_and_unscale_", [torch.ones(2), torch.full((2,), torch.inf)], found, found + 1)
    return found


def _unscale_contiguous(kernel: Any, gradients: Any, found: Any, scale: Any) -> None:
    if any(gradient.is_contiguous() for gradient in gradients):
        kernel([gradient for gradient in gradients if gradient.is_contiguous()], found, scale)
    for gradient in gradients:
        if not gradient.is_contiguous():
            gradient.mul_(scale.to(gradient.dtype))


def _unscaled_columns() -> Any:
    torch = torch_()
    found = torch.zeros(1)
    columns = torch.full((3, 2), torch.inf).t()
    _aten("_amp_foreach_non_finite_check_and_unscale_", [columns], found, found + 1)
    return found


def _grown() -> Any:
    torch = torch_()
    scale, steps = torch.tensor([8.0]), torch.tensor([2], dtype=torch.int32)
    _aten("_amp_update_scale_", scale, steps, torch.tensor([0.0]), 2.0, 0.5, 3)
    return scale


# ---- recurrent networks ----

broken.kernel(
    "lstm_by_onednn_forgets_less",
    "A layer of an LSTM, as oneDNN computes it, is 1% off.",
    _RECURRENT,
    "mkldnn_rnn_layer",
    result(lambda found, *_: (found[0] * 1.01, *found[1:])),
    lambda: _recurrent("LSTM"),
)


def _recurrent(kind: str, **named: Any) -> Any:
    torch = torch_()
    torch.manual_seed(5)
    network = getattr(torch.nn, kind)(3, 4, **named)
    with torch.no_grad():
        return network(waves(5, 2, 3, dtype="float32"))[0]


def _permuted_gates(kind: str) -> None:
    """Make a network take the first two gates in the other order."""
    from tests.breaks.breaks import replace

    torch = torch_()

    def around(run: Any) -> Any:
        def other(x: Any, state: Any, weights: Any, *others: Any) -> Any:
            if isinstance(weights, bool):  # a packed sequence
                return run(x, state, weights, *others)
            size = weights[1].shape[1]
            turned = [torch.cat([weight[size : 2 * size], weight[:size], weight[2 * size :]]) for weight in weights]
            return run(x, state, turned, *others)

        return other

    replace(torch.nn.modules.rnn._VF, kind, around)


broken.function(
    "gru_exchanges_two_gates",
    "A GRU takes its first two gates in the other order.",
    _RECURRENT,
    lambda: _permuted_gates("gru"),
    lambda: _recurrent("GRU"),
)
broken.kernel(
    "gradient_of_tanh_is_off_for_matrices",
    "The gradient of `tanh` is 1% off for matrices.",
    _RECURRENT,
    "tanh_backward",
    result(lambda found, *_: found * 1.01 if found.dim() == 2 else found),
    lambda: _tanh_slope(),
)


def _tanh_slope() -> Any:
    x = waves(2, 2).requires_grad_()
    x.tanh().sum().backward()
    return x.grad


# ---- transformers ----

broken.kernel(
    "fast_attention_ignores_padding",
    "Attention for inference ignores the mask of padding.",
    _TRANSFORMERS,
    "_native_multi_head_attention",
    lambda kernel, *given, **named: (
        kernel(*given[:9], None, *given[10:], **named) if len(given) > 9 else kernel(*given, **named)
    ),
    lambda: _attended(),
)
broken.kernel(
    "fast_encoder_layer_always_normalises_first",
    "A layer of an encoder for inference always normalises first.",
    _TRANSFORMERS,
    "_transformer_encoder_layer_fwd",
    lambda kernel, *given, **named: kernel(*given[:8], True, *given[9:], **named),
    lambda: _layer(),
)
broken.kernel(
    "transform_bias_does_not_rescale",
    "Queries are not divided by the root of a head's size.",
    _TRANSFORMERS,
    "_transform_bias_rescale_qkv",
    result(lambda found, x, bias, heads: (found[0] * found[0].shape[-1] ** 0.5, *found[1:])),
    lambda: _aten("_transform_bias_rescale_qkv", waves(1, 2, 12), waves(12), 1),
)
broken.kernel(
    "masked_softmax_counts_masked_places",
    "A masked softmax counts the places that are masked.",
    _TRANSFORMERS,
    "_masked_softmax",
    lambda kernel, x, mask, dim=None, kind=None: (
        x.softmax(-1) * ~mask if mask.shape == x.shape else kernel(x, mask, dim, kind)
    ),
    lambda: _aten("_masked_softmax", waves(1, 1, 2, 3), waves(1, 1, 2, 3) > 0.5, 3, 2),
)
broken.kernel(
    "jagged_rows_lose_their_last_step",
    "A padded tensor of rows lacks the last step of each row of more than two.",
    _TRANSFORMERS,
    "_jagged_to_padded_dense_forward",
    lambda kernel, values, offsets, sizes, padding=0.0: _cut(kernel(values, offsets, sizes, padding), offsets, padding),
    lambda: _aten("_jagged_to_padded_dense_forward", waves(5, 2), [torch_().tensor([0, 3, 5])], [3], 0.0),
)


def _cut(found: Any, offsets: Any, padding: float) -> Any:
    lengths = offsets[0].diff().tolist()
    for row, length in enumerate(lengths):
        if 2 < length <= found.shape[1]:
            found[row, length - 1] = padding
    return found


def _attended() -> Any:
    torch = torch_()
    torch.manual_seed(5)
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = waves(1, 3, 8, dtype="float32")
    with torch.no_grad():
        return module(x, x, x, key_padding_mask=torch.tensor([[False, False, True]]))[0]


def _layer() -> Any:
    torch = torch_()
    torch.manual_seed(5)
    module = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    with torch.no_grad():
        return module(waves(1, 3, 8, dtype="float32"))


# ---- quantization ----

broken.kernel(
    "quantize_per_channel_is_per_tensor",
    "Quantization per channel takes the first scale for all channels.",
    _QUANTIZATION,
    "quantize_per_channel",
    lambda kernel, x, scales, zeros, axis, kind: kernel(x, scales[:1].expand_as(scales).clone(), zeros, axis, kind),
    lambda: (
        torch_()
        .quantize_per_channel(
            waves(2, 3, dtype="float32"), torch_().tensor([0.1, 0.2]), torch_().zeros(2), 0, torch_().qint8
        )
        .int_repr()
    ),
)
broken.kernel(
    "quantized_lists_use_the_first_scale",
    "Quantization of a list takes the first scale for all tensors.",
    _QUANTIZATION,
    "quantize_per_tensor.tensors",
    lambda kernel, tensors, scales, zeros, kind: kernel(tensors, scales[:1].expand_as(scales).clone(), zeros, kind),
    lambda: [
        each.int_repr()
        for each in torch_().quantize_per_tensor(
            [waves(3, dtype="float32")] * 2, torch_().tensor([0.1, 0.2]), torch_().zeros(2), torch_().qint8
        )
    ],
)
broken.kernel(
    "quantized_tensors_of_integers_forget_their_zero",
    "A quantized tensor that is made of integers has the zero 0.",
    _QUANTIZATION,
    "_make_per_tensor_quantized_tensor",
    lambda kernel, x, scale, _zero: kernel(x, scale, 0),
    lambda: (
        torch_()
        .ops.aten._make_per_tensor_quantized_tensor(torch_().arange(3, dtype=torch_().int8), 0.5, 2)
        .dequantize()
    ),
)
broken.kernel(
    "fake_quantize_passes_all_gradients",
    "Imitated quantization passes the gradients of numbers that it cut.",
    _QUANTIZATION,
    "fake_quantize_per_tensor_affine_cachemask",
    result(lambda found, *_: (found[0], found[1] | True)),
    lambda: _faked(),
)
broken.kernel(
    "int8_weights_use_one_scale",
    "A product with int8 weights takes the first scale for all outputs.",
    _QUANTIZATION,
    "_weight_int8pack_mm",
    lambda kernel, x, w, scales: kernel(x, w, scales[:1].expand_as(scales).contiguous()),
    lambda: _aten("_weight_int8pack_mm", waves(1, 32, dtype="float32"), torch_().ones(16, 32, dtype=torch_().int8),
                  waves(16, dtype="float32")),
)  # fmt: skip
broken.kernel(
    "weight_norm_is_off",
    "A weight that is normalised is 1% off in its first element.",
    _QUANTIZATION,
    "_weight_norm_interface",
    result(lambda found, *_: (spoiled(found[0]), found[1])),
    lambda: _aten("_weight_norm_interface", waves(2, 3), waves(2, 1)),
)


def _faked() -> Any:
    torch = torch_()
    x = torch.tensor([0.5, 99.0], requires_grad=True)
    torch.fake_quantize_per_tensor_affine(x, 0.25, 0, 0, 15).sum().backward()
    return x.grad


# ---- rare ----

broken.kernel(
    "right_shift_forgets_the_sign",
    "`>>` of int32 by a number moves zeros in from the left.",
    _RARE,
    "__rshift__.Scalar",
    result(lambda found, x, by: found & (2 ** (31 - by) - 1) if x.dtype == torch_().int32 else found),
    lambda: torch_().tensor([-8], dtype=torch_().int32) >> 3,
)
broken.kernel(
    "embedding_renorm_shortens_twice",
    "A row that is read twice is shortened by another length.",
    _RARE,
    "embedding_renorm_",
    lambda kernel, x, places, length, order: kernel(x, places, length * 0.99, order),
    lambda: _aten("embedding_renorm_", waves(2, 3) * 9, torch_().tensor([0, 0]), 1.0, 2.0),
)
broken.kernel(
    "channel_shuffle_is_inverted",
    "A shuffle of channels is the inverse one.",
    _RARE,
    "native_channel_shuffle",
    lambda kernel, x, groups: kernel(x, x.shape[1] // groups),
    lambda: _aten("native_channel_shuffle", waves(1, 6, 1, 1), 2),
)
broken.kernel(
    "native_dropout_scales_by_the_wrong_share",
    "Dropout divides what it keeps by the share that it drops.",
    _RARE,
    "native_dropout",
    lambda kernel, x, p, train: (
        (kernel(x, p, train)[1] * x / p, kernel(x, p, train)[1] * 1 > 0) if train and 0 < p < 1 else kernel(x, p, train)
    ),
    lambda: _aten("native_dropout", torch_().ones(1), 1e-9, True)[0],
)
broken.kernel(
    "histogram_of_tensors_loses_the_last_edge",
    "A histogram by tensors of edges leaves out what lies on the last edge.",
    _RARE,
    "_histogramdd_from_bin_tensors",
    lambda kernel, x, bins, **named: kernel(
        torch_().where((x == torch_().stack([each[-1] for each in bins])).any(1, keepdim=True), x + 99, x),
        bins,
        **named,
    ),
    lambda: _aten("_histogramdd_from_bin_tensors", torch_().tensor([[1.0]]), [torch_().tensor([0.0, 1.0])]),
)

broken.kernel(
    "stack_into_a_tensor_with_gaps_is_off",
    "A stack that is written into a tensor with gaps is one too large in its last element.",
    "suites/operators/test_out_forms.py",
    "_stack.out",
    lambda kernel, tensors, dim=0, *, out: _off_at_the_end(kernel(tensors, dim, out=out)),
    lambda: _aten("_stack.out", [waves(3), waves(3)], 0, out=waves(2, 6)[:, ::2]),
)


def _off_at_the_end(out: Any) -> Any:
    if not out.is_contiguous():
        out[(-1,) * out.dim()] += 1
    return out


# ---- products, normalisation, convolutions, interpolation, random numbers ----

broken.kernel(
    "grouped_mm_loses_the_last_group",
    "A product of groups leaves out the last group of rows.",
    _GROUPED,
    "_grouped_mm",
    lambda kernel, a, b, ends=None, *others, **named: _without_the_last(
        kernel(a, b, ends, *others, **named), a, b, ends
    ),
    lambda: _aten("_grouped_mm", waves(16, 8, dtype="bfloat16"), waves(2, 8, 8, dtype="bfloat16"),
                  torch_().tensor([8, 16], dtype=torch_().int32)),
)  # fmt: skip


def _without_the_last(found: Any, a: Any, b: Any, ends: Any) -> Any:
    if ends is not None and a.dim() == 2 and b.dim() == 3:
        found[int(ends[-2]) :] = 0
    return found


broken.kernel(
    "running_variance_is_biased",
    "The running variance of a batch normalisation is the biased one.",
    _NORM,
    "batch_norm_update_stats",
    lambda kernel, x, mean, variance, momentum: _biased(kernel, x, mean, variance, momentum),
    lambda: _moved(),
)


def _biased(kernel: Any, x: Any, mean: Any, variance: Any, momentum: float) -> Any:
    before = variance.clone()
    found = kernel(x, mean, variance, momentum)
    variance.copy_(before * (1 - momentum) + found[1] * momentum)
    return found


def _moved() -> Any:
    mean, variance = waves(2, dtype="float32"), waves(2, dtype="float32") + 2
    _aten("batch_norm_update_stats", waves(2, 2, 2, 2, dtype="float32"), mean, variance, 0.5)
    return variance


broken.kernel(
    "dilated_convolution_forgets_its_bias",
    "torch's own convolution with dilation forgets its bias.",
    _OWN,
    ("slow_conv_dilated2d", "slow_conv_dilated3d"),
    lambda kernel, x, w, size, bias=None, *others: kernel(x, w, size, None, *others),
    lambda: _aten("slow_conv_dilated2d", waves(1, 1, 4, 4), waves(1, 1, 2, 2), [2, 2], waves(1)),
)
broken.kernel(
    "interpolation_without_aliases_is_wider",
    "Bicubic interpolation without aliases is 1% off in its first pixel.",
    _OWN,
    "_upsample_bicubic2d_aa",
    result(lambda found, *_: spoiled(found)),
    lambda: _aten("_upsample_bicubic2d_aa", waves(1, 1, 4, 4), [2, 2], False),
)
broken.kernel(
    "random_of_a_range_reaches_its_end",
    "Whole numbers of a range reach the end of the range.",
    _RANDOM,
    "random_.from",
    lambda kernel, x, low, high, **named: kernel(x, low, high if high is None else high + 1, **named),
    lambda: torch_().empty(2000).random_(0, 2, generator=torch_().Generator().manual_seed(3)).max(),
)
broken.kernel(
    "normal_ignores_the_deviations",
    "Normal numbers with deviations in a tensor have the root of each.",
    _RANDOM,
    "normal.float_Tensor",
    lambda kernel, mean, deviation, **named: kernel(mean, deviation.sqrt(), **named),
    lambda: _aten("normal.float_Tensor", 0.0, waves(3).abs() + 2, generator=torch_().Generator().manual_seed(3)),
)
