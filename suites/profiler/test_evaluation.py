"""torch's analysis of a profile: own times, depth of the launch queue, idle times, and the nodes of `torch.fx`.

Most cases use invented times, like torch's own tests of this analysis: each expected number follows from them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from . import _torch_private as private
from .trees import profiler


@dataclass(eq=False)
class Event:
    """An event of the tree of a profile, with times in nanoseconds."""

    name: str
    start_time_ns: int
    end_time_ns: int
    children: Sequence[Event] = ()
    parent: Event | None = None
    id: int = field(default=0)

    def __post_init__(self) -> None:
        self.id = id(self)
        for child in self.children:
            child.parent = self

    @property
    def duration_time_ns(self) -> int:
        return self.end_time_ns - self.start_time_ns


@dataclass(eq=False)
class Activity:
    """A call of CUDA's runtime, or the work of the device for it."""

    name: str
    start: int
    duration: int
    call: int
    device: DeviceType = DeviceType.CPU

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return self.duration

    def linked_correlation_id(self) -> int:
        return self.call

    def device_type(self) -> DeviceType:
        return self.device


def launch(start: int, call: int, name: str = "cudaLaunchKernel") -> Activity:
    return Activity(name, start, 2, call)


def kernel(start: int, end: int, call: int, name: str = "elementwise") -> Activity:
    return Activity(name, start, end - start, call, DeviceType.CUDA)


def evaluate(roots: Sequence[Event], activities: Sequence[Activity]) -> Any:
    results = SimpleNamespace(experimental_event_tree=lambda: list(roots), events=lambda: list(activities))
    return private.evaluation(SimpleNamespace(kineto_results=results))


def metrics(evaluation: Any, event: Any) -> Any:
    return evaluation.metrics[private.event_key(event)]


def all_events(roots: Sequence[Any]) -> Iterator[Any]:
    for root in roots:
        yield root
        yield from all_events(root.children)


def test_evaluation_self_time_is_the_time_without_children(device: torch.device) -> None:
    """The own time of each event of a profile is its duration minus those of its children.

    Without launches, there is no queue and no idle time (torch/profiler/_utils.py, `BasicEvaluation`).
    """
    with profiler() as prof:
        x = torch.ones(4, 4, device=device, requires_grad=True)
        (x @ x).sum().backward()
    events = list(all_events(private.event_roots(prof)))
    found = private.evaluation(prof.profiler)
    assert len(found.metrics) == len(events) > 10
    for event in events:
        own = event.duration_time_ns - sum(child.duration_time_ns for child in event.children)
        assert metrics(found, event).self_time_ns == own
        assert metrics(found, event).duration_time_ns == event.duration_time_ns
        assert metrics(found, event).idle_time_ns == metrics(found, event).queue_depth == 0
    assert [event.start_time_ns for event in found.events] == sorted(event.start_time_ns for event in events)
    assert found.queue_depth_list == []


def test_evaluation_refuses_events_of_one_id() -> None:
    """Events are identified by their id: equal ids are one key, and a profile with a duplicate id is refused."""
    one, other = Event("one", 0, 10), Event("other", 20, 30)
    assert private.event_key(one) != private.event_key(other)
    assert {private.event_key(one): "found"}[private.event_key(one)] == "found"
    assert repr(private.event_key(other)) == "other"
    other.id = one.id
    assert private.event_key(one) == private.event_key(other)
    with pytest.raises(AssertionError, match="Duplicate id"):
        evaluate([one, other], [])


