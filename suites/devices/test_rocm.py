"""Features of builds for ROCm."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ._torch_private import rocm_is_backward_pass

pytestmark = [pytest.mark.requires(device="cuda", rocm=True, cuda=False)]


@pytest.mark.covers("test_cuda::TestCuda::test_rocm_backward_pass_guard")
def test_rocm_backward_pass_guard_is_set_in_backward_only(device: torch.device) -> None:
    """The ROCm backward flag is False in the forward of an autograd function and outside, and True in its backward."""
    seen: list[tuple[str, bool]] = []

    class Watching(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            seen.append(("forward", rocm_is_backward_pass()))
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            seen.append(("backward", rocm_is_backward_pass()))
            return gradients[0] * 2

    x = torch.ones(3, device=device, requires_grad=True)
    seen.append(("before", rocm_is_backward_pass()))
    Watching.apply(x).sum().backward()
    seen.append(("after", rocm_is_backward_pass()))

    assert seen == [("before", False), ("forward", False), ("backward", True), ("after", False)]
