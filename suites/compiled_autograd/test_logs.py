"""What compiled autograd tells of itself: graphs, the functions they came from, and why a pass was captured anew."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from suites import _torch_private_compiled as private
from suites.compiled import Counts, compare, compiled_backward

from .logs import heard
from .models import gradients, network, rows, train

ROW = "test_compiled_autograd::TestCompiledAutograd::"
GRAPH = "Compiled autograd graph"


def origins(messages: list[str]) -> list[tuple[str, int]]:
    """The functions that the graphs in these messages tell they came from, with the numbers of their calls."""
    found = []
    for message in messages:
        if GRAPH in message:
            found += [(name, int(number)) for name, number in re.findall(r"code: (\S+) \(NodeCall (\d+)\)", message)]
    return found


def misses(messages: list[str]) -> list[str]:
    """The reasons why passes were captured."""
    return [message for message in messages if message.startswith("Cache miss due to")]


@pytest.mark.covers(f"{ROW}test_verbose_logs_graph")
def test_torch_logs_verbose_names_every_function(device: torch.device) -> None:
    """Contract: the graph in the verbose log says of its parts which function of the forward they came from, with the
    number of a call: every kind that the model has, with as many numbers as it is there times."""

    def work() -> Iterator[object]:
        yield from train(network(device), rows(2, device))

    with heard("compiled_autograd_verbose") as messages:
        assert compare(work, backend="eager") == Counts(1, 1)

    kinds = [name for name, _ in set(origins(messages))]
    for kind, number in {"SumBackward0": 1, "ReluBackward0": 2, "AddmmBackward0": 2, "TBackward0": 2}.items():
        assert kinds.count(kind) >= number, f"{kind} is named {kinds.count(kind)} times"
    assert kinds.count("torch::autograd::AccumulateGrad") >= 4


@pytest.mark.covers(f"{ROW}test_logs")
def test_torch_logs_has_each_graph_once(device: torch.device) -> None:
    """Contract: the plain log has one graph for each capture, and says nothing of a pass that was known."""

    def work() -> Iterator[object]:
        for _ in range(3):
            yield from train(network(device), rows(2, device))
        x = torch.ones(3, device=device, requires_grad=True)
        x.exp().sum().backward()
        yield x.grad

    with heard("compiled_autograd") as messages:
        assert compare(work, backend="eager") == Counts(2, 2)

    assert len([message for message in messages if GRAPH in message]) == 2
    assert not misses(messages)


@pytest.mark.covers(f"{ROW}test_verbose_logs_cpp")
def test_torch_logs_verbose_tells_why_a_pass_was_captured(device: torch.device) -> None:
    """Contract: the first pass was captured for the function that is new at its root, another for the function in it
    that is new, and a known one for nothing."""

    def work() -> Iterator[object]:
        for dimensions in (1, 2, 1):
            x = torch.randn((4,) * dimensions).to(device).requires_grad_()
            x.exp().sum().backward()
            yield x.grad

    with heard("compiled_autograd_verbose") as messages:
        assert compare(work, backend="eager").captures == 2

    first, second = misses(messages)
    assert re.search(r"new autograd node: torch::autograd::GraphRoot \(NodeCall 0\).*previous key sizes=\[\]", first)
    assert re.search(
        r"new autograd node: SumBackward0 \(NodeCall 1\) with key size \d+, previous key sizes=\[\d+\]", second
    )


@pytest.mark.covers(f"{ROW}test_verbose_logs_dynamic_shapes", f"{ROW}test_verbose_logs_cpp")
def test_torch_logs_verbose_tells_which_sizes_changed(device: torch.device) -> None:
    """Contract: where passes are captured for their sizes, the second was captured for the sizes that changed, which
    the log counts and names; the third, of yet another size, was not captured."""
    captures: list[int] = []

    def compile_graph(graph: torch.fx.GraphModule) -> private.Compiled:
        captures.append(1)
        return torch.compile(graph, backend="eager")

    private.reset_compiler()
    model = network(device)
    try:
        with heard("compiled_autograd_verbose") as messages, private.enable(compile_graph, any_size=False):
            for size in (10, 11, 12):
                model.zero_grad()
                list(train(model, rows(size, device)))
    finally:
        private.reset_compiler()

    assert len(captures) == 2
    new, changed = misses(messages)
    assert "new autograd node" in new
    told = re.search(r"due to (\d+) changed tensor shapes \(total of (\d+)\): (.*)", changed)
    assert told is not None
    assert int(told[1]) == len(told[3].split(", ")) >= 1
    assert int(told[1]) <= int(told[2])
    assert all(re.fullmatch(r"sizes\[\d+\]", name) for name in told[3].split(", "))


@pytest.mark.covers(f"{ROW}test_snapshot_verbose_logs_flag", f"{ROW}test_verbose_logs_snapshot")
def test_torch_logs_verbose_is_decided_when_the_block_begins(device: torch.device) -> None:
    """Contract: switched on within a block, the verbose log does not tell of reasons until the next block: whether they
    are told is asked once, when compiled autograd is turned on."""
    with compiled_backward(backend="eager") as recording, heard("compiled_autograd_verbose") as late:
        list(train(network(device), rows(2, device)))
    with heard("compiled_autograd_verbose") as early, compiled_backward(backend="eager"):
        list(train(network(device), rows(2, device)))

    assert recording.captures == 1
    assert not misses(late)
    assert len(misses(early)) == 1


@pytest.mark.covers(f"{ROW}test_verbose_logs_aot_id", f"{ROW}test_verbose_logs_aot_dispatcher_nodes")
def test_torch_logs_verbose_names_a_forward_compiled_before(device: torch.device) -> None:
    """Contract: of a forward that was compiled, the graph has the compiled backward's operations, under names that
    begin with its id, and its function by that id."""

    def work() -> Iterator[object]:
        model = network(device)
        torch.compile(model, backend="aot_eager")(rows(2, device)).sum().backward()
        yield list(gradients(model))

    with heard("compiled_autograd_verbose") as messages:
        compare(work, backend="eager")

    names = [name for name, _ in origins(messages) if name.startswith("CompiledFunctionBackward")]
    assert names
    (number,) = {int(name.removeprefix("CompiledFunctionBackward")) for name in names if name[-1].isdigit()}
    (graph,) = [message for message in messages if GRAPH in message]
    assert re.search(rf"\baot{number}_\w+ = torch\.ops\.aten\.threshold_backward", graph)
    assert re.search(rf"\baot{number}_\w+ = torch\.ops\.aten\.mm", graph)


@pytest.mark.requires(torch=">=2.13")  # 2.11 cannot compile such a hook: "referenced nonexistent value"
@pytest.mark.covers(f"{ROW}test_verbose_logs_aot_dispatcher_nodes_hop")
def test_torch_logs_verbose_has_hooks_of_a_compiled_forward(device: torch.device) -> None:
    """Contract: a hook that a compiled forward registered on a tensor in its middle, with a value of the forward in its
    closure, is an operator of higher order in the compiled backward; it is in the captured pass, under the id of that
    forward, and counts."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        factor = y + 2
        y.register_hook(lambda gradient: gradient * factor)
        return y.exp()

    def work() -> Iterator[object]:
        x = torch.randn(4).to(device).requires_grad_()
        torch.compile(forward, backend="aot_eager")(x).sum().backward()
        yield x.grad

    with heard("compiled_autograd_verbose") as messages:
        compare(work, backend="eager", fullgraph=False)

    (graph,) = [message for message in messages if GRAPH in message]
    assert re.search(r"\baot\d+_trace_wrapped = torch\S*trace_wrapped\S*\(", graph)
    assert re.search(r"\baot\d+_\w+ = torch\.ops\.aten\.mul", graph)


