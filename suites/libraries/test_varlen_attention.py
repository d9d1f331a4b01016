"""`torch.nn.attention.varlen`: attention of sequences of several lengths in one tensor, compared with float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention.varlen import AuxRequest, varlen_attn

#: Torch 2.11 has the function without most of its arguments.
pytestmark = pytest.mark.requires(torch=">=2.13")

#: The flash kernels are for half precision, from this generation on.
KERNELS = pytest.mark.requires(device="cuda", compute_capability=">=8.0")
LENGTHS = [4, 1, 6]
H, E = 4, 16


def ends(lengths: list[int], device: torch.device | str) -> torch.Tensor:
    """Return the places where each sequence begins, and where the last one ends."""
    return torch.tensor([0, *lengths], device=device).cumsum(0, dtype=torch.int32)


def inputs(queries: list[int], keys: list[int], heads: int = H) -> list[torch.Tensor]:
    """Return queries, keys and values on the host, which half precision holds exactly."""
    generator = torch.Generator().manual_seed(12)
    shapes = [(sum(queries), H, E), (sum(keys), heads, E), (sum(keys), heads, E)]
    return [torch.randn(shape, generator=generator).half().double() for shape in shapes]


def attention(
    given: list[torch.Tensor], queries: list[int], keys: list[int], scale: float, window: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention of each sequence alone, and the log of the sum of each query's scores by head and query."""
    q, k, v = given
    k, v = (each.repeat_interleave(H // each.size(1), 1) for each in (k, v))
    found, sums = [], []
    for own_q, own_k, own_v in zip(q.split(queries), k.split(keys), v.split(keys), strict=True):
        scores = torch.einsum("qhe,khe->hqk", own_q, own_k) * scale
        shift = torch.arange(len(own_k)) - torch.arange(len(own_q)).unsqueeze(1)
        left, right = window
        hidden = ((left >= 0) & (shift < -left)) | ((right >= 0) & (shift > right))
        scores = scores.masked_fill(hidden, -math.inf)
        found.append(torch.einsum("hqk,khe->qhe", scores.softmax(-1), own_v))
        sums.append(scores.logsumexp(-1))
    return torch.cat(found), torch.cat(sums, 1)


def run(device: torch.device, given: list[torch.Tensor], queries: list[int], keys: list[int], **options: Any) -> Any:
    halves = (each.half().to(device) for each in given)
    return varlen_attn(*halves, ends(queries, device), ends(keys, device), max(queries), max(keys), **options)


@KERNELS
@pytest.mark.parametrize(
    ("keys", "window", "scale"),
    [
        (LENGTHS, (-1, -1), None),
        ([7, 3, 2], (-1, -1), None),
        (LENGTHS, (-1, -1), 0.5),
        (LENGTHS, (-1, 0), None),
        (LENGTHS, (2, 0), None),
        (LENGTHS, (1, 2), None),
        (LENGTHS, (-1, 1), None),
    ],
    ids=["full", "other_keys", "scale", "causal", "causal_window", "window", "right_window"],
)
def test_varlen_attn_is_attention_within_each_sequence(
    device: torch.device, keys: list[int], window: tuple[int, int], scale: float | None
) -> None:
    """No query sees keys of another sequence; the window is the number of keys that it sees before and after its place.

    Scores are scaled by 1/√E or `scale`. (-1, -1) sees all keys, and (-1, 0) is causal.
    """
    given = inputs(LENGTHS, keys)
    found = run(device, given, LENGTHS, keys, window_size=window, scale=scale)
    wanted, _ = attention(given, LENGTHS, keys, scale or 1 / math.sqrt(E), window)
    assert (found.shape, found.dtype) == ((sum(LENGTHS), H, E), torch.float16)
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-2, atol=5e-3)


@KERNELS
def test_varlen_attn_enable_gqa_shares_heads_of_keys_and_values(device: torch.device) -> None:
    """With `enable_gqa`, neighboring heads of queries share a head of keys and values."""
    given = inputs(LENGTHS, LENGTHS, heads=2)
    wanted, _ = attention(given, LENGTHS, LENGTHS, 1 / math.sqrt(E), (-1, -1))
    found = run(device, given, LENGTHS, LENGTHS, enable_gqa=True)
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-2, atol=5e-3)


