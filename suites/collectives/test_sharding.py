"""DeviceMesh, DTensor and fully_shard: the parts on each rank, and results compared with those of one process."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from .checking import Checks, expect_all_right
from .groups import GATE, grouped, worlds

pytestmark = [GATE, pytest.mark.timeout(60)]

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}


def mesh_of(rank: Any) -> DeviceMesh:
    return init_device_mesh(rank.device.type, (rank.world,))


def sample(rows: int, columns: int, seed: int = 1) -> torch.Tensor:
    """Return the same numbers on all ranks."""
    return torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def part(whole: torch.Tensor, dim: int, number: int, world: int) -> torch.Tensor:
    """Return a rank's part of a tensor: chunks as `torch.chunk` makes them, the last ones smaller or empty."""
    chunks = whole.chunk(world, dim)
    return chunks[number] if number < len(chunks) else whole.narrow(dim, 0, 0)


@grouped
def meshes(rank: Any) -> Checks:
    """Create a mesh of two dimensions and its groups."""
    checks = Checks(rank.number)
    mesh = init_device_mesh(rank.device.type, (2, rank.world // 2), mesh_dim_names=("outer", "inner"))
    outer, inner = divmod(rank.number, rank.world // 2)
    checks.equal("get_coordinate", mesh.get_coordinate(), (outer, inner))
    checks.equal("shape", tuple(mesh.shape), (2, rank.world // 2))
    checks.equal("get_local_rank", (mesh.get_local_rank("outer"), mesh.get_local_rank("inner")), (outer, inner))
    members = {
        "outer": [inner + each * (rank.world // 2) for each in range(2)],
        "inner": [outer * (rank.world // 2) + each for each in range(rank.world // 2)],
    }
    for name, ranks in members.items():
        group = mesh.get_group(name)
        checks.equal(f"ranks of {name}", dist.get_process_group_ranks(group), ranks)
        dist.all_reduce(given := torch.full((3,), rank.number + 1.0, device=rank.device), group=group)
        checks.same(f"all_reduce in {name}", given, torch.full((3,), float(sum(each + 1 for each in ranks))))
        checks.equal(f"size of the part {name}", mesh[name].size(), len(ranks))
    flat = mesh._flatten("flat") if hasattr(mesh, "_flatten") else mesh
    checks.equal("size", flat.size(), rank.world)
    checks.refused("a mesh of more ranks", lambda: init_device_mesh(rank.device.type, (rank.world + 1,)), "")
    checks.refused("a dimension that the mesh lacks", lambda: mesh["none"], "none")
    return checks


@worlds(4)
def test_init_device_mesh_divides_ranks_into_rows_and_columns(ranks: Any, world: int) -> None:
    """Coordinates increase row by row, and each dimension has its groups."""
    expect_all_right(ranks.run(meshes, world=world))


@grouped
def placements(rank: Any) -> Checks:
    """Redistribute each placement to each other, for sizes that the number of ranks does not divide."""
    checks = Checks(rank.number)
    mesh = mesh_of(rank)
    for rows, columns in ((rank.world * 2, rank.world), (rank.world + 1, 3), (1, 5)):
        whole = sample(rows, columns)
        for placement in (Shard(0), Shard(1), Replicate()):
            made = distribute_tensor(whole.to(rank.device), mesh, [placement])
            what = f"{rows}x{columns} {placement}"
            wanted = part(whole, placement.dim, rank.number, rank.world) if isinstance(placement, Shard) else whole
            checks.same(f"{what}: to_local", made.to_local(), wanted)
            checks.equal(f"{what}: shape", tuple(made.shape), (rows, columns))
            checks.same(f"{what}: full_tensor", made.full_tensor(), whole)
            for target in (Shard(0), Shard(1), Replicate()):
                moved = made.redistribute(mesh, [target])
                wanted = part(whole, target.dim, rank.number, rank.world) if isinstance(target, Shard) else whole
                checks.same(f"{what} to {target}: to_local", moved.to_local(), wanted)
                checks.equal(f"{what} to {target}: placements", tuple(moved.placements), (target,))
        summed = DTensor.from_local(whole.to(rank.device) * (rank.number + 1), mesh, [Partial()])
        total = whole * sum(number + 1 for number in range(rank.world))
        for target in (Replicate(), Shard(0), Shard(1)):
            wanted = part(total, target.dim, rank.number, rank.world) if isinstance(target, Shard) else total
            found = summed.redistribute(mesh, [target]).to_local()
            right = found.shape == wanted.shape and torch.allclose(found.cpu(), wanted, **TOLERANCE)
            checks.true(f"{rows}x{columns} Partial to {target}", right)
        largest = DTensor.from_local(whole.to(rank.device) * (rank.number - 1), mesh, [Partial("max")])
        wanted = torch.stack([whole * (number - 1) for number in range(rank.world)]).amax(0)
        checks.same(f"{rows}x{columns} Partial(max)", largest.full_tensor(), wanted)
    return checks


@worlds(2, 3, 4)
def test_redistribute_moves_each_placement_to_each_other(ranks: Any, world: int) -> None:
    """Each rank has its part, whether or not the ranks divide the size, and the whole tensor is the same."""
    expect_all_right(ranks.run(placements, world=world))


@grouped
def operators(rank: Any) -> Checks:
    """Run operators on DTensors, and check their results and placements."""
    checks = Checks(rank.number)
    mesh = mesh_of(rank)
    left, right = sample(rank.world * 2, rank.world * 3, 2), sample(rank.world * 3, rank.world, 3)
    for a, b in itertools.product((Shard(0), Shard(1), Replicate()), repeat=2):
        first = distribute_tensor(left.to(rank.device), mesh, [a]).requires_grad_()
        second = distribute_tensor(right.to(rank.device), mesh, [b]).requires_grad_()
        product = first @ second
        checks.true(f"{a} @ {b}", torch.allclose(product.full_tensor().cpu(), left @ right, **TOLERANCE))
        product.full_tensor().square().sum().backward()
        plain = left.clone().requires_grad_(), right.clone().requires_grad_()
        (plain[0] @ plain[1]).square().sum().backward()
        for name, found, wanted in (("left", first.grad, plain[0].grad), ("right", second.grad, plain[1].grad)):
            close = torch.allclose(found.full_tensor().cpu(), wanted, rtol=1e-10, atol=1e-10)
            checks.true(f"{a} @ {b}: gradient of {name}", close)
    rows = distribute_tensor(left.to(rank.device), mesh, [Shard(0)])
    checks.equal("sum over the rows that are sharded", tuple(rows.sum(0).placements), (Partial("sum"),))
    for what, found, wanted in (
        ("sum(0)", rows.sum(0), left.sum(0)),
        ("sum(1)", rows.sum(1), left.sum(1)),
        ("mean()", rows.mean(), left.mean()),
        ("amax(0)", rows.amax(0), left.amax(0)),
        ("softmax(0)", rows.softmax(0), left.softmax(0)),
        ("t()", rows.t(), left.t()),
        ("rows + rows", rows + rows, left + left),
        ("tanh()", rows.tanh(), left.tanh()),
        ("cat", torch.cat([rows, rows], 1), torch.cat([left, left], 1)),
    ):
        checks.true(what, torch.allclose(found.full_tensor().cpu(), wanted, **TOLERANCE))
    for given, factor in ((None, rank.number + 1), ([Partial()], sum(range(rank.world + 1)))):
        leaf = distribute_tensor(left.to(rank.device), mesh, [Replicate()]).requires_grad_()
        (leaf.to_local(grad_placements=given) * (rank.number + 1)).sum().backward()
        found = leaf.grad.full_tensor().cpu()
        checks.same(f"gradient of to_local, grad_placements={given}", found, torch.full_like(left, factor))
    checks.refused("a DTensor with a tensor", lambda: rows @ right.to(rank.device), "mixed")
    return checks


@worlds(2, 4)
def test_dtensor_operators_agree_with_those_of_whole_tensors(ranks: Any, world: int) -> None:
    """Products of each pair of placements with their gradients, reductions over a sharded dimension, and others.

    The gradient of `to_local` has the placements that the caller names.
    """
    expect_all_right(ranks.run(operators, world=world))


class Mlp(nn.Module):
    """Two layers in float64."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, dtype=torch.float64)
        self.down = nn.Linear(4 * width, width, dtype=torch.float64)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(rows).tanh())


def stack_of(rank: Any, width: int = 6) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(Mlp(width), Mlp(width), nn.Linear(width, 3, dtype=torch.float64)).to(rank.device)


def loss_of(module: nn.Module, rank: Any, number: int, step: int) -> torch.Tensor:
    loss: torch.Tensor = module(sample(4, 6, 10 * step + number).to(rank.device)).square().mean()
    return loss


@grouped
def fully_sharded(rank: Any) -> Checks:
    """Run three steps with sharded weights, and in one process."""
    checks = Checks(rank.number)
    single, sharded = stack_of(rank), stack_of(rank)
    mesh = mesh_of(rank)
    for layer in sharded[:2]:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    for (name, found), wanted in zip(sharded.named_parameters(), single.parameters(), strict=True):
        checks.true(f"{name} is a DTensor", isinstance(found, DTensor))
        checks.equal(f"{name}: placements", tuple(found.placements), (Shard(0),))
        checks.same(f"{name}: own part", found.to_local(), part(wanted, 0, rank.number, rank.world))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (single, sharded)]
    for step in range(3):
        torch.stack([loss_of(single, rank, number, step) for number in range(rank.world)]).mean().backward()
        loss_of(sharded, rank, rank.number, step).backward()
        for (name, found), wanted in zip(sharded.named_parameters(), single.parameters(), strict=True):
            close = torch.allclose(found.grad.full_tensor(), wanted.grad, rtol=1e-10, atol=1e-12)
            checks.true(f"step {step}: gradient of {name}", close)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for (name, found), wanted in zip(sharded.named_parameters(), single.parameters(), strict=True):
        checks.true(f"{name} after three steps", torch.allclose(found.full_tensor(), wanted, rtol=1e-10, atol=1e-12))
    return checks


@worlds(1, 2, 3, 4)
def test_fully_shard_trains_as_one_process_does(ranks: Any, world: int) -> None:
    """Each rank holds its rows of each weight, and gradients and weights equal those of a training on all rows."""
    expect_all_right(ranks.run(fully_sharded, world=world))


@grouped
def accumulated(rank: Any) -> Checks:
    """Run steps without the reduction of gradients, and with a lower precision."""
    checks = Checks(rank.number)
    single, sharded = stack_of(rank), fully_shard(stack_of(rank), mesh=mesh_of(rank))
    sharded.set_requires_gradient_sync(False)
    loss_of(sharded, rank, rank.number, 0).backward()
    checks.true("no gradient without the reduction", all(each.grad is None for each in sharded.parameters()))
    sharded.set_requires_gradient_sync(True)
    loss_of(sharded, rank, rank.number, 1).backward()
    for step in range(2):
        torch.stack([loss_of(single, rank, number, step) for number in range(rank.world)]).mean().backward()
    for (name, found), wanted in zip(sharded.named_parameters(), single.parameters(), strict=True):
        close = torch.allclose(found.grad.full_tensor(), wanted.grad, rtol=1e-10, atol=1e-12)
        checks.true(f"gradient of {name} over both steps", close)

    parts = stack_of(rank)
    for layer in parts[:2]:
        fully_shard(layer, mesh=mesh_of(rank))
    fully_shard(parts, mesh=mesh_of(rank)).set_requires_gradient_sync(False, recurse=False)
    loss_of(parts, rank, rank.number, 0).backward()
    reduced = {name for name, each in parts.named_parameters() if each.grad is not None}
    own = {"2.weight", "2.bias"}
    checks.equal("gradients with recurse=False", reduced, {name for name, _ in parts.named_parameters()} - own)

    sharded.unshard()
    for (name, found), wanted in zip(sharded.named_parameters(), single.parameters(), strict=True):
        checks.same(f"unshard: {name}", found, wanted)
    sharded.reshard()
    checks.true("reshard", all(isinstance(each, DTensor) for each in sharded.parameters()))

    lower = fully_shard(
        stack_of(rank),
        mesh=mesh_of(rank),
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )
    found = lower(sample(4, 6).to(rank.device))
    checks.equal("type of the result with param_dtype=bfloat16", found.dtype, torch.bfloat16)
    found.float().square().mean().backward()
    types = {each.grad.dtype for each in lower.parameters()}
    checks.equal("type of gradients", types, {torch.float64})
    return checks


@worlds(2, 3)
def test_set_requires_gradient_sync_accumulates_whole_gradients(ranks: Any, world: int) -> None:
    """Gradients accumulate without the reduction; `unshard` gives the whole weights; a policy computes in its types.

    With `recurse=False`, the setting does not apply to parts that are sharded by themselves.
    """
    expect_all_right(ranks.run(accumulated, world=world))


#: Options of `fully_shard`, and those whose gradients must have the same bits. One group instead of several adds the
#: parts of ranks in another order.
OPTIONS = {
    "offload": "plain",
    "unsharded": "plain",
    "prefetch": "plain",
    "one": "plain",
    "lower offload": "lower",
    "replicated offload": "replicated",
    "replicated lower offload": "replicated lower",
}


def sharded_with(option: str, rank: Any, width: int) -> nn.Sequential:
    """Return a sharded stack with the options whose names are words of `option`."""
    words = option.split()
    device = rank.device
    mesh = mesh_of(rank)
    if "replicated" in words:
        mesh = init_device_mesh(device.type, (2, rank.world // 2), mesh_dim_names=("copies", "parts"))
    named: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": "unsharded" not in words}
    if "offload" in words:
        named["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    if "lower" in words:
        named["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    torch.manual_seed(7)
    # The allocator gives the memory of one layer's gradients to those of the next.
    stack = nn.Sequential(*(Mlp(width) for _ in range(4))).to(device)
    for layer in () if "one" in words else stack:
        fully_shard(layer, **named)
    sharded = fully_shard(stack, **named)
    if "prefetch" in words:
        stack[0].set_modules_to_forward_prefetch([stack[1]])
        stack[1].set_modules_to_backward_prefetch([stack[0]])
    return sharded


@grouped
def with_options(rank: Any, option: str) -> Checks:
    """Run two steps with an option and without, and compare each gradient."""
    checks = Checks(rank.number)
    # The copies of large gradients take longer than the host needs to free their sources.
    width = 6 if rank.device.type == "cpu" else 256
    models = [sharded_with(each, rank, width) for each in (option, OPTIONS[option])]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
    for step in range(2):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            rows = sample(4, width, 10 * step + rank.number).to(rank.device)
            model(rows).float().square().mean().backward()
            optimizer.step()
        for (name, found), wanted in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
            for what, pair in (("gradient", (found.grad, wanted.grad)), ("weight", (found, wanted))):
                one, two = (each.to_local().detach().cpu() for each in pair)
                if option == "one":
                    checks.true(f"step {step}: {what} of {name}", torch.allclose(one, two, **TOLERANCE))
                else:
                    checks.same(f"step {step}: {what} of {name}", one, two)
    return checks


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(2, marks=pytest.mark.requires(ranks=2)),
        pytest.param(4, marks=[pytest.mark.requires(ranks=4), pytest.mark.extended]),
    ],
)
@pytest.mark.parametrize("option", OPTIONS)
def test_fully_shard_option_changes_no_gradient(ranks: Any, world: int, option: str) -> None:
    """Where and when weights and gradients are kept does not change their bits: two steps with an option and without.

    Of the options with a lower precision or replicated parts, each is compared with the same without an offload
    (torch, `fully_shard`).
    """
    expect_all_right(ranks.run(with_options, option, world=world))


@grouped
def parallelized(rank: Any) -> Checks:
    """Split one layer by columns, and the next by rows."""
    checks = Checks(rank.number)
    single, split = stack_of(rank, 8)[0], stack_of(rank, 8)[0]
    parallelize_module(split, mesh_of(rank), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    checks.equal("up.weight", tuple(split.up.weight.placements), (Shard(0),))
    checks.equal("down.weight", tuple(split.down.weight.placements), (Shard(1),))
    given = sample(5, 8).to(rank.device)
    found, wanted = split(given), single(given)
    checks.true("result", torch.allclose(found, wanted, rtol=1e-10, atol=1e-12))
    found.square().sum().backward()
    wanted.square().sum().backward()
    for (name, parameter), plain in zip(split.named_parameters(), single.parameters(), strict=True):
        close = torch.allclose(parameter.grad.full_tensor(), plain.grad, rtol=1e-10, atol=1e-12)
        checks.true(f"gradient of {name}", close)
    replicated = distribute_module(stack_of(rank, 8)[0], mesh_of(rank))
    checks.equal("distribute_module", {tuple(each.placements) for each in replicated.parameters()}, {(Replicate(),)})
    return checks


@worlds(2, 4)
def test_parallelize_module_splits_layers_by_columns_and_rows(ranks: Any, world: int) -> None:
    """Two layers, the second of which adds up the parts of the first, compute the same as one process."""
    expect_all_right(ranks.run(parallelized, world=world))
