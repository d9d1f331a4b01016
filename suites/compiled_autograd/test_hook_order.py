"""The order of hooks and accumulation in a captured pass, which must equal the engine's.

The hooks write a diary, and the diaries are compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from suites import _torch_private_compiled as private
from suites.compiled import compare, compiled_backward

from .models import gradients, rows

ROW = "test_compiled_autograd::TestCompiledAutograd::"


class Diary:
    """Events, in order."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def pre(self, name: str) -> Callable[[Any], None]:
        return lambda _: self.entries.append(name)

    def post(self, name: str) -> Callable[[Any, Any], None]:
        return lambda _, __: self.entries.append(name)


def three(device: torch.device) -> nn.Sequential:
    """Return three linear layers, whose parameters are named by layer."""
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))).to(device)


def compare_diaries(work: Callable[[Diary], Iterator[object]]) -> list[str]:
    """Compare the results and the diary of `work` under both engines, and return the diary."""
    last = Diary()

    def run() -> Iterator[object]:
        last.entries = []
        yield from work(last)
        assert last.entries
        yield list(last.entries)

    assert compare(run, backend="eager", fullgraph=False).captures == 1
    return last.entries


@pytest.mark.covers(f"{ROW}test_reorder_acc_grad")
@pytest.mark.parametrize("forward", ["by_the_engine", "compiled"])
def test_accumulategrad_runs_before_the_previous_layer(device: torch.device, forward: str) -> None:
    """The captured graph accumulates each layer's gradients before it processes the previous layer.

    If all accumulations ran at the end, all gradients would be alive together.
    """
    model, x = three(device), rows(2, device).requires_grad_()
    run = model if forward == "by_the_engine" else torch.compile(model, backend="aot_eager", fullgraph=True)
    with compiled_backward(backend="eager") as recording:
        run(x).sum().backward()

    (graph,) = recording.graphs
    order = "".join(map(kind, graph.graph.nodes))
    assert order.count("A") == len(list(gradients(model))) + 1
    # The products and accumulations, two of each for the last two layers, and those of the first layer and of the
    # input.
    assert re.fullmatch("P+AAP+AAP[AP]*A", order), order


def kind(node: torch.fx.Node) -> str:
    """Return A for an accumulation, P for the products of a layer, and otherwise an empty string."""
    if private.is_accumulation(node):
        return "A"
    product = node.op == "call_function" and "mm" in node.name and "getitem" not in str(node.target)
    return "P" if product else ""


@pytest.mark.covers(f"{ROW}test_reorder_post_hook1")
def test_register_post_accumulate_grad_hook_runs_layer_by_layer(device: torch.device) -> None:
    """Post-accumulate hooks run from the last layer to the first, each before the previous layers have gradients."""

    def work(diary: Diary) -> Iterator[object]:
        model = three(device)
        names = dict(model.named_parameters())

        def note(name: str) -> Callable[[torch.Tensor], None]:
            def hook(_: torch.Tensor) -> None:
                there = [other for other, parameter in names.items() if parameter.grad is not None]
                diary.entries.append(f"{name}: {' '.join(there)}")

            return hook

        for name, parameter in names.items():
            parameter.register_post_accumulate_grad_hook(note(name))
        model(rows(2, device)).sum().backward()
        yield list(gradients(model))

    entries = compare_diaries(work)

    assert [entry[0] for entry in entries] == ["2", "2", "1", "1", "0", "0"]
    for entry in entries:
        name, _, there = entry.partition(": ")
        assert name in there.split()
        assert all(other[0] >= name[0] for other in there.split()), entry


@pytest.mark.covers(f"{ROW}test_reorder_post_hook2")
def test_node_register_prehook_and_register_hook_alternate(device: torch.device) -> None:
    """Pre-hooks and hooks of a chain of functions alternate, from the last function to the first."""

    def work(diary: Diary) -> Iterator[object]:
        x = torch.randn(4).to(device).requires_grad_()
        out = x
        for name in ("sin", "exp", "tanh"):
            out = getattr(torch, name)(out)
            assert out.grad_fn is not None
            out.grad_fn.register_prehook(diary.pre(f"before {name}"))
            out.grad_fn.register_hook(diary.post(f"after {name}"))
        out.sum().backward()
        yield x.grad

    assert compare_diaries(work) == [
        f"{when} {name}" for name in ("tanh", "exp", "sin") for when in ("before", "after")
    ]


