"""FSDP2 under torchrun: sharded parameters give the same losses as the whole model on one device."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def _train(model: nn.Module, batches: list[torch.Tensor]) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for batch in batches:
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train the model twice, on the same data on each rank."""
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3)]
    whole = nn.Sequential(*blocks, nn.Linear(16, 1)).cuda()
    sharded = copy.deepcopy(whole)
    for block in list(sharded)[:3]:
        fully_shard(block)
    fully_shard(sharded)
    batches = [torch.randn(32, 16, device="cuda") for _ in range(10)]
    torch.testing.assert_close(_train(sharded, batches), _train(whole, batches), rtol=1e-3, atol=1e-4)
    dist.destroy_process_group()
    print(f"done {rank}")


if __name__ == "__main__":
    main()
