"""CUDA graphs of captured passes: the conditions that prevent the recording of a pass.

A pass has CPU tensors that the program did not create: saved numbers, or the size by which a mean divides. Moved to the
device, they do not prevent recording, unless user code may read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from suites import _torch_private_compiled as private
from suites.compiled import captured, compiled_backward, compiling_backward
from suites.cuda_warnings import of_deprecated_scripts, of_exact_products

from . import cpp_nodes

ROW = "test_compiled_autograd::TestCompiledAutograd::"

on_cuda = pytest.mark.requires(device="cuda", triton=True)


class Since:
    """The number of captured passes, and of graphs that CUDA graphs skipped, since its creation."""

    def __init__(self) -> None:
        self._captures, self._skips, self._inputs = captured(), self._skipped(), self._copied()

    @staticmethod
    def _skipped() -> int:
        return private.counter("inductor", "cudagraph_skips")

    @staticmethod
    def _copied() -> int:
        return private.counter("inductor", "cudagraph_recorded_non_static_inputs")

    def copied_inputs(self) -> int:
        """Return the number of inputs that recordings copy per replay: above zero only if something is recorded."""
        return self._copied() - self._inputs

    def captures(self) -> int:
        return captured() - self._captures

    def skips(self) -> int:
        return self._skipped() - self._skips


def assert_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Check that the tensors differ by less than a hundredth of the norm.

    Other attention kernels sum in another order and in half precision.
    """
    assert (found - wanted).norm() < 0.01 * wanted.norm()


@contextmanager
def recorded(**settings: object) -> Iterator[Since]:
    """Capture passes in the block, compile them with inductor, and run them as CUDA graphs where possible."""
    since = Since()
    with private.inductor_config({"triton.cudagraphs": True, **settings}), compiled_backward(backend="inductor"):
        yield since


@pytest.mark.requires(cpp_compiler=True)
@pytest.mark.covers(f"{ROW}test_cudagraphs_cpu_graph")
def test_cudagraphs_skip_a_pass_on_the_cpu_once() -> None:
    """A pass without GPU work is skipped and counted once by inductor, and has the engine's gradients."""
    torch.manual_seed(1)
    model, x = torch.nn.Linear(10, 10, dtype=torch.float16), torch.randn(10, 10, dtype=torch.float16)
    model(x).float().mean().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    loss = model(x).float().mean()

    with recorded() as since:
        loss.backward()
        assert (since.captures(), since.skips()) == (1, 1)
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted)


@on_cuda
@pytest.mark.covers(f"{ROW}test_cudagraphs_cpu_division")
@pytest.mark.timeout(600)
def test_cudagraphs_record_a_pass_with_a_mean(device: torch.device) -> None:
    """The CPU scalar by which a mean divides does not prevent recording, also of a graph that is not partitioned.

    Replays with other inputs have correct gradients.
    """
    model = torch.nn.Linear(10, 10, dtype=torch.float16).to(device)
    with recorded(graph_partition=False) as since:
        for _ in range(3):
            x = torch.randn(10, 10).to(device, torch.float16)
            with private.disable():
                expected = torch.autograd.grad((model(x).float() / 3).mean(), list(model.parameters()))
            model.zero_grad()
            (model(x).float() / 3).mean().backward()
            for parameter, wanted in zip(model.parameters(), expected, strict=True):
                torch.testing.assert_close(parameter.grad, wanted)
        assert since.captures() == 1
        assert since.skips() == 0
        assert since.copied_inputs() > 0


@on_cuda
@pytest.mark.covers("test_cudagraph_trees::CudaGraphTreeTests::test_compiled_autograd_static_input_params")
@pytest.mark.timeout(600)
def test_cudagraphs_do_not_copy_parameters_of_a_recorded_pass(device: torch.device) -> None:
    """A recorded pass reads parameters in place.

    It has three inputs (the loss gradient, the saved tensor, the parameter), and two are copied per replay. After an
    in-place change of the parameter, the gradients still match the engine's.
    """
    model = torch.nn.Linear(10, 10, bias=False).to(device)
    with compiling_backward() as captures:
        since = Since()
        passes: Any = torch.compile(lambda loss: loss.backward(), mode="reduce-overhead")
        for _ in range(5):
            x = torch.randn(10, 10).to(device)
            passes(model(x).sum())
            assert model.weight.grad is not None
            torch.testing.assert_close(model.weight.grad, x.sum(0).expand(10, 10))
            model.weight.grad = None
            with torch.no_grad():
                model.weight.add_(1)
        assert captures() == 1
        assert since.copied_inputs() == 2


