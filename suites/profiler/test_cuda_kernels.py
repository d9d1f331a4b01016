"""What the device ran, in the tree: kernels, copies and device memory below the operators that asked for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.profiler import profile

from .trees import HOST_AND_CUDA, Kind, Node, names, quiet_collector, read, record, warm_up

pytestmark = pytest.mark.requires(device="cuda")

ON_STREAMS = pytest.mark.covers(
    "test_profiler_tree::TestProfilerTree::test_profiler_experimental_tree_cuda_with_stream"
)


class SideStreams:
    """Two operators on each of three streams that are not the default one; one run has filled every cache."""

    COUNT = 3

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.streams = [torch.cuda.Stream(device) for _ in range(self.COUNT)]
        self.x = torch.ones((64, 64), device=device)
        torch.cuda.synchronize(device)
        self()

    def __call__(self) -> None:
        for stream in self.streams:
            with torch.cuda.stream(stream):
                torch.sub(torch.tanh(self.x), self.x)
        torch.cuda.synchronize(self.device)


def ran_on_device(tree: Node) -> list[Node]:
    """The device's events in a tree, of which there must be some for the case to mean anything."""
    events = tree.of_kind(Kind.DEVICE)
    assert events, f"the profiler recorded nothing on the device (may this user read its counters?):\n{tree}"
    return events


@ON_STREAMS
def test_kernels_on_side_streams_are_below_the_operators_that_launched_them(device: torch.device) -> None:
    """Contract: an operator's kernel is below it whatever the stream: one each here, and none anywhere else."""
    tree = record(SideStreams(device), activities=HOST_AND_CUDA)

    kernels = ran_on_device(tree)
    operators = tree.all("aten::tanh") + tree.all("aten::sub")
    assert len(operators) == 2 * SideStreams.COUNT
    assert [len(operator.of_kind(Kind.DEVICE)) for operator in operators] == [1] * len(operators), str(tree)
    assert len(kernels) == len(operators), str(tree)


@ON_STREAMS
def test_operators_on_side_streams_are_in_program_order(device: torch.device) -> None:
    """Contract: the order of operators in the tree is that of the calls, not that in which streams got to run them."""
    tree = record(SideStreams(device), activities=HOST_AND_CUDA)

    calls = [name for name in names(tree.children) if name in ("aten::tanh", "aten::sub")]
    assert calls == ["aten::tanh", "aten::sub"] * SideStreams.COUNT


@ON_STREAMS
def test_kernels_ran_on_the_streams_they_were_given_to(device: torch.device, tmp_path: Path) -> None:
    """Contract: the exported trace names the stream of each kernel: two kernels on each of three, none elsewhere."""
    work = SideStreams(device)
    with quiet_collector(), profile(activities=HOST_AND_CUDA) as prof:
        work()
    ran_on_device(read(prof))
    file = tmp_path / "trace.json"

    prof.export_chrome_trace(str(file))

    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    streams = [event["args"]["stream"] for event in events if event.get("cat") == "kernel"]
    assert sorted(streams.count(stream) for stream in set(streams)) == [2] * SideStreams.COUNT, str(streams)


@ON_STREAMS
def test_the_same_work_on_streams_gives_the_same_tree(device: torch.device) -> None:
    """Contract: with caches filled, each profile of the same work on the same streams has the same tree."""
    work = SideStreams(device)
    warm_up(work, activities=HOST_AND_CUDA)

    first, second = (record(work, activities=HOST_AND_CUDA) for _ in range(2))

    ran_on_device(first)
    assert first == second, f"first:\n{first}\nsecond:\n{second}"


def test_kernels_of_backward_are_below_the_nodes_that_ran_them(device: torch.device) -> None:
    """Contract: the engine's thread for the device is profiled too, and every kernel is below some operator."""
    leaf = torch.rand(64, device=device, requires_grad=True)

    def work() -> None:
        leaf.exp().sum().backward()
        torch.cuda.synchronize(device)

    work()

    tree = record(work, activities=HOST_AND_CUDA)

    ran_on_device(tree)
    assert len(tree.one("ExpBackward0").of_kind(Kind.DEVICE)) == 1, str(tree)
    for node, above in tree.with_parents():
        if node.kind is Kind.DEVICE:
            assert Kind.OP in {parent.kind for parent in above}, f"{node.name} is below no operator in\n{tree}"


@pytest.mark.parametrize("to_device", [True, False], ids=["to_device", "to_host"])
def test_a_copy_between_host_and_device_is_below_the_operator_that_copies(
    device: torch.device, to_device: bool
) -> None:
    """Contract: the transfer is a device event of its own below `aten::copy_`, and names its direction."""
    source = torch.rand(1024, device="cpu" if to_device else device)
    target = device if to_device else torch.device("cpu")
    source.to(target)

    tree = record(lambda: source.to(target), activities=HOST_AND_CUDA)

    ran_on_device(tree)
    (copy,) = tree.one("aten::copy_").of_kind(Kind.DEVICE)
    assert copy.name.startswith("Memcpy HtoD" if to_device else "Memcpy DtoH")


@pytest.mark.covers("test_profiler_tree::TestProfilerTree::test_profiler_experimental_tree_with_memory")
def test_device_memory_is_below_the_operator_that_allocates(device: torch.device) -> None:
    """Contract: a tensor on the device is one allocation there, of at least its size, directly below the operator that
    allocates, and one release of the same address and size."""

    def work() -> None:
        torch.empty(1000, device=device)

    work()

    tree = record(work, activities=HOST_AND_CUDA, profile_memory=True)

    on_device = [n.block for n in tree.of_kind(Kind.MEMORY) if n.block and n.block.device == str(device)]
    made, released = sorted(on_device, key=lambda block: -block.size)
    assert made.size >= 4000
    assert (released.size, released.address) == (-made.size, made.address)
    assert made in [child.block for child in tree.one("aten::empty").children]


def test_a_profile_of_the_host_alone_has_no_device_events(device: torch.device) -> None:
    """Contract: without the CUDA activity the operators on the device are there, their kernels and launches are not."""
    tree = record(SideStreams(device))

    assert len(tree.all("aten::tanh")) == SideStreams.COUNT
    assert not tree.of_kind(Kind.DEVICE, Kind.RUNTIME)