@pytest.mark.covers(f"{ROW}test_logs_aot_bwd_reuse")
def test_torch_logs_verbose_has_a_compiled_forward_used_twice_twice(device: torch.device) -> None:
    """Contract: a compiled forward that one loss uses twice is in the pass twice: under one id, its operations with
    names of their own, the engine's gradients."""

    def work() -> Iterator[object]:
        x, y = (torch.randn(4).to(device).requires_grad_() for _ in range(2))
        square = torch.compile(lambda z: z * z, backend="aot_eager")
        (square(x) + 3 * square(y)).sum().backward()
        yield [x.grad, y.grad]

    with heard("compiled_autograd_verbose") as messages:
        assert compare(work, backend="eager").captures == 1

    names = {name for name, _ in origins(messages) if re.fullmatch(r"CompiledFunctionBackward\d+", name)}
    assert len(names) == 1
    (graph,) = [message for message in messages if GRAPH in message]
    made = re.findall(r"^ +(aot\w+) = ", graph, re.MULTILINE)
    assert sum("mul" in name for name in made) >= 2
    assert len(set(made)) == len(made)


def test_torch_logs_off_tells_nothing(device: torch.device) -> None:
    """Contract: in the block of another log nothing of the verbose one comes, and after a block nothing at all: loggers
    are as they were (and the control of this file)."""
    with heard("compiled_autograd") as plain, compiled_backward(backend="eager"):
        list(train(network(device), rows(2, device)))
    told = len(plain)
    with compiled_backward(backend="eager") as recording:
        list(train(network(device), rows(2, device)))

    assert recording.captures == 1
    assert told >= 1
    assert not misses(plain)
    assert len(plain) == told
