"""The exact results of each collective: every type, reductions, and sizes around the borders of chunks.

References are computed on the CPU without a collective. Tensors begin at an odd element, between elements that must not
change.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from . import moving, reducing
from .checking import Checks, digest, expect_all_right
from .groups import GATE, backend, group, on_cpu, worlds

pytestmark = [GATE, pytest.mark.timeout(90)]


@worlds(1, 2, 3, 4, 8)
@pytest.mark.parametrize("name", reducing.FUNCTIONS)
def test_reductions_are_exact(ranks: Any, name: str, world: int) -> None:
    """Sums, products, extrema, averages and bitwise reductions of small whole numbers are exact in every type."""
    expect_all_right(ranks.run(reducing.sweep, name, world=world))


@worlds(1, 2, 3, 4, 8)
@pytest.mark.parametrize("name", moving.FUNCTIONS)
def test_moved_tensors_arrive_bit_for_bit(ranks: Any, name: str, world: int) -> None:
    """Each rank has what was sent to it, in the order of the ranks, and no other element is written."""
    expect_all_right(ranks.run(moving.sweep, name, world=world))


def rounded(rank: Any) -> tuple[Checks, list[str]]:
    """Compute sums that depend on the order of additions twice, and return the hashes of their bits."""
    checks, hashes = Checks(rank.number), []
    generator = torch.Generator().manual_seed(rank.number)
    with group(rank):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for size in (1, 33, 4097, 262145):
                given = torch.randn(size, generator=generator).to(dtype).to(rank.device)
                runs = [given.clone(), given.clone()]
                for run in runs:
                    dist.all_reduce(run)
                checks.same(f"all_reduce {dtype} {size} elements, again", runs[1], runs[0])
                hashes.append(digest([runs[0]]))
    return checks, hashes


@worlds(2, 4)
def test_all_reduce_gives_all_ranks_the_same_bits_each_time(ranks: Any, world: int) -> None:
    """Rounded sums have the same bits on all ranks, and the same inputs give the same bits again."""
    results = ranks.run(rounded, world=world)
    expect_all_right([checks for checks, _ in results])
    for number, (_, hashes) in enumerate(results):
        assert hashes == results[0][1], f"rank {number} has other bits than rank 0"


def layouts(rank: Any) -> Checks:
    """Use tensors that are dense and not contiguous.

    The result keeps their layout. NCCL only supports channels last.
    """
    checks = Checks(rank.number)
    transposed = ("transposed", (3, 5), (1, 0))
    with group(rank):
        if on_nccl := backend(rank) == "nccl":
            given = torch.zeros(3, 5, device=rank.device).t()
            checks.refused("all_reduce transposed", lambda: dist.all_reduce(given), "contiguous")
            checks.refused("broadcast transposed", lambda: dist.broadcast(given, 0), "contiguous")
        # In a view of a contiguous tensor as channels last, the channels are the last dimension.
        last = ("channels last", (2, 4, 5, 3), (0, 3, 1, 2))
        for name, shape, order in (last,) if on_nccl else (transposed, last):
            size = torch.Size(shape).numel()
            parts = [(torch.arange(size) * 3 + number).float() for number in range(rank.world)]
            given = parts[rank.number].clone().to(rank.device).view(shape).permute(order)
            dist.all_reduce(given)
            checks.equal(f"all_reduce {name}: contiguous", given.is_contiguous(), False)
            checks.same(f"all_reduce {name}", given, torch.stack(parts).sum(0).view(shape).permute(order))
            given = parts[rank.number].clone().to(rank.device).view(shape).permute(order)
            dist.broadcast(given, 1)
            checks.same(f"broadcast {name}", given, parts[1].view(shape).permute(order))
        given = torch.arange(12.0).to(rank.device) + rank.number
        expanded = given[3:9]
        dist.all_reduce(expanded)
        expected = torch.arange(12.0) + rank.number
        expected[3:9] = sum(torch.arange(12.0)[3:9] + number for number in range(rank.world))
        checks.same("all_reduce of a slice", given, expected)
    return checks


@worlds(2, 3)
def test_all_reduce_and_broadcast_keep_the_layout(ranks: Any, world: int) -> None:
    """A dense tensor that is not contiguous, and a slice of a larger one, get the result in their own layout."""
    expect_all_right(ranks.run(layouts, world=world))


def strided(rank: Any, name: str) -> Checks:
    """Use every other element of a tensor."""
    checks, rank = Checks(rank.number), on_cpu(rank)
    parts = [torch.arange(12.0) * (number + 1) for number in range(rank.world)]
    whole = parts[rank.number].clone().to(rank.device)
    even, expected = whole[::2], parts[rank.number].clone()
    made = [torch.zeros(6, device=rank.device) for _ in range(rank.world)]
    with group(rank):
        if name == "all_reduce":
            dist.all_reduce(even)
            expected[::2] = torch.stack(parts).sum(0)[::2]
        elif name == "broadcast":
            dist.broadcast(even, 1)
            expected[::2] = parts[1][::2]
        elif name == "all_gather":
            dist.all_gather(made, even)
        else:
            dist.gather(even, made if rank.number == 0 else None, dst=0)
        checks.same(f"{name}: the tensor with its gaps", whole, expected)
        if name == "all_gather" or (name == "gather" and rank.number == 0):
            checks.same(f"{name}: gathered", torch.stack(made), torch.stack([part[::2] for part in parts]))
    return checks


IGNORES_STRIDES = pytest.mark.xfail(
    raises=AssertionError,
    reason="gloo takes the memory behind the first element: https://github.com/pytorch/pytorch/issues/192920",
)


@pytest.mark.requires(ranks=2)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("all_reduce", marks=IGNORES_STRIDES),
        pytest.param("broadcast", marks=IGNORES_STRIDES),
        "all_gather",
        "gather",
    ],
)
def test_gloo_respects_strides(ranks: Any, name: str) -> None:
    """Only the elements of a tensor with gaps take part, and the gaps are unchanged."""
    expect_all_right(ranks.run(strided, name, world=2))


def summed_bools(rank: Any) -> Checks:
    checks, rank = Checks(rank.number), on_cpu(rank)
    with group(rank):
        given = torch.tensor([True, False, rank.number == 0, True], device=rank.device)
        dist.all_reduce(given)
        checks.same("all_reduce bool SUM", given, torch.tensor([True, False, True, True]))
    return checks


@pytest.mark.requires(ranks=2)
@pytest.mark.xfail(raises=AssertionError, reason="gloo adds bytes, so that a true bool is the byte 2 (torch 2.13)")
def test_all_reduce_sum_of_bool_is_a_bool(ranks: Any) -> None:
    """A sum of bools is their disjunction, and each of its bytes is 0 or 1; NCCL computes it as a maximum."""
    expect_all_right(ranks.run(summed_bools, world=2))
