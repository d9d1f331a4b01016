"""Chrome trace files of device work: kernels, streams, and their links to operators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from . import chrome
from .chrome import Trace
from .trees import HOST_AND_CUDA, profiler, quiet_collector, warm_up
from .workloads import STREAMS, side_streams

pytestmark = [
    pytest.mark.requires(device="cuda"),
    pytest.mark.covers("test_profiler_tree::TestProfilerTree::test_profiler_experimental_tree_cuda_with_stream"),
]


@pytest.fixture
def trace(device: torch.device, tmp_path: Path) -> Trace:
    """Return the trace of two operators on each of three side streams; fail the case if it has no kernels."""
    work = side_streams(device)
    warm_up(work, activities=HOST_AND_CUDA)
    with quiet_collector(), profiler(activities=HOST_AND_CUDA) as prof:
        work()
    file = tmp_path / "trace.json"
    prof.export_chrome_trace(str(file))
    trace = chrome.load(file)
    assert trace.of("kernel"), "the file has no kernel (may this user read the device's counters?)"
    return trace


def test_export_chrome_trace_kernels_are_on_their_streams(trace: Trace) -> None:
    """The file has the stream of each kernel: two kernels on each of three streams, and no others."""
    streams = [kernel.args["stream"] for kernel in trace.of("kernel")]

    assert sorted(streams.count(stream) for stream in set(streams)) == [2] * STREAMS, str(streams)


def test_export_chrome_trace_kernel_correlates_with_one_launch_and_operator(trace: Trace) -> None:
    """A kernel shares its correlation id with the one call that launched it, before it started.

    The call is within the operator with the same external id, and each operator has one kernel.
    """
    calls = {call.args["correlation"]: call for call in trace.of("cuda_runtime", "cuda_driver")}
    operators = {span.args["External id"]: span for span in trace.of("cpu_op")}
    launched: list[str] = []

    for kernel in trace.of("kernel"):
        call = calls[kernel.args["correlation"]]
        operator = operators[kernel.args["External id"]]
        assert "LaunchKernel" in call.name
        assert call.args["External id"] == kernel.args["External id"]
        assert operator.start_ns <= call.start_ns <= call.end_ns <= operator.end_ns, f"{call} not within {operator}"
        assert call.start_ns <= kernel.start_ns, f"{kernel} before {call}"
        launched.append(operator.name)

    assert sorted(launched) == ["aten::sub"] * STREAMS + ["aten::tanh"] * STREAMS
    assert len({kernel.args["External id"] for kernel in trace.of("kernel")}) == len(launched)
    assert len({kernel.args["correlation"] for kernel in trace.of("kernel")}) == len(launched)


def test_export_chrome_trace_arrows_lead_from_launches_to_kernels(trace: Trace) -> None:
    """Each kernel has one flow arrow, from its launch to the start of the kernel."""
    calls = {str(call.args["correlation"]): call for call in trace.of("cuda_runtime", "cuda_driver")}
    starts = {m.arrow: m for m in trace.moments if m.category == "ac2g" and m.phase == "s"}
    ends = [m for m in trace.moments if m.category == "ac2g" and m.phase == "f"]

    for kernel in trace.of("kernel"):
        correlation = str(kernel.args["correlation"])
        (end,) = [moment for moment in ends if moment.arrow == correlation]
        start, call = starts[correlation], calls[correlation]
        assert start.line == call.line
        assert call.start_ns <= start.at_ns <= call.end_ns
        assert (end.line, end.at_ns) == (kernel.line, kernel.start_ns)


def test_export_chrome_trace_kernels_of_a_stream_do_not_overlap(trace: Trace) -> None:
    """Kernels of one stream do not overlap and run in launch order."""
    by_stream: dict[object, list[chrome.Span]] = {}
    for kernel in trace.of("kernel"):
        by_stream.setdefault(kernel.args["stream"], []).append(kernel)

    for first, second in by_stream.values():
        assert first.end_ns <= second.start_ns, f"{first} overlaps {second}"
        assert first.args["correlation"] < second.args["correlation"]


def labels(file: Path) -> set[tuple[str, str, str]]:
    """Return the labels and the order of the devices of a trace that have kernels, and the names of their streams."""
    events = json.loads(file.read_text())["traceEvents"]
    kernels = {(str(event["pid"]), str(event["tid"])) for event in events if event.get("cat") == "kernel"}
    devices = {device for device, _ in kernels}
    return {
        (event["name"], str(event["pid"]), str(event["args"]))
        for event in events
        if event["ph"] == "M"
        if (event["name"] in ("process_labels", "process_sort_index") and str(event["pid"]) in devices)
        or (event["name"] == "thread_name" and (str(event["pid"]), str(event["tid"])) in kernels)
    }


@pytest.mark.requires(torch=">=2.13")
def test_export_chrome_trace_in_python_has_devices_and_kernels(device: torch.device, tmp_path: Path) -> None:
    """With `use_python_export`, a file has the kernels, streams, labels and device properties of the usual one."""
    work = side_streams(device)
    warm_up(work, activities=HOST_AND_CUDA)
    with quiet_collector(), profiler(activities=HOST_AND_CUDA) as prof:
        work()
    usual, other = tmp_path / "usual.json", tmp_path / "other.json"
    prof.export_chrome_trace(str(usual))
    prof.export_chrome_trace(str(other), use_python_export=True)

    def kernels(file: Path) -> list[tuple[Any, ...]]:
        spans = chrome.load(file).of("kernel")
        return [(span.name, span.line, span.start_ns, span.end_ns, span.args["External id"]) for span in spans]

    assert kernels(other) == kernels(usual) != []
    assert labels(other) == labels(usual)
    assert sum("GPU" in text for *_, text in labels(other)) == 1
    assert sum("stream" in text for *_, text in labels(other)) == STREAMS
    found, wanted = (chrome.load(file).properties["deviceProperties"] for file in (other, usual))
    for key in ("id", "name", "totalGlobalMem", "computeMajor", "computeMinor", "maxThreadsPerBlock", "warpSize"):
        assert [each[key] for each in found] == [each[key] for each in wanted], key
    assert len(found) == torch.cuda.device_count()
