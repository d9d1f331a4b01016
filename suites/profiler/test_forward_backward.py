"""The tree of a small forward and backward pass on the CPU, without stacks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .node import Kind, Node, names
from .trees import record

pytestmark = pytest.mark.covers("test_profiler_tree::TestProfilerTree::test_profiler_experimental_tree")

ENGINE = "autograd::engine::evaluate_function: "
LEAF = "torch::autograd::AccumulateGrad"


def forward_and_backward(*requires_grad: bool) -> Callable[[], None]:
    """Return a pass over (a * b).exp().sum() with two leaves created before the profile."""
    a, b = (torch.full((3,), 0.5, requires_grad=wanted) for wanted in requires_grad)

    def work() -> None:
        loss = torch.mul(a, b).exp().sum()
        if loss.requires_grad:
            loss.backward()

    return work


def backward_nodes(tree: Node) -> list[str]:
    """Return the autograd nodes that the engine evaluated, in order."""
    return [name.removeprefix(ENGINE) for name in names(tree.children) if name.startswith(ENGINE)]


def test_operators_called_from_python_are_roots_in_program_order() -> None:
    """Each operator called from Python is a root of the tree, in the order of the calls."""

    def work() -> None:
        x = torch.ones(4)
        torch.neg(torch.add(x, x))
        torch.add(x, x)

    tree = record(work)

    assert names(tree.children) == ["aten::ones", "aten::add", "aten::neg", "aten::add"]


@pytest.mark.parametrize(
    ("call", "chain"),
    [
        pytest.param(lambda x: torch.ones(x.shape), ["aten::ones", "aten::empty"], id="ones_allocates"),
        pytest.param(lambda x: torch.ones(x.shape), ["aten::ones", "aten::fill_"], id="ones_fills"),
        pytest.param(torch.ones_like, ["aten::ones_like", "aten::empty_like", "aten::empty_strided"], id="ones_like"),
        pytest.param(lambda x: x.double(), ["aten::to", "aten::_to_copy", "aten::copy_"], id="conversion"),
        pytest.param(lambda x: torch.nn.functional.linear(x, x, x[0]), ["aten::linear", "aten::addmm"], id="linear"),
    ],
)
def test_operators_are_below_the_operator_that_called_them(
    call: Callable[[torch.Tensor], torch.Tensor], chain: list[str]
) -> None:
    """An operator that calls others is their parent."""
    x = torch.rand(2, 2)

    tree = record(lambda: call(x))

    node = tree
    for name in chain:
        matches = [child for child in node.children if child.name == name]
        assert len(matches) == 1, f"no single {name} directly below {node.name} in\n{tree}"
        node = matches[0]


def test_operator_that_calls_none_is_a_leaf() -> None:
    """A conversion to the dtype that a tensor already has does nothing, so it is a leaf."""
    x = torch.rand(2)

    tree = record(lambda: x.to(torch.float32, copy=False))

    assert [(node.name, node.children) for node in tree.children] == [("aten::to", ())], str(tree)


def test_profile_has_nothing_that_ran_outside_it() -> None:
    """Only operators called between the profile's start and end are recorded."""
    x = torch.rand(3)
    torch.sin(x)

    tree = record(lambda: torch.cos(x))
    torch.tan(x)

    assert names(tree.children) == ["aten::cos"]


def test_backward_evaluates_nodes_of_forward_in_reverse() -> None:
    """The engine evaluates the node of each forward operator once, in reverse order, and then those of the leaves."""
    tree = record(forward_and_backward(True, True))

    assert backward_nodes(tree) == ["SumBackward0", "ExpBackward0", "MulBackward0", LEAF, LEAF]


def test_backward_is_after_forward_in_the_tree() -> None:
    """In the tree, all forward operators precede all backward nodes."""
    tree = record(forward_and_backward(True, True))

    order = names(tree.children)
    first_backward = next(i for i, name in enumerate(order) if name.startswith(ENGINE))
    assert [n for n in order[:first_backward] if n in ("aten::mul", "aten::exp", "aten::sum")] == [
        "aten::mul",
        "aten::exp",
        "aten::sum",
    ]
    assert all(name.startswith(ENGINE) for name in order[first_backward:]), str(tree)


