"""Device events in the tree: kernels, copies and device memory below the operators that caused them."""

from __future__ import annotations

import re

import pytest
import torch
from torch.profiler import ProfilerActivity

from suites import children

from .node import Kind, Node, names
from .trees import HOST_AND_CUDA, profiler, quiet_collector, record, warm_up
from .workloads import STREAMS, Work, side_streams, training_step

pytestmark = pytest.mark.requires(device="cuda")

TREE = "test_profiler_tree::TestProfilerTree::test_profiler_experimental_tree"
ON_STREAMS = pytest.mark.covers(f"{TREE}_cuda_with_stream")
TRAINING = pytest.mark.covers(f"{TREE}_cuda")
DETAILED = pytest.mark.covers(f"{TREE}_cuda_detailed")
LAUNCH = re.compile(r"cu(da)?LaunchKernel")


def warm(work: Work) -> Work:
    """Return the work, after one run that loads kernels and fills the allocator's caches."""
    work()
    return work


def ran_on_device(tree: Node) -> list[Node]:
    """Return the device events in a tree. There must be at least one, so that the case is meaningful."""
    events = tree.of_kind(Kind.DEVICE)
    assert events, f"the profiler recorded nothing on the device (may this user read its counters?):\n{tree}"
    return events


@ON_STREAMS
def test_kernels_on_side_streams_are_below_their_operators(device: torch.device) -> None:
    """A kernel is below its operator on any stream: exactly one per operator here."""
    tree = record(warm(side_streams(device)), activities=HOST_AND_CUDA)

    kernels = ran_on_device(tree)
    operators = tree.all("aten::tanh") + tree.all("aten::sub")
    assert len(operators) == 2 * STREAMS
    assert [len(operator.of_kind(Kind.DEVICE)) for operator in operators] == [1] * len(operators), str(tree)
    assert len(kernels) == len(operators), str(tree)


@ON_STREAMS
def test_operators_on_side_streams_are_in_program_order(device: torch.device) -> None:
    """Operators are in the order of the calls, and not in the order in which the streams ran them."""
    tree = record(warm(side_streams(device)), activities=HOST_AND_CUDA)

    calls = [name for name in names(tree.children) if name in ("aten::tanh", "aten::sub")]
    assert calls == ["aten::tanh", "aten::sub"] * STREAMS


@ON_STREAMS
def test_same_work_on_streams_gives_the_same_tree(device: torch.device) -> None:
    """With filled caches, every profile of the same work on the same streams has the same tree."""
    work = side_streams(device)
    warm_up(work, activities=HOST_AND_CUDA)

    first, second = (record(work, activities=HOST_AND_CUDA) for _ in range(2))

    ran_on_device(first)
    assert first == second, f"first:\n{first}\nsecond:\n{second}"


@pytest.mark.covers(f"{TREE}_cuda_with_stream", f"{TREE}_cuda_detailed")
def test_kernel_is_below_the_call_that_launched_it(device: torch.device) -> None:
    """Between operator and kernel is one launch call of the runtime or driver, with only that kernel below it."""
    tree = record(warm(side_streams(device)), activities=HOST_AND_CUDA)

    kernels = ran_on_device(tree)
    above = {id(node): parents for node, parents in tree.with_parents()}
    for kernel in kernels:
        launch, operator, *_ = above[id(kernel)]
        assert launch.kind is Kind.RUNTIME, str(tree)
        assert LAUNCH.match(launch.name), str(tree)
        assert launch.children == (kernel,)
        assert operator.kind is Kind.OP, str(tree)


def test_kernels_of_backward_are_below_the_nodes_that_ran_them(device: torch.device) -> None:
    """The engine's device thread is profiled too, and every kernel is below an operator."""
    leaf = torch.rand(64, device=device, requires_grad=True)

    def work() -> None:
        leaf.exp().sum().backward()
        torch.cuda.synchronize(device)

    tree = record(warm(work), activities=HOST_AND_CUDA)

    ran_on_device(tree)
    assert len(tree.one("ExpBackward0").of_kind(Kind.DEVICE)) == 1, str(tree)
    for node, above in tree.with_parents():
        if node.kind is Kind.DEVICE:
            assert Kind.OP in {parent.kind for parent in above}, f"{node.name} is below no operator in\n{tree}"


