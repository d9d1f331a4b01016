"""`flex_attention` and its block masks, compared with float64 attention whose scores and masks are written out."""

# ruff: noqa: ARG001, ARG005 - masks and scores get places that they do not need

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from suites import _torch_private_compiled as private
from suites.compiled import KEEPS, KEPT

from ._torch_private import flex_attention_uncompiled

B, H, Q, KV, E = 2, 4, 20, 28, 8

pytestmark = pytest.mark.requires(any=[{"not_": {"accelerator": True}}, {"device": "cuda"}, {"device": "xpu"}])


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q + 8 >= kv


def window(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q + 8 - kv).abs() <= 3 + h


def of_the_second(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (b == 1) | (kv < 5)


MASKS = {"causal": causal, "window": window, "of_the_second": of_the_second}


def places(lengths: tuple[int, ...] = (B, H, Q, KV)) -> tuple[torch.Tensor, ...]:
    """Return the numbers of batch, head, query and key, each along its dimension."""
    return torch.meshgrid(*(torch.arange(each) for each in lengths), indexing="ij")


def inputs(heads: int = H) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(31)
    shapes = [(B, H, Q, E), (B, heads, KV, E), (B, heads, KV, E + 4)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def attention(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return the weighted values, and zeros for queries that see no key."""
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v


@pytest.fixture(autouse=True)
def compiler() -> Iterator[None]:
    """Compile each call, without advice to compile."""
    with private.fresh_compiler():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        yield


def run(device: torch.device, given: list[torch.Tensor], **options: Any) -> Any:
    return flex.flex_attention(*(each.float().to(device) for each in given), **options)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-4, atol=1e-5)


compiles = pytest.mark.keeps(KEEPS, **KEPT)


@compiles
@pytest.mark.parametrize("scale", [None, 0.5])
def test_flex_attention_without_a_mod_is_attention(device: torch.device, scale: float | None) -> None:
    """Without mods, `flex_attention` is attention, scaled by 1/√E or `scale`; values may have another size."""
    q, k, v = inputs()
    wanted = attention(q @ k.mT * (scale or 1 / math.sqrt(E)), v)
    close(run(device, [q, k, v], scale=scale), wanted)


@compiles
def test_flex_attention_score_mod_gets_scaled_scores_and_places(device: torch.device) -> None:
    """`score_mod` changes each scaled score according to its batch, head, query and key."""
    q, k, v = inputs()

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score * (b + 1) - (q - kv).abs() * 0.1 * (h + 1) + 0.01 * kv

    b, h, row, column = places()
    wanted = q @ k.mT / math.sqrt(E) * (b + 1) - (row - column).abs() * 0.1 * (h + 1) + 0.01 * column
    close(run(device, [q, k, v], score_mod=mod), attention(wanted, v))


@compiles
@pytest.mark.parametrize("name", MASKS)
def test_flex_attention_block_mask_hides_keys(device: torch.device, name: str) -> None:
    """Hidden keys have no weight, in blocks that are whole, partly hidden, and at the ends."""
    q, k, v = inputs()
    mask = flex.create_block_mask(MASKS[name], B, H, Q, KV, device=device, BLOCK_SIZE=8)
    allowed = MASKS[name](*places())
    wanted = attention((q @ k.mT / math.sqrt(E)).masked_fill(~allowed, -math.inf), v)
    close(run(device, [q, k, v], block_mask=mask), wanted)


@compiles
def test_flex_attention_of_a_query_that_sees_nothing_is_zero(device: torch.device) -> None:
    """A query that sees no key gets zeros, and a logarithm of minus infinity."""
    q, k, v = inputs()
    mask = flex.create_block_mask(lambda b, h, q, kv: q > 3, B, H, Q, KV, device=device, BLOCK_SIZE=8)
    found, aux = run(device, [q, k, v], block_mask=mask, return_aux=flex.AuxRequest(lse=True))
    assert (found[:, :, :4] == 0).all()
    assert (aux.lse[:, :, :4] == -math.inf).all()
    close(found[:, :, 4:], attention(q @ k.mT / math.sqrt(E), v)[:, :, 4:])


@compiles
def test_flex_attention_enable_gqa_shares_heads(device: torch.device) -> None:
    """With `enable_gqa`, neighboring query heads share a head of keys and values.

    Other numbers of heads are refused without the option, or if they cannot be divided.
    """
    q, k, v = inputs(heads=2)
    wide = [each.repeat_interleave(2, 1) for each in (k, v)]
    wanted = attention(q @ wide[0].mT / math.sqrt(E), wide[1])
    close(run(device, [q, k, v], enable_gqa=True), wanted)
    with pytest.raises(ValueError, match="enable_gqa"):
        run(device, [q, k, v])
    with pytest.raises(ValueError, match="multiple"):
        run(device, [q, *(torch.cat([each, each[:, :1]], 1) for each in (k, v))], enable_gqa=True)


@compiles
def test_flex_attention_auxrequest_returns_what_is_asked_for(device: torch.device) -> None:
    """`AuxRequest` returns the log of the sum and the largest score of each query on request; the rest is None.

    The CPU refuses the largest scores.
    """
    q, k, v = inputs()
    scores = q @ k.mT / math.sqrt(E)
    for lse in (False, True):
        for largest in (False, True):
            request = flex.AuxRequest(lse=lse, max_scores=largest)
            if largest and device.type == "cpu":
                with pytest.raises(NotImplementedError, match="max scores"):
                    run(device, [q, k, v], return_aux=request)
                continue
            found, aux = run(device, [q, k, v], return_aux=request)
            close(found, attention(scores, v))
            assert ((aux.lse is None), (aux.max_scores is None)) == (not lse, not largest)
            if lse:
                close(aux.lse, scores.logsumexp(-1))
            if largest:
                close(aux.max_scores, scores.amax(-1))


@compiles
def test_flex_attention_return_lse_returns_the_log_of_the_sums(device: torch.device) -> None:
    """`return_lse`, which is deprecated, also returns the log of the sum of each query's scores."""
    q, k, v = inputs()
    scores = q @ k.mT / math.sqrt(E)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "return_lse is deprecated", FutureWarning)
        found, lse = run(device, [q, k, v], return_lse=True)
    close(found, attention(scores, v))
    close(lse, scores.logsumexp(-1))


def test_flex_attention_without_compiling_calls_the_mods(device: torch.device) -> None:
    """With the switch that the advice to compile names, the mods are called uncompiled, with the same result."""
    q, k, v = inputs()
    calls: list[str] = []

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        calls.append("score")
        return score + 0.1 * (q - kv)

    mask = mask_of(device, Q, KV)
    with flex_attention_uncompiled():
        found = run(device, [q, k, v], score_mod=mod, block_mask=mask)
    assert calls
    _, _, row, column = places()
    scores = (q @ k.mT / math.sqrt(E) + 0.1 * (row - column)).masked_fill(~causal(*places()), -math.inf)
    close(found, attention(scores, v))


def test_flex_attention_refuses_inputs_that_do_not_fit(device: torch.device) -> None:
    """Sizes, batches and masks that do not fit raise errors that say what is wrong."""
    q, k, v = inputs()
    for given, options, error, why in [
        ([q[..., :4], k, v], {}, ValueError, "embedding dimension"),
        ([q[:1], k, v], {}, ValueError, "batch size"),
        (
            [q[:1], k, v],
            {"block_mask": mask_of(device, Q, KV)},
            ValueError,
            "block_mask and query",
        ),
        ([q[0], k[0], v[0]], {}, NotImplementedError, "4D"),
        ([q, k, v], {"block_mask": mask_of(device, Q, KV - 1)}, ValueError, "smaller length"),
        ([q, k, v], {"block_mask": mask_of(device, Q - 1, KV)}, ValueError, "smaller length"),
        ([q, k, v], {"block_mask": one_block(device, Q - 1, KV)}, ValueError, "smaller length"),
        ([q, k, v], {"block_mask": mask_of(device, Q + 1, KV)}, ValueError, "larger length"),
        ([q, k, v], {"block_mask": mask_of(device, Q, KV + 1)}, ValueError, "larger length"),
        ([q, k, v], {"block_mask": mask_of(device, Q, KV)[:, :1]}, RuntimeError, "sliced"),
        (
            [q, k, v],
            {"kernel_options": {"BACKEND": "TRITON", "FORCE_USE_FLEX_ATTENTION": True}},
            RuntimeError,
            "BACKEND",
        ),
        ([q, k, v], {"kernel_options": {"BACKEND": "NONE"}}, ValueError, "Invalid BACKEND"),
        ([q, k, v], {"return_lse": True, "return_aux": flex.AuxRequest(lse=True)}, ValueError, "return_lse"),
    ]:
        with pytest.raises(error, match=why):
            run(device, given, **options)


def mask_of(device: torch.device, queries: int, keys: int, size: int = 8) -> flex.BlockMask:
    return flex.create_block_mask(causal, B, H, queries, keys, device=device, BLOCK_SIZE=size)


def one_block(device: torch.device, queries: int, keys: int) -> flex.BlockMask:
    """Return a mask with all keys in one block, which is as large as that of no mask."""
    numbers = torch.ones(B, H, 3, dtype=torch.int32, device=device)
    indices = torch.zeros(B, H, 3, 1, dtype=torch.int32, device=device)
    return flex.BlockMask.from_kv_blocks(numbers, indices, BLOCK_SIZE=(8, 1 << 30), seq_lengths=(queries, keys))


def test_flex_attention_refuses_a_mask_without_memory(device: torch.device) -> None:
    """A mask that `BlockMask.to` has moved to the meta device has its shapes, and is refused for tensors elsewhere."""
    mask = mask_of(device, Q, KV)
    moved = mask.to("meta")
    assert (moved.kv_indices.device.type, moved.kv_indices.shape) == ("meta", mask.kv_indices.shape)
    assert (moved.shape, moved.mask_mod) == (mask.shape, causal)
    with pytest.raises(RuntimeError, match="same device"):
        run(device, inputs(), block_mask=moved)


@pytest.mark.requires(device="cuda")
def test_flex_attention_refuses_a_mask_of_another_device(device: torch.device) -> None:
    """A mask must be on the device of the tensors; `BlockMask.to` moves it."""
    mask = mask_of(torch.device("cpu"), Q, KV)
    with pytest.raises(RuntimeError, match="same device"):
        run(device, inputs(), block_mask=mask)
    moved = mask.to(device)
    assert moved.kv_indices.device == device
    assert mask.kv_indices.device.type == "cpu"
    assert torch.equal(moved.to_dense().cpu(), mask.to_dense())


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("size", [8, (4, 16)], ids=["square", "wide"])
def test_create_block_mask_lists_the_blocks_that_are_seen(device: torch.device, name: str, size: Any) -> None:
    """A block is full, partial or omitted if all, some or no pair in it is seen; blocks at the ends are partial.

    Blocks are in ascending order, in rows for queries and in columns for keys.
    """
    mask = flex.create_block_mask(MASKS[name], B, H, Q, KV, device=device, BLOCK_SIZE=size)
    high, wide = (size, size) if isinstance(size, int) else size
    whole = flex.create_mask(MASKS[name], B, H, Q, KV, device=device)
    assert torch.equal(whole.cpu(), MASKS[name](*places()).expand(B, H, Q, KV))
    rows, columns = -(-Q // high), -(-KV // wide)
    padded = torch.zeros(B, H, rows * high, columns * wide, dtype=torch.bool)
    padded[:, :, :Q, :KV] = whole.cpu()
    counts = padded.view(B, H, rows, high, columns, wide).sum((3, 5))
    full, partial = counts == high * wide, (counts > 0) & (counts < high * wide)

    assert mask.shape == (B, H, Q, KV)
    assert mask.numel() == B * H * Q * KV
    assert list(mask.BLOCK_SIZE) == [high, wide]
    assert torch.equal(mask.to_dense().cpu().bool(), full | partial)
    assert mask.sparsity() == pytest.approx(100 * (1 - int((full | partial).sum()) * high * wide / mask.numel()))
    assert mask.full_kv_num_blocks is not None
    for blocks, numbers, indices, by_key in [
        (partial, mask.kv_num_blocks, mask.kv_indices, False),
        (full, mask.full_kv_num_blocks, mask.full_kv_indices, False),
        (partial, mask.q_num_blocks, mask.q_indices, True),
        (full, mask.full_q_num_blocks, mask.full_q_indices, True),
    ]:
        assert numbers is not None
        assert indices is not None
        for b in range(B):
            for h in range(H):
                lines = blocks[b, h].T if by_key else blocks[b, h]
                assert listed(numbers[b, h], indices[b, h]) == [line.nonzero().flatten().tolist() for line in lines]


def listed(numbers: torch.Tensor, indices: torch.Tensor) -> list[list[int]]:
    """Return the blocks of each line."""
    return [line[:count].tolist() for count, line in zip(numbers.tolist(), indices, strict=True)]


@pytest.mark.requires(torch=">=2.13")
def test_create_block_mask_without_separate_full_blocks(device: torch.device) -> None:
    """With `separate_full_blocks=False`, full blocks are among the partial ones. None stands for one batch or head."""
    mask = flex.create_block_mask(causal, None, None, Q, KV, device=device, BLOCK_SIZE=8, separate_full_blocks=False)
    assert mask.full_kv_num_blocks is None
    assert mask.full_kv_indices is None
    assert mask.shape == (1, 1, Q, KV)
    assert listed(mask.kv_num_blocks[0, 0], mask.kv_indices[0, 0]) == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_blockmask_from_kv_blocks_has_the_blocks_of_the_keys(device: torch.device) -> None:
    """`from_kv_blocks` derives the blocks of the keys from those of the queries, and missing sizes too."""
    numbers = torch.tensor([[[1, 2, 0]]], dtype=torch.int32, device=device)
    indices = torch.tensor([[[[2, 0, 1], [0, 2, 1], [0, 1, 2]]]], dtype=torch.int32, device=device)
    mask = flex.BlockMask.from_kv_blocks(numbers, indices, BLOCK_SIZE=(4, 8))
    assert mask.shape == (1, 1, 12, 24)
    assert mask.seq_lengths == (12, 24)
    assert listed(mask.q_num_blocks[0, 0], mask.q_indices[0, 0]) == [[1], [], [0, 1]]
    assert mask.to_dense().tolist() == [[[[0, 0, 1], [1, 0, 1], [0, 0, 0]]]]
    wide = flex.BlockMask.from_kv_blocks(numbers[..., :2], indices[..., :2, :], BLOCK_SIZE=(4, 8))
    assert wide.seq_lengths == (8, 24)
    bare = flex.BlockMask.from_kv_blocks(numbers, indices, BLOCK_SIZE=4, seq_lengths=(10, 11), compute_q_blocks=False)
    assert (bare.q_num_blocks, bare.q_indices, bare.shape) == (None, None, (1, 1, 10, 11))
    with pytest.raises(RuntimeError, match="2 dimensions"):
        flex.BlockMask.from_kv_blocks(numbers[0, 0], indices[0, 0, 0])


def test_blockmask_index_takes_batches_heads_and_rows(device: torch.device) -> None:
    """An index selects batches, heads and rows of blocks, with a number as a slice of one.

    The mask function is then lost.
    """
    mask = flex.create_block_mask(window, B, H, Q, KV, device=device, BLOCK_SIZE=8)
    dense = mask.to_dense()
    rows = torch.tensor([2], dtype=torch.int32, device=device)
    for index, wanted in [
        (1, dense[1:2]),
        (-1, dense[1:2]),
        ((0, 2), dense[0:1, 2:3]),
        ((slice(0, 2), slice(1, 3)), dense[0:2, 1:3]),
        ((slice(None), slice(None), rows), dense[:, :, 2:3]),
    ]:
        part = mask[index]
        assert torch.equal(part.to_dense(), wanted)
        with pytest.raises(RuntimeError, match="sliced"):
            part.mask_mod(*(torch.zeros((), dtype=torch.int64),) * 4)


def test_and_masks_and_or_masks_combine(device: torch.device) -> None:
    """`and_masks` is True where all masks are, `or_masks` where one is; without masks, they are True and False."""
    here = tuple(each.to(device) for each in places())
    all_of, any_of = causal(*here) & window(*here) & of_the_second(*here), causal(*here) | window(*here)
    assert torch.equal(flex.and_masks(causal, window, of_the_second)(*here), all_of)
    assert torch.equal(flex.or_masks(causal, window)(*here), any_of)
    for combined in (flex.and_masks(), flex.or_masks(), flex.and_masks(causal), flex.or_masks(causal)):
        assert combined(*here).dtype is torch.bool
    assert flex.and_masks()(*here).item()
    assert not flex.or_masks()(*here).item()
    for combine in (flex.and_masks, flex.or_masks):
        with pytest.raises(RuntimeError, match="callable"):
            combine(causal, 1)  # type: ignore[arg-type]
    assert flex.noop_mask(*here).all()


def test_create_mask_of_scores_is_false_for_minus_infinity(device: torch.device) -> None:
    """`create_mask` of a score function is False where a score of 0 becomes minus infinity, and True elsewhere."""

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.where(kv > b + h + q, -math.inf, score - 5)

    found = flex.create_mask(mod, B, H, 3, 5, device=device)
    b, h, q, kv = places((B, H, 3, 5))
    assert torch.equal(found.cpu(), kv <= b + h + q)
    with pytest.raises(AssertionError):
        flex.create_mask(lambda x: x, B, H, 3, 5, device=device)  # type: ignore[arg-type, misc]
    with pytest.raises(AssertionError, match="mask_mod"):
        flex.create_block_mask(lambda score, b, h, q, kv: score, B, H, 3, 5, device=device)  # type: ignore[arg-type, misc]


@compiles
@pytest.mark.requires(device="cuda")
def test_flex_attention_has_gradients(device: torch.device) -> None:
    """Gradients of queries, keys and values, and of a tensor that `score_mod` reads, equal those of attention."""
    exact = [each.requires_grad_() for each in inputs()]
    bias = torch.linspace(-1, 1, H, dtype=torch.float64, requires_grad=True)
    b, h, q, kv = places()
    scores = (exact[0] @ exact[1].mT / math.sqrt(E) + bias[h] * (q - kv)).masked_fill(~causal(b, h, q, kv), -math.inf)
    weights = torch.randn(B, H, Q, E + 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    (attention(scores, exact[2]) * weights).sum().backward()

    given = [each.detach().float().to(device).requires_grad_() for each in (*exact, bias)]
    mask = flex.create_block_mask(causal, B, H, Q, KV, device=device, BLOCK_SIZE=8)
    slopes = given[3]
    found = flex.flex_attention(
        *given[:3], score_mod=lambda score, b, h, q, kv: score + slopes[h] * (q - kv), block_mask=mask
    )
    assert isinstance(found, torch.Tensor)
    (found * weights.float().to(device)).sum().backward()

    for ours, theirs in zip(given, (*exact, bias), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(ours.grad.cpu().double(), theirs.grad, rtol=1e-3, atol=1e-4)


def test_flex_attention_on_the_cpu_refuses_gradients() -> None:
    """On the CPU there is no backward pass, so inputs that require gradients are refused."""
    q, k, v = (each.float() for each in inputs())
    for place in range(3):
        given = [each.clone().requires_grad_(place == number) for number, each in enumerate((q, k, v))]
        with pytest.raises(NotImplementedError, match="backward on CPU"):
            flex.flex_attention(*given)


def test_create_block_mask_compile_warns_and_gives_the_same_mask(device: torch.device) -> None:
    """The option `_compile` warns that it will be removed, and gives the mask that is created without it.

    The compiler runs the function uncompiled here.
    """
    wanted = mask_of(device, Q, KV)
    with torch.compiler.set_stance("force_eager"), pytest.warns(DeprecationWarning, match="_compile flag"):
        found = flex.create_block_mask(causal, B, H, Q, KV, device=device, BLOCK_SIZE=8, _compile=True)
    assert (found.seq_lengths, found.BLOCK_SIZE, found.mask_mod) == (wanted.seq_lengths, wanted.BLOCK_SIZE, causal)
    for ours, theirs in zip(found.as_tuple(), wanted.as_tuple(), strict=True):
        if isinstance(theirs, torch.Tensor):
            assert torch.equal(ours, theirs)
