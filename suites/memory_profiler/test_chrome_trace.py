"""The Chrome trace of a profile with memory, shapes and stacks: valid, and with the events of the run."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import profile, record_function

from suites.host_kernels import MSE_LOSS_WARNS

from . import scenes
from .recordings import Recording, activities, record, warm_up
from .values import Action

pytestmark = MSE_LOSS_WARNS

Event = dict[str, Any]

SLACK_US = 0.002  # start and duration are each rounded to nanoseconds


#: Device type numbers in a trace, from c10::DeviceType.
KINDS = {"cpu": 0, "cuda": 1, "xpu": 12}
OUT_OF_TREE = 20  # PrivateUse1, whatever its name


def trace(found: Recording | profile, path: Path) -> dict[str, Any]:
    """Return the content of an exported trace. torch compresses the file if its name ends so."""
    prof = found.prof if isinstance(found, Recording) else found
    prof.export_chrome_trace(str(path))
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    assert isinstance(document, dict)
    return document


def of_kind(document: dict[str, Any], *kinds: str) -> list[Event]:
    """Return the events of the given categories, in chronological order."""
    return sorted((e for e in document["traceEvents"] if e.get("cat") in kinds), key=lambda e: e["ts"])


def named(document: dict[str, Any], name: str, kind: str = "cpu_op") -> list[Event]:
    """Return the events of one category and name, in chronological order."""
    return [event for event in of_kind(document, kind) if event["name"] == name]


def within(inner: Event, outer: Event) -> bool:
    """Return whether an event lies within another one's time."""
    end = inner["ts"] + inner.get("dur", 0)
    return bool(outer["ts"] - SLACK_US <= inner["ts"] and end <= outer["ts"] + outer["dur"] + SLACK_US)


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_export_chrome_trace_is_what_the_viewer_reads(device: torch.device, tmp_path: Path, ending: str) -> None:
    """The file is a JSON object with a list of events, compressed if its name says so.

    Each event has a phase and a name; one with a duration has a start, a non-negative duration, a process and a thread.
    """
    document = trace(record(scenes.training(device).work, device), tmp_path / f"trace{ending}")

    events = document["traceEvents"]
    assert events
    assert all(isinstance(event["name"], str) and event["ph"] for event in events)
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) > 50
    for event in complete:
        assert event["ts"] >= 0, event
        assert event["dur"] >= 0, event
        assert {"pid", "tid"} <= event.keys(), event
    assert (document["record_shapes"], document["profile_memory"], document["with_stack"]) == (1, 1, 1)


def test_export_chrome_trace_has_the_operators_of_the_run(device: torch.device, tmp_path: Path) -> None:
    """Each operator occurs as often as it was called, in order, within the scope of its call."""
    x = scenes.values(device)

    def work() -> None:
        with record_function("first"):
            x.cos().sin()
        with record_function("second"):
            for _ in range(3):
                x.sin()

    document = trace(record(work, device), tmp_path / "trace.json")

    (first,), (second,) = (named(document, scope, "user_annotation") for scope in ("first", "second"))
    sines, (cosine,) = named(document, "aten::sin"), named(document, "aten::cos")
    assert [(within(sine, first), within(sine, second)) for sine in sines] == [(True, False)] + [(False, True)] * 3
    assert within(cosine, first)
    assert cosine["ts"] + cosine["dur"] <= sines[0]["ts"] + SLACK_US


def test_export_chrome_trace_has_the_shapes_of_inputs(device: torch.device, tmp_path: Path) -> None:
    """An operator's event has the shape and type of each input tensor; without `record_shapes` it has neither."""
    a, b = torch.ones((2, 3), device=device), torch.ones((3, 5), device=device)
    rows = torch.tensor([1, 0, 1, 1], device=device)

    with_shapes = trace(record(lambda: (a.mm(b), a.index_select(0, rows)), device), tmp_path / "shapes.json")
    with profile(activities=activities(device), profile_memory=True) as prof:
        a.mm(b)
    without = trace(prof, tmp_path / "plain.json")

    (reported,), (silent,) = named(with_shapes, "aten::mm"), named(without, "aten::mm")
    assert reported["args"]["Input Dims"] == [[2, 3], [3, 5]]
    assert reported["args"]["Input type"] == ["float", "float"]
    (picked,) = named(with_shapes, "aten::index_select")
    assert picked["args"]["Input Dims"] == [[2, 3], [], [4]]
    assert picked["args"]["Input type"] == ["float", "Scalar", "long int"]
    assert {"Input Dims", "Input type"}.isdisjoint(silent.get("args", {}))


def test_export_chrome_trace_has_the_memory_of_the_run(device: torch.device, tmp_path: Path) -> None:
    """Allocations and frees are instants with bytes (negative if freed), address and device, within their operator.

    They equal those of the timeline.
    """
    found = record(scenes.chain(device).work, device)
    document = trace(found, tmp_path / "trace.json")

    moments = named(document, "[memory]", "cpu_instant_event")
    kind, index = KINDS.get(device.type, OUT_OF_TREE), -1 if device.type == "cpu" else device.index
    here = [m["args"] for m in moments if (m["args"]["Device Type"], m["args"]["Device Id"]) == (kind, index)]
    sign = {Action.CREATE: 1, Action.DESTROY: -1}
    expected = [
        (sign[event.action] * event.size, event.key.address)
        for event in found.timeline
        if event.key.device == str(device) and event.key.tensor is not None and event.action in sign
    ]
    assert len(expected) >= 3
    assert [(args["Bytes"], args["Addr"]) for args in here] == expected
    (made,) = named(document, "aten::ones")
    taken = [m for m in moments if m["args"]["Addr"] == expected[0][1]]
    assert within(taken[0], made)
    assert all(moment["ph"] == "i" for moment in moments)


