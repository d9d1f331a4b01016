"""The logs of compiled autograd: graphs, the functions that they came from, and the reasons of captures."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from suites import _torch_private_compiled as private
from suites.compiled import Counts, compare, compiled_backward

from .logs import logged
from .models import gradients, network, rows, train

ROW = "test_compiled_autograd::TestCompiledAutograd::"
GRAPH = "Compiled autograd graph"


def origins(messages: list[str]) -> list[tuple[str, int]]:
    """Return the functions that the graphs in these messages name as their origins, with their call numbers."""
    found = []
    for message in messages:
        if GRAPH in message:
            found += [(name, int(number)) for name, number in re.findall(r"code: (\S+) \(NodeCall (\d+)\)", message)]
    return found


def misses(messages: list[str]) -> list[str]:
    """Return the reasons of captures."""
    return [message for message in messages if message.startswith("Cache miss due to")]


@pytest.mark.covers(f"{ROW}test_verbose_logs_graph")
def test_torch_logs_verbose_names_every_function(device: torch.device) -> None:
    """The graph in the verbose log names the forward function and call number of every node."""

    def work() -> Iterator[object]:
        yield from train(network(device), rows(2, device))

    with logged("compiled_autograd_verbose") as messages:
        assert compare(work, backend="eager") == Counts(1, 1)

    kinds = [name for name, _ in set(origins(messages))]
    for kind, number in {"SumBackward0": 1, "ReluBackward0": 2, "AddmmBackward0": 2, "TBackward0": 2}.items():
        assert kinds.count(kind) >= number, f"{kind} is named {kinds.count(kind)} times"
    assert kinds.count("torch::autograd::AccumulateGrad") >= 4


@pytest.mark.covers(f"{ROW}test_logs")
def test_torch_logs_has_each_graph_once(device: torch.device) -> None:
    """The plain log has one graph per capture, and nothing for a cached pass."""

    def work() -> Iterator[object]:
        for _ in range(3):
            yield from train(network(device), rows(2, device))
        x = torch.ones(3, device=device, requires_grad=True)
        x.exp().sum().backward()
        yield x.grad

    with logged("compiled_autograd") as messages:
        assert compare(work, backend="eager") == Counts(2, 2)

    assert len([message for message in messages if GRAPH in message]) == 2
    assert not misses(messages)


@pytest.mark.covers(f"{ROW}test_verbose_logs_cpp")
def test_torch_logs_verbose_has_the_reason_of_a_capture(device: torch.device) -> None:
    """The verbose log names the new function that caused each capture, and has no entry for a cached pass."""

    def work() -> Iterator[object]:
        for dimensions in (1, 2, 1):
            x = torch.randn((4,) * dimensions).to(device).requires_grad_()
            x.exp().sum().backward()
            yield x.grad

    with logged("compiled_autograd_verbose") as messages:
        assert compare(work, backend="eager").captures == 2

    first, second = misses(messages)
    assert re.search(r"new autograd node: torch::autograd::GraphRoot \(NodeCall 0\).*previous key sizes=\[\]", first)
    assert re.search(
        r"new autograd node: SumBackward0 \(NodeCall 1\) with key size \d+, previous key sizes=\[\d+\]", second
    )


@pytest.mark.covers(f"{ROW}test_verbose_logs_dynamic_shapes", f"{ROW}test_verbose_logs_cpp")
def test_torch_logs_verbose_names_changed_sizes(device: torch.device) -> None:
    """For captures caused by sizes, the verbose log counts and names the changed sizes.

    The third pass, with yet another size, is not captured.
    """
    captures: list[int] = []

    def compile_graph(graph: torch.fx.GraphModule) -> private.Compiled:
        captures.append(1)
        return torch.compile(graph, backend="eager")

    model = network(device)
    with (
        private.fresh_compiler(),
        logged("compiled_autograd_verbose") as messages,
        private.enable(compile_graph, any_size=False),
    ):
        for size in (10, 11, 12):
            model.zero_grad()
            list(train(model, rows(size, device)))

    assert len(captures) == 2
    new, changed = misses(messages)
    assert "new autograd node" in new
    reported = re.search(r"due to (\d+) changed tensor shapes \(total of (\d+)\): (.*)", changed)
    assert reported is not None
    assert int(reported[1]) == len(reported[3].split(", ")) >= 1
    assert int(reported[1]) <= int(reported[2])
    assert all(re.fullmatch(r"sizes\[\d+\]", name) for name in reported[3].split(", "))


@pytest.mark.covers(f"{ROW}test_snapshot_verbose_logs_flag", f"{ROW}test_verbose_logs_snapshot")
def test_torch_logs_verbose_is_read_when_the_block_begins(device: torch.device) -> None:
    """The verbose log, if switched on within a block, has no reasons until the next block.

    Compiled autograd reads the setting when it is enabled.
    """
    with compiled_backward(backend="eager") as recording, logged("compiled_autograd_verbose") as late:
        list(train(network(device), rows(2, device)))
    with logged("compiled_autograd_verbose") as early, compiled_backward(backend="eager"):
        list(train(network(device), rows(2, device)))

    assert recording.captures == 1
    assert not misses(late)
    assert len(misses(early)) == 1


@pytest.mark.covers(f"{ROW}test_verbose_logs_aot_id", f"{ROW}test_verbose_logs_aot_dispatcher_nodes")
def test_torch_logs_verbose_names_a_forward_compiled_before(device: torch.device) -> None:
    """For a compiled forward, the log shows the compiled backward's operations with names that begin with its id."""

    def work() -> Iterator[object]:
        model = network(device)
        torch.compile(model, backend="aot_eager")(rows(2, device)).sum().backward()
        yield list(gradients(model))

    with logged("compiled_autograd_verbose") as messages:
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
    """A tensor hook registered in a compiled forward is a higher-order operator in the captured pass.

    The hook closes over a value of the forward, has the id of the forward, and affects the gradient.
    """

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        factor = y + 2
        y.register_hook(lambda gradient: gradient * factor)
        return y.exp()

    def work() -> Iterator[object]:
        x = torch.randn(4).to(device).requires_grad_()
        torch.compile(forward, backend="aot_eager")(x).sum().backward()
        yield x.grad

    with logged("compiled_autograd_verbose") as messages:
        compare(work, backend="eager", fullgraph=False)

    (graph,) = [message for message in messages if GRAPH in message]
    assert re.search(r"\baot\d+_trace_wrapped = torch\S*trace_wrapped\S*\(", graph)
    assert re.search(r"\baot\d+_\w+ = torch\.ops\.aten\.mul", graph)


