"""`torch.cuda.make_graphed_callables`: forward and backward as graphs, in place of a callable in a training loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from suites.cuda_warnings import of_graphed_callables

from .capturing import on_cuda, works

ROW = "test_cuda::TestCuda::"

pytestmark = [on_cuda, of_graphed_callables, pytest.mark.timeout(120)]


class Unused(torch.nn.Module):
    """Two layers, with an unused parameter and an unused argument."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.second = torch.nn.Linear(32, 8)
        self.unused = torch.nn.Parameter(torch.ones(3))

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"output": self.second(torch.relu(self.first(inputs["x"])))}


class Used(torch.nn.Module):
    """Two layers without unused parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.second = torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.relu(self.first(x)))
        return out


def train(model: torch.nn.Module, data: list[Any], autocast: bool, device: torch.device) -> list[torch.Tensor]:
    """Run some steps of gradient descent, and return the losses and the final parameters.

    Outputs have autocast's dtype.
    """
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for arguments in data:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast, cache_enabled=False):
            out = model(arguments)
            out = out["output"] if isinstance(out, dict) else out
            assert out.dtype is (torch.bfloat16 if autocast else torch.float32)
            loss = out.float().square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach().clone())
    return [*losses, *(parameter.detach().clone() for parameter in model.parameters())]


def assert_close(found: list[torch.Tensor], wanted: list[torch.Tensor], autocast: bool) -> None:
    """Compare within a few roundings.

    A graph may use another kernel than an eager call, because workspaces differ in a capture; one bfloat16 rounding is
    2^-8.
    """
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=4e-2 if autocast else 1e-4, atol=1e-2 if autocast else 1e-5)


@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("kind", [Used, Unused])
@pytest.mark.covers(f"{ROW}test_graph_make_graphed_callables")
def test_make_graphed_callables_model_trains_like_an_eager_one(
    kind: type[torch.nn.Module], autocast: bool, device: torch.device
) -> None:
    """A graphed module trains like the eager one, also with autocast (without its cache) and with dictionary inputs.

    Parameters may be unused (`allow_unused_input`), and each step reads its new inputs.
    """
    eager = kind().to(device)
    graphed = copy.deepcopy(eager)
    data = [torch.randn(12, 16, device=device) for _ in range(6)]
    inputs: list[Any] = [{"x": x, "unused": torch.ones(2, device=device)} for x in data] if kind is Unused else data
    sample: Any = copy.deepcopy(inputs[0])
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast, cache_enabled=False):
        same = torch.cuda.make_graphed_callables(graphed, (sample,), allow_unused_input=kind is Unused)
    assert same is graphed

    assert_close(train(graphed, inputs, autocast, device), train(eager, inputs, autocast, device), autocast)
    if kind is Unused:
        assert graphed.unused.grad is None


@pytest.mark.covers(f"{ROW}test_graph_make_graphed_callables")
def test_make_graphed_callables_unused_inputs_are_an_error_unless_allowed(device: torch.device) -> None:
    """A parameter without a gradient raises by default, and the device works afterwards."""
    sample = {"x": torch.randn(12, 16, device=device)}
    with pytest.raises(RuntimeError, match=r"(?i)not have been used|allow_unused"):
        torch.cuda.make_graphed_callables(Unused().to(device), (sample,))  # type: ignore[arg-type]
    assert works(device)


@pytest.mark.covers(f"{ROW}test_graph_make_graphed_callables")
def test_make_graphed_callables_refuses_autocast_with_its_cache(device: torch.device) -> None:
    """`make_graphed_callables` raises under autocast with a cache, whose memory the graph would not own."""
    with (
        torch.autocast(device.type, cache_enabled=True),
        pytest.raises(RuntimeError, match="cache_enabled=False"),
    ):
        torch.cuda.make_graphed_callables(Used().to(device), (torch.randn(12, 16, device=device),))


def backward(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compare the outputs of a graphed callable and its eager twin, and run backward through both."""
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    for out in (found, wanted):
        out.sum().backward()


