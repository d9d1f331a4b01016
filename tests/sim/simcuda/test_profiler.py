"""The simulated CUDA in torch's profiler: a timeline of the device, linked to calls and operators."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.sim.simcuda import build
from tests.sim.simcuda.cuda_builds import needs_cuda_build
from tests.sim.simcuda.fake_runtime import run_python

pytestmark = [
    pytest.mark.acceptance,
    needs_cuda_build,
]

Event = dict[str, Any]

_PROFILE = """
import ctypes, threading, torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch._C._profiler import _ExperimentalConfig

def traced(name, work, **options):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True, **options) as taken:
        work()
        torch.cuda.synchronize()
    taken.export_chrome_trace(f"{FOLDER}/{name}.json")

x = torch.rand(1000, device="cuda")
side = torch.cuda.Stream()
pinned = torch.empty(1000, pin_memory=True)
graph = torch.cuda.CUDAGraph()
static = x.clone()
with torch.cuda.graph(graph):
    result = (static + 1) * 2
    result.untyped_storage().copy_(static.untyped_storage())

runtime = ctypes.CDLL(None)
gate = threading.Event()

@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def hold(_):
    gate.wait()

def held():
    gate.clear()
    assert runtime.cudaLaunchHostFunc(None, hold, None) == 0
    x.sin()
    gate.set()

def operators():
    torch.cuda._sleep(20_000_000)
    x.sin()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.cos()
    with record_function("scope"):
        x.tan()

def copies():
    x.cpu()
    x.copy_(pinned, non_blocking=True)
    x.clone()
    x.to("cuda:1")

def fills():
    assert runtime.cudaMemsetAsync(ctypes.c_void_p(x.data_ptr()), 5, ctypes.c_size_t(4000), None) == 0

def waits():
    event = torch.cuda.Event()
    event.record(side)
    torch.cuda.current_stream().wait_event(event)
    x.exp()
    event.synchronize()
    side.synchronize()

def replays():
    graph.replay()
    graph.replay()

for work in (held, operators, copies, fills, waits, replays):
    work()
traced("held", held)
traced("operators", operators)
traced("copies", copies)
traced("fills", fills)
traced("waits", waits, experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True))
traced("replays", replays)
with profile(activities=[ProfilerActivity.CPU], acc_events=True) as taken:
    operators()
