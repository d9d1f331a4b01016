"""DistributedDataParallel over NCCL under torchrun: the ranks learn the same model from different data."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train, and compare the models of the ranks."""
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1)).cuda()
    model = DistributedDataParallel(layers, device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(rank + 1)
    losses = []
    for _ in range(30):
        x = torch.randn(64, 16, device="cuda")
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2, losses
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    gathered = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, weights)
    assert all(torch.equal(weights, other) for other in gathered)
    dist.destroy_process_group()
    print(f"done {rank}")


if __name__ == "__main__":
    main()
