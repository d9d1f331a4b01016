"""The data flow: which operator read, wrote, made and freed which version of which tensor."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from . import scenes
from .recordings import Recording, record
from .scenes import Scene
from .values import MEMORY, Key, Node, State

CLASS = "test_memory_profiler::TestDataFlow"
SIMPLE = pytest.mark.covers(f"{CLASS}::test_data_flow_graph_simple")
IN_PLACE = pytest.mark.covers(f"{CLASS}::test_data_flow_graph_simple_inplace")
COMPLICATED = pytest.mark.covers(f"{CLASS}::test_data_flow_graph_complicated")
BACKWARD = pytest.mark.covers(f"{CLASS}::test_data_flow_graph_simple_backward")
STACKED = pytest.mark.covers(f"{CLASS}::test_data_flow_graph_stacked")

GRAPH = pytest.mark.parametrize("graph", [True, False], ids=["autograd", "no_grad"])


def touching(recording: Recording, key: Key) -> list[Node]:
    """The nodes that read, make or free a piece of memory."""
    return [node for node in recording.nodes if key in {state.key for state in (*node.reads, *node.makes)}]


def position(recording: Recording, node: Node) -> int:
    """Where a node stands in the data flow."""
    return next(i for i, each in enumerate(recording.nodes) if each is node)


def freed_by(recording: Recording, key: Key) -> Node:
    """The only node that frees a piece of memory."""
    (node,) = [node for node in recording.nodes if key in node.frees]
    return node


@pytest.mark.parametrize("scene", [*scenes.FLOW, *scenes.CATEGORIES], ids=lambda scene: scene.__name__)
def test_data_flow_versions_have_one_maker_and_no_use_after_their_end(
    device: torch.device, scene: Callable[[torch.device], Scene]
) -> None:
    """Contract: in time, a version is made once, after the one before it; what is read is the newest version; memory
    is freed at most once, and then never touched again."""
    recording = record(scene(device).work, device)

    newest: dict[Key, int] = {}
    dead: set[Key] = set()
    assert recording.nodes
    for node in recording.nodes:
        for key, version in node.reads:
            assert key not in dead, f"{node} reads what has been freed"
            assert version == newest.setdefault(key, 0), f"{node} reads another version than {newest[key]}"
        for key, version in node.makes:
            assert key not in dead, f"{node} makes what has been freed"
            assert version == newest.get(key, -1) + 1, f"{node} makes another version than the one due"
            newest[key] = version
        assert node.writes <= {state.key for state in node.reads}
        assert node.frees <= {state.key for state in node.reads}
        assert set(node.temporary).isdisjoint(newest), f"{node} has a temporary that others know"
        dead |= node.frees


@pytest.mark.covers(f"{CLASS}::test_data_flow_graph_with_annotations")
def test_data_flow_record_function_scopes_are_no_nodes(device: torch.device) -> None:
    """Contract: a `record_function` scope, nested or not, with a name like an operator's or not, leaves no node. The
    operators in it are nodes of their own, each with its reads and writes."""
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
def test_data_flow_memory_that_no_operator_takes_is_a_node(device: torch.device) -> None:
    """Contract: the tensor that torch makes of a Python number lies on the host, is made by no operator, is read by
    the one it is for, and freed outside it: two nodes of memory stand around the operator."""
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
def test_data_flow_operator_makes_what_it_returns(device: torch.device, graph: bool) -> None:
    """Contract: an operator out of place reads the versions there are, writes none and makes version 0 of its result;
    a view reads it and makes nothing. With and without autograd the flow is the same."""
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
    """Contract: in place, an operator reads a version, writes to its memory and so makes the next one; its other
    operand keeps its version. With autograd on it makes one more tensor: the old value, which backward will need."""
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
    """Contract: versions count writes: after n of them a reader reads version n, and each was made by its write."""
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
def test_data_flow_out_is_written_and_not_made(device: torch.device) -> None:
    """Contract: a tensor given as `out=` was made before, by whoever allocated it; the operator makes its next
    version. It reads its operands in the versions that in-place operators left."""
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
def test_data_flow_temporaries_of_an_operator_are_its_own(device: torch.device) -> None:
    """Contract: a composite operator's temporaries are named at its node and nowhere else; neither they nor the
    operators it calls are part of the flow."""
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
def test_data_flow_number_as_operand_costs_the_operator_a_temporary() -> None:
    """Contract: on the CPU a whole number is converted for an operator on floats, in memory of the operator's own."""
    recording = record(scenes.chain(torch.device("cpu")).work)

    for name in ("aten::mul", "aten::sub_"):
        (temporary,) = recording.one(name).temporary
        assert temporary.device == "cpu"


