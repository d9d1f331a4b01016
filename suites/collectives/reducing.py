"""Every collective that reduces, called with inputs of `inputs`, and its expected results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from . import groups, inputs
from .checking import Checks
from .inputs import Guarded, Op


@dataclass(frozen=True)
class Call(inputs.Typed):
    """One call: the type, the reduction, and the number of elements that each rank gets."""

    reduction: str
    size: int

    def __str__(self) -> str:
        return f"{self.dtype} {self.reduction} {self.size} elements"

    @property
    def op(self) -> Any:
        return getattr(Op, self.reduction)

    def operands(self, world: int, size: int) -> list[torch.Tensor]:
        """Return the inputs of all ranks."""
        return [inputs.operand(self.reduction, rank, size, self.torch_dtype, world) for rank in range(world)]


def plan(world: int, backend: str, *, slow: bool) -> list[Call]:
    """Return calls of all types and reductions with two ranks, of half of them with more, and of sizes around borders.

    There are fewer sizes with more ranks. `slow`: gloo emulates the function with another collective, so there are
    fewer calls.
    """
    every = [(dtype, reduction) for dtype in inputs.TYPES for reduction in inputs.reductions(dtype, backend)]
    if world > 4 or (slow and world > 2):
        calls = [Call(dtype, reduction, 17) for dtype, reduction in every[world % 3 :: 3]]
        return [*calls, *(Call("float32", "SUM", size) for size in (inputs.FEWEST if slow else inputs.FEW_BORDERS))]
    if world > 2:
        calls = [Call(dtype, reduction, 17) for dtype, reduction in every[world % 2 :: 2]]
        return [*calls, *(Call("float32", "SUM", size) for size in inputs.FEW_BORDERS)]
    calls = [Call(dtype, reduction, 17) for dtype, reduction in every]
    return [*calls, *(Call("float32", "SUM", size) for size in (inputs.FEW_BORDERS if slow else inputs.BORDERS))]


def all_reduce(rank: Any, call: Call, checks: Checks) -> None:
    """Check that each rank has the reduction."""
    operands = call.operands(rank.world, call.size)
    given = Guarded(operands[rank.number], rank.device)
    dist.all_reduce(given.tensor, call.op)
    checks.same(f"all_reduce {call}", given.tensor, inputs.reduced(call.reduction, operands))
    checks.true(f"all_reduce {call}: wrote beside the tensor", given.is_intact())


def reduce(rank: Any, call: Call, checks: Checks) -> None:
    """Check that the destination has the reduction. The tensors of the others are undefined afterwards."""
    operands = call.operands(rank.world, call.size)
    root = call.size % rank.world
    given = Guarded(operands[rank.number], rank.device)
    dist.reduce(given.tensor, root, call.op)
    if rank.number == root:
        checks.same(f"reduce to {root} {call}", given.tensor, inputs.reduced(call.reduction, operands))
    checks.true(f"reduce to {root} {call}: wrote beside the tensor", given.is_intact())


def reduce_scatter(rank: Any, call: Call, checks: Checks) -> None:
    """Check that each rank has the reduction of the tensors at its place, and that the inputs are unchanged."""
    operands = call.operands(rank.world, call.size * rank.world)
    given = [part.clone().to(rank.device) for part in operands[rank.number].split(call.size)] if call.size else []
    given = given or [torch.empty(0, dtype=call.torch_dtype, device=rank.device) for _ in range(rank.world)]
    made = Guarded(torch.ones(call.size, dtype=call.torch_dtype), rank.device)
    dist.reduce_scatter(made.tensor, given, call.op)
    _expect_part(f"reduce_scatter {call}", rank, call, operands, made, checks)
    checks.same(f"reduce_scatter {call}: its input", torch.cat(given), operands[rank.number])


def reduce_scatter_single(rank: Any, call: Call, checks: Checks) -> None:
    """Check that each rank has its part of the reduction, and that the input is unchanged."""
    operands = call.operands(rank.world, call.size * rank.world)
    given = operands[rank.number].to(rank.device, copy=True)
    made = Guarded(torch.ones(call.size, dtype=call.torch_dtype), rank.device)
    groups.reduce_scatter_single(made.tensor, given, call.op)
    _expect_part(f"reduce_scatter_single {call}", rank, call, operands, made, checks)
    checks.same(f"reduce_scatter_single {call}: its input", given, operands[rank.number])


def _expect_part(
    what: str, rank: Any, call: Call, operands: Sequence[torch.Tensor], made: Guarded, checks: Checks
) -> None:
    whole = inputs.reduced(call.reduction, operands)
    checks.same(what, made.tensor, whole[rank.number * call.size : (rank.number + 1) * call.size])
    checks.true(f"{what}: wrote beside the tensor", made.is_intact())


FUNCTIONS: Mapping[str, Callable[[Any, Call, Checks], None]] = {
    "all_reduce": all_reduce,
    "reduce": reduce,
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_single": reduce_scatter_single,
}


def sweep(rank: Any, name: str) -> Checks:
    """Make all calls of the plan with one function, as the body of ranks."""
    checks = Checks(rank.number)
    with groups.group(rank):
        for call in plan(rank.world, groups.backend(rank), slow="scatter" in name):
            FUNCTIONS[name](rank, call, checks)
    return checks