@on_cuda
@pytest.mark.covers(f"{ROW}test_cudagraphs_sdpa")
@pytest.mark.timeout(600)
def test_scaled_dot_product_attention_pass_is_recorded(device: torch.device) -> None:
    """The pass of scaled dot-product attention, which saves its random seed and offset, is recorded and correct."""
    query, key, value = (torch.randn(4, 8, 128, 64).to(device, torch.float16) for _ in range(3))
    query.requires_grad_()

    def loss() -> torch.Tensor:
        mixed: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return mixed.square().sum()

    with recorded() as since:
        for _ in range(3):  # warm-up, recording, replay
            with private.disable():
                (expected,) = torch.autograd.grad(loss(), query)
            query.grad = None
            loss().backward()
            assert query.grad is not None
            assert_near(query.grad, expected)
            with torch.no_grad():
                query.add_(torch.randn_like(query), alpha=0.5)
        assert (since.captures(), since.skips()) == (1, 0)
        assert since.copied_inputs() > 0


@on_cuda
@pytest.mark.covers(f"{ROW}test_cudagraphs_cpu_scalar_used_in_python_custom_op")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("partitioned", [False, True])
def test_cudagraphs_skip_a_pass_with_a_cpu_tensor_saved_in_python(partitioned: bool, device: torch.device) -> None:
    """A CPU tensor that a Python function saved stays on the CPU, because its backward may read it.

    The pass is skipped once and is correct. With graph partition, the part without CPU work is recorded, and nothing is
    skipped.
    """

    class Scales(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, torch.tensor(5))
            ctx.number = 5
            return x.sum()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            x, number = ctx.saved_tensors
            return gradients[0] * torch.ones_like(x) * number * ctx.number

    with recorded(graph_partition=partitioned) as since:
        for number in range(3):
            x = torch.randn(10).to(device).requires_grad_()
            factor = torch.tensor(number + 1.0, device=device)
            (Scales.apply(x) * factor).backward()
            assert x.grad is not None
            assert torch.equal(x.grad, torch.full_like(x, 25 * (number + 1)))
        assert (since.captures(), since.skips()) == (1, 0 if partitioned else 1)
        assert (since.copied_inputs() > 0) is partitioned


@pytest.mark.requires(device="cuda", triton=True, cpp_extensions=True)
@pytest.mark.covers(f"{ROW}test_cudagraphs_cpu_scalar_used_in_cpp_custom_op")
@pytest.mark.timeout(600)
def test_cudagraphs_and_a_cpu_tensor_saved_in_cpp(device: torch.device) -> None:
    """A CPU scalar that a C++ function saved gives correct gradients, with at most one skipped graph.

    Releases differ: torch 2.4 moved the scalar to the device.
    """
    nodes = cpp_nodes.load()
    x = torch.randn(2, 2).to(device).requires_grad_()
    with recorded() as since:
        nodes.host_scalar(x).sum().backward()
        assert since.captures() == 1
        assert since.skips() <= 1
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full_like(x, 6))


@on_cuda
@pytest.mark.requires(silicon=True)  # flexible attention is a Triton template, whatever else inductor generates
@pytest.mark.timeout(600)
@of_deprecated_scripts
@of_exact_products
@pytest.mark.covers(f"{ROW}test_flex_attention")
def test_flex_attention_pass_has_the_gradients_of_attention(device: torch.device) -> None:
    """Compiled flexible attention with a mask has a captured pass with the gradients of masked attention."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.manual_seed(2)
    query, key, value = (torch.randn(1, 4, 256, 64).to(device).requires_grad_() for _ in range(3))
    tensors = [query, key, value]
    mask = create_block_mask(lambda _, __, q, k: q >= k, None, None, 256, 256, device=str(device))
    plain = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    expected = torch.autograd.grad(plain.square().sum(), tensors)

    attention: Any = torch.compile(flex_attention)
    attended = attention(query, key, value, block_mask=mask)  # compiled first: its compilation runs another pass
    with compiled_backward(backend="inductor", fullgraph=False) as recording:
        attended.square().sum().backward()

    assert recording.captures == 1
    for tensor, wanted in zip(tensors, expected, strict=True):
        assert tensor.grad is not None
        assert_near(tensor.grad, wanted)
