"""Checkpoints of sharded state: saved by some ranks, and loaded by others."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from .checking import Checks, expect_all_right
from .groups import GATE, grouped, worlds

pytestmark = [GATE, pytest.mark.timeout(60)]

SHAPE = (10, 7)


def whole() -> torch.Tensor:
    return torch.arange(70.0).reshape(SHAPE)


def state_of(rank: Any, placement: Any, *, empty: bool) -> dict[str, Any]:
    """Return a sharded tensor, a tensor that all ranks have, a tensor of one rank, and plain values."""
    mesh = init_device_mesh(rank.device.type, (rank.world,))
    factor = 0 if empty else 1
    return {
        "sharded": distribute_tensor(whole().to(rank.device) * factor, mesh, [placement]),
        "same": torch.full((5,), 3.0 * factor),
        "nested": {"step": 17 * factor, "name": "x" * factor},
    }


@grouped
def save(rank: Any, folder: str) -> Checks:
    checks = Checks(rank.number)
    checkpoint.save(state_of(rank, Shard(0), empty=False), checkpoint_id=folder)
    dist.barrier()
    checks.true("the folder has metadata", (Path(folder) / ".metadata").exists())
    return checks


@grouped
def load(rank: Any, folder: str) -> Checks:
    checks = Checks(rank.number)
    for placement in (Shard(0), Shard(1), Replicate()):
        state = state_of(rank, placement, empty=True)
        checkpoint.load(state, checkpoint_id=folder)
        checks.same(f"loaded as {placement}", state["sharded"].full_tensor(), whole())
        if isinstance(placement, Shard):
            own = whole().chunk(rank.world, placement.dim)
            wanted = own[rank.number] if rank.number < len(own) else whole().narrow(placement.dim, 0, 0)
            checks.same(f"own part as {placement}", state["sharded"].to_local(), wanted)
        checks.same("a tensor that all ranks have", state["same"], torch.full((5,), 3.0))
        checks.equal("values", state["nested"], {"step": 17, "name": "x"})
    checks.refused(
        "a tensor of another shape",
        lambda: checkpoint.load({"same": torch.zeros(4)}, checkpoint_id=folder),
        kinds=(CheckpointException,),
    )
    kept = {"same": torch.zeros(5), "other": torch.full((4,), 7.0)}
    checks.refused(
        "a tensor that was not saved",
        lambda: checkpoint.load(kept, checkpoint_id=folder),
        kinds=(CheckpointException,),
    )
    checkpoint.load(kept, checkpoint_id=folder, planner=DefaultLoadPlanner(allow_partial_load=True))
    checks.same("a tensor beside one that was not saved", kept["same"], torch.full((5,), 3.0))
    checks.same("a tensor that was not saved, with allow_partial_load", kept["other"], torch.full((4,), 7.0))
    return checks


@worlds(2, 3)
def test_checkpoint_load_reshards_what_other_ranks_have_saved(ranks: Any, world: int, tmp_path: Path) -> None:
    """A tensor that a number of ranks saved by rows is loaded by two other ranks by rows, by columns and whole.

    A tensor of another shape, or that was not saved, is refused; `allow_partial_load` leaves the latter as it is.
    """
    folder = str(tmp_path / "saved")
    expect_all_right(ranks.run(save, folder, world=world))
    expect_all_right(ranks.run(load, folder, world=2))


def trained(rank: Any, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a sharded model and its optimizer after some steps."""
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(rank.device)
    fully_shard(model, mesh=init_device_mesh(rank.device.type, (rank.world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(steps):
        train(rank, model, optimizer, step)
    return model, optimizer


def train(rank: Any, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(step)).to(rank.device)
    model(rows).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@grouped
def resume(rank: Any, folder: str) -> Checks:
    """Run three steps without a checkpoint; and two steps, a checkpoint, and the third step."""
    checks = Checks(rank.number)
    model, optimizer = trained(rank, 2)
    weights, state = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    train(rank, model, optimizer, 2)

    other, its_optimizer = trained(rank, 0)
    weights, state = get_state_dict(other, its_optimizer)
    checkpoint.load(loaded := {"model": weights, "optimizer": state}, checkpoint_id=folder)
    # `load` writes into the tensors of `other` and its optimizer; a third model gets everything through
    # `set_state_dict`.
    third, last_optimizer = trained(rank, 0)
    last_optimizer.param_groups[0]["lr"] = 0.5
    for each, its, state in ((other, its_optimizer, loaded), (third, last_optimizer, copy.deepcopy(loaded))):
        set_state_dict(each, its, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    checks.equal("the rate of learning", last_optimizer.param_groups[0]["lr"], 0.1)
    for what, each, its in (("loaded", other, its_optimizer), ("set", third, last_optimizer)):
        train(rank, each, its, 2)
        for (name, found), wanted in zip(each.named_parameters(), model.parameters(), strict=True):
            assert isinstance(found, DTensor)
            checks.same(f"{what}: {name} after the third step", found.to_local(), wanted.to_local())
    return checks


@worlds(2)
def test_set_state_dict_resumes_a_sharded_training_bit_for_bit(ranks: Any, world: int, tmp_path: Path) -> None:
    """A training that is saved and loaded continues bit for bit like one that is not interrupted."""
    expect_all_right(ranks.run(resume, str(tmp_path / "saved"), world=world))