def test_export_chrome_trace_totals_follow_from_its_bytes(tmp_path: Path) -> None:
    """On the CPU, each instant's total is the previous one plus the instant's bytes."""
    document = trace(record(scenes.training(torch.device("cpu")).work), tmp_path / "trace.json")

    moments = [moment["args"] for moment in named(document, "[memory]", "cpu_instant_event")]
    assert len(moments) > 10
    totals = [moment["Total Allocated"] for moment in moments]
    assert [after - before for before, after in pairwise(totals)] == [moment["Bytes"] for moment in moments[1:]]


def test_export_chrome_trace_has_the_frames_of_the_run(device: torch.device, tmp_path: Path) -> None:
    """With stacks, the trace has each Python call, and modules by class, with operators within their caller's time.

    Without stacks it has no frames.
    """
    scene = scenes.training(device)
    with_stacks = trace(record(scene.work, device), tmp_path / "stacks.json")
    with profile(activities=activities(device), record_shapes=True) as prof:
        scene.work()
    without = trace(prof, tmp_path / "plain.json")

    frames = of_kind(with_stacks, "python_function")
    (train,) = [frame for frame in frames if frame["name"].endswith(": train")]
    assert "models.py" in train["name"]
    modules = Counter(f["name"].rpartition("_")[0] for f in frames if f["name"].startswith("nn.Module: "))
    assert modules == Counter(
        {"nn.Module: Sequential": 1, "nn.Module: Linear": 2, "nn.Module: Gain": 1, "nn.Module: Tanh": 1}
    )
    assert [within(call, train) for call in named(with_stacks, "aten::linear")] == [True] * 2
    assert not of_kind(without, "python_function")


def test_export_chrome_trace_joins_backward_to_forward(tmp_path: Path) -> None:
    """An arrow joins each backward node with its forward operator."""
    document = trace(record(scenes.pass_back(torch.device("cpu")).work), tmp_path / "trace.json")

    ends = of_kind(document, "fwdbwd")
    starts = {event["id"]: event for event in ends if event["ph"] == "s"}
    finishes = {event["id"]: event for event in ends if event["ph"] == "f"}
    assert starts.keys() == finishes.keys()
    joined = set()
    for number, start in starts.items():
        for forward in of_kind(document, "cpu_op"):
            for backward in of_kind(document, "cpu_op"):
                if within(start, forward) and within(finishes[number], backward):
                    joined.add((forward["name"], backward["name"]))
    assert {("aten::mul", "MulBackward0"), ("aten::exp", "ExpBackward0")} <= joined
    assert ("aten::mul", "ExpBackward0") not in joined


def test_add_metadata_is_in_the_exported_trace(tmp_path: Path) -> None:
    """Metadata added during the profile is in the file, as text and as JSON.

    The text has no quotes, because torch's writer turns the backslash of an escaped quote into a slash, which ends the
    string and makes the file invalid JSON.
    """
    cpu = torch.device("cpu")
    warm_up(cpu)

    with profile(activities=activities(cpu)) as prof:
        torch.ones(1)
        prof.add_metadata("machine", "the third from the left")
        prof.add_metadata_json("sizes", json.dumps([1, 2]))
    document = trace(prof, tmp_path / "trace.json")

    assert document["machine"] == "the third from the left"
    assert document["sizes"] == [1, 2]


def test_export_chrome_trace_before_the_run_is_an_error(tmp_path: Path) -> None:
    """Exporting a profile that has not started raises and writes no file."""
    path = tmp_path / "trace.json"

    with pytest.raises((AssertionError, RuntimeError), match="must be initialized"):
        profile(activities=activities(torch.device("cpu"))).export_chrome_trace(str(path))

    assert not path.exists()


@pytest.mark.requires(device="cuda")
def test_export_chrome_trace_kernels_are_joined_to_their_launches(device: torch.device, tmp_path: Path) -> None:
    """Each kernel has its device, its stream, and the correlation id of a launch that started before it.

    The launch lies within its operator. Different streams have different numbers.
    """
    x = scenes.values(device)
    first, second = torch.cuda.Stream(device), torch.cuda.Stream(device)
    torch.cuda.synchronize(device)

    def work() -> None:
        for stream in (first, second, first):
            with torch.cuda.stream(stream):
                x.sin()
            torch.cuda.synchronize(device)

    document = trace(record(work, device), tmp_path / "trace.json")

    kernels = of_kind(document, "kernel")
    assert len(kernels) == 3, (
        "the profiler did not record one kernel per call (may this user read the device's counters?)"
    )
    launches = {e["args"]["correlation"]: e for e in of_kind(document, "cuda_runtime", "cuda_driver")}
    for kernel, sine in zip(kernels, named(document, "aten::sin"), strict=True):
        launch = launches[kernel["args"]["correlation"]]
        assert kernel["args"]["device"] == device.index
        assert launch["ts"] <= kernel["ts"] + SLACK_US
        assert within(launch, sine)
    streams = [kernel["args"]["stream"] for kernel in kernels]
    assert streams[0] == streams[2] != streams[1]
