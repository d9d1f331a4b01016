"""Captured backward passes: gradients equal to the engine's, and no second capture for an equivalent pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from suites.compiled import EXACTLY, Counts, Within, compare, compiled_backward

from .models import network, rows, smooth, train

INDUCTOR = Within(1e-5, 1e-6, "inductor fuses and reorders the sums")


@pytest.mark.requires(cpp_compiler=True)
@pytest.mark.parametrize(
    "backend",
    ["eager", "aot_eager", pytest.param("inductor", marks=[pytest.mark.extended, pytest.mark.requires(inductor=True)])],
)
@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_basic")
def test_compiled_autograd_has_the_gradients_of_the_engine(device: torch.device, backend: str) -> None:
    """A compiled backward pass gives the engine's gradients, bitwise where the same operations run.

    One pass is one capture and one compiled graph.
    """

    def work() -> Iterator[torch.Tensor]:
        yield from train(network(device), rows(2, device))

    within = INDUCTOR if backend == "inductor" else EXACTLY
    assert compare(work, backend=backend, within=within) == Counts(1, 1)


def test_compiled_autograd_has_the_known_derivatives(device: torch.device) -> None:
    """Derivatives match the formulas: 2x for x², cos x for sin x, -1/x² for 1/x, without an engine pass to compare."""
    x = torch.tensor([1.0, 2.0, 4.0], device=device, requires_grad=True)

    with compiled_backward() as recording:
        (x**2 + torch.sin(x) + 1 / x).sum().backward()

    assert recording.counts == Counts(1, 1)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (2 * x + torch.cos(x) - 1 / x**2).detach())


@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_cache_hit")
def test_compiled_autograd_captures_a_pass_like_one_before_once(device: torch.device) -> None:
    """Three passes over three models of one shape are captured and compiled once, each with its own gradients."""

    def work() -> Iterator[torch.Tensor]:
        for _ in range(3):
            yield from train(network(device), rows(2, device))

    assert compare(work) == Counts(1, 1)


def test_compiled_autograd_captures_a_pass_over_other_functions(device: torch.device) -> None:
    """A pass through other functions is a separate capture, and the first one stays cached."""

    def work() -> Iterator[torch.Tensor]:
        for make in (network, smooth, network, smooth):
            yield from train(make(device), rows(2, device))

    assert compare(work, backend="eager") == Counts(2, 2)


def _convolutions(device: torch.device) -> Iterator[torch.Tensor]:
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    x = torch.randn(2, 2, 6, 6).to(device).requires_grad_()
    yield from train(model.to(device), x)
    assert x.grad is not None
    yield x.grad


def _embedding(device: torch.device) -> Iterator[torch.Tensor]:
    model = nn.Sequential(nn.Embedding(7, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 5)).to(device)
    words = torch.tensor([[0, 3, 3], [6, 1, 0]], device=device)
    loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten() % 5, label_smoothing=0.1)
    loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        yield parameter.grad


def _attention(device: torch.device) -> Iterator[torch.Tensor]:
    model = nn.MultiheadAttention(8, 2, batch_first=True).to(device)
    x = torch.randn(2, 5, 8).to(device)
    mixed, weights = model(x, x, x)
    (mixed.square().mean() + weights.amax()).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        yield parameter.grad


def _views(device: torch.device) -> Iterator[torch.Tensor]:
    x = torch.randn(4, 6).to(device).requires_grad_()
    y = x * 2
    y[1:3].mul_(3)
    y[:, ::2] += y[:, 1::2].clone()
    parts = torch.stack(y.t().reshape(3, 8).unbind()).transpose(0, 1).split(2)
    torch.stack([(number + 1) * part.square().sum() for number, part in enumerate(parts)]).sum().backward()
    assert x.grad is not None
    yield x.grad


def _complex(device: torch.device) -> Iterator[torch.Tensor]:
    x = torch.randn(5, dtype=torch.complex64).to(device).requires_grad_()
    (torch.fft.fft(x).abs() + (x * x.conj()).real).sum().backward()
    assert x.grad is not None
    yield x.grad


def _indices(device: torch.device) -> Iterator[torch.Tensor]:
    x = torch.randn(6, 3).to(device).requires_grad_()
    index = torch.tensor([0, 2, 2, 5], device=device)
    picked = x[index].gather(1, torch.tensor([[0], [2], [1], [0]], device=device))
    where = torch.where(x > 0, x.exp(), x.abs()).cumsum(0)
    (picked.sum() + where.std() + x.sort(dim=0).values[2:].prod()).backward()
    assert x.grad is not None
    yield x.grad


WORKLOADS = [
    _convolutions,
    pytest.param(_embedding, marks=pytest.mark.extended),
    pytest.param(_attention, marks=pytest.mark.extended),
    _views,
    pytest.param(_complex, marks=pytest.mark.extended),
    _indices,
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda work: work.__name__.strip("_"))
def test_compiled_autograd_passes_of_many_kinds_have_the_engines_gradients(device: torch.device, workload: Any) -> None:
    """Convolutions, attention, in-place views, complex numbers and others match the engine in one capture."""
    within = EXACTLY if device.type == "cpu" else Within(1e-5, 1e-6, "GPU kernels may add in any order")

    assert compare(lambda: workload(device), backend="eager", within=within).captures == 1


@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_implicit_add")
def test_compiled_autograd_adds_gradients_that_meet(device: torch.device) -> None:
    """A tensor with several uses gets the sum of its gradients, by `backward` and by `autograd.grad`."""

    def work() -> Iterator[object]:
        y = torch.randn(4).to(device).requires_grad_()
        middle = y * 3
        (torch.sin(middle) + torch.cos(middle) + middle * y + y).sum().backward()
        yield y.grad
        yield torch.autograd.grad((y.exp() + y.square()).sum(), y)

    counts = compare(work)

    assert counts == Counts(2, 2)


def test_compiled_backward_of_several_roots_with_given_gradients(device: torch.device) -> None:
    """`backward` of several tensors with given gradients is one captured pass."""

    def work() -> Iterator[object]:
        x = torch.randn(3, 2).to(device).requires_grad_()
        outs = [x.sin(), x.t().matmul(x), x.sum(0)]
        torch.autograd.backward(outs, [torch.rand_like(out) for out in outs])
        yield x.grad

    assert compare(work) == Counts(1, 1)


@pytest.mark.requires(cpp_compiler=True, inductor=True)
@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_accumulate_grad_accuracy")
def test_compiled_autograd_inductor_gradients_of_layers_share_no_memory(device: torch.device) -> None:
    """With inductor, which reuses buffers, the gradients of different layers do not share memory."""

    def work() -> Iterator[torch.Tensor]:
        model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 2, bias=False)).to(device)
        first, second = train(model, torch.randn(2, 2).to(device))
        yield first
        yield second
        first.fill_(100.0)
        yield second
        second.fill_(-50.0)
        yield first

    assert compare(work, backend="inductor", within=INDUCTOR) == Counts(1, 1)


@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_higher_order_gradients")
def test_create_graph_in_a_captured_pass_gives_gradients_of_gradients(device: torch.device) -> None:
    """With `create_graph`, a captured pass can be differentiated, here for x⁴ and its first three derivatives."""

    def work() -> Iterator[object]:
        x = torch.tensor([2.0, -3.0], device=device, requires_grad=True)
        value = x**4
        for _ in range(3):
            (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
            yield value

    assert compare(work, backend="eager").captures >= 1


@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_dont_dce_side_effects")
def test_compiled_backward_keeps_side_effects_of_a_function(device: torch.device) -> None:
    """A captured pass keeps the side effects of user code whose result the graph does not use.

    Here the backward draws a random number, which changes the next draw.
    """

    class Draws(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
            torch.randn(10, device=device)
            return gradients[0]

    def work() -> Iterator[object]:
        x = torch.ones(3, device=device, requires_grad=True)
        Draws.apply(x).sum().backward()  # type: ignore[no-untyped-call]
        yield x.grad
        yield torch.randn(4, device=device)

    assert compare(work, backend="eager").captures == 1
