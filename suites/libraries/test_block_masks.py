"""`BlockMask` as a value: its tuple, its tree, its parts, and the order in which blocks add to gradients."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask
from torch.utils import _pytree as pytree

from .test_flex_attention import KV, B, H, Q, causal, listed, window

pytestmark = pytest.mark.requires(any=[{"not_": {"accelerator": True}}, {"device": "cuda"}, {"device": "xpu"}])

#: The tensors of a mask, in the order of its tuple.
TENSORS = [
    f"{full}{side}_{what}" for side in ("kv", "q") for full in ("", "full_") for what in ("num_blocks", "indices")
]
NEWER = pytest.mark.requires(torch=">=2.13")


def made(device: torch.device, **options: Any) -> BlockMask:
    return create_block_mask(window, B, H, Q, KV, device=device, BLOCK_SIZE=(4, 8), **options)


def few(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers and indices of the blocks of three rows with three columns."""
    numbers = torch.tensor([[[1, 2, 0]]], dtype=torch.int32, device=device)
    indices = torch.tensor([[[[2, 0, 1], [0, 2, 1], [0, 1, 2]]]], dtype=torch.int32, device=device)
    return numbers, indices


def test_blockmask_as_tuple_has_everything_in_order(device: torch.device) -> None:
    """`as_tuple` has lengths, tensors, block sizes and mask function; `flatten=False` keeps lengths and sizes."""
    mask = made(device)
    flat, deep = mask.as_tuple(), mask.as_tuple(flatten=False)
    assert (flat[:2], deep[0]) == ((Q, KV), (Q, KV))
    assert flat[-1] is deep[-1] is window
    assert (flat[-3:-1], deep[-2]) == ((4, 8), (4, 8))
    for place, name in enumerate(TENSORS):
        assert flat[2 + place] is deep[1 + place] is getattr(mask, name)


def test_blockmask_is_a_tree(device: torch.device) -> None:
    """A mask that is flattened and unflattened has the same tensors, sizes and function."""
    mask = made(device)
    leaves, spec = pytree.tree_flatten(mask)
    again = pytree.tree_unflatten(leaves, spec)
    assert isinstance(again, BlockMask)
    for name in TENSORS:
        assert getattr(again, name) is getattr(mask, name)
    assert (again.seq_lengths, again.BLOCK_SIZE, again.shape) == (mask.seq_lengths, mask.BLOCK_SIZE, mask.shape)
    zero = torch.zeros((), dtype=torch.int64)
    assert again.mask_mod(zero, zero, zero, zero + 10).item() is True
    assert again.mask_mod(zero, zero, zero, zero + 12).item() is False


def test_blockmask_index_keeps_lengths_and_what_is_there(device: torch.device) -> None:
    """A part has the lengths and block sizes of the whole, and the blocks of the keys only if the whole has them."""
    mask = made(device)
    part = mask[1:, :2]
    assert part.shape == (B - 1, 2, Q, KV)
    assert list(part.BLOCK_SIZE) == [4, 8]
    for name in TENSORS:
        assert torch.equal(getattr(part, name), getattr(mask, name)[1:, :2])
    bare = BlockMask.from_kv_blocks(*few(device), BLOCK_SIZE=4, seq_lengths=(10, 11), compute_q_blocks=False)[0]
    assert (bare.q_indices, bare.full_kv_indices, bare.shape) == (None, None, (1, 1, 10, 11))


def test_blockmask_of_two_dimensions(device: torch.device) -> None:
    """Blocks of one batch and head need no dimensions for these."""
    numbers, indices = few(device)
    mask = BlockMask.from_kv_blocks(numbers[0, 0], indices[0, 0], BLOCK_SIZE=4)
    assert mask.shape == (12, 12)
    assert mask.q_num_blocks is not None
    assert mask.q_indices is not None
    assert listed(mask.q_num_blocks, mask.q_indices) == [[1], [], [0, 1]]
    zero = torch.zeros((), dtype=torch.int64)
    assert mask.mask_mod(zero, zero, zero, zero).item() is True