@pytest.mark.parametrize(
    "name", ["cudaLaunchKernel", "cudaLaunchKernelExC_v11060", "__cudaLaunchKernel", "cudaLaunchCooperativeKernel"]
)
def test_queue_depth_is_the_kernels_launched_and_not_begun(name: str) -> None:
    """At each launch, kernel and host event, the depth is the number of launches so far minus that of started kernels.

    Copies, memory sets and other calls of the runtime do not count.
    """
    count = 12
    times = sorted(random.sample(range(10, 1000), 2 * count))
    launches = [launch(time, call, name) for call, time in enumerate(times[:count])]
    begins: list[int] = []
    for each in launches:
        earliest = max([each.start, *begins[-1:]])
        begins.append(random.randrange(earliest + 1, earliest + 200))
    kernels = [
        kernel(start, min(start + 30, after), call)
        for call, (start, after) in enumerate(pairwise([*begins, begins[-1] + 100]))
    ]
    others = [
        Activity("cudaMemcpyAsync", times[0] - 5, 2, 100),
        Activity("Memcpy DtoH (Device -> Pageable)", times[0] - 1, 2, 100, DeviceType.CUDA),
        Activity("Memset (Device)", times[1], 2, 101, DeviceType.CUDA),
    ]
    hosts = [Event(f"event {start}", start, start + 1) for start in range(5, begins[-1] + 100, 7)]
    mixed = [*launches, *kernels, *others]
    random.shuffle(mixed)
    found = evaluate(hosts, mixed)

    def depth(time: int) -> int:
        return sum(each.start <= time for each in launches) - sum(start <= time for start in begins)

    points = [(each.start, each.end, each.queue_depth) for each in found.queue_depth_list]
    wanted = [(each.start, each.start + each.duration, depth(each.start)) for each in (*launches, *kernels)]
    assert sorted(points) == sorted(wanted)
    assert sorted(map(id, found.cuda_events)) == sorted(map(id, (*launches, *kernels)))
    assert [each.start for each in found.cuda_events] == sorted(each.start for each in found.cuda_events)
    assert [start for start, *_ in points] == sorted(start for start, *_ in points)
    assert [metrics(found, event).queue_depth for event in hosts] == [depth(event.start_time_ns) for event in hosts]
    assert max(depth for *_, depth in points) > 1


def test_queue_depth_does_not_count_a_launch_without_a_kernel() -> None:
    """A launch whose kernel is not in the profile adds nothing to the queue."""
    found = evaluate([], [launch(10, 1), launch(20, 2), launch(30, 3), kernel(100, 110, 1), kernel(120, 130, 3)])
    assert [(each.start, each.queue_depth) for each in found.queue_depth_list] == [
        (10, 1),
        (20, 1),
        (30, 2),
        (100, 1),
        (120, 0),
    ]


def test_queue_depth_is_never_below_zero() -> None:
    """Kernels whose launches are not in the profile leave the queue empty."""
    event = Event("event", 115, 118)
    found = evaluate([event], [kernel(100, 105, 1), kernel(110, 112, 2)])
    assert [(each.start, each.queue_depth) for each in found.queue_depth_list] == [(100, 0), (110, 0)]
    assert metrics(found, event).queue_depth == 0


def test_queue_depth_counts_no_kernel_before_that_of_the_last_launch() -> None:
    """Kernels start in launch order: a kernel with a later launch's number belongs to an earlier launch."""
    kernels = [kernel(100, 105, 1), kernel(110, 115, 2), kernel(120, 125, 1)]
    found = evaluate([], [launch(10, 2), launch(20, 1), *kernels])
    assert [(each.start, each.queue_depth) for each in found.queue_depth_list][:2] == [(10, 2), (20, 3)]


def test_idle_time_is_the_part_of_an_event_in_which_the_queue_is_empty() -> None:
    """The device is idle before the first launch, after the last kernel, and from an empty queue to the next launch.

    The idle time of an event is its overlap with these spans.
    """
    child = Event("child", 150, 220)
    first, empty, last = Event("first", 0, 400, [child]), Event("empty", 300, 300), Event("last", 400, 500)
    found = evaluate(
        [first, empty, last], [launch(50, 1), kernel(60, 100, 1), launch(200, 2), kernel(210, 230, 2), launch(190, 3)]
    )
    assert [(each.start, each.queue_depth) for each in found.queue_depth_list] == [
        (50, 1),
        (60, 0),
        (190, 0),
        (200, 1),
        (210, 0),
    ]
    # Idle: 0 to 50, 100 to 200, 230 to 500.
    assert metrics(found, first).idle_time_ns == 50 + 100 + 170
    assert metrics(found, first).fraction_idle_time == 320 / 400
    assert metrics(found, child).idle_time_ns == 50
    assert metrics(found, last).idle_time_ns == 100
    assert metrics(found, empty).fraction_idle_time == 0.0