@pytest.mark.covers(f"{ROW}test_logs_aot_bwd_reuse")
def test_torch_logs_verbose_has_a_compiled_forward_used_twice_twice(device: torch.device) -> None:
    """A compiled forward that is used twice is in the pass twice, under one id and with distinct names."""

    def work() -> Iterator[object]:
        x, y = (torch.randn(4).to(device).requires_grad_() for _ in range(2))
        square = torch.compile(lambda z: z * z, backend="aot_eager")
        (square(x) + 3 * square(y)).sum().backward()
        yield [x.grad, y.grad]

    with logged("compiled_autograd_verbose") as messages:
        assert compare(work, backend="eager").captures == 1

    names = {name for name, _ in origins(messages) if re.fullmatch(r"CompiledFunctionBackward\d+", name)}
    assert len(names) == 1
    (graph,) = [message for message in messages if GRAPH in message]
    made = re.findall(r"^ +(aot\w+) = ", graph, re.MULTILINE)
    assert sum("mul" in name for name in made) >= 2
    assert len(set(made)) == len(made)


def test_torch_logs_off_logs_nothing(device: torch.device) -> None:
    """Control: the verbose log is empty while another log is on, and no log has messages after its block.

    The loggers are restored.
    """
    with logged("compiled_autograd") as plain, compiled_backward(backend="eager"):
        list(train(network(device), rows(2, device)))
    reported = len(plain)
    with compiled_backward(backend="eager") as recording:
        list(train(network(device), rows(2, device)))

    assert recording.captures == 1
    assert reported >= 1
    assert not misses(plain)
    assert len(plain) == reported
