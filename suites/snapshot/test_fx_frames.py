"""Frames in code that torch.fx made: they lead back to the nodes of the graph, and to the program it came from."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from . import _torch_private as private
from . import builder
from .builder import Snapshot, stack

GATHERED: list[Any] = []
TRACE = 'File "model.py", line 7, in forward\n    y = probe(x.relu())'


def probe(x: torch.Tensor) -> torch.Tensor:
    """An operation that allocates, as far as a stack can tell."""
    GATHERED.append(private.gathered())
    return x


def made_by_fx() -> torch.fx.GraphModule:
    """relu, probe, neg, probe: each probe is a node with a stack of its own, the first one known from a program."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(probe, (graph.call_method("relu", (x,)),))
    first.meta["stack_trace"] = TRACE
    second = graph.call_function(probe, (graph.call_method("neg", (first,)),))
    graph.output(second)
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def stacks_of(module: torch.fx.GraphModule) -> list[list[dict[str, Any]]]:
    GATHERED.clear()
    module(torch.ones(3))
    found = private.symbolised(GATHERED)
    GATHERED.clear()
    return found


@pytest.fixture
def remembered() -> Iterator[None]:
    with private.fx_metadata_kept():
        yield


def with_stacks(stacks: list[list[dict[str, Any]]]) -> Snapshot:
    """A snapshot whose blocks, and trace, have these stacks."""
    paper = builder.Paper()
    paper.reserve(0x1000_0000, builder.MIB)
    for each in stacks:
        paper.take(0x1000_0000, 512, *each)
    snapshot = paper.snapshot()
    return snapshot | {"device_traces": copy.deepcopy(snapshot["device_traces"])}  # they may share frames: not here


def marked(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in frames if "fx_node_name" in each]


@pytest.mark.usefixtures("remembered")
@pytest.mark.covers("test_cuda::TestFXMemoryProfiler::test_fx_memory_profiler_augmentation")
def test_augment_memory_snapshot_names_the_node_of_a_frame() -> None:
    """Contract: in blocks and in the trace, the frame in the generated code, and no other, has its node's name, kind
    and target; where the graph knows the program it came from, that too."""
    snapshot = with_stacks(stacks_of(made_by_fx()))

    found = private.with_fx_nodes(copy.deepcopy(snapshot))

    blocks = [block["frames"] for block in found["segments"][0]["blocks"][:2]]
    trace = [entry["frames"] for entry in found["device_traces"][0] if entry["action"] == "alloc"]
    assert blocks == trace
    for frames, node in zip(blocks, ("probe", "probe_1"), strict=True):
        (frame,) = marked(frames)
        assert (frame["fx_node_name"], frame["fx_node_op"]) == (node, "call_function")
        assert "probe" in frame["fx_node_target"]
        assert frame["name"] == "forward"
        assert frame.get("fx_original_trace") == (TRACE if node == "probe" else None)


@pytest.mark.usefixtures("remembered")
def test_augment_memory_snapshot_keeps_what_a_snapshot_had() -> None:
    """Contract: marks are added and nothing is changed: without them the snapshot is the one that was given."""
    snapshot = with_stacks([*stacks_of(made_by_fx()), stack("elsewhere")])
    found = private.with_fx_nodes(copy.deepcopy(snapshot))

    for frames in [block["frames"] for block in found["segments"][0]["blocks"]] + [
        entry["frames"] for entry in found["device_traces"][0]
    ]:
        for frame in frames:
            for mark in ("fx_node_op", "fx_node_name", "fx_node_target", "fx_original_trace"):
                frame.pop(mark, None)
    assert found == snapshot


@pytest.mark.usefixtures("remembered")
def test_augment_memory_snapshot_tells_modules_apart() -> None:
    """Contract: the code of two graphs that differ is two files, and frames of each lead to its own nodes."""
    other = torch.fx.Graph()
    other.output(other.call_function(probe, (other.call_method("exp", (other.placeholder("y"),)),), name="renamed"))
    ours, others = stacks_of(made_by_fx()), stacks_of(torch.fx.GraphModule(torch.nn.Module(), other))

    found = private.with_fx_nodes(with_stacks([ours[0], others[0]]))

    frames = [marked(block["frames"])[0] for block in found["segments"][0]["blocks"][:2]]
    assert [frame["fx_node_name"] for frame in frames] == ["probe", "renamed"]
    assert len({frame["filename"] for frame in frames}) == 2


def test_augment_memory_snapshot_leaves_unknown_code_unmarked() -> None:
    """Contract: with the setting off, frames in generated code have no node, and nothing fails: the control. Nor have
    frames in a file of which nothing is remembered, as in a snapshot of another process."""
    unknown = builder.frame("forward", 7, "fx_generated_by_somebody_else.py")
    snapshot = with_stacks([*stacks_of(made_by_fx()), [unknown]])

    assert private.with_fx_nodes(copy.deepcopy(snapshot)) == snapshot


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("line", [0, 1, 10_000, -3])
def test_augment_memory_snapshot_leaves_a_line_without_a_node_unmarked(line: int) -> None:
    """Contract: a frame whose line belongs to no node, or to no code at all, is left as it is."""
    (frames, _) = stacks_of(made_by_fx())
    snapshot = with_stacks([[each | {"line": line} for each in frames]])

    assert private.with_fx_nodes(copy.deepcopy(snapshot)) == snapshot


@pytest.mark.parametrize("snapshot", [{}, {"segments": []}, {"segments": [{}], "device_traces": [[{}]]}], ids=repr)
def test_augment_memory_snapshot_leaves_a_snapshot_without_stacks(snapshot: Snapshot) -> None:
    """Contract: parts may be missing, as in a snapshot without traces."""
    assert private.with_fx_nodes(copy.deepcopy(snapshot)) == snapshot
