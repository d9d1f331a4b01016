"""The data flow: which operator read, wrote, created and freed which version of which tensor."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from suites.host_kernels import MSE_LOSS_WARNS

from . import scenes
from .recordings import Recording, record
from .scenes import Scene
from .values import MEMORY, Key, Node, State

pytestmark = MSE_LOSS_WARNS

CLASS = "test_memory_profiler::TestDataFlow"
SIMPLE = pytest.mark.covers(f"{CLASS}::test_data_flow_graph_simple")
IN_PLACE = pytest.mark.covers(f"{CLASS}::test_data_flow_graph_simple_inplace")
COMPLICATED = pytest.mark.covers(f"{CLASS}::test_data_flow_graph_complicated")
BACKWARD = pytest.mark.covers(f"{CLASS}::test_data_flow_graph_simple_backward")
STACKED = pytest.mark.covers(f"{CLASS}::test_data_flow_graph_stacked")

GRAPH = pytest.mark.parametrize("graph", [True, False], ids=["autograd", "no_grad"])


def touching(recording: Recording, key: Key) -> list[Node]:
    """Return the nodes that read, create or free an allocation."""
    return [node for node in recording.nodes if key in {state.key for state in (*node.reads, *node.makes)}]


def position(recording: Recording, node: Node) -> int:
    """Return the position of a node in the data flow."""
    return next(i for i, each in enumerate(recording.nodes) if each is node)


def freed_by(recording: Recording, key: Key) -> Node:
    """Return the only node that frees an allocation."""
    (node,) = [node for node in recording.nodes if key in node.frees]
    return node


@pytest.mark.parametrize("scene", [*scenes.FLOW, *scenes.CATEGORIES], ids=lambda scene: scene.__name__)
def test_data_flow_versions_have_one_maker_and_no_use_after_their_end(
    device: torch.device, scene: Callable[[torch.device], Scene]
) -> None:
    """Each version is created once, after the previous one; reads are of the newest version.

    Memory is freed at most once and not used afterwards.
    """
    recording = record(scene(device).work, device)

    newest: dict[Key, int] = {}
    dead: set[Key] = set()
    assert recording.nodes
    for node in recording.nodes:
        for key, version in node.reads:
            assert key not in dead, f"{node} reads freed memory"
            assert version == newest.setdefault(key, 0), f"{node} reads a version other than {newest[key]}"
        for key, version in node.makes:
            assert key not in dead, f"{node} creates a version of freed memory"
            assert version == newest.get(key, -1) + 1, f"{node} creates an unexpected version"
            newest[key] = version
        assert node.writes <= {state.key for state in node.reads}
        assert node.frees <= {state.key for state in node.reads}
        assert set(node.temporary).isdisjoint(newest), f"{node} has a temporary that other nodes use"
        dead |= node.frees


@pytest.mark.covers(f"{CLASS}::test_data_flow_graph_with_annotations")
def test_data_flow_record_function_scopes_are_no_nodes(device: torch.device) -> None:
    """`record_function` scopes are no nodes, whatever their names; the operators in them are separate nodes."""
    scene = scenes.annotated(device)
    recording = record(scene.work, device)

    x, y, p, q = (recording.key(t) for t in (scene.given | recording.result).values())
    assert {node.name for node in recording.nodes}.isdisjoint({"space::words", "plain words"})
    flow = [(node.name, node.reads, node.makes) for node in recording.nodes if node.name != MEMORY]
    assert flow == [
        ("aten::neg_", (State(x, 0),), (State(x, 1),)),
        ("aten::zero_", (State(y, 0),), (State(y, 1),)),
        ("aten::ones_like", (State(x, 1),), (State(p, 0),)),
        ("aten::zeros_like", (State(y, 1),), (State(q, 0),)),
    ]


@pytest.mark.covers(f"{CLASS}::test_data_flow_graph_non_op_allocations")
def test_data_flow_allocation_outside_operators_is_a_node(device: torch.device) -> None:
    """The tensor for a Python number is in host memory, and no operator creates it.

    An allocation node before its operator and a free node after it represent it.
    """
    scene = scenes.scalar(device)
    recording = record(scene.work, device)

    divide = recording.one("aten::div")
    (number,) = {state.key for state in divide.reads} - {recording.key(scene.given["x"])}
    taken, used, freed = touching(recording, number)
    assert number.device == "cpu"
    assert (taken.name, taken.reads, taken.makes) == (MEMORY, (), (State(number, 0),))
    assert used is divide
    assert (freed.name, freed.reads, freed.makes, freed.frees) == (MEMORY, (State(number, 0),), (), {number})
    assert divide.writes == set()


@SIMPLE
@GRAPH
def test_data_flow_operator_creates_its_results(device: torch.device, graph: bool) -> None:
    """An out-of-place operator reads current versions, writes none and creates version 0 of its result.

    A view reads the result and creates nothing. Autograd does not change the flow.
    """
    scene = (scenes.product if graph else scenes.product_without_graph)(device)
    recording = record(scene.work, device)

    x, w, z = (recording.key(tensor) for tensor in (scene.given | recording.result).values())
    multiply, view = recording.one("aten::mul"), recording.one("aten::unsqueeze")
    assert set(multiply.reads) == {(x, 0), (w, 0)}
    assert (multiply.writes, multiply.makes) == (frozenset(), (State(z, 0),))
    assert (view.reads, view.writes, view.makes) == ((State(z, 0),), frozenset(), ())
    assert touching(recording, z) == [multiply, view]


@IN_PLACE
@GRAPH
def test_data_flow_operator_in_place_makes_the_next_version(device: torch.device, graph: bool) -> None:
    """An in-place operator reads a version, writes to its memory and creates the next version.

    Its other operand keeps its version. With autograd on, it also creates a copy of the old value for the backward.
    """
    scene = (scenes.product_in_place if graph else scenes.product_in_place_without_graph)(device)
    recording = record(scene.work, device)

    x, w = (recording.key(tensor) for tensor in scene.given.values())
    node = recording.one("aten::mul_")
    assert set(node.reads) == {(x, 0), (w, 0)}
    assert node.writes == {x}
    assert State(x, 1) in node.makes
    saved = [state for state in node.makes if state.key != x]
    assert [state.version for state in saved] == ([0] if graph else [])
    assert w not in {state.key for state in node.makes}


@IN_PLACE
def test_data_flow_each_write_makes_one_version(device: torch.device) -> None:
    """Versions count writes: after n writes a reader reads version n, and each version was created by its write."""
    x, y = scenes.values(device), scenes.values(device)

    def work() -> list[torch.Tensor]:
        return [each for _ in range(3) for each in (x.mul_(y), x.cos())]

    recording = record(work, device)

    key = recording.key(x)
    assert [state.version for node in recording.named("aten::cos") for state in node.reads] == [1, 2, 3]
    assert [recording.maker(x, version) for version in (1, 2, 3)] == recording.named("aten::mul_")
    assert recording.maker(x) is None
    assert all(node.writes == {key} for node in recording.named("aten::mul_"))


@COMPLICATED
def test_data_flow_out_is_written_and_not_created(device: torch.device) -> None:
    """The allocation of a tensor passed as `out=` creates it, and the operator creates its next version.

    The operator reads its operands in the versions that in-place operators created.
    """
    scene = scenes.chain(device)
    recording = record(scene.work, device)

    a, b, c = (recording.key(tensor) for tensor in recording.result.values())
    assert recording.one("aten::ones").makes == (State(a, 0),)
    assert recording.one("aten::mul").makes == (State(b, 0),)
    assert recording.one("aten::sub_").makes == (State(b, 1),)
    assert recording.one("aten::empty_like").makes == (State(c, 0),)
    cosine = recording.one("aten::cos")
    assert (set(cosine.reads), cosine.writes, cosine.makes) == ({(b, 1), (c, 0)}, {c}, (State(c, 1),))


@COMPLICATED
def test_data_flow_temporaries_are_only_at_their_operator(device: torch.device) -> None:
    """The temporaries of a composite operator are only at its node, and its inner operators are not in the flow."""
    x = scenes.values(device)
    recording = record(lambda: torch.nn.functional.cosine_similarity(x, x, dim=0).neg(), device)

    node = recording.one("aten::cosine_similarity")
    assert node.temporary
    assert len(set(node.temporary)) == len(node.temporary)
    (made,) = node.makes
    assert recording.one("aten::neg").reads == (made,)
    outside = {state.key for each in recording.nodes for state in (*each.reads, *each.makes)}
    assert outside.isdisjoint(node.temporary)


@COMPLICATED
def test_data_flow_number_as_operand_needs_a_temporary() -> None:
    """On the CPU, an integer operand of a floating-point operator is converted in a temporary."""
    recording = record(scenes.chain(torch.device("cpu")).work)

    for name in ("aten::mul", "aten::sub_"):
        (temporary,) = recording.one(name).temporary
        assert temporary.device == "cpu"


@COMPLICATED
def test_data_flow_write_through_a_view_is_a_write_to_its_base(device: torch.device) -> None:
    """A write through a view creates the next version of its base."""
    recording = record(scenes.views_and_deletion(device).work, device)

    base = recording.key(recording.result["base"])
    writers = [node for node in recording.nodes if base in node.writes]
    assert [(node.name, [s.version for s in node.makes if s.key == base]) for node in writers] == [
        ("aten::copy_", [1]),
        ("aten::exp_", [2]),
    ]
    assert State(base, 1) in recording.one("aten::cat").reads


@COMPLICATED
def test_data_flow_list_of_tensors_is_read_tensor_by_tensor(device: torch.device) -> None:
    """An operator on a list reads each tensor in it, and creates a new version of each tensor that it writes."""
    x, y, z = (scenes.values(device) for _ in range(3))
    recording = record(lambda: (torch.cat([x, y, z]), torch._foreach_add_([x, y], [z, z])), device)

    states = [State(recording.key(tensor), 0) for tensor in (x, y, z)]
    assert set(recording.one("aten::cat").reads) == set(states)
    added = recording.one("aten::_foreach_add_")
    assert set(added.reads) == set(states)
    assert added.writes == {state.key for state in states[:2]}
    assert set(added.makes) == {State(state.key, 1) for state in states[:2]}


@COMPLICATED
def test_data_flow_memory_is_freed_with_the_last_reference(device: torch.device) -> None:
    """A dropped tensor is freed immediately, by a node that reads its last version.

    Tensors that the program keeps are not freed.
    """
    scene = scenes.views_and_deletion(device)
    recording = record(scene.work, device)

    (dropped,) = recording.one("aten::abs_").makes
    freed = freed_by(recording, dropped.key)
    assert dropped.version == 1
    assert (freed.name, freed.reads, freed.makes) == (MEMORY, (dropped,), ())
    order = [position(recording, node) for node in (recording.one("aten::sum"), freed, recording.one("aten::exp_"))]
    assert all(before < after for before, after in pairwise(order))
    kept = {recording.key(tensor) for tensor in (scene.given | recording.result).values()}
    assert kept.isdisjoint({key for node in recording.nodes for key in node.frees})


def test_data_flow_reused_address_is_another_tensor(device: torch.device) -> None:
    """Tensors are distinguished by time, not by address.

    Each new tensor has its own reader, even if the allocator reuses an address, which must occur here.
    """

    def work() -> None:
        for _ in range(64):
            torch.ones(500, device=device).neg()

    recording = record(work, device)

    made = [node.makes[0].key for node in recording.named("aten::ones")]
    assert len({key.address for key in made}) < len(made) == 64
    assert len(set(made)) == 64
    assert [node.reads[0].key for node in recording.named("aten::neg")] == made


def test_data_flow_tensor_that_moves_has_two_allocations(device: torch.device) -> None:
    """A tensor that outgrows its memory is the same tensor in another allocation.

    The resize frees the first allocation.
    """

    def work() -> torch.Tensor:
        grown = torch.ones(4, device=device)
        return grown.resize_(4000).neg_()

    recording = record(work, device)

    (before,) = recording.one("aten::ones").makes
    after = recording.key(recording.result)
    resize = recording.one("aten::resize_")
    assert (resize.reads, resize.frees, resize.makes) == ((before,), {before.key}, (State(after, 0),))
    assert before.key.tensor == after.tensor
    assert before.key.allocation != after.allocation
    assert recording.one("aten::neg_").makes == (State(after, 1),)


@BACKWARD
def test_data_flow_backward_creates_a_gradient(device: torch.device) -> None:
    """The backward node of the last function before a leaf creates its gradient; accumulation writes nothing.

    Saved tensors are kept until their backward, and all are freed after the pass.
    """
    scene = scenes.pass_back(device)
    recording = record(scene.work, device)

    x, gradient = recording.key(scene.given["x"]), recording.key(recording.result["w_grad"])
    exponential = recording.one("aten::exp").makes[0]
    incoming = recording.one("ExpBackward0").makes[0]
    assert exponential in recording.one("ExpBackward0").reads
    multiply = recording.one("MulBackward0")
    assert set(multiply.reads) >= {(x, 0), incoming}
    assert multiply.makes == (State(gradient, 0),)
    accumulate = recording.one("torch::autograd::AccumulateGrad")
    assert (accumulate.reads, accumulate.writes, accumulate.makes) == ((State(gradient, 0),), frozenset(), ())
    product = recording.one("aten::mul").makes[0]
    for state in (product, exponential, incoming):
        last = touching(recording, state.key)[-1]
        assert last is freed_by(recording, state.key)
        assert last.name == MEMORY
    assert position(recording, freed_by(recording, product.key)) < position(recording, recording.one("ExpBackward0"))


@BACKWARD
def test_data_flow_backward_accumulates_into_a_gradient(device: torch.device) -> None:
    """With an existing gradient, accumulation reads and frees the new one and creates the old one's next version."""
    scene = scenes.pass_back_again(device)
    recording = record(scene.work, device)

    gradient = recording.key(recording.result["w_grad"])
    (added,) = recording.one("MulBackward0").makes
    accumulate = recording.one("torch::autograd::AccumulateGrad")
    assert set(accumulate.reads) == {added, (gradient, 0)}
    assert (accumulate.writes, accumulate.frees, accumulate.makes) == (
        {gradient},
        {added.key},
        (State(gradient, 1),),
    )