WRONG = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="intervals_overlap leaves out intervals after two that overlap, and compares all others with the first",
)


@pytest.mark.parametrize(
    ("intervals", "wanted"),
    [
        ([], 0),
        ([(0, 100)], 0),
        ([(0, 130)], 30),
        ([(120, 150)], 30),
        ([(190, 300)], 10),
        ([(0, 1000)], 100),
        ([(200, 300)], 0),
        ([(150, 160), (110, 120), (0, 105)], 25),
        ([(110, 150), (130, 170)], 60),
        ([(110, 190), (120, 130)], 80),
        ([(100, 110), (110, 120), (130, 140)], 30),
        ([(110, 150), (120, 130), (125, 140), (160, 170)], 50),
        pytest.param([(110, 170), (120, 130), (180, 190)], 70, marks=WRONG),
        pytest.param([(110, 150), (120, 150), (125, 140), (160, 170)], 50, marks=WRONG),
        pytest.param([(110, 150), (130, 170), (180, 190)], 70, marks=WRONG),
    ],
)
def test_intervals_overlap_is_the_time_that_an_event_shares_with_them(
    intervals: list[tuple[int, int]], wanted: int
) -> None:
    """Intervals may be in any order, and time that two of them share counts once."""
    key = private.event_key(Event("event", 100, 200))
    assert key.intervals_overlap([private.interval(*each) for each in intervals]) == wanted


def falling(*names: str) -> tuple[Any, dict[str, Event]]:
    """Return a profile with these events, or all without a twin, whose queue falls twice.

    It falls from six kernels at 60 to none at 150, and from five at 340 to none at 440. The events are before, in and
    after these phases; between them, one kernel is launched and runs.
    """
    events = {
        "early": Event("early", 0, 5),
        "waits": Event("waits", 140, 170),
        "short": Event("short", 70, 80),
        "between": Event("between", 203, 215),
        "busy": Event("busy", 80, 130),
        "again": Event("again", 345, 377),
        "late": Event("late", 455, 500),
        "twin of busy": Event("twin of busy", 80, 130),
    }
    events = {name: events[name] for name in names or [*events][:-1]}
    activities = [launch(10 * call, call) for call in range(1, 7)]
    activities += [kernel(90 + 10 * call, 95 + 10 * call, call) for call in range(1, 7)]
    activities += [launch(205, 7), kernel(210, 215, 7)]
    activities += [launch(220 + 10 * call, call) for call in range(8, 13)]
    activities += [kernel(320 + 10 * call, 325 + 10 * call, call) for call in range(8, 13)]
    return evaluate(list(events.values()), activities), events


def test_rank_events_has_the_events_at_which_the_queue_runs_empty() -> None:
    """`rank_events` returns events within a fall of the queue from at least four kernels to none.

    Events that idle for a large part of their time come first; then, with less weight, those with much own time.
    """
    found, events = falling()
    idle = {name: metrics(found, event).idle_time_ns for name, event in events.items()}
    assert idle == {"early": 5, "waits": 15, "short": 0, "between": 2, "busy": 0, "again": 0, "late": 45}
    for length, wanted in ((9, ["waits", "busy", "again", "short"]), (2, ["waits", "busy"]), (1, ["waits"])):
        assert [each.event.name for each in found.rank_events(length)] == wanted
    found, _ = falling("busy", "waits")
    assert [each.event.name for each in found.rank_events(2)] == ["waits", "busy"]
    found, _ = falling("busy", "waits", "twin of busy")
    assert {each.event.name for each in found.rank_events(3)[1:]} == {"busy", "twin of busy"}


@pytest.mark.parametrize(("depth", "ranked"), [(3, False), (4, True)])
def test_rank_events_needs_a_queue_of_four_kernels(depth: int, ranked: bool) -> None:
    """A queue that was never four kernels deep has no fall."""
    events = [Event("one", 60, 70), Event("two", 70, 1000)]
    launches = [launch(call, call) for call in range(1, depth + 1)]
    found = evaluate(events, [*launches, *(kernel(100 * call, 100 * call + 10, call) for call in range(1, depth + 1))])
    assert len(found.rank_events(5)) == (2 if ranked else 0)


