"""Workloads to profile, shared by cases and golden files.

Each builder creates what its work needs and returns a function named `work`, whose frame is the start of a tree with
stacks. One call of it releases exactly the memory that it allocated: torch records block sizes only while memory is
profiled, so whether the release of an older block is an event depends on earlier profiles.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import record_function

from .subclasses import DispatchTensor, FunctionTensor

Work = Callable[[], object]
CPU = torch.device("cpu")
STREAMS = 3


def forward_and_backward(device: torch.device = CPU) -> Work:
    """Return a pass over two leaves with temporaries, a dtype conversion, and two gradients for one leaf."""
    a, b = (torch.full((3,), 0.5, device=device, requires_grad=True) for _ in range(2))

    def work() -> None:
        loss = (torch.mul(a, b).exp() + a.double()).sum()
        loss.backward()
        a.grad = b.grad = None

    return work


def scopes(device: torch.device = CPU, *, leave_open: bool = True) -> Work:
    """Return nested and repeated scopes around forward and backward, and one that is never closed."""
    leaf = torch.full((3,), 0.5, device=device, requires_grad=True)

    def work() -> object:
        with record_function("pass"):
            for _ in range(2):
                with record_function("forward"):
                    loss = (leaf * leaf).sum()
            outer = record_function("around backward")
            outer.__enter__()
            with record_function("backward"):
                loss.backward()
            if not leave_open:
                outer.__exit__(None, None, None)
        leaf.grad = None
        return outer

    return work


def plain_code(device: torch.device = CPU) -> Work:
    """Return nested Python calls of an operator, twice, the first time with an exception."""
    x = torch.rand(2, device=device)

    def raising() -> None:
        torch.sin(x)
        raise LookupError

    def returning() -> torch.Tensor:
        return torch.cos(x)

    def work() -> torch.Tensor:
        try:
            raising()
        except LookupError:
            torch.tan(x)
        return returning()

    return work


def on_function_tensor(device: torch.device = CPU) -> Work:
    """Return an operator on a tensor with __torch_function__."""
    x, y = torch.rand(2, device=device).as_subclass(FunctionTensor), torch.rand(2, device=device)

    def work() -> torch.Tensor:
        return torch.add(x, y)

    return work


def on_dispatch_tensor(device: torch.device = CPU) -> Work:
    """Return an operator on a tensor with __torch_dispatch__."""
    x, y = DispatchTensor(torch.rand(2, device=device)), torch.rand(2, device=device)

    def work() -> torch.Tensor:
        return torch.add(x, y)

    return work


class Scale(torch.nn.Module):
    """A module with one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Chain(torch.nn.Module):
    """A module that calls three others, two of one class."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = Scale(), Scale(), torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.first(x)))


def modules(device: torch.device = CPU) -> Work:
    """Return a call of a module that calls three others."""
    chain, x = Chain().to(device), torch.ones(3, device=device)

    def work() -> torch.Tensor:
        return chain(x)

    return work


def training_step(device: torch.device = CPU) -> Work:
    """Return a forward through modules, backward, an optimizer step, `zero_grad`, and a device synchronization."""
    chain, x = Chain().to(device), torch.ones(3, device=device)
    # One kernel or operator per parameter, because the use of multi-tensor forms depends on device and release.
    optimiser = torch.optim.SGD(chain.parameters(), lr=0.1, foreach=False)

    def work() -> None:
        chain(x).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elif device.type != "cpu":
            torch.accelerator.synchronize(device)

    return work


def side_streams(device: torch.device) -> Work:
    """Return two operators on each of three side streams, and a device synchronization."""
    streams = [torch.cuda.Stream(device) for _ in range(STREAMS)]
    x = torch.ones((64, 64), device=device)
    torch.cuda.synchronize(device)

    def work() -> None:
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.sub(torch.tanh(x), x)
        torch.cuda.synchronize(device)

    return work