@pytest.mark.covers(f"{ROW}test_reorder_post_hook3")
def test_accumulategrad_register_prehook_and_register_hook_order(device: torch.device) -> None:
    """Hooks of AccumulateGrad nodes run directly before and after the accumulation.

    Before it, `.grad` is None, and afterwards it is set.
    """

    def work(diary: Diary) -> Iterator[object]:
        def note(what: str, parameter: torch.Tensor) -> Callable[..., None]:
            return lambda *_: diary.entries.append(f"{what}: {'there' if parameter.grad is not None else 'none'}")

        model = three(device)
        accumulators = []
        for name, parameter in model.named_parameters():
            node: Any = parameter.view_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
            accumulators.append(node)
            node.register_prehook(note(f"before {name}", parameter))
            node.register_hook(note(f"after {name}", parameter))
        model(rows(2, device)).sum().backward()
        yield list(gradients(model))

    entries = compare_diaries(work)
    assert len(entries) == 12
    for before, after in zip(entries[::2], entries[1::2], strict=True):
        assert before.endswith(": none")
        assert after == before.replace("before", "after").replace("none", "there")


@pytest.mark.covers(f"{ROW}test_reorder_all_bwd_hooks")
def test_hooks_of_tensors_nodes_and_accumulation_in_order(device: torch.device) -> None:
    """On one leaf and its function, hooks of tensors, nodes and accumulation run in the engine's order.

    Tensor hooks precede node hooks, which precede accumulation and its own hooks.
    """

    def work(diary: Diary) -> Iterator[object]:
        x = torch.randn(4).to(device).requires_grad_()
        accumulator: Any = x.view_as(x).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        accumulator.register_prehook(diary.pre("before accumulation"))
        accumulator.register_hook(diary.post("after accumulation"))
        x.register_hook(diary.pre("leaf"))
        x.register_post_accumulate_grad_hook(diary.pre("accumulated"))
        out = x.exp()
        out.register_hook(diary.pre("result"))
        assert out.grad_fn is not None
        out.grad_fn.register_prehook(diary.pre("before function"))
        out.grad_fn.register_hook(diary.post("after function"))
        out.sum().backward()
        yield x.grad

    assert compare_diaries(work) == [
        "result",
        "before function",
        "after function",
        "leaf",
        "before accumulation",
        "accumulated",
        "after accumulation",
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("post", marks=pytest.mark.covers(f"{ROW}test_reorder_multi_post_hooks")),
        pytest.param("pre", marks=pytest.mark.covers(f"{ROW}test_reorder_multi_pre_hooks")),
        pytest.param("tensor", marks=pytest.mark.covers(f"{ROW}test_reorder_multi_tensor_pre_hooks")),
        "accumulated",
    ],
)
def test_hooks_of_one_kind_run_in_registration_order(device: torch.device, kind: str) -> None:
    """Several hooks of one kind run in registration order, each on the result of the previous one."""

    def work(diary: Diary) -> Iterator[object]:
        x = torch.randn(4).to(device).requires_grad_()
        out = x.exp()
        assert out.grad_fn is not None
        for number in range(3):
            name = f"hook {number}"
            if kind == "post":

                def after(inputs: Any, outputs: Any, name: str = name, number: int = number) -> Any:  # noqa: ARG001
                    diary.entries.append(name)
                    return (inputs[0] * 2 + number,)

                out.grad_fn.register_hook(after)
            elif kind == "pre":

                def before(outputs: Any, name: str = name, number: int = number) -> Any:
                    diary.entries.append(name)
                    return (outputs[0] * 2 + number,)

                out.grad_fn.register_prehook(before)
            elif kind == "tensor":

                def change(gradient: Any, name: str = name, number: int = number) -> Any:
                    diary.entries.append(name)
                    return gradient * 2 + number

                x.register_hook(change)
            else:
                x.register_post_accumulate_grad_hook(diary.pre(name))
        out.sum().backward()
        yield x.grad

    assert compare_diaries(work) == ["hook 0", "hook 1", "hook 2"]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing when gradients are computed:UserWarning")
@pytest.mark.covers(f"{ROW}test_backward_hook_relative_ordering_partial")
def test_register_full_backward_hook_where_not_all_inputs_require_grad(device: torch.device) -> None:
    """Module backward hooks also run if an input or a parameter does not require grad.

    A module's pre-hook runs before its hook, and an outer module's pre-hook before an inner one's. The order of two
    branches is unspecified, and currently differs.
    """

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(x) + y
            return out

    diary = Diary()

    def work() -> Iterator[object]:
        diary.entries.clear()
        model = Adds().to(device)
        model.inner.bias.requires_grad_(False)
        for name, module in (("outer", model), ("inner", model.inner)):
            module.register_full_backward_pre_hook(diary.post(f"before {name}"))
            module.register_full_backward_hook(lambda *_, name=name: diary.entries.append(f"after {name}"))
        model.inner.weight.register_hook(diary.pre("weight"))
        y = rows(2, device).requires_grad_()
        model(rows(2, device), y).sum().backward()
        yield [y.grad, model.inner.weight.grad]
        yield sorted(diary.entries)

    assert compare(work, backend="eager", fullgraph=False).captures == 1
    assert sorted(diary.entries) == ["after inner", "after outer", "before inner", "before outer", "weight"]
    for first, second in (
        ("before outer", "before inner"),
        ("before outer", "after outer"),
        ("before inner", "weight"),
    ):
        assert diary.entries.index(first) < diary.entries.index(second)
