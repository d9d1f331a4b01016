"""Execution traces: the graph of a profile's operators as a file, in Chakra's format.

`torch/csrc/profiler/standalone/execution_trace_observer.cpp` writes the file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ExecutionTraceObserver, record_function

from . import chrome
from .trees import HOST, HOST_AND_CUDA, profiler, quiet_collector
from .workloads import training_step

pytestmark = pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.requires(device="cuda"))])


@dataclass(frozen=True, slots=True)
class Operator:
    """A node of an execution trace. A tensor's value is [tensor, storage, offset, elements, bytes, device]."""

    number: int
    name: str
    parent: int
    record: int  # the id of the call, 0 for other nodes
    inputs: dict[str, list[Any]]
    outputs: dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Traces:
    """The results of one profile: its execution trace and its timeline."""

    operators: tuple[Operator, ...]
    timeline: chrome.Trace

    def single(self, name: str) -> Operator:
        (found,) = [each for each in self.operators if each.name == name]
        return found

    def above(self, operator: Operator) -> list[str]:
        """Return the names of an operator's callers and of the thread and process, innermost first."""
        by_number = {each.number: each for each in self.operators}
        names = []
        while operator.parent != operator.number:
            operator = by_number[operator.parent]
            names.append(operator.name)
        return names


def traces(work: Callable[[], object], place: str, folder: Path) -> Traces:
    """Profile one call of `work` on a device of this kind."""
    file, timeline = folder / "execution.json", folder / "timeline.json"
    observer = ExecutionTraceObserver()
    observer.register_callback(str(file))
    work()  # completes first-use initialization
    activities = HOST_AND_CUDA if place == "cuda" else HOST
    with quiet_collector(), profiler(activities=activities, execution_trace_observer=observer) as prof:
        work()
    prof.export_chrome_trace(str(timeline))
    nodes = json.loads(file.read_text(encoding="utf-8"))["nodes"]
    return Traces(tuple(_operator(node) for node in nodes), chrome.load(timeline))


def _operator(node: dict[str, Any]) -> Operator:
    (record,) = [attribute["value"] for attribute in node["attrs"] if attribute["name"] == "rf_id"]
    return Operator(node["id"], node["name"], node["ctrl_deps"], record, node["inputs"], node["outputs"])


def linear_layer(place: str) -> Callable[[], torch.Tensor]:
    """Return a linear layer and its sine, within a scope."""
    x, weight, bias = (torch.ones(shape, device=place) for shape in ((4, 3), (2, 3), (2,)))

    def work() -> torch.Tensor:
        with record_function("layer"):
            return torch.nn.functional.linear(x, weight, bias).sin()

    return work


def test_execution_trace_and_timeline_have_the_same_calls(place: str, tmp_path: Path) -> None:
    """Each operator call in a profile is in both files exactly once, with the same id (`rf_id`, "Record function id").

    Neither file has other calls, such as those of other threads.
    """
    found = traces(training_step(torch.device(place)), place, tmp_path)

    executed = Counter((each.record, each.name) for each in found.operators if each.record)
    seen = Counter(
        (span.args["Record function id"], span.name)
        for span in found.timeline.spans
        if span.args.get("Record function id")
    )
    assert executed, "the execution trace has no calls"
    assert executed == seen


def test_execution_trace_has_operators_below_their_callers(place: str, tmp_path: Path) -> None:
    """The parent of a call is the call or scope that made it, up to the thread and the process."""
    found = traces(linear_layer(place), place, tmp_path)

    assert found.above(found.single("aten::addmm")) == [
        "aten::linear",
        "layer",
        "[pytorch|profiler|execution_trace|thread]",
        "[pytorch|profiler|execution_trace|process]",
    ]
    assert found.above(found.single("aten::sin"))[0] == "layer"


def test_execution_trace_has_shapes_types_and_devices(place: str, tmp_path: Path) -> None:
    """The trace has shape, strides, type, element count, element size and device of each input and output tensor."""
    found = traces(linear_layer(place), place, tmp_path).single("aten::linear")

    device = str(torch.empty(0, device=place).device)
    assert found.inputs["shapes"] == [[4, 3], [2, 3], [2]]
    assert found.inputs["strides"] == [[3, 1], [3, 1], [1]]
    assert found.inputs["types"] == ["Tensor(float)"] * 3
    assert [value[3:] for value in found.inputs["values"]] == [[12, 4, device], [6, 4, device], [2, 4, device]]
    assert (found.outputs["shapes"], found.outputs["types"]) == ([[4, 2]], ["Tensor(float)"])
    assert [value[3:] for value in found.outputs["values"]] == [[8, 4, device]]


def test_execution_trace_follows_a_tensor_from_call_to_call(place: str, tmp_path: Path) -> None:
    """A tensor and its storage have the same ids in all calls, as output of one call and input of the next."""
    found = traces(linear_layer(place), place, tmp_path)

    made, taken = found.single("aten::linear").outputs["values"], found.single("aten::sin").inputs["values"]
    assert made == taken
    others = [value[:2] for value in found.single("aten::linear").inputs["values"]]
    assert made[0][:2] not in others
    assert len({storage for _, storage in others}) == len(others)