@pytest.mark.parametrize("shared", ["tuple", "pool"])
@pytest.mark.covers(f"{ROW}test_graph_make_graphed_callables_same_pool")
def test_make_graphed_callables_several_in_one_pool(shared: str, device: torch.device) -> None:
    """Several callables in one pool, run in their capture order, train like eager ones.

    Callables of one call may all run forward before their backwards in reverse order. Callables that only share a pool
    run backward before the next forward.
    """
    eager = [Used().to(device) for _ in range(3)]
    graphed: list[Any] = [copy.deepcopy(model) for model in eager]
    sample = torch.randn(12, 16, device=device)
    if shared == "tuple":
        made = torch.cuda.make_graphed_callables(tuple(graphed), tuple((sample.clone(),) for _ in graphed))
        assert isinstance(made, tuple)
        graphed = list(made)
    else:
        pool = torch.cuda.graph_pool_handle()
        graphed = [torch.cuda.make_graphed_callables(model, (sample.clone(),), pool=pool) for model in graphed]
    for _ in range(4):
        x = torch.randn(12, 16, device=device)
        pending: list[tuple[torch.Tensor, torch.Tensor]] = []
        for one, other in zip(graphed, eager, strict=True):
            for model in (one, other):
                model.zero_grad(set_to_none=True)
            pending.append((one(x), other(x)))
            if shared == "pool":
                backward(*pending.pop())
        while pending:
            backward(*pending.pop())
        for one, other in zip(graphed, eager, strict=True):
            grads = [[parameter.grad for parameter in model.parameters()] for model in (one, other)]
            for mine, theirs in zip(*grads, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.covers(f"{ROW}test_graph_make_graphed_callables_parameterless_nograd_module")
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_make_graphed_callables_without_parameters(wants_gradient: bool, device: torch.device) -> None:
    """A callable without parameters can be graphed; its outputs require grad if and only if its inputs do."""

    class Plain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 + 1

    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [Plain(), lambda x: x * 2 + 1]
    for function in functions:
        sample = torch.randn(20, device=device, requires_grad=wants_gradient)
        graphed: Any = torch.cuda.make_graphed_callables(function, (sample,))
        for _ in range(3):
            x = torch.randn(20, device=device, requires_grad=wants_gradient)
            out = graphed(x)
            assert torch.equal(out, x * 2 + 1)
            assert out.requires_grad is wants_gradient
            if wants_gradient:
                out.sum().backward()
                assert x.grad is not None
                assert (x.grad == 2).all()


def test_make_graphed_callables_module_in_eval_runs_its_own_forward(device: torch.device) -> None:
    """A module graphed in training mode runs its own forward in eval mode, and the graph again in training mode."""
    calls: list[bool] = []

    class Counted(Used):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(self.training)
            return super().forward(x)

    model: Any = Counted().to(device)
    plain = Used().to(device)
    plain.load_state_dict(model.state_dict())
    model = torch.cuda.make_graphed_callables(model, (torch.randn(12, 16, device=device),))
    calls.clear()
    for training, rows in ((True, 12), (False, 5), (True, 12)):
        model.train(training)
        x = torch.randn(rows, 16, device=device)
        torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-5)
    assert calls == [False]


def test_make_graphed_callables_has_no_second_derivative(device: torch.device) -> None:
    """Differentiating the backward of a graphed callable again raises if its gradient requires grad."""
    x = torch.randn(20, device=device, requires_grad=True)
    graphed: Any = torch.cuda.make_graphed_callables(lambda x: x**3, (x.detach().clone().requires_grad_(),))
    (gradient,) = torch.autograd.grad(graphed(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.covers(f"{ROW}test_graph_make_graphed_callables")
def test_make_graphed_callables_reads_each_argument_of_each_call(device: torch.device) -> None:
    """Each call reads all of its arguments, including those in containers, and each argument gets its own gradient."""

    def work(x: torch.Tensor, more: dict[str, torch.Tensor], z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * more["a"] + z, more["b"] - 2 * z

    def arguments() -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
        x, a, b, z = (torch.randn(20, device=device, requires_grad=True) for _ in range(4))
        return x, {"a": a, "b": b}, z

    graphed: Any = torch.cuda.make_graphed_callables(work, arguments())  # type: ignore[arg-type]
    for _ in range(3):
        x, more, z = arguments()
        found, wanted = graphed(x, more, z), work(x, more, z)
        given = [x, more["a"], more["b"], z]
        weights = [torch.randn(20, device=device) for _ in range(2)]
        assert [torch.equal(one, other) for one, other in zip(found, wanted, strict=True)] == [True, True]
        gradients = [[each.clone() for each in torch.autograd.grad(out, given, weights)] for out in (found, wanted)]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
