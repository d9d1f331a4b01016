"""Compiled backward passes and `torch.compile`: compiled forwards, whole steps, backends, graph breaks, nesting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from suites import _torch_private_compiled as private
from suites.compiled import (
    EXACTLY,
    SEED,
    Counts,
    Within,
    assert_same,
    captured,
    compare,
    compiled_backward,
    compiling_backward,
    copied,
)

from .models import gradients, rows, smooth, train

INDUCTOR = Within(1e-5, 1e-6, "inductor fuses and reorders the sums")


def steps(model: torch.nn.Module, inputs: list[torch.Tensor]) -> list[object]:
    """Run one step per input, without an optimizer, and return the gradients of each."""
    found: list[object] = []
    for x in inputs:
        model(x).sum().backward()
        found.extend(parameter.grad for parameter in model.parameters())
        model.zero_grad()
    return found


@pytest.mark.requires(cpp_compiler=True)
@pytest.mark.parametrize(
    "backend",
    ["aot_eager", pytest.param("inductor", marks=[pytest.mark.extended, pytest.mark.requires(inductor=True)])],
)
@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_torch_compile")
def test_compile_forward_has_its_backward_captured(device: torch.device, backend: str) -> None:
    """A captured pass contains the compiled backward of a compiled forward; one capture serves all steps."""

    def work() -> Iterator[torch.Tensor]:
        model = smooth(device)
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        for _ in range(3):
            compiled(rows(1, device)).sum().backward()
            yield from gradients(model)
            model.zero_grad()

    assert compare(work, backend=backend, within=INDUCTOR) == Counts(1, 1)


@pytest.mark.requires(cpp_compiler=True)
@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.covers(f"test_compiled_autograd::TestCompiledAutograd::test_torch_compile_api_{name}"),
                *([pytest.mark.requires(inductor=True)] if name == "inductor" else []),
            ],
        )
        for name in ("eager", "aot_eager", "inductor")
    ],
)
@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_compile_api")
def test_compile_step_with_config_compiled_autograd(device: torch.device, backend: str) -> None:
    """With `torch._dynamo.config.compiled_autograd`, a compiled step has its passes captured, once for three passes."""
    model, inputs = smooth(device), [rows(1, device) for _ in range(3)]
    expected = copied(steps(model, inputs))

    with compiling_backward() as captures:
        actual = torch.compile(steps, backend=backend)(model, inputs)
        assert captures() == 1

    assert isinstance(expected, list)
    assert_same(expected, actual, EXACTLY if backend != "inductor" else INDUCTOR)


@pytest.mark.covers(
    "test_compiled_autograd::TestCompiledAutograd::test_multiple_torch_compile",
    "test_compiled_autograd::TestCompiledAutograd::test_compile_api_disable",
)
def test_config_compiled_autograd_applies_at_compile_time(device: torch.device) -> None:
    """Backward passes are captured only for functions that are compiled while the setting is on."""

    def step(model: torch.nn.Module) -> Callable[[], None]:
        def run() -> None:
            model(rows(1, device)).sum().backward()

        return run

    first, second = step(smooth(device)), step(torch.nn.Linear(4, 4).to(device))
    before = captured()
    torch.compile(first, backend="eager")()
    assert captured() == before

    with compiling_backward() as captures:
        torch.compile(second, backend="eager")()
        assert captures() == 1
        with private.config(compiled_autograd=False):
            torch.compile(first, backend="eager")()
        assert captures() == 1

    before = captured()
    torch.compile(first, backend="eager")()
    assert captured() == before
    private.reset_compiler()


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(
            "all",
            marks=pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_torch_compile_graph_break"),
        ),
        pytest.param(
            "backward",
            marks=pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_torch_compile_graph_break2"),
        ),
        "forward",
    ],
)
def test_compiler_disable_in_a_step_leaves_its_backward_captured(device: torch.device, broken: str) -> None:
    """With `torch.compiler.disable` on forward, backward call or both, a compiled step's pass is captured."""
    model, x = smooth(device), rows(1, device)
    expected = copied(list(train(model, x)))
    model.zero_grad()

    def forward() -> torch.Tensor:
        loss: torch.Tensor = model(x).sum()
        return loss

    def backward(loss: torch.Tensor) -> None:
        loss.backward()

    if broken == "forward":
        forward = torch.compiler.disable(forward)
    if broken == "backward":
        backward = torch.compiler.disable(backward)

    def step() -> None:
        backward(forward())

    if broken == "all":
        step = torch.compiler.disable(step)
    with compiling_backward() as captures:
        torch.compile(step, backend="eager")()
        assert captures() == 1
    assert isinstance(expected, list)
    assert_same(expected, list(gradients(model)))


