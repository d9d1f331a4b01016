"""Whole data flows and a timeline as text, which make the effect of a change in torch visible.

The texts are in `listings/`, each named after a scene in `scenes.py`. They apply from the release named here on, and to
the CPU only, because operators on other devices call other operators. To update one, take the text from the failure.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from . import scenes
from .recordings import Recording, record
from .scenes import Scene, Tensors
from .values import Names, flow_listing, timeline_listing

pytestmark = pytest.mark.requires(torch=">=2.11")

FLOW = "test_memory_profiler::TestDataFlow::test"
CATEGORIES = "test_memory_profiler::TestMemoryProfilerE2E::test_categories_e2e"

ROWS = {
    scenes.annotated: f"{FLOW}_data_flow_graph_with_annotations",
    scenes.scalar: f"{FLOW}_data_flow_graph_non_op_allocations",
    scenes.product: f"{FLOW}_data_flow_graph_simple",
    scenes.product_without_graph: f"{FLOW}_data_flow_graph_simple",
    scenes.product_in_place: f"{FLOW}_data_flow_graph_simple_inplace",
    scenes.product_in_place_without_graph: f"{FLOW}_data_flow_graph_simple_inplace",
    scenes.pass_back: f"{FLOW}_data_flow_graph_simple_backward",
    scenes.pass_back_again: f"{FLOW}_data_flow_graph_simple_backward",
    scenes.chain: f"{FLOW}_data_flow_graph_complicated",
    scenes.views_and_deletion: f"{FLOW}_data_flow_graph_complicated",
    scenes.stacked: f"{FLOW}_data_flow_graph_stacked",
    scenes.leaves_forward: f"{CATEGORIES}_simple_fwd",
    scenes.leaves_backward: f"{CATEGORIES}_simple_fwd_bwd",
    scenes.leaves_step: f"{CATEGORIES}_simple_fwd_bwd_step",
    scenes.module_forward: f"{CATEGORIES}_simple_module_fwd",
    scenes.module_backward: f"{CATEGORIES}_simple_module_fwd_bwd",
    scenes.module_step: f"{CATEGORIES}_simple_module_fwd_bwd_step",
    scenes.layers_forward: f"{CATEGORIES}_sequential_fwd",
    scenes.layers_backward: f"{CATEGORIES}_sequential_fwd_bwd",
}


def written(name: str) -> str:
    """Return the text of a listing in `listings/`, without comments."""
    lines = (Path(__file__).parent / "listings" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


def listing(recording: Recording, tensors: Tensors, with_categories: bool) -> str:
    """Return the data flow of a recording, with names for those of the tensors that the profiler recorded."""
    seen = {state.key.address for state in recording.categories}
    used = {name: tensor for name, tensor in tensors.items() if tensor.untyped_storage().data_ptr() in seen}
    names = Names({recording.key(tensor): name for name, tensor in used.items()})
    return flow_listing(recording.nodes, names, recording.categories if with_categories else None)


@pytest.mark.parametrize(
    "scene", [pytest.param(scene, id=scene.__name__, marks=pytest.mark.covers(row)) for scene, row in ROWS.items()]
)
def test_data_flow_equals_its_listing(scene: Callable[[torch.device], Scene]) -> None:
    """The whole data flow of a small program, with categories where relevant, equals its listing."""
    program = scene(torch.device("cpu"))

    recording = record(program.work)

    found = listing(recording, program.given | recording.result, with_categories=scene in scenes.CATEGORIES)
    assert found == written(scene.__name__), f"the flow of {scene.__name__} is\n{found}"


@pytest.mark.covers("test_memory_profiler::TestMemoryProfilerE2E::test_memory_timeline")
def test_timeline_equals_its_listing() -> None:
    """The timeline of a training step equals its listing: action, tensor, category and size of every entry."""
    program = scenes.training(torch.device("cpu"))

    recording = record(program.work)

    names = Names({recording.key(tensor): name for name, tensor in recording.result.items()})
    found = timeline_listing(recording.timeline, names, recording.categories)
    assert found == written("training"), f"the timeline of a training step is\n{found}"