@pytest.mark.parametrize("meanwhile", ["four kernels", "no kernel"])
def test_rank_events_has_the_last_peak_before_the_queue_is_empty(meanwhile: str) -> None:
    """A fall begins at the highest depth since the queue was empty, also if it fills or empties suddenly."""
    events = {"slow": Event("slow", 50, 60), "gap": Event("gap", 150, 160)}
    events |= {"between": Event("between", 350, 360), "sudden": Event("sudden", 450, 460)}
    activities = [launch(10 * call, call) for call in range(1, 5)]
    activities += [kernel(90 + 10 * call, 95 + 10 * call, call) for call in range(1, 5)]
    activities += [launch(200, 8)]
    if meanwhile == "four kernels":
        activities += [kernel(250 + 10 * call, 255 + 10 * call, call) for call in range(5, 9)]
    activities += [launch(400, 13), *(kernel(500, 510, call) for call in range(9, 14))]
    found = evaluate(list(events.values()), activities)
    depths = {each.start: each.queue_depth for each in found.queue_depth_list}
    assert [depths[start] for start in (40, 130, 200, 400, 500)] == [
        4,
        0,
        4 if meanwhile == "four kernels" else 0,
        5,
        0,
    ]
    assert {each.event.name for each in found.rank_events(9)} == {"slow", "sudden"}


def test_get_optimizable_events_prints_place_and_idle_time(capsys: pytest.CaptureFixture[str]) -> None:
    """`get_optimizable_events` prints name, source location and idle share of the events, or that there are none."""
    found, events = falling()
    events["waits"].parent = Event("torch/nn.py(7): forward", 139, 180, [events["waits"]])
    assert [each.event.name for each in found.get_optimizable_events(1)] == ["waits"]
    printed = capsys.readouterr().out
    assert "Optimizable events:" in printed
    assert [line.partition(":")[2].strip() for line in printed.splitlines() if not line.startswith("-")][1:] == [
        "waits",
        "torch/nn.py(7): forward",
        "50.00%",
    ]
    assert [each.event.name for each in found.get_optimizable_events(print_enable=False)] == ["waits"]
    assert capsys.readouterr().out == ""
    assert evaluate([Event("one", 0, 5)], []).get_optimizable_events() == []
    assert capsys.readouterr().out.strip() == "No events to optimize"


def test_source_code_location_is_the_nearest_frame_of_a_file() -> None:
    """The source code location of an event is the nearest enclosing event that names a file and a line."""
    inner = Event("aten::add", 3, 4)
    outer = Event("a.py(1): f", 0, 9, [Event("b.py(2): g", 1, 8, [Event("<built-in method add>", 2, 7, [inner])])])
    assert private.source_code_location(inner) == "b.py(2): g"
    assert private.source_code_location(outer) == "a.py(1): f"
    assert private.source_code_location(Event("aten::add", 0, 1)) == "No source code location found"


class Steps(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.sin()) * 2


def traced(model: torch.nn.Module) -> torch.fx.GraphModule:
    """Return the module as one of `torch.fx` whose nodes know their lines, and whose code marks them."""
    tracer = torch.fx.Tracer()
    tracer.record_stack_traces = True
    return torch.fx.GraphModule(model, tracer.trace(model))