@TRAINING
def test_training_step_parts_have_their_own_kernels(device: torch.device) -> None:
    """Each kernel of a training step is below exactly one of forward, backward and optimizer step.

    A parameter's update is one kernel in the optimizer's scope, and setting gradients to None runs none.
    """
    tree = record(warm(training_step(device)), activities=HOST_AND_CUDA)

    kernels = ran_on_device(tree)
    updates = tree.one("Optimizer.step#SGD.step").of_kind(Kind.DEVICE)
    backward = [k for node in tree.children if "evaluate_function: " in node.name for k in node.of_kind(Kind.DEVICE)]
    forward = [k for node in tree.children if node.name.startswith("aten::") for k in node.of_kind(Kind.DEVICE)]
    assert len(updates) == 2, str(tree)
    assert backward, str(tree)
    assert forward, str(tree)
    assert len(updates) + len(backward) + len(forward) == len(kernels), str(tree)
    assert not tree.one("Optimizer.zero_grad#SGD.zero_grad").of_kind(Kind.DEVICE), str(tree)


@DETAILED
def test_frames_operators_launches_and_kernels_are_ancestors_in_order(device: torch.device) -> None:
    """With stacks, a kernel's ancestors are its launch, operators, and the frames from module to caller, in this order.

    Memory events are still below the allocating operator.
    """
    tree = record(warm(training_step(device)), activities=HOST_AND_CUDA, with_stack=True, profile_memory=True)

    ran_on_device(tree)
    relu = [above for node, above in tree.with_parents() if node.kind is Kind.DEVICE and "aten::relu" in names(above)]
    assert len(relu) == 1, str(tree)
    (above,) = relu
    kinds = [node.kind for node in above]
    frames = kinds.index(next(kind for kind in kinds if kind in (Kind.PYTHON, Kind.C_CALL)))
    assert kinds[0] is Kind.RUNTIME, str(tree)
    assert set(kinds[1:frames]) == {Kind.OP}, str(tree)
    assert not {Kind.OP, Kind.RUNTIME, Kind.DEVICE} & set(kinds[frames:]), str(tree)
    modules = [name for name in names(above) if name.startswith("nn.Module: ")]
    assert modules == ["nn.Module: ReLU_0", "nn.Module: Chain_0"]
    on_device = [n for n in tree.one("aten::relu").of_kind(Kind.MEMORY) if n.block and n.block.device == str(device)]
    assert [node.block.size > 0 for node in on_device if node.block] == [True], str(tree)


@pytest.mark.parametrize("to_device", [True, False], ids=["to_device", "to_host"])
def test_copy_between_cpu_and_device_is_below_aten_copy(device: torch.device, to_device: bool) -> None:
    """A transfer is a separate device event below `aten::copy_`, and its name has the direction."""
    source = torch.rand(1024, device="cpu" if to_device else device)
    target = device if to_device else torch.device("cpu")

    tree = record(warm(lambda: source.to(target)), activities=HOST_AND_CUDA)

    ran_on_device(tree)
    (copy,) = tree.one("aten::copy_").of_kind(Kind.DEVICE)
    assert copy.name.startswith("Memcpy HtoD" if to_device else "Memcpy DtoH")


