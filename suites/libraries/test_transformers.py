"""Multi-head attention and transformer layers, compared with NumPy: torch's fast paths for inference, and training.

In evaluation and without gradients, `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call one operator each
(`_native_multi_head_attention`, `_transformer_encoder_layer_fwd`); otherwise they call many. Both have the same
results.

Values are of the order of one. A result is some ten consecutive sums of up to 64 products, in float32 or wider. Its
error is below 1000 roundings of the type; for 16-bit types, which round each of these results, below 24.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import nn

from . import activations, transformer
from ._torch_private import aten
from .oracle import Array, assert_equal, assert_within, name, numbers, tensor, types, unit
from .slopes import assert_slopes

#: torch's warnings of the state of its nested tensors are not under test.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is")

ROWS, STEPS, WIDTH, HEADS = 3, 7, 16, 4
F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
#: The software device has no nested tensors.
NESTED = pytest.mark.requires(any=[{"not_": {"accelerator": True}}, {"device": "cuda"}])
PATH = pytest.mark.parametrize("path", ["inference", "training"])
TYPE = types(F32, F64)
#: The number of valid steps of each row.
LENGTHS = np.array([7, 4, 5])


def _allowed(dtype: torch.dtype) -> float:
    return (24 if dtype.itemsize == 2 else 1000) * unit(dtype)


def _fill(module: nn.Module, rng: np.random.Generator) -> dict[str, Array]:
    """Give a module random weights, and return them."""
    with torch.no_grad():
        for each in module.parameters():
            each.copy_(torch.from_numpy(rng.uniform(-0.4, 0.4, tuple(each.shape))).to(each.dtype))
    return {key: numbers(each) for key, each in module.named_parameters()}


def _masks(kind: str) -> tuple[Array | None, Array | None, Array]:
    """Return a padding mask (rows, steps), an attention mask (steps, steps), and both for (rows, 1, to, from)."""
    padding = np.arange(STEPS) >= LENGTHS[:, None] if kind in ("padding", "both") else None
    causal = np.triu(np.ones((STEPS, STEPS), bool), 1) if kind in ("causal", "both") else None
    blocked = np.zeros((ROWS, 1, STEPS, STEPS), bool)
    if padding is not None:
        blocked = blocked | padding[:, None, None]
    return padding, causal, blocked if causal is None else blocked | causal


def _on(mask: Array | None, device: torch.device) -> torch.Tensor | None:
    return None if mask is None else torch.from_numpy(mask).to(device)


@pytest.mark.operator("_native_multi_head_attention", "nn.MultiheadAttention")
@pytest.mark.parametrize("mask", ["none", "padding", "causal", "both"])
@PATH
@TYPE
def test_multiheadattention_is_its_formula(
    device: torch.device, rng: np.random.Generator, path: str, mask: str, dtype: torch.dtype
) -> None:
    """The result, each head's weights and their mean, with masks, and in training all gradients equal the formula."""
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, device=device, dtype=dtype)
    weights = _fill(module, rng)
    host = torch.from_numpy(rng.uniform(-1, 1, (ROWS, STEPS, WIDTH))).to(dtype)
    x = host.to(device).requires_grad_(path == "training")
    padding, causal, blocked = _masks(mask)
    named = {"key_padding_mask": _on(padding, device), "attn_mask": _on(causal, device)}
    a = numbers(host)
    wanted, shares = transformer.attention(a, a, a, weights, HEADS, blocked)
    module.train(path == "training")

    with torch.set_grad_enabled(path == "training"):
        for mean in (True, False):
            found, seen = module(x, x, x, need_weights=True, average_attn_weights=mean, **named)
            assert_within(found, wanted, _allowed(dtype))
            assert_within(seen, shares.mean(1) if mean else shares, _allowed(dtype))
        found, seen = module(x, x, x, need_weights=False, **named)
    assert seen is None or not seen.numel()
    assert_within(found, wanted, _allowed(dtype))
    if path == "inference":
        return
    factor = torch.from_numpy(rng.uniform(-1, 1, wanted.shape)).to(dtype)
    found.backward(factor.to(device))

    def value(given: Mapping[str, Array]) -> complex:
        result, _ = transformer.attention(given["x"], given["x"], given["x"], given, HEADS, blocked)
        return complex((result * numbers(factor)).sum())

    gradients = {key: each.grad for key, each in module.named_parameters()} | {"x": x.grad}
    assert_slopes(value, weights | {"x": numbers(host)}, gradients, rng, 4000)