@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_torch_compile_only_backward_call")
def test_compile_of_the_call_of_backward_alone(device: torch.device) -> None:
    """Compiling only the call of `backward` captures the pass over a forward that the engine recorded."""
    model, x = smooth(device), rows(1, device)
    expected = copied(list(train(model, x)))
    model.zero_grad()
    loss = model(x).sum()

    with compiling_backward() as captures:
        torch.compile(lambda: loss.backward(), backend="aot_eager")()
        assert captures() == 1
    assert isinstance(expected, list)
    assert_same(expected, list(gradients(model)))


@pytest.mark.parametrize(
    "dynamic", [pytest.param(False, id="static"), pytest.param(True, id="dynamic", marks=pytest.mark.extended)]
)
@pytest.mark.covers(
    "test_compiled_autograd::TestCompiledAutograd::test_mismatch_fake_tensor_mode",
    "test_compiled_autograd::TestCompiledAutograd::test_mismatch_fake_tensor_mode_dynamic_shape",
)
@pytest.mark.requires(cpp_compiler=True, inductor=True)
def test_compile_of_a_whole_step_within_a_block(device: torch.device, dynamic: bool) -> None:
    """A step compiled under compiled autograd shares one fake mode for forward and pass, also with a dynamic size."""
    torch.manual_seed(SEED)
    x = torch.rand(8, 16).to(device)
    y = torch.rand(8, 16).to(device).requires_grad_()
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(y, 0)

    def step() -> tuple[torch.Tensor, torch.Tensor | None]:
        y.grad = None
        out = x + y * y
        out.sum().backward()
        return out, y.grad

    expected = [copied(value) for value in step()]
    with compiled_backward(backend="inductor", dynamic=True) as recording:
        actual = list(torch.compile(step)())
    assert recording.counts == Counts(1, 1)
    assert_same(expected, actual, INDUCTOR)


@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_optimize_assert")
def test_fullgraph_step_may_have_a_backward_with_graph_breaks(device: torch.device) -> None:
    """A forward with `fullgraph=True` is one graph or raises; its separately compiled pass may have graph breaks."""
    model, x = smooth(device), rows(1, device)
    expected = copied(list(train(model, x)))
    model.zero_grad()

    with compiling_backward() as captures:
        loss = torch.compile(lambda: model(x).sum(), backend="eager", fullgraph=True)()
        torch.compile(lambda: loss.backward(), backend="eager")()
        assert captures() == 1
        broken = torch.compile(
            lambda: (torch._dynamo.graph_break(), model(x).sum())[1], backend="eager", fullgraph=True
        )
        with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
            broken()
    assert isinstance(expected, list)
    assert_same(expected, list(gradients(model)))


@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_nested_compile")
def test_compile_within_a_backward(device: torch.device) -> None:
    """The backward of a custom function may call a compiled function, with correct gradients."""
    doubled = torch.compile(lambda g: g * 2 + 1, backend="eager")

    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> Any:
            return doubled(gradients[0])

    def work() -> Iterator[object]:
        x = torch.randn(4).to(device).requires_grad_()
        (Doubles.apply(x) * x).sum().backward()
        yield x.grad

    assert compare(work, backend="eager", fullgraph=False).captures == 1


@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_no_nested_compiled_autograd")
def test_backward_within_a_backward_is_not_captured(device: torch.device) -> None:
    """A pass run by a custom function's backward within a captured pass is an engine pass, with correct gradients."""
    enabled: list[bool] = []

    class Reenters(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        @torch.compiler.disable
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            enabled.append(private.enabled())
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                (inner,) = torch.autograd.grad(x.square().sum(), x)
            return gradients[0] * inner

    def work() -> Iterator[object]:
        x = torch.randn(4).to(device).requires_grad_()
        Reenters.apply(x).sum().backward()
        yield x.grad

    assert compare(work, backend="eager", fullgraph=False).captures == 1
    assert enabled == [False, False]


@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_aot_bwd_gm_runnable")
def test_compile_forward_whose_backward_is_captured_again(device: torch.device) -> None:
    """A compiled backward can be captured in one block and again in the next, and run by the engine in between.

    A capture does not change the graph from which it was taken.
    """
    torch.manual_seed(SEED)
    model, x = smooth(device), rows(2, device)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected = copied(list(train(model, x)))
    assert isinstance(expected, list)

    for captures in (True, False, True):
        model.zero_grad()
        loss = compiled(x).sum()
        if captures:
            with private.enable(lambda graph: torch.compile(graph, backend="aot_eager")):
                loss.backward()
        else:
            loss.backward()
        assert_same(expected, list(gradients(model)))
    private.reset_compiler()