def test_trace_of_an_fx_module_names_the_nodes_of_its_events(device: torch.device, tmp_path: Path) -> None:
    """With `enrich_profiler_metadata`, each event of a `torch.fx` node has the node's name and source line.

    Events of other work have neither (torch/profiler/_utils.py, `map_recorded_events_to_aten_ops_with_stack_trace`).
    """
    x = torch.ones(4, device=device)
    known = dict(private.registered_graphs())
    with private.marked_nodes():
        model = traced(Steps())
    try:
        with profiler() as prof:
            model(x)
            x.exp()
        prof.export_chrome_trace(str(tmp_path / "trace.json"))
        trace = json.loads((tmp_path / "trace.json").read_text())
        private.add_nodes_to_trace(trace)
    finally:
        for name in private.registered_graphs().keys() - known.keys():
            del private.registered_graphs()[name]
    found = {event["name"]: event.get("args", {}) for event in trace["traceEvents"] if event.get("cat") == "cpu_op"}
    for operator, node in (("aten::sin", "sin"), ("aten::relu", "relu"), ("aten::mul", "mul")):
        assert found[operator]["node_name"] == node
        assert "torch.relu(x.sin()) * 2" in found[operator]["stack_trace"]
    assert not {"node_name", "stack_trace"} & found["aten::exp"].keys()


def span(name: str, start: int, duration: int, thread: int = 1, kind: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": duration, "tid": thread}


def test_trace_events_belong_to_the_innermost_node_of_their_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event belongs to the innermost node that is open on its thread at its start; nodes belong to their file."""
    nodes = {
        0: {"name": "outer", "stack_trace": "line 1"},
        1: {"name": "inner", "stack_trace": None},
        2: {"name": "", "stack_trace": "line 3"},
        3: None,
    }
    monkeypatch.setitem(private.registered_graphs(), "known.py", {"node_metadata": nodes})
    monkeypatch.setitem(private.registered_graphs(), "inner.py", {"node_metadata": {0: {"name": "innermost"}}})
    monkeypatch.setitem(private.registered_graphs(), "bare.py", {})
    events = [
        span("## known.py ##", 0, 100),
        span("## 0 ##", 10, 80),
        span("a", 11, 1),
        span("## 1 ##", 20, 10),
        span("b", 21, 1),
        span("a", 25, 1, thread=2),
        span("c", 35, 1),
        span("## 2 ##", 40, 10),
        span("d", 41, 1),
        span("## 3 ##", 51, 10),
        span("e", 52, 1),
        span("## 4 ##", 70, 10),
        span("f", 71, 1),
        span("g", 95, 1),
        span("## 0 ##", 30, 100, thread=3),  # without an enclosing file
        span("h", 96, 1, thread=3),
        span("## bare.py ##", 200, 100),
        span("## 0 ##", 210, 10),
        span("i", 211, 1),
        span("## unknown.py ##", 400, 100),
        span("## 0 ##", 410, 10),
        span("j", 411, 1),
        span("## 0 ##", 12, 1, kind="user_annotation"),
        {"ph": "i", "name": "moment", "ts": 12, "tid": 1},
        span("## known.py ##", 600, 100, thread=4),
        span("## known.py ##", 605, 99, thread=5),
        span("## 0 ##", 610, 40, thread=4),
        span("## 1 ##", 620, 70, thread=5),
        span("k", 655, 1, thread=4),
        span("k", 660, 1, thread=5),
        span("## known.py ##", 800, 100, thread=6),
        span("## inner.py ##", 810, 50, thread=6),
        span("## 0 ##", 820, 10, thread=6),
        span("l", 821, 1, thread=6),
        span("## known.py ##", 1000, 100, thread=7),
        span("## known.py ##", 1010, 10, thread=7),
        span("## 0 ##", 1050, 10, thread=7),
        span("m", 1051, 1, thread=7),
    ]
    random.shuffle(events)
    trace = {"traceEvents": events}
    private.add_nodes_to_trace(trace)
    found = {(event["name"], event.get("tid")): event["args"] for event in trace["traceEvents"] if "args" in event}
    outer = {"node_name": "outer", "stack_trace": "line 1"}
    assert found == {
        ("a", 1): outer,
        ("b", 1): {"node_name": "inner"},
        ("c", 1): outer,
        ("d", 1): {"stack_trace": "line 3"},
        ("e", 1): outer,
        ("f", 1): outer,
        ("## 0 ##", 1): outer,
        ("k", 5): {"node_name": "inner"},
        ("l", 6): {"node_name": "innermost", "stack_trace": "No model stack trace available"},
        ("m", 7): outer,
    }
    private.add_nodes_to_trace({})