@pytest.mark.operator("_native_multi_head_attention")
@pytest.mark.parametrize("dtype", [F16, BF16], ids=name)
@pytest.mark.parametrize("heads", [1, 2, 8])
def test_multiheadattention_of_16_bits_in_inference(
    device: torch.device, rng: np.random.Generator, heads: int, dtype: torch.dtype
) -> None:
    """16-bit types, with heads of 8 to 64 features and keys that are padding, give the result of the formula."""
    module = nn.MultiheadAttention(64, heads, batch_first=True, device=device, dtype=dtype).eval()
    weights = _fill(module, rng)
    for each in weights:
        weights[each] = weights[each] / 4
    with torch.no_grad():
        for each_ in module.parameters():
            each_.div_(4)
    host = torch.from_numpy(rng.uniform(-1, 1, (ROWS, STEPS, 64))).to(dtype)
    padding, _, blocked = _masks("padding")

    with torch.no_grad():
        x = host.to(device)
        found, _ = module(x, x, x, key_padding_mask=_on(padding, device), need_weights=False)

    a = numbers(host)
    wanted, _ = transformer.attention(a, a, a, weights, heads, blocked)
    assert_within(found, wanted, _allowed(dtype))


@pytest.mark.operator("_transformer_encoder_layer_fwd", "nn.TransformerEncoderLayer")
@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
@pytest.mark.parametrize("first", [False, True], ids=["norm_last", "norm_first"])
@pytest.mark.parametrize("active", ["relu", "gelu"])
@PATH
@TYPE
def test_transformerencoderlayer_is_its_formula(
    device: torch.device,
    rng: np.random.Generator,
    path: str,
    active: str,
    first: bool,
    mask: str,
    dtype: torch.dtype,
) -> None:
    """The layer is attention, two normalizations and two products, in both orders; in training also with gradients."""
    module = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 24, dropout=0, activation=active, batch_first=True, norm_first=first, device=device, dtype=dtype
    )
    weights = _fill(module, rng)
    host = torch.from_numpy(rng.uniform(-1, 1, (ROWS, STEPS, WIDTH))).to(dtype)
    x = host.to(device).requires_grad_(path == "training")
    padding, causal, blocked = _masks(mask)
    wanted = transformer.encoder_layer(numbers(host), weights, HEADS, blocked, first, getattr(activations, active))
    module.train(path == "training")

    with torch.set_grad_enabled(path == "training"):
        found = module(x, src_mask=_on(causal, device), src_key_padding_mask=_on(padding, device))

    there = np.arange(STEPS) < LENGTHS[:, None] if mask == "padding" else np.ones((ROWS, STEPS), bool)
    assert_within(found[torch.from_numpy(there)], wanted[there], 4 * _allowed(dtype))
    if path == "inference" or active == "gelu":
        return
    factor = torch.from_numpy(rng.uniform(-1, 1, wanted.shape) * there[..., None]).to(dtype)
    found.backward(factor.to(device))

    def value(given: Mapping[str, Array]) -> complex:
        result = transformer.encoder_layer(given["x"], given, HEADS, blocked, first, activations.relu)
        return complex((result * numbers(factor)).sum())

    gradients = {key: each.grad for key, each in module.named_parameters()} | {"x": x.grad}
    assert_slopes(value, weights | {"x": numbers(host)}, gradients, rng, 8000)


