"""TorchScript: indices in tensors, and chains of pointwise operators, which the fuser would compile for the GPU."""

from __future__ import annotations

import torch


def indexed(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Read and write elements whose places are in a tensor."""
    x = x.clone()
    x[i] = v
    x[i, i] = 0.0
    return x[i] + x[:, i].t()


def pointwise(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute what a fuser makes one kernel of."""
    return (x * 2 + 1).tanh().sigmoid() * x.exp() + v.sum() + i.sum()


def main() -> None:
    """Compare scripted and traced functions with plain ones, in call after call, since the fuser begins later."""
    arguments = torch.rand(8, 8, device="cuda"), torch.tensor([1, 3, 5], device="cuda"), torch.rand(8, device="cuda")
    for function in (indexed, pointwise):
        wanted = function(*arguments)
        for fast in (torch.jit.script(function), torch.jit.trace(function, arguments)):
            for _ in range(5):
                torch.testing.assert_close(fast(*arguments), wanted)
    model = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Sigmoid()).cuda())
    for _ in range(5):
        model(arguments[0]).sum().backward()
    print("done")


if __name__ == "__main__":
    main()