def default_device() -> str:
    """Return the default device type of masks; skip the case if torch is built for a device that is missing."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and not torch.accelerator.is_available():
        pytest.skip(f"torch is built for {accelerator.type}, which is not there")
    return "cpu" if accelerator is None else accelerator.type


def test_create_block_mask_defaults() -> None:
    """By default a mask is on the accelerator, or on the CPU without one, in blocks of 128, with separate full blocks.

    Blocks beyond the last query are partial.
    """
    place = default_device()
    mask = create_block_mask(causal, 1, 1, 300, 400)
    assert mask.kv_indices.device.type == place
    assert list(mask.BLOCK_SIZE) == [128, 128]
    assert listed(mask.kv_num_blocks[0, 0], mask.kv_indices[0, 0]) == [[0, 1], [1, 2], [0, 1, 2]]
    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_indices is not None
    assert listed(mask.full_kv_num_blocks[0, 0], mask.full_kv_indices[0, 0]) == [[], [0], []]


def test_blockmask_to_string_draws_blocks(device: torch.device) -> None:
    """`to_string` draws each mask, dark for full blocks and grey for partial ones, up to a limit."""
    one = create_block_mask(causal, 1, 1, 24, 32, device=device, BLOCK_SIZE=8)
    assert one.to_string(grid_size=-1) == "(0, 0)\n████    \n██████  \n████████\n"
    assert one.to_string(grid_size=(2, 2)) == one.to_string(grid_size=2) == "(0, 0)\n██░░\n████\n"
    drawn = made(device).to_string(limit=3).splitlines()
    assert [line for line in drawn if line.startswith("(")] == ["(0, 0)", "(0, 1)", "(0, 2)"]
    assert "..." in drawn


def test_blockmask_text_has_the_shape_the_sparsity_and_the_blocks(device: torch.device) -> None:
    """`str` has the shape, the share that no query sees, and the drawn blocks; `repr` has the shape of each tensor."""
    mask = create_block_mask(causal, 1, 1, 24, 32, device=device, BLOCK_SIZE=8)
    blocks = "(0, 0)\n████    \n██████  \n████████"
    assert str(mask) == f"BlockMask(shape=(1, 1, 24, 32), sparsity=25.00%, \n{blocks}\n)"
    bare = BlockMask.from_kv_blocks(*few(device), BLOCK_SIZE=(4, 8), mask_mod=causal, compute_q_blocks=False)
    facts = dict(line.strip().rstrip(",").split("=", 1) for line in repr(bare).splitlines()[1:-1])
    assert facts == {
        "kv_num_blocks": "torch.Size([1, 1, 3])",
        "kv_indices": "torch.Size([1, 1, 3, 3])",
        **dict.fromkeys(["full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices"], "None"),
        **dict.fromkeys(["full_q_num_blocks", "full_q_indices"], "None"),
        "BLOCK_SIZE": "(4, 8)",
        "shape": "(1, 1, 12, 24)",
        "sparsity": f"{bare.sparsity():.2f}%",
        "mask_mod": "causal",
    }


def test_blockmask_refuses_half_of_what_belongs_together(device: torch.device) -> None:
    """Numbers and indices of full blocks must come together; those of the keys' blocks are required.

    They have two dimensions.
    """
    numbers, indices = few(device)
    none = dict.fromkeys(TENSORS)
    given = {"kv_num_blocks": numbers, "kv_indices": indices, "BLOCK_SIZE": (4, 8), "mask_mod": causal}
    assert BlockMask((12, 24), **{**none, **given}).to_dense().sum() == 3  # type: ignore[arg-type]
    for wrong, error, why in (
        ({"kv_num_blocks": None}, AssertionError, "kv_num_blocks must be provided"),
        ({"full_kv_num_blocks": numbers}, AssertionError, "full_kv_num_blocks and full_kv_indices must be both"),
        ({"full_kv_indices": indices}, AssertionError, "full_kv_num_blocks and full_kv_indices must be both"),
        ({"full_q_num_blocks": numbers}, AssertionError, "full_q_num_blocks and full_q_indices must be both"),
        ({"full_q_indices": indices}, AssertionError, "full_q_num_blocks and full_q_indices must be both"),
        ({"kv_indices": indices[0, 0, 0]}, RuntimeError, "at least 2 dimensions"),
    ):
        with pytest.raises(error, match=why):
            BlockMask((12, 24), **{**none, **given, **wrong})  # type: ignore[arg-type]
    for half in ({"full_kv_num_blocks": numbers}, {"full_kv_indices": indices}):
        with pytest.raises(AssertionError, match="full_kv_num_blocks and full_kv_indices must be both"):
            BlockMask.from_kv_blocks(numbers, indices, **half)


def test_create_mask_defaults() -> None:
    """Without batches, heads and a device, `create_mask` has one batch and head, on the accelerator or the CPU."""
    place = default_device()
    mask = create_mask(causal, None, None, 3, 14)  # type: ignore[arg-type]
    assert mask.device.type == place
    assert mask.tolist() == [[[[kv <= q + 8 for kv in range(14)] for q in range(3)]]]


def test_create_mask_is_on_the_device_that_is_given() -> None:
    """`create_mask` creates the mask on the given device, also if that device has no memory."""
    for place in ("meta", "cpu"):
        assert create_mask(causal, 1, 1, 3, 14, device=place).device.type == place


class Near:
    """A mask that is a callable object."""

    def __init__(self, distance: int) -> None:
        self._distance = distance

    def __call__(self, b: Any, h: Any, q: Any, kv: Any) -> Any:  # noqa: ARG002
        return (q - kv).abs() <= self._distance


def within(distance: int, b: Any, h: Any, q: Any, kv: Any) -> Any:  # noqa: ARG001
    return (q - kv).abs() <= distance


def nearer(b: Any, h: Any, q: Any, kv: Any, distance: int = 3) -> Any:
    return within(distance, b, h, q, kv)


def test_create_block_mask_takes_objects_and_partial_functions(device: torch.device) -> None:
    """A mask may be an object with `__call__`, a partial function, or a function with a default argument.

    Parameters without a default distinguish masks from scores.
    """
    wanted = (torch.arange(Q).unsqueeze(1) - torch.arange(KV)).abs() <= 3
    for mask_mod in (Near(3), functools.partial(within, 3), nearer):
        mask = create_block_mask(mask_mod, 1, 1, Q, KV, device=device, BLOCK_SIZE=1)
        assert torch.equal(mask.to_dense()[0, 0].cpu().bool(), wanted)


def ranks_fit(mask: BlockMask, descending: bool) -> None:
    """Check the write orders: the number of blocks of the same queries before a block, in the order of the keys."""
    dense = mask.to_dense().cpu()
    for numbers, indices, order in [
        (mask.q_num_blocks, mask.q_indices, mask.dq_write_order),
        (mask.full_q_num_blocks, mask.full_q_indices, mask.dq_write_order_full),
    ]:
        assert numbers is not None
        assert indices is not None
        assert order is not None
        for b, h in torch.cartesian_prod(*(torch.arange(size) for size in dense.shape[:2])).tolist():
            for column, rows in enumerate(listed(numbers[b, h], indices[b, h])):
                seen = [dense[b, h, row, column + 1 :] if descending else dense[b, h, row, :column] for row in rows]
                assert order[b, h, column, : len(rows)].tolist() == [int(each.sum()) for each in seen]


@NEWER
@pytest.mark.parametrize("descending", [False, True])
def test_create_block_mask_computes_the_order_of_writes(device: torch.device, descending: bool) -> None:
    """`dq_write_order` ranks the blocks of a row by ascending or descending keys, also in a part of the mask."""
    mask = made(device, compute_dq_write_order=True, dq_kv_order=descending)
    assert mask.dq_kv_order is None
    assert mask.dq_kv_order_spt is descending
    ranks_fit(mask, descending)
    ranks_fit(mask[:, 1:3], descending)
    there = mask.to(device)
    assert there.dq_kv_order_spt is descending
    ranks_fit(there, descending)
    assert made(device, compute_dq_write_order=False).dq_write_order is None


@NEWER
def test_create_block_mask_orders_by_descending_keys_by_default(device: torch.device) -> None:
    """There is no order unless it is requested, and then it is that of descending keys."""
    mask = made(device)
    assert (mask.dq_write_order, mask.dq_write_order_full, mask.dq_kv_order_spt) == (None, None, None)
    ranks_fit(made(device, compute_dq_write_order=True), descending=True)


@NEWER
def test_create_block_mask_orders_the_writes_of_partial_blocks(device: torch.device) -> None:
    """Without separate full blocks, and for all batches and heads together, there is one order."""
    options: dict[str, Any] = {"BLOCK_SIZE": 8, "separate_full_blocks": False, "compute_dq_write_order": True}
    mask = create_block_mask(causal, None, None, Q, KV, device=device, dq_kv_order=False, **options)
    assert mask.dq_write_order is not None
    assert mask.dq_write_order_full is None
    dense = mask.to_dense()[0, 0].cpu()
    assert mask.q_num_blocks is not None
    assert mask.q_indices is not None
    for column, rows in enumerate(listed(mask.q_num_blocks[0, 0], mask.q_indices[0, 0])):
        wanted = [int(dense[row, :column].sum()) for row in rows]
        assert mask.dq_write_order[0, 0, column, : len(rows)].tolist() == wanted


@NEWER
def test_blockmask_from_kv_blocks_takes_an_order_of_keys(device: torch.device) -> None:
    """An order is a bool or a tensor; with a tensor, a mask cannot be indexed.

    An order of full blocks requires the other one.
    """
    numbers, indices = few(device)
    order = torch.tensor([[[2, 0, 1]]], dtype=torch.int32, device=device)
    mask = BlockMask.from_kv_blocks(numbers, indices, dq_kv_order=order)
    assert mask.dq_kv_order is order
    assert mask.dq_kv_order_spt is None
    with pytest.raises(NotImplementedError, match="dq_kv_order"):
        mask[0]
    plain = BlockMask.from_kv_blocks(numbers, indices, dq_kv_order=True, dq_write_order=order)
    assert plain.dq_kv_order is None
    assert plain.dq_kv_order_spt is True
    assert plain.dq_write_order is order
    assert BlockMask.from_kv_blocks(numbers, indices).dq_kv_order_spt is None
    with pytest.raises(ValueError, match="dq_kv_order"):
        BlockMask.from_kv_blocks(numbers, indices, dq_kv_order=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dq_write_order"):
        BlockMask.from_kv_blocks(numbers, indices, dq_write_order_full=order)
    with pytest.raises(ValueError, match="bool"):
        made(device, dq_kv_order=order)