@pytest.mark.operator("nn.TransformerEncoder")
@NESTED
def test_transformerencoder_of_nested_rows_skips_padding(device: torch.device, rng: np.random.Generator) -> None:
    """In inference, rows that end early are packed into a nested tensor: results are those of each row, then zeros."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, dropout=0, batch_first=True, device=device)
    module = nn.TransformerEncoder(layer, 2).eval()
    weights = _fill(module, rng)
    host = torch.from_numpy(rng.uniform(-1, 1, (ROWS, STEPS, WIDTH))).float()
    padding, _, _ = _masks("padding")

    with torch.no_grad():
        found = module(host.to(device), src_key_padding_mask=_on(padding, device))

    for row, length in enumerate(LENGTHS):
        x = numbers(host[row : row + 1, :length])
        for place in range(2):
            of_layer = {key.removeprefix(f"layers.{place}."): each for key, each in weights.items()}
            nothing = np.zeros((1, 1, length, length), bool)
            x = transformer.encoder_layer(x, of_layer, HEADS, nothing, False, activations.relu)
        assert_within(found[row : row + 1, :length], x, 16 * _allowed(F32))
        assert_equal(found[row, length:], np.zeros((STEPS - length, WIDTH)))


@pytest.mark.operator("_transform_bias_rescale_qkv")
@types(F32, F64, BF16, F16)
def test_transform_bias_rescale_qkv_adds_biases_and_splits_heads(
    device: torch.device, rng: np.random.Generator, dtype: torch.dtype
) -> None:
    """Queries, keys and values get their biases, as heads; queries are divided by the root of a head's size."""
    for width, heads, steps in ((16, 4, 7), (64, 2, 3), (6, 2, 5)):
        x = torch.from_numpy(rng.uniform(-1, 1, (2, steps, 3 * width))).to(dtype)
        bias = torch.from_numpy(rng.uniform(-1, 1, 3 * width)).to(dtype)

        found = aten("_transform_bias_rescale_qkv.default")(x.to(device), bias.to(device), heads)

        parts = np.split(numbers(x) + numbers(bias), 3, -1)
        parts[0] = parts[0] / np.sqrt(width // heads)
        for each, part in zip(found, parts, strict=True):
            assert_within(each, transformer.split(part, heads), 4 * unit(dtype) * 2)


@pytest.mark.operator("_masked_softmax")
@pytest.mark.parametrize("kind", ["steps", "rows", "all"])
@types(F32, F64)
def test_masked_softmax_gives_masked_places_nothing(
    device: torch.device, rng: np.random.Generator, kind: str, dtype: torch.dtype
) -> None:
    """Places that are not masked have their shares; masked ones and their gradients are zero, in rows up to 1500."""
    for size, tall in ((5, 5), (33, 33), (1500, 2)) if kind == "all" else ((5, 5), (33, 33)):
        x = torch.from_numpy(rng.uniform(-3, 3, (2, 3, tall, size))).to(dtype)
        mask = rng.random({"steps": (size, size), "rows": (2, size), "all": (2, 3, tall, size)}[kind]) < 0.4
        mask[..., 0] = False
        number = {"steps": 0, "rows": 1, "all": 2}[kind]
        given = torch.from_numpy(mask).to(device)
        found = aten("_masked_softmax.default")(x.to(device), given, 3, number)

        blocked = mask[:, None, None] if kind == "rows" else mask
        wanted = transformer.softmax(np.where(blocked, -np.inf, numbers(x)))
        assert_within(found, wanted, 64 * unit(dtype))
        assert not numbers(found)[np.broadcast_to(blocked, wanted.shape)].any()
        whole = torch.from_numpy(np.broadcast_to(blocked, wanted.shape).copy()).to(device)
        weight = torch.from_numpy(rng.uniform(-1, 1, wanted.shape)).to(dtype)
        slope = aten("_masked_softmax_backward.default")(weight.to(device), found, whole, 3)
        out, factor = numbers(found), numbers(weight)
        back = out * (factor - (out * factor).sum(-1, keepdims=True))
        assert_within(slope, back, 64 * unit(dtype) * np.abs(factor).max())


def _rows(rng: np.random.Generator, lengths: tuple[int, ...], width: int) -> list[Array]:
    return [rng.integers(-50, 51, (length, width)).astype(np.float64) for length in lengths]


def _padded(rows: list[Array], steps: int, edge: float) -> Array:
    found = np.full((len(rows), steps, rows[0].shape[1]), edge)
    for place, row in enumerate(rows):
        kept = row[:steps]
        found[place, : len(kept)] = kept
    return found


@pytest.mark.operator("_nested_from_padded", "_nested_tensor_from_mask")
@NESTED
@types(F32, F64, F16)
def test_nested_from_padded_takes_the_rows(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """Rows of their own lengths are taken out of a padded tensor, also of joined heads, and back with any padding."""
    for lengths, width in (((3, 1, 5), 4), ((2, 7), 33), ((4, 4, 4, 1), 8)):
        rows, steps = _rows(rng, lengths, width), max(lengths)
        padded = _padded(rows, steps, 99)
        sizes = torch.tensor([[length, width] for length in lengths])
        x = tensor(padded, dtype, device)

        found = aten("_nested_from_padded.default")(x, sizes)
        for each, row in zip(found.unbind(), rows, strict=True):
            assert_equal(each, row)
        for edge in (0.0, -7.0):
            assert_equal(found.to_padded_tensor(edge), _padded(rows, steps, edge))
        if width % 2 == 0:
            heads = tensor(transformer.split(padded, 2), dtype, device)
            joined = aten("_nested_from_padded.default")(heads, sizes, True)
            for each, row in zip(joined.unbind(), rows, strict=True):
                assert_equal(each, row)
        mask = torch.from_numpy(np.arange(steps) < np.array(lengths)[:, None]).to(device)
        assert aten("_nested_tensor_from_mask_left_aligned.default")(x, mask)
        for each, row in zip(aten("_nested_tensor_from_mask.default")(x, mask).unbind(), rows, strict=True):
            assert_equal(each, row)
        if min(lengths) < steps:
            assert not aten("_nested_tensor_from_mask_left_aligned.default")(x, mask.flip(1))


@pytest.mark.operator("_jagged_to_padded_dense_forward", "_padded_dense_to_jagged_forward")
@types(F32, F64, F16, BF16)
def test_jagged_to_padded_dense_and_back(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """Consecutive rows become a padded tensor, cut at its size; and a padded tensor becomes rows."""
    for lengths, width in (((3, 0, 5), 4), ((2, 7, 1, 1), 33), ((70, 1), 3)):
        rows = _rows(rng, lengths, width)
        values = tensor(np.concatenate(rows), dtype, device)
        offsets = torch.tensor([0, *np.cumsum(lengths).tolist()], device=device)
        for steps in (max(lengths), max(lengths) + 2, max(lengths) - 1):
            found = aten("_jagged_to_padded_dense_forward.default")(values, [offsets], [steps], -3.0)
            assert_equal(found, _padded(rows, steps, -3.0))
        dense = tensor(_padded(rows, max(lengths), 99), dtype, device)
        back = aten("_padded_dense_to_jagged_forward.default")(dense, [offsets], sum(lengths))
        assert_equal(back, np.concatenate(rows))