@pytest.mark.parametrize("node", ["SumBackward0", "ExpBackward0", "MulBackward0"])
def test_evaluate_function_holds_the_node_and_the_node_its_operators(node: str) -> None:
    """Below the engine's evaluation of a node is only that node, and its operators are below the node."""
    operators = {"SumBackward0": "aten::expand", "ExpBackward0": "aten::mul", "MulBackward0": "aten::mul"}

    evaluation = record(forward_and_backward(True, True)).one(ENGINE + node)

    assert names(evaluation.children) == [node]
    assert operators[node] in names(evaluation.children[0].children)


@pytest.mark.parametrize(
    ("requires_grad", "leaves"),
    [((True, True), 2), ((True, False), 1), ((False, True), 1), ((False, False), 0)],
    ids=["both", "first", "second", "neither"],
)
def test_accumulategrad_occurs_once_per_leaf(requires_grad: tuple[bool, bool], leaves: int) -> None:
    """There is one AccumulateGrad per leaf that requires grad, and none for other leaves."""
    tree = record(forward_and_backward(*requires_grad))

    assert backward_nodes(tree).count(LEAF) == leaves
    assert len(tree.all(LEAF)) == leaves


def test_sequence_number_is_shared_by_forward_and_backward() -> None:
    """Each forward operator that autograd records has an increasing sequence number, shared with its backward node.

    The number identifies the forward operator of a backward node, here for two products of the same name. Operators
    that autograd does not record, and leaves, have none.
    """
    a, b = (torch.full((3,), 0.5, requires_grad=True) for _ in range(2))

    def work() -> None:
        with torch.no_grad():
            torch.neg(a)
        torch.mul(torch.mul(a, b).exp(), b).sum().backward()

    tree = record(work)

    followed = ("aten::mul", "aten::exp", "aten::sum")
    forward = [(node.name, node.sequence) for node in tree.children if node.name in followed]
    numbers = [number for _, number in forward]
    assert [name for name, _ in forward] == ["aten::mul", "aten::exp", "aten::mul", "aten::sum"]
    assert min(numbers) >= 0
    assert numbers == sorted(set(numbers))
    nodes = {"aten::mul": "MulBackward0", "aten::exp": "ExpBackward0", "aten::sum": "SumBackward0"}
    backward = [(nodes[name], number) for name, number in reversed(forward)]
    evaluations = [node for node in tree.children if node.name.startswith(ENGINE) and node.name != ENGINE + LEAF]
    assert [(node.name.removeprefix(ENGINE), node.sequence) for node in evaluations] == backward
    assert [(node.children[0].name, node.children[0].sequence) for node in evaluations] == backward
    assert tree.one("aten::neg").sequence == -1
    assert {node.sequence for name in (LEAF, ENGINE + LEAF) for node in tree.all(name)} == {-1}


def test_no_grad_leaves_no_autograd_nodes() -> None:
    """Under `no_grad`, the tree has forward operators only, even if inputs require grad.

    The work calls `backward` if the loss requires grad, so that a violation would be visible.
    """
    a = torch.ones(3, requires_grad=True)

    def work() -> None:
        with torch.no_grad():
            loss = torch.mul(a, a).exp().sum()
        if loss.requires_grad:
            loss.backward()

    tree = record(work)

    assert not [name for name in names(list(tree.walk())) if "Backward" in name or name.startswith(ENGINE)]
    assert "aten::exp" in names(tree.children)


def test_events_lie_within_their_parent_and_siblings_do_not_overlap() -> None:
    """A child's time interval lies within its parent's and ends before its next sibling starts."""
    tree = record(forward_and_backward(True, True))

    for parent in tree.of_kind(Kind.OP):
        bounds = [parent.start_ns, *(t for c in parent.children for t in (c.start_ns, c.end_ns)), parent.end_ns]
        assert bounds == sorted(bounds), f"{parent.name}: {bounds}"
    roots = [time for root in tree.children for time in (root.start_ns, root.end_ns)]
    assert len(roots) > 2
    assert roots == sorted(roots)
