"""`torch.nn.attention.bias`: causal masks for different lengths, compared with float64 attention."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch.nn.attention.bias import CausalBias, CausalVariant, causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention


def allowed(variant: CausalVariant, queries: int, keys: int) -> torch.Tensor:
    """Return the keys that each query may see: up to its own place, from the first corner or from the last."""
    shift = 0 if variant is CausalVariant.UPPER_LEFT else keys - queries
    rows, columns = torch.arange(queries).unsqueeze(1), torch.arange(keys)
    return columns <= rows + shift


MAKERS = {"upper_left": causal_upper_left, "lower_right": causal_lower_right}
VARIANT = pytest.mark.parametrize("name", MAKERS)


@VARIANT
@pytest.mark.parametrize("lengths", [(4, 4), (3, 6)], ids=["square", "wide"])
def test_causal_bias_masks_attention_from_its_corner(device: torch.device, name: str, lengths: tuple[int, int]) -> None:
    """Attention with a causal bias equals attention over the keys that each query may see, scaled by 1/√d."""
    queries, keys = lengths
    bias = MAKERS[name](queries, keys)
    assert isinstance(bias, CausalBias)
    generator = torch.Generator().manual_seed(4)
    shapes = ((2, 3, length, 8) for length in (queries, keys, keys))
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)

    found = scaled_dot_product_attention(*(each.float().to(device) for each in (q, k, v)), attn_mask=bias)

    scores = q @ k.mT / math.sqrt(8)
    wanted = scores.masked_fill(~allowed(bias.variant, queries, keys), -math.inf).softmax(-1) @ v
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-4, atol=1e-5)


#: The simulated CUDA has no gradient of memory-efficient attention: it calls the meta function of
#: `_efficient_attention_backward`, which lacks the operator's arguments `out` and `window_size` (torch 2.13,
#: torch/_meta_registrations.py).
NOT_SIMULATED = pytest.mark.requires(any=[{"silicon": True}, {"not_": {"device": "cuda"}}])


@VARIANT
@pytest.mark.parametrize("size", [8, 12])
@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=NOT_SIMULATED), torch.float16], ids=str)
def test_causal_bias_has_gradients_in_each_precision(
    device: torch.device, name: str, size: int, dtype: torch.dtype
) -> None:
    """Results and gradients equal those of attention in float64, for heads of any size, scaled by 1/√d or `scale`."""
    bias = MAKERS[name](3, 6)
    generator = torch.Generator().manual_seed(8)
    shapes = [(2, 3, length, size) for length in (3, 6, 6, 3)]
    rounded = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    weights = rounded.pop()
    for scale in (None, 0.9):
        inputs = [each.to(device).requires_grad_() for each in rounded]
        found = scaled_dot_product_attention(*inputs, attn_mask=bias, scale=scale)
        gradients = torch.autograd.grad(found, inputs, weights.to(device))

        exact = [each.double().requires_grad_() for each in rounded]
        scores = exact[0] @ exact[1].mT * (scale or 1 / math.sqrt(size))
        wanted = scores.masked_fill(~allowed(bias.variant, 3, 6), -math.inf).softmax(-1) @ exact[2]
        expected = torch.autograd.grad(wanted, exact, weights.double())
        near = 1e-4 if dtype == torch.float32 else 2e-2
        for one, other in zip((found, *gradients), (wanted, *expected), strict=True):
            assert one.dtype == dtype
            torch.testing.assert_close(one.detach().cpu().double(), other.detach(), rtol=near, atol=near)


@VARIANT
def test_causal_bias_variants_have_their_names_and_sizes(device: torch.device, name: str) -> None:
    """Each function returns its own variant; the two differ unless there are as many queries as keys."""
    bias = MAKERS[name](3, 6)
    assert bias.variant.name.lower() == name
    assert (bias.seq_len_q, bias.seq_len_kv) == (3, 6)
    q, k, v = (torch.randn(1, 1, length, 8, device=device) for length in (3, 6, 6))
    other = causal_upper_left(3, 6) if name == "lower_right" else causal_lower_right(3, 6)
    results = [scaled_dot_product_attention(q, k, v, attn_mask=each) for each in (bias, other)]
    assert not torch.allclose(*results)


@VARIANT
def test_causal_bias_shows_which_keys_each_query_sees(name: str) -> None:
    """The text of a causal bias is that of the tensor of booleans that it represents."""
    bias = MAKERS[name](2, 3)
    assert repr(bias) == str(bias) == repr(allowed(bias.variant, 2, 3))


def test_causal_bias_takes_a_variant_and_two_sizes() -> None:
    """A number is refused as a variant. The functions take two sizes."""
    with pytest.raises(AssertionError, match="CausalVariant"):
        CausalBias(1, 3, 3)  # type: ignore[arg-type]
    for make in MAKERS.values():
        for sizes in ((3,), (3, 4, 5)):
            with pytest.raises(AssertionError, match="2D"):
                make(*sizes)


def test_causal_bias_is_not_combined_with_is_causal(device: torch.device) -> None:
    """`is_causal` together with a causal bias is refused."""
    q, k, v = (torch.randn(1, 1, 4, 8, device=device) for _ in range(3))
    with pytest.raises(ValueError, match="causal=True"):
        scaled_dot_product_attention(q, k, v, attn_mask=causal_upper_left(4, 4), is_causal=True)


@VARIANT
@pytest.mark.parametrize("lengths", [(4, 4), (3, 6)], ids=["square", "wide"])
@pytest.mark.types("float64")
def test_causal_bias_passes_scale_and_groups_on(device: torch.device, name: str, lengths: tuple[int, int]) -> None:
    """`scale` replaces 1/√d, and with `enable_gqa` several queries share a key, as without a bias."""
    queries, keys = lengths
    bias = MAKERS[name](queries, keys)
    generator = torch.Generator().manual_seed(6)
    q = torch.randn((2, 4, queries, 8), generator=generator, dtype=torch.float64)
    k, v = (torch.randn((2, 4, keys, 8), generator=generator, dtype=torch.float64) for _ in range(2))
    seen = ~allowed(bias.variant, queries, keys)

    inputs = [each.float().to(device) for each in (q, k, v)]
    with pytest.raises(RuntimeError):  # fewer heads are refused without `enable_gqa`
        scaled_dot_product_attention(inputs[0], inputs[1][:, :2], inputs[2][:, :2], attn_mask=bias)
    with pytest.raises((RuntimeError, ValueError), match="dtype"):
        scaled_dot_product_attention(inputs[0], inputs[1].double(), inputs[2], attn_mask=bias)

    found = scaled_dot_product_attention(*inputs, attn_mask=bias, scale=0.9)
    wanted = (q @ k.mT * 0.9).masked_fill(seen, -math.inf).softmax(-1) @ v
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-4, atol=1e-5)

    if queries == keys or name == "upper_left":
        few_k, few_v = k[:, :2], v[:, :2]
        inputs = [each.float().to(device) for each in (q, few_k, few_v)]
        found = scaled_dot_product_attention(*inputs, attn_mask=bias, enable_gqa=True)
        shared_k, shared_v = (each.repeat_interleave(2, 1) for each in (few_k, few_v))
        wanted = (q @ shared_k.mT / math.sqrt(8)).masked_fill(seen, -math.inf).softmax(-1) @ shared_v
        torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-4, atol=1e-5)


@VARIANT
def test_causal_bias_passes_dropout_on(device: torch.device, name: str) -> None:
    """`dropout_p` drops a part of the weights: the result differs from that without."""
    q = torch.randn(1, 2, 16, 8, device=device)
    plain, dropped = (
        scaled_dot_product_attention(q, q, q, attn_mask=MAKERS[name](16, 16), dropout_p=p) for p in (0.0, 0.5)
    )
    assert not torch.allclose(plain, dropped)


def test_causal_bias_warns_of_rows_without_keys() -> None:
    """With the last corner, more queries than keys leave rows without a key, which are NaN; with the first, none do."""
    with pytest.warns(UserWarning, match="NaNs"):
        CausalBias(CausalVariant.LOWER_RIGHT, 4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CausalBias(CausalVariant.LOWER_RIGHT, 3, 3)
        CausalBias(CausalVariant.UPPER_LEFT, 4, 3)