taken.export_chrome_trace(f"{FOLDER}/host.json")
traced("again", operators)
"""


class Trace:
    """The events of a trace that have a duration, by category."""

    def __init__(self, file: Path) -> None:
        self.events: list[Event] = [e for e in json.loads(file.read_text())["traceEvents"] if "dur" in e]
        self.flows: list[Event] = [e for e in json.loads(file.read_text())["traceEvents"] if e.get("cat") == "ac2g"]

    def of(self, category: str) -> list[Event]:
        return sorted((e for e in self.events if e.get("cat") == category), key=lambda e: float(e["ts"]))

    def call_of(self, work: Event) -> Event:
        """Return the call of the runtime or of the driver that queued the work."""
        calls = [*self.of("cuda_runtime"), *self.of("cuda_driver")]
        (call,) = [e for e in calls if e["args"]["correlation"] == work["args"]["correlation"]]
        return call

    def operator_of(self, work: Event) -> str:
        """Return the operator or scope that was running when the work was queued."""
        (operator,) = [
            e
            for e in self.events
            if e.get("cat") in ("cpu_op", "user_annotation")
            and e["args"].get("External id") == work["args"]["External id"]
        ]
        return str(operator["name"])


def _end(event: Event) -> float:
    return float(event["ts"]) + float(event["dur"])


def _named(events: Sequence[Event], part: str) -> Event:
    (found,) = [e for e in events if part in e["name"]]
    return found


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    folder = tmp_path_factory.mktemp("traces")
    script = f"FOLDER = {str(folder)!r}\n{_PROFILE}"
    done = run_python(script, build.simcuda_environment(build.build_simcuda(), os.environ), timeout=300)
    assert done.returncode == 0, done.stderr
    return {file.stem: Trace(file) for file in folder.glob("*.json")}


def test_kernels_have_names_streams_calls_and_operators(traces: dict[str, Trace]) -> None:
    trace = traces["operators"]
    kernels = trace.of("kernel")
    assert [e["name"] for e in kernels if "simulated" not in e["name"]] == ["spin_kernel"]
    for name in ("sin", "cos", "tan"):
        kernel = _named(kernels, f"<aten::{name}>")
        assert trace.operator_of(kernel) == f"aten::{name}"
        assert trace.call_of(kernel)["name"] == "cudaLaunchKernel"
        assert float(trace.call_of(kernel)["ts"]) <= float(kernel["ts"])
        assert kernel["args"]["device"] == 0
        assert kernel["args"]["graph node id"] == 0
    streams = {name: _named(kernels, f"<aten::{name}>")["args"]["stream"] for name in ("sin", "cos", "tan")}
    assert streams["sin"] == streams["tan"] == 7
    assert streams["cos"] > 7


def test_work_is_shown_when_it_ran_and_not_when_it_was_asked_for(traces: dict[str, Trace]) -> None:
    """The stream was blocked until the launch had returned."""
    trace = traces["held"]
    (sine,) = trace.of("kernel")
    assert _end(trace.call_of(sine)) <= float(sine["ts"])
    waited = next(e for e in trace.of("cuda_runtime") if e["name"] == "cudaDeviceSynchronize")
    assert _end(sine) <= _end(waited)


def test_work_is_as_long_as_it_took(traces: dict[str, Trace]) -> None:
    kernels = traces["operators"].of("kernel")
    spin, sine = _named(kernels, "spin_kernel"), _named(kernels, "<aten::sin>")
    assert float(spin["dur"]) > 9000  # microseconds; it sleeps for around 10,000
    assert _end(spin) <= float(sine["ts"])


def test_arrows_lead_from_calls_to_work(traces: dict[str, Trace]) -> None:
    trace = traces["operators"]
    sine = _named(trace.of("kernel"), "<aten::sin>")
    arrows = [e["ph"] for e in trace.flows if e["id"] == sine["args"]["correlation"]]
    assert sorted(arrows) == ["f", "s"]


def test_copies_have_direction_memory_and_size(traces: dict[str, Trace]) -> None:
    trace = traces["copies"]
    copies = trace.of("gpu_memcpy")
    assert Counter(e["name"] for e in copies) == {
        "Memcpy DtoH (Device -> Pageable)": 1,
        "Memcpy HtoD (Pinned -> Device)": 1,
        "Memcpy DtoD (Device -> Device)": 1,
        "Memcpy PtoP (Device -> Device)": 1,
    }
    assert {e["args"]["bytes"] for e in copies} == {4000}
    for copy in copies:
        assert trace.operator_of(copy) == "aten::copy_"
        assert trace.call_of(copy)["name"] == "cudaMemcpyAsync"
    between = _named(copies, "PtoP")["args"]
    assert (between["fromDevice"], between["toDevice"]) == (0, 1)


def test_fills_have_memory_and_size(traces: dict[str, Trace]) -> None:
    (fill,) = traces["fills"].of("gpu_memset")
    assert fill["name"] == "Memset (Device)"
    assert fill["args"]["bytes"] == 4000
    assert traces["fills"].call_of(fill)["name"] == "cudaMemsetAsync"


def test_waits_name_what_they_wait_for(traces: dict[str, Trace]) -> None:
    trace = traces["waits"]
    waits = {e["name"]: e["args"] for e in trace.of("cuda_sync")}
    assert set(waits) == {"Stream Wait Event", "Event Sync", "Stream Sync", "Context Sync"}
    (recorded,) = [e for e in trace.of("cuda_runtime") if e["name"].startswith("cudaEventRecord")]
    side = waits["Stream Sync"]["stream"]
    assert side > 7
    for name in ("Stream Wait Event", "Event Sync"):
        assert waits[name]["wait_on_stream"] == side
        assert waits[name]["wait_on_cuda_event_record_corr_id"] == recorded["args"]["correlation"]
    assert waits["Stream Wait Event"]["stream"] == 7


def test_kernels_of_a_replay_have_their_nodes(traces: dict[str, Trace]) -> None:
    trace = traces["replays"]
    kernels = trace.of("kernel")
    assert [e["name"].partition("<")[2].partition(">")[0] for e in kernels] == ["aten::add", "aten::mul"] * 2
    launches = [e["args"]["correlation"] for e in trace.of("cuda_runtime") if e["name"] == "cudaGraphLaunch"]
    assert [e["args"]["correlation"] for e in kernels] == [launches[0]] * 2 + [launches[1]] * 2
    (graph,) = {e["args"]["graph id"] for e in kernels}
    nodes = [e["args"]["graph node id"] for e in kernels]
    assert graph > 0
    assert nodes[:2] == nodes[2:]
    assert len(set(nodes)) == 2
    assert {node >> 32 for node in nodes} == {graph}
    (copy, *_) = copies = trace.of("gpu_memcpy")
    assert len(copies) == 2
    assert copy["args"]["graph id"] == graph


def test_a_profile_of_the_host_has_nothing_of_the_device_and_the_next_one_has(traces: dict[str, Trace]) -> None:
    """Calls of the runtime belong to the host."""
    categories = {e.get("cat") for e in traces["host"].events}
    assert "cuda_runtime" in categories
    assert categories.isdisjoint({"kernel", "gpu_memcpy", "gpu_memset"})
    names = [sorted(e["name"] for e in traces[name].of("kernel")) for name in ("operators", "again")]
    assert names[0] == names[1]
