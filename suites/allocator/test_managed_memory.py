"""Managed memory (`torch.cuda._use_uvm`): tensors that the driver migrates between device and host."""

from __future__ import annotations

import pytest
import torch

from . import _torch_private as private
from .limits import MIB, settle
from .pools import inside

#: torch allocates managed memory through the runtime of cuda.bindings, NVIDIA's package, which needs NVIDIA's driver.
pytestmark = [
    pytest.mark.requires(device="cuda", torch=">=2.13", platform="linux-*", silicon=True),
    pytest.mark.timeout(300),
]


@pytest.mark.covers("test_cuda::TestMemPool::test_use_uvm")
def test_managed_memory_holds_more_than_the_device_has(device: torch.device) -> None:
    """Managed tensors may exceed the free device memory, because the driver migrates them, and each keeps its values.

    Tensors created in the context belong to its pool, and others do not. Ordinary memory fills all but 256 MiB of the
    device, and managed memory then allocates twice that.
    """
    settle(device)
    free, _ = torch.cuda.mem_get_info(device)
    hoard = torch.empty(max(free - 256 * MIB, 1), dtype=torch.uint8, device=device)

    with private.managed_memory(device) as pool:
        kept = [torch.full((64 * MIB,), value, dtype=torch.uint8, device=device) for value in range(1, 9)]
    placed = [inside(pool, x) for x in kept]
    right = [bool((x.cpu() == value).all()) for value, x in enumerate(kept, 1)]
    elsewhere = inside(pool, hoard)
    del kept, pool, hoard
    settle(device)

    assert placed == [True] * 8
    assert right == [True] * 8
    assert not elsewhere


@pytest.mark.covers("test_cuda::TestMemPool::test_use_uvm_numerics")
def test_managed_memory_gives_the_results_of_ordinary_memory(device: torch.device) -> None:
    """The same operations on the same values give bitwise equal results in managed memory."""

    def compute() -> torch.Tensor:
        x = torch.arange(64 * 64, device=device, dtype=torch.float32).reshape(64, 64) / 4096
        return ((x @ x.T).softmax(dim=1) * x).cumsum(0)

    expected = compute()
    with private.managed_memory(device) as pool:
        got = compute()
    placed = inside(pool, got)
    equal = torch.equal(got, expected)
    del got, pool

    assert placed
    assert equal


@pytest.mark.covers("test_cuda::TestMemPool::test_use_uvm_backward")
def test_managed_memory_gives_the_gradients_of_ordinary_memory(device: torch.device) -> None:
    """A backward pass on the calling thread allocates from the pool too, and its gradients are bitwise equal."""

    def gradient() -> torch.Tensor:
        weight = (torch.arange(64 * 64, device=device, dtype=torch.float32).reshape(64, 64) / 4096).requires_grad_()
        with torch.autograd.set_multithreading_enabled(False):
            (weight @ weight.T).tanh().sum().backward()
        assert weight.grad is not None
        return weight.grad

    expected = gradient()
    with private.managed_memory(device) as pool:
        got = gradient()
    placed = inside(pool, got)
    equal = torch.equal(got, expected)
    del got, pool

    assert placed
    assert equal