class Passed(torch.autograd.Function):
    """Passes gradients on unchanged, so its backward calls no operator."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@BACKWARD
def test_data_flow_opaque_node_is_assumed_to_write(device: torch.device) -> None:
    """A function that calls no operator is assumed to write its input, so the input has another version afterwards."""
    w = scenes.values(device, 1, grad=True)
    recording = record(lambda: Passed.apply(w).backward(), device)

    (gradient,) = recording.one("aten::ones_like").makes
    node = recording.one("PassedBackward")
    assert (node.reads, node.writes) == ((gradient,), {gradient.key})
    assert node.makes == (State(gradient.key, 1),)


@STACKED
def test_data_flow_steps_by_hand_are_a_chain_of_versions(device: torch.device) -> None:
    """Each step's update reads its gradient and creates the weight's next version, which the next forward reads.

    The first backward creates the gradient, and the second its next version.
    """
    scene = scenes.stacked(device)
    recording = record(scene.work, device)

    left = recording.result
    for name in ("w0", "w1"):
        weight, gradient = recording.key(left[name]), recording.key(left[f"{name}_grad"])
        assert set(recording.versions(left[name])) == {0, 1, 2}
        updates = [node for node in recording.named("aten::sub_") if weight in node.writes]
        assert [set(node.reads) for node in updates] == [{(weight, step), (gradient, step)} for step in (0, 1)]
        readers = [node for node in recording.named("aten::mul") if weight in {s.key for s in node.reads}]
        assert [State(weight, step) in node.reads for step, node in enumerate(readers)] == [True, True]
        first, second = recording.maker(left[f"{name}_grad"]), recording.maker(left[f"{name}_grad"], 1)
        assert first is not None
        assert second is not None
        assert (first.name, second.name) == ("MulBackward0", "torch::autograd::AccumulateGrad")
        steps = [position(recording, node) for node in (readers[0], first, updates[0], readers[1], second, updates[1])]
        assert all(before < after for before, after in pairwise(steps))


@STACKED
def test_data_flow_activations_are_freed_after_their_backward(device: torch.device) -> None:
    """The result that a layer's backward needs is freed after it, before the previous layer's backward."""
    recording = record(scenes.stacked(device).work, device)

    outputs = [node.makes[0].key for node in recording.named("aten::tanh")][:2]
    freed = [position(recording, freed_by(recording, key)) for key in outputs]
    first_layer = recording.maker(recording.result["w0_grad"])
    second_layer = recording.maker(recording.result["w1_grad"])
    assert first_layer is not None
    assert second_layer is not None
    assert position(recording, second_layer) < freed[0] < position(recording, first_layer)
    assert freed[1] > position(recording, second_layer)