@KERNELS
def test_varlen_attn_auxrequest_returns_the_sums_of_the_scores(device: torch.device) -> None:
    """`AuxRequest(lse=True)` also returns the log of the sum of the scores in float32, by head and query.

    The documentation has the two dimensions in the other order, up to torch 2.13. Without `lse`, only the output is
    returned.
    """
    given = inputs(LENGTHS, LENGTHS)
    wanted, sums = attention(given, LENGTHS, LENGTHS, 1 / math.sqrt(E), (-1, 0))
    found, lse = run(device, given, LENGTHS, LENGTHS, window_size=(-1, 0), return_aux=AuxRequest(lse=True))
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-2, atol=5e-3)
    assert (lse.shape, lse.dtype) == ((H, sum(LENGTHS)), torch.float32)
    torch.testing.assert_close(lse.cpu().double(), sums, rtol=1e-3, atol=1e-3)
    alone = run(device, given, LENGTHS, LENGTHS, window_size=(-1, 0), return_aux=AuxRequest())
    torch.testing.assert_close(alone.cpu().double(), wanted, rtol=1e-2, atol=5e-3)


#: Both forms are called with the same arguments, except for the output.
FORMS = pytest.mark.parametrize("form", ["varlen_attn", "varlen_attn_out"])


def form_of(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Any:
    """Call one of the two forms on sequences of `LENGTHS`."""
    where, longest = ends(LENGTHS, q.device), max(LENGTHS)
    if name == "varlen_attn":
        return varlen_attn(q, k, v, where, where, longest, longest, **options)
    from torch.nn.attention.varlen import varlen_attn_out

    return varlen_attn_out(torch.empty_like(q), q, k, v, where, where, longest, longest, **options)


@pytest.fixture
def default_float64() -> Iterator[None]:
    """Make float64 the default type of new tensors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@FORMS
def test_varlen_attn_of_tensors_without_memory_has_the_shapes(form: str) -> None:
    """On the meta device, the results have their shapes and types, as for a compiler: (T, H, E) and (H, T).

    `varlen_attn_out` returns the output that it was given.
    """
    q = torch.empty(sum(LENGTHS), H, E, dtype=torch.bfloat16, device="meta")
    few = torch.empty(sum(LENGTHS), 2, E, dtype=torch.bfloat16, device="meta")
    found = form_of(form, q, q, q)
    assert (found.shape, found.dtype, found.device.type) == (q.shape, torch.bfloat16, "meta")
    found, lse = form_of(form, q, few, few, enable_gqa=True, return_aux=AuxRequest(lse=True))
    assert (found.shape, found.dtype) == (q.shape, torch.bfloat16)
    assert (lse.shape, lse.dtype, lse.device.type) == ((H, sum(LENGTHS)), torch.float32, "meta")
    if form == "varlen_attn_out":
        from torch.nn.attention.varlen import varlen_attn_out

        out, where = torch.empty_like(q), ends(LENGTHS, "meta")
        assert varlen_attn_out(out, q, q, q, where, where, 6, 6) is out
        assert (out._version, q._version) == (1, 0)


@FORMS
@pytest.mark.usefixtures("default_float64")
def test_varlen_attn_sums_are_float32_for_every_default_type(form: str) -> None:
    """The sums of the scores are float32, also if the default type is another one."""
    q = torch.empty(sum(LENGTHS), H, E, dtype=torch.bfloat16, device="meta")
    _, lse = form_of(form, q, q, q, return_aux=AuxRequest(lse=True))
    assert lse.dtype is torch.float32


@FORMS
@pytest.mark.parametrize("window", [(1,), (1, 0, 1)], ids=["one", "three"])
def test_varlen_attn_refuses_a_window_that_is_no_pair(device: torch.device, form: str, window: tuple[int, ...]) -> None:
    """A window has a number for the keys before a query and one for those after; otherwise ValueError is raised."""
    q = torch.zeros(sum(LENGTHS), H, E, device=device)
    with pytest.raises(ValueError, match=f"window_size must have length 2, got {len(window)}"):
        form_of(form, q, q, q, window_size=window)


@pytest.mark.parametrize("window", [(1,), (1, 0, 1)], ids=["one", "three"])
def test_varlen_attn_of_tensors_without_memory_refuses_a_window_that_is_no_pair(window: tuple[int, ...]) -> None:
    """On the meta device, such as for a compiler, a window that is no pair raises ValueError too."""
    q = torch.empty(sum(LENGTHS), H, E, device="meta")
    with pytest.raises(ValueError, match=f"window_size must have length 2, got {len(window)}"):
        form_of("varlen_attn", q, q, q, window_size=window)


def test_varlen_attn_of_tensors_without_memory_has_gradients() -> None:
    """Gradients on the meta device have the shapes and types of queries, keys and values."""
    shapes = [(sum(LENGTHS), H, E), (sum(LENGTHS), 2, E), (sum(LENGTHS), 2, E)]
    given = [torch.empty(shape, dtype=torch.bfloat16, device="meta", requires_grad=True) for shape in shapes]
    found = form_of("varlen_attn", *given, enable_gqa=True)
    for ours, one in zip(torch.autograd.grad(found, given, torch.empty_like(found)), given, strict=True):
        assert (ours.shape, ours.dtype, ours.device.type) == (one.shape, torch.bfloat16, "meta")


def test_varlen_attn_of_parts_of_the_keys_has_no_gradients() -> None:
    """`seqused_k` and `block_table` are for inference: they raise RuntimeError if inputs require gradients."""
    q = torch.empty(sum(LENGTHS), H, E, device="meta", requires_grad=True)
    pages = torch.empty(2, 8, H, E, device="meta")
    used = torch.empty(len(LENGTHS), dtype=torch.int32, device="meta")
    table = torch.empty(len(LENGTHS), 2, dtype=torch.int32, device="meta")
    with pytest.raises(RuntimeError, match="seqused_k is an inference-only parameter"):
        form_of("varlen_attn", q, q, q, seqused_k=used)
    with pytest.raises(RuntimeError, match="block_table is an inference-only parameter"):
        form_of("varlen_attn", q, pages, pages, block_table=table)
    with torch.no_grad():
        assert form_of("varlen_attn", q, pages, pages, seqused_k=used, block_table=table).shape == q.shape


@FORMS
def test_varlen_attn_refuses_heads_that_do_not_fit(device: torch.device, form: str) -> None:
    """Keys must have as many heads as queries, or with `enable_gqa` a divisor; otherwise ValueError is raised.

    With `block_table`, keys are pages, whose heads are the third dimension.
    """
    q, k = (torch.zeros(sum(LENGTHS), heads, E, device=device) for heads in (H, 3))
    pages = torch.zeros(2, 8, 3, E, device=device)
    table = torch.zeros(len(LENGTHS), 2, dtype=torch.int32, device=device)
    for keys, paged in ((k, {}), (pages, {"block_table": table})):
        with pytest.raises(ValueError, match="same number of heads but got Hq=4 and Hkv=3"):
            form_of(form, q, keys, keys, **paged)
        with pytest.raises(ValueError, match="multiple of kv heads for GQA but got Hq=4 and Hkv=3"):
            form_of(form, q, keys, keys, enable_gqa=True, **paged)


@KERNELS
def test_varlen_attn_has_gradients(device: torch.device) -> None:
    """Gradients of queries, keys and values are those of attention within each sequence."""
    exact = [each.requires_grad_() for each in inputs(LENGTHS, LENGTHS)]
    weights = torch.randn(sum(LENGTHS), H, E, generator=torch.Generator().manual_seed(5)).half()
    wanted, _ = attention(exact, LENGTHS, LENGTHS, 1 / math.sqrt(E), (-1, 0))
    expected = torch.autograd.grad(wanted, exact, weights.double())
    halves = [each.detach().half().to(device).requires_grad_() for each in exact]
    where, longest = ends(LENGTHS, device), max(LENGTHS)
    found = varlen_attn(*halves, where, where, longest, longest, window_size=(-1, 0))
    for ours, theirs in zip(torch.autograd.grad(found, halves, weights.to(device)), expected, strict=True):
        torch.testing.assert_close(ours.cpu().double(), theirs, rtol=2e-2, atol=1e-2)
