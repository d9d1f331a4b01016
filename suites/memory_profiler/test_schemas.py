"""The schema match of each recorded operator, which determines the arguments that it may write to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.profiler import record_function

from suites.host_kernels import MSE_LOSS_WARNS

from . import _torch_private as private
from .recordings import record
from .values import Match

pytestmark = MSE_LOSS_WARNS

CLASS = "test_memory_profiler::TestDataFlow"
SCHEMAS = pytest.mark.covers(f"{CLASS}::test_match_schemas")
LISTS = pytest.mark.covers(f"{CLASS}::test_match_schemas_tensorlist")
BACKWARD = pytest.mark.covers(f"{CLASS}::test_match_schemas_backward")

Call = Callable[[torch.Tensor, torch.Tensor], object]

CALLS: list[tuple[str, Call, str, str, set[str]]] = [
    ("plain", lambda x, _: torch.neg(x), "aten::neg", "", set()),
    ("view", lambda x, _: x.view(9), "aten::view", "", set()),
    ("two_tensors", lambda x, y: torch.mul(x, y), "aten::mul", "Tensor", set()),
    ("scalar", lambda x, _: torch.gt(x, 0), "aten::gt", "Scalar", set()),
    ("optional_left_out", lambda x, _: x.clamp(min=0.0), "aten::clamp", "", set()),
    ("in_place", lambda x, y: x.sub_(y), "aten::sub_", "Tensor", {"self"}),
    ("in_place_scalar", lambda x, _: x.fill_(3), "aten::fill_", "Scalar", {"self"}),
    ("copy", lambda x, y: x.copy_(y), "aten::copy_", "", {"self"}),
    ("out", lambda x, y: torch.sub(x, x, out=y), "aten::sub", "out", {"out"}),
    (
        "two_out",
        lambda x, _: torch.max(x, 0, out=(x.new_empty(3), x.new_empty(3, dtype=torch.long))),
        "aten::max",
        "dim_max",
        {"max", "max_values"},
    ),
]

LIST_CALLS: list[tuple[str, Call, str, str, set[str]]] = [
    ("read", lambda x, y: torch.cat([x, y]), "aten::cat", "", set()),
    ("read_into_out", lambda x, y: torch.cat([x, y], out=x.new_empty(6, 3)), "aten::cat", "out", {"out"}),
    ("foreach", lambda x, y: torch._foreach_mul([x, y], [y, x]), "aten::_foreach_mul", "List", set()),
    ("foreach_in_place", lambda x, y: torch._foreach_add_([x], [y]), "aten::_foreach_add_", "List", {"self"}),
]


def matches(work: Callable[[], object], device: torch.device, name: str) -> list[Match]:
    """Return the matches of the operators with this name in a run."""
    found = [match for match in record(work, device).matches if match.name == name]
    assert found, f"no {name} was recorded"
    return found


@pytest.mark.parametrize(
    ("call", "name", "overload", "written"),
    [pytest.param(*row, id=label, marks=SCHEMAS) for label, *row in CALLS]
    + [pytest.param(*row, id=f"list_{label}", marks=LISTS) for label, *row in LIST_CALLS],
)
def test_schemamatcher_writes_where_the_schema_says(
    device: torch.device, call: Call, name: str, overload: str, written: set[str]
) -> None:
    """Name and arguments determine the overload that was called, and the arguments that it writes to.

    These are `self` for in-place operators, the `out=` tensors, and a list of tensors as a whole.
    """
    x, y = torch.ones((3, 3), device=device), torch.full((3, 3), 2.0, device=device)

    first = matches(lambda: call(x, y), device, name)[0]

    assert first.overloads == (overload,)
    assert first.writes == written


@SCHEMAS
def test_schemamatcher_matches_operators_within_an_operator(device: torch.device) -> None:
    """Inner operators are matched too: `ones` writes to nothing, and its inner fill does."""
    recording = record(lambda: torch.ones(3, device=device), device)

    found = {match.name: match for match in recording.matches}
    assert found["aten::ones"].writes == set()
    assert found["aten::empty"].overloads == ("memory_format",)
    assert found["aten::fill_"].writes == {"self"}


@BACKWARD
def test_schemamatcher_has_no_schema_for_an_autograd_node(device: torch.device) -> None:
    """Autograd nodes have no schema, and it is unknown whether they write to their inputs.

    The operators that a node calls are matched as usual.
    """
    x = torch.ones(3, device=device)
    w = torch.ones(3, device=device, requires_grad=True)

    found = record(lambda: torch.dot(x, w).backward(), device).matches

    nodes = [match for match in found if match.name in ("DotBackward0", "torch::autograd::AccumulateGrad")]
    assert [(match.overloads, match.writes, match.inputs) for match in nodes] == [((), None, 1)] * 2
    engine = [match for match in found if match.name.startswith("autograd::engine")]
    assert {(match.overloads, match.writes, match.inputs) for match in engine} == {((), None, 0)}
    inside = found[found.index(nodes[0]) + 1 :]
    (multiplied,) = [match for match in inside if match.name == "aten::mul"]
    assert (multiplied.overloads, multiplied.writes) == (("Tensor",), frozenset())
    assert [match.writes for match in inside if match.name == "aten::detach"] == [set()]


def test_schemamatcher_second_backward_writes_to_the_gradient(device: torch.device) -> None:
    """Accumulation into an existing gradient is in place, by an operator whose schema says so."""
    x = torch.ones(3, device=device)
    w = torch.ones(3, device=device, requires_grad=True)
    torch.dot(x, w).backward()

    (match,) = matches(lambda: torch.dot(x, w).backward(), device, "aten::add_")

    assert match.writes == {"self"}


@pytest.mark.covers(f"{CLASS}::test_data_flow_graph_with_annotations")
def test_schemamatcher_has_no_schema_for_an_unknown_name() -> None:
    """A name without a namespace cannot be an operator; one with an unknown namespace has no schemas."""

    def work() -> None:
        with record_function("plain words"), record_function("space::words"):
            torch.ones(1)

    found = {match.name: match for match in record(work).matches}

    assert found["plain words"].writes is None
    assert found["space::words"].writes is None
    assert private.schema_count("plain words") is None
    assert private.schema_count("space::words") == 0
    assert (private.schema_count("aten::mul") or 0) > 1
