"""Every collective that moves tensors, called with inputs of `inputs`, and its expected results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from . import groups, inputs
from .checking import Checks
from .inputs import Guarded


@dataclass(frozen=True)
class Call(inputs.Typed):
    """One call: the type, and the number of elements that one rank sends to one rank.

    `shift`: a second call that differs only in its content, so that a repetition of the first result is detected.
    """

    size: int
    shift: int = 0

    def __str__(self) -> str:
        return f"{self.dtype} {self.size} elements{', other content' if self.shift else ''}"

    def content(self, rank: int, size: int | None = None) -> torch.Tensor:
        """Return the input of a rank, on the CPU."""
        return inputs.numbers((rank + self.shift) % 11, self.size if size is None else size, self.torch_dtype)

    def empty(self, size: int, device: torch.device) -> Guarded:
        """Return a tensor for a result, filled with a value that no result has."""
        return Guarded(torch.full((size,), 1, dtype=self.torch_dtype), device)


def plan(world: int) -> list[Call]:
    """Return calls of all types, and of sizes around borders: fewer with more ranks."""
    borders = inputs.BORDERS if world < 3 else inputs.FEW_BORDERS if world < 5 else inputs.FEWEST
    calls = [Call(dtype, 17) for dtype in inputs.MOVED_TYPES]
    calls += [Call("float32", 17, shift=4), Call("int64", 17, shift=4)]
    return [*calls, *(Call("int8" if size % 2 else "float32", size) for size in borders)]


def broadcast(rank: Any, call: Call, checks: Checks) -> None:
    """Check that each rank has the tensor of the source."""
    source = call.size % rank.world
    given = Guarded(call.content(rank.number), rank.device)
    dist.broadcast(given.tensor, source)
    checks.same(f"broadcast from {source} {call}", given.tensor, call.content(source))
    checks.true(f"broadcast from {source} {call}: wrote beside the tensor", given.is_intact())


def all_gather(rank: Any, call: Call, checks: Checks) -> None:
    """Check that each rank has the tensors of all ranks, in order."""
    made = [call.empty(call.size, rank.device) for _ in range(rank.world)]
    dist.all_gather([each.tensor for each in made], call.content(rank.number).to(rank.device))
    for number, each in enumerate(made):
        checks.same(f"all_gather {call}: tensor {number}", each.tensor, call.content(number))
        checks.true(f"all_gather {call}: wrote beside tensor {number}", each.is_intact())


def all_gather_single(rank: Any, call: Call, checks: Checks) -> None:
    """Check that each rank has the tensors of all ranks in one tensor, also if the input is a part of the output."""
    expected = torch.cat([call.content(number) for number in range(rank.world)])
    made = call.empty(call.size * rank.world, rank.device)
    groups.all_gather_single(made.tensor, call.content(rank.number).to(rank.device))
    checks.same(f"all_gather_single {call}", made.tensor, expected)
    checks.true(f"all_gather_single {call}: wrote beside the tensor", made.is_intact())
    if call.size == 17:
        whole = call.empty(call.size * rank.world, rank.device)
        own = whole.tensor[rank.number * call.size : (rank.number + 1) * call.size]
        own.copy_(call.content(rank.number))
        groups.all_gather_single(whole.tensor, own)
        checks.same(f"all_gather_single {call} in place", whole.tensor, expected)


def gather(rank: Any, call: Call, checks: Checks) -> None:
    """Check that the destination has the tensors of all ranks, in order."""
    if call.torch_dtype.is_complex:  # gloo has no gather for complex types
        return
    root = call.size % rank.world
    made = [call.empty(call.size, rank.device) for _ in range(rank.world)] if rank.number == root else []
    dist.gather(call.content(rank.number).to(rank.device), [each.tensor for each in made] or None, dst=root)
    checks.equal(f"gather to {root} {call}: tensors", len(made), rank.world if rank.number == root else 0)
    for number, each in enumerate(made):
        checks.same(f"gather to {root} {call}: tensor {number}", each.tensor, call.content(number))
        checks.true(f"gather to {root} {call}: wrote beside tensor {number}", each.is_intact())


def scatter(rank: Any, call: Call, checks: Checks) -> None:
    """Check that each rank has the tensor at its place of the source's list."""
    root = call.size % rank.world
    given = [call.content(number + 1).to(rank.device) for number in range(rank.world)] if rank.number == root else None
    made = call.empty(call.size, rank.device)
    dist.scatter(made.tensor, given, src=root)
    checks.same(f"scatter from {root} {call}", made.tensor, call.content(rank.number + 1))
    checks.true(f"scatter from {root} {call}: wrote beside the tensor", made.is_intact())


def all_to_all(rank: Any, call: Call, checks: Checks) -> None:
    """Check that each rank has the tensors at its place of the others' lists. With NCCL their sizes differ."""
    differ = groups.backend(rank) == "nccl"
    size = {(a, b): (call.size + differ * (a + 2 * b)) for a in range(rank.world) for b in range(rank.world)}
    given = [_sent(call, rank.number, target, size[rank.number, target]) for target in range(rank.world)]
    made = [call.empty(size[source, rank.number], rank.device) for source in range(rank.world)]
    dist.all_to_all([each.tensor for each in made], [each.to(rank.device) for each in given])
    for source, each in enumerate(made):
        expected = _sent(call, source, rank.number, size[source, rank.number])
        checks.same(f"all_to_all {call}: tensor from {source}", each.tensor, expected)
        checks.true(f"all_to_all {call}: wrote beside the tensor from {source}", each.is_intact())


def all_to_all_single(rank: Any, call: Call, checks: Checks) -> None:
    """Check that each rank has the parts that the others have for it: equal parts, and parts of given sizes."""
    given = torch.cat([_sent(call, rank.number, target, call.size) for target in range(rank.world)])
    made = call.empty(call.size * rank.world, rank.device)
    dist.all_to_all_single(made.tensor, given.to(rank.device))
    expected = torch.cat([_sent(call, source, rank.number, call.size) for source in range(rank.world)])
    checks.same(f"all_to_all_single {call}", made.tensor, expected)
    checks.true(f"all_to_all_single {call}: wrote beside the tensor", made.is_intact())

    splits = [(rank.number + 2 * target) % (call.size + 2) for target in range(rank.world)]
    arriving = [(source + 2 * rank.number) % (call.size + 2) for source in range(rank.world)]
    given = torch.cat([_sent(call, rank.number, target, size) for target, size in enumerate(splits)])
    made = call.empty(sum(arriving), rank.device)
    dist.all_to_all_single(made.tensor, given.to(rank.device), arriving, splits)
    expected = torch.cat([_sent(call, source, rank.number, size) for source, size in enumerate(arriving)])
    checks.same(f"all_to_all_single {call} in parts of {arriving}", made.tensor, expected)


def _sent(call: Call, source: int, target: int, size: int) -> torch.Tensor:
    """Return the tensor that one rank sends to another."""
    return call.content((source + 5 * target) % 11, size)


FUNCTIONS: Mapping[str, Callable[[Any, Call, Checks], None]] = {
    "broadcast": broadcast,
    "all_gather": all_gather,
    "all_gather_single": all_gather_single,
    "gather": gather,
    "scatter": scatter,
    "all_to_all": all_to_all,
    "all_to_all_single": all_to_all_single,
}


def sweep(rank: Any, name: str) -> Checks:
    """Make all calls of the plan with one function, as the body of ranks."""
    checks = Checks(rank.number)
    with groups.group(rank):
        for call in plan(rank.world):
            FUNCTIONS[name](rank, call, checks)
    return checks