@COMPLICATED
def test_data_flow_write_through_a_view_is_a_write_to_its_base(device: torch.device) -> None:
    """Contract: views share their base's memory and so its versions: a write through one makes the base's next."""
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
    """Contract: an operator on a list reads each tensor in it, and on a list it writes to makes a version of each."""
    x, y, z = (scenes.values(device) for _ in range(3))
    recording = record(lambda: (torch.cat([x, y, z]), torch._foreach_add_([x, y], [z, z])), device)

    states = [State(recording.key(tensor), 0) for tensor in (x, y, z)]
    assert set(recording.one("aten::cat").reads) == set(states)
    added = recording.one("aten::_foreach_add_")
    assert set(added.reads) == set(states)
    assert added.writes == {state.key for state in states[:2]}
    assert set(added.makes) == {State(state.key, 1) for state in states[:2]}


@COMPLICATED
def test_data_flow_memory_is_freed_where_the_last_reference_goes(device: torch.device) -> None:
    """Contract: a tensor that is dropped is freed at once, by a node that reads its last version, between the
    operators before and after; what the program keeps is not freed."""
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


def test_data_flow_address_used_again_is_another_tensor(device: torch.device) -> None:
    """Contract: tensors are told apart by time, not by address: each that is made is one of its own, read by its own
    reader, even where the allocator gave out the same address again (as it must have here)."""

    def work() -> None:
        for _ in range(64):
            torch.ones(500, device=device).neg()

    recording = record(work, device)

    made = [node.makes[0].key for node in recording.named("aten::ones")]
    assert len({key.address for key in made}) < len(made) == 64
    assert len(set(made)) == 64
    assert [node.reads[0].key for node in recording.named("aten::neg")] == made


def test_data_flow_tensor_that_moves_has_two_pieces_of_memory(device: torch.device) -> None:
    """Contract: a tensor that outgrows its memory is the same tensor in another piece, made by the operator that
    resized it, which freed the first."""

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
def test_data_flow_backward_makes_a_gradient_and_puts_it_in_place(device: torch.device) -> None:
    """Contract: the node of the last function before a leaf makes its first gradient; accumulating it copies and
    writes nothing. What backward needs is kept until then, and all of it is freed once backward is over."""
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
def test_data_flow_backward_adds_to_a_gradient_that_is_there(device: torch.device) -> None:
    """Contract: with a gradient from before, accumulating reads the new one, which it frees, and makes the next
    version of the old one, whose memory stays."""
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
    """Hands gradients on as they are, so that its backward calls no operator."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@BACKWARD
def test_data_flow_node_that_cannot_be_looked_into_is_taken_to_write(device: torch.device) -> None:
    """Contract: of a function that calls no operator it is unknown what it does to its input: a write is assumed, as
    the safe side, so its input has another version after it."""
    w = scenes.values(device, 1, grad=True)
    recording = record(lambda: Passed.apply(w).backward(), device)

    (gradient,) = recording.one("aten::ones_like").makes
    node = recording.one("PassedBackward")
    assert (node.reads, node.writes) == ((gradient,), {gradient.key})
    assert node.makes == (State(gradient.key, 1),)


@STACKED
def test_data_flow_steps_by_hand_are_a_chain_of_versions(device: torch.device) -> None:
    """Contract: each step's update reads the step's gradient and makes the weight's next version, which the next
    forward reads; the first backward makes the gradient, the second its next version."""
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
def test_data_flow_activations_of_a_layer_die_with_its_backward(device: torch.device) -> None:
    """Contract: the result that a layer's backward needs is freed when that is done: before the backward of the layer
    below makes its gradient, not at the end of the pass."""
    recording = record(scenes.stacked(device).work, device)

    outputs = [node.makes[0].key for node in recording.named("aten::tanh")][:2]
    freed = [position(recording, freed_by(recording, key)) for key in outputs]
    first_layer = recording.maker(recording.result["w0_grad"])
    second_layer = recording.maker(recording.result["w1_grad"])
    assert first_layer is not None
    assert second_layer is not None
    assert position(recording, second_layer) < freed[0] < position(recording, first_layer)
    assert freed[1] > position(recording, second_layer)