@pytest.mark.covers(f"{TREE}_with_memory")
def test_profile_memory_device_memory_is_below_the_operator_that_allocates(device: torch.device) -> None:
    """A device tensor is one allocation of at least its size, directly below its operator, and one matching release.

    The tensor is freed within a scope, because torch's tree has device memory only below other events.
    """

    def work() -> None:
        with torch.profiler.record_function("scope"):
            torch.empty(1000, device=device)

    tree = record(warm(work), activities=HOST_AND_CUDA, profile_memory=True)

    on_device = [n.block for n in tree.of_kind(Kind.MEMORY) if n.block and n.block.device == str(device)]
    made, released = sorted(on_device, key=lambda block: -block.size)
    assert made.size >= 4000
    assert (released.size, released.address) == (-made.size, made.address)
    assert made in [child.block for child in tree.one("aten::empty").children]


def test_activities_cpu_only_records_no_device_events(device: torch.device) -> None:
    """Without the CUDA activity, operators on the device are recorded, and their kernels are not."""
    tree = record(warm(side_streams(device)))

    assert len(tree.all("aten::tanh")) == STREAMS
    assert not tree.of_kind(Kind.DEVICE)


def test_functionevent_kernels_are_those_that_it_launched(device: torch.device) -> None:
    """The event of an operator has the kernels that it launched, with name, device and time, which is its own time.

    The call that launched a kernel is below the operator, and has no kernels itself.
    """
    x = torch.ones(8, device=device)
    warm(lambda: (x.sin(), x.cos()))
    with quiet_collector(), profiler(activities=HOST_AND_CUDA) as prof:
        x.sin()
        x.cos()
        torch.cuda.synchronize(device)

    events = prof.events()
    kernels = sorted(
        (event for event in events if event.device_type.name == "CUDA"), key=lambda event: event.time_range.start
    )
    operators = [event for name in ("aten::sin", "aten::cos") for event in events if event.name == name]
    assert len(kernels) == len(operators) == 2
    for operator, kernel in zip(operators, kernels, strict=True):
        (found,) = operator.kernels
        duration = kernel.time_range.end - kernel.time_range.start
        assert (found.name, found.device, found.duration) == (kernel.name, kernel.device_index, duration)
        assert operator.self_device_time_total == duration > 0
        launches = [child for child in operator.cpu_children if LAUNCH.match(child.name)]
        assert [launch.kernels for launch in launches] == [[]]


def test_device_memory_usage_of_an_operator_is_what_it_allocates(device: torch.device) -> None:
    """With `profile_memory`, an operator's event has the bytes that it allocates on the device, not on the host."""
    with quiet_collector(), profiler(activities=HOST_AND_CUDA, profile_memory=True) as prof:
        kept = torch.empty(1000, device=device)

    (event,) = [event for event in prof.events() if event.name == "aten::empty"]
    assert kept.nbytes <= event.device_memory_usage < kept.nbytes + 512
    assert event.self_device_memory_usage == event.device_memory_usage
    assert event.cpu_memory_usage == 0


def test_activities_cuda_only_records_no_operators(device: torch.device) -> None:
    """Without the CPU activity, kernels are recorded, and the operators that launched them are not."""
    work = warm(side_streams(device))
    with quiet_collector(), profiler(activities=[ProfilerActivity.CUDA]) as prof:
        work()
        torch.cuda.synchronize(device)

    events = prof.events()
    assert sum(event.device_type.name == "CUDA" for event in events) >= 2 * STREAMS
    assert [event.name for event in events if event.name.startswith("aten::")] == []


HOST_THEN_DEVICE = """
import torch
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU]):
    torch.ones(1)
x = torch.ones(1, device=DEVICE)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as later:
    (x + 1).cpu()
print(sum(event.device_type.name == "CUDA" for event in later.events()))
"""


@pytest.mark.xfail(
    torch.__version__ >= (2, 13),
    raises=AssertionError,
    reason="since torch 2.13 a first profile of the CPU only makes Kineto ignore the device permanently"
    " (https://github.com/pytorch/pytorch/pull/186036)",
)
def test_activities_cuda_is_recorded_after_a_cpu_only_profile(device: torch.device) -> None:
    """The events that a profile records do not depend on the first profile of the process."""
    ended = children.run(HOST_THEN_DEVICE, device)

    assert int(ended.lines()[-1]) > 0
