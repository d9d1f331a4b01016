"""Profiles read as plain values: folding and pruning by the normaliser, the kept part of a tree, and valid traces."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from suites.profiler import chrome
from suites.profiler.chrome import Span, TraceError
from suites.profiler.node import Block, Kind, Node
from suites.profiler.normal import fold_activity, fold_name, normal_form
from suites.profiler.trees import read

OP, MEMORY, PYTHON, C_CALL = Kind.OP, Kind.MEMORY, Kind.PYTHON, Kind.C_CALL


@pytest.mark.parametrize(
    ("raw", "folded"),
    [
        ("torch/_tensor.py(1508): __torch_function__", "torch/_tensor.py: __torch_function__"),
        ("/a/lib/python3.11/site-packages/torch/_ops.py(874): __call__", "torch/_ops.py: __call__"),
        ("/usr/lib/python3/dist-packages/torch/_ops.py(874): __call__", "torch/_ops.py: __call__"),
        ("C:\\p\\site-packages\\torch\\_ops.py(874): __call__", "torch/_ops.py: __call__"),
        ("/home/torch/mine/t.py(3): f", "t.py: f"),
        ("/home/x/t.py(3): f", "t.py: f"),
        ("suites/profiler/t.py(3): f", "t.py: f"),
        ("t.py(3): <genexpr>", "t.py: <genexpr>"),
        ("<frozen importlib._bootstrap>(1207): _h", "<frozen importlib._bootstrap>: _h"),
        ("<built-in method add of type object at 0x7fe3514cea40>", "<built-in method add of type>"),
        ("<built-in method  of PyCapsule object at 0x7f>", "<built-in method  of pybind11>"),
        (
            "<built-in method f of pybind11_builtins.pybind11_detail_function_record_v1_system object at 0x7f>",
            "<built-in method f of pybind11>",
        ),
        ("autograd::engine::evaluate_function: PowBackward0", "autograd::engine::evaluate_function: PowBackward0"),
        ("nn.Module: Linear_0", "nn.Module: Linear_0"),
        ("Optimizer.step#SGD.step", "Optimizer.step#SGD.step"),
    ],
)
def test_names_of_host_events_lose_what_differs_between_runs(raw: str, folded: str) -> None:
    assert fold_name(raw) == folded


@pytest.mark.parametrize(
    ("raw", "folded"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, f(X&)::{lambda()#2}::operator()()>(int, A<B, 2ul>)",
            "void at::native::vectorized_elementwise_kernel",
        ),
        (
            "void at::native::(anonymous namespace)::foo_kernel<float>(int*)",
            "void at::native::(anonymous namespace)::foo_kernel",
        ),
        ("spin_kernel(long)", "spin_kernel"),
        ("sm80_xmma<a<b>, c>", "sm80_xmma"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("Memset (Device)", "Memset (Device)"),
        ("cudaLaunchKernel", "cudaLaunchKernel"),
    ],
)
def test_names_of_kernels_lose_template_arguments_and_parameters(raw: str, folded: str) -> None:
    assert fold_activity(raw) == folded


def node(kind: Kind, name: str, *children: Node) -> Node:
    return Node(kind, name, children)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            (node(PYTHON, "t.py: f", node(C_CALL, "<built-in function len>")),),
            (),
            id="frames_with_nothing_of_torch_below_go",
        ),
        pytest.param(
            (node(PYTHON, "t.py: f", node(C_CALL, "len"), node(C_CALL, "add", node(OP, "aten::add"))),),
            (node(PYTHON, "t.py: f", node(C_CALL, "add", node(OP, "aten::add"))),),
            id="frames_on_the_way_to_an_operator_stay",
        ),
        pytest.param(
            (node(PYTHON, "t.py: f", node(MEMORY, "[memory]")),),
            (node(PYTHON, "t.py: f", node(MEMORY, "[memory]")),),
            id="memory_counts_as_something_of_torch",
        ),
        pytest.param(
            (node(PYTHON, "t.py: f", node(PYTHON, "t.py: <listcomp>", node(OP, "a"), node(OP, "b"))),),
            (node(PYTHON, "t.py: f", node(OP, "a"), node(OP, "b")),),
            id="comprehensions_are_part_of_their_function",
        ),
        pytest.param(
            (node(PYTHON, "t.py: <genexpr>", node(OP, "a")),),
            (node(PYTHON, "t.py: <genexpr>", node(OP, "a")),),
            id="generators_have_frames_in_every_release",
        ),
        pytest.param((node(OP, "a", node(OP, "b")),), (node(OP, "a", node(OP, "b")),), id="operators_all_stay"),
    ],
)
def test_noise_is_pruned(before: tuple[Node, ...], after: tuple[Node, ...]) -> None:
    assert normal_form(node(Kind.PROFILE, "profile", *before)) == node(Kind.PROFILE, "profile", *after)


def test_a_tree_as_text_is_indented_and_says_sizes() -> None:
    memory = Node(MEMORY, "[memory]", block=Block(-12, "cpu", address=1, total=2))
    assert str(node(OP, "a", node(OP, "b", memory), node(OP, "c"))) == "a\n  b\n    [memory] -12 B cpu\n  c"


def test_trees_are_equal_whatever_their_times_addresses_and_totals() -> None:
    one = Node(MEMORY, "m", block=Block(8, "cpu", address=1, total=2), start_ns=3, end_ns=4, caller="f")
    other = Node(MEMORY, "m", block=Block(8, "cpu", address=5, total=6), start_ns=7, end_ns=8, caller="g")
    bigger = Node(MEMORY, "m", block=Block(9, "cpu", address=1, total=2))
    assert one == other
    assert one != bigger


@dataclass
class Event:
    """An event in torch's form; a machine without a GPU records only some kinds."""

    name: str
    tag: str = "TorchOp"
    children: list[Event] = field(default_factory=list)
    start_time_ns: int = 0
    end_time_ns: int = 0

    @property
    def extra_fields(self) -> Any:
        frame = SimpleNamespace(file_name="t.py", function_name="f")
        return type(f"_ExtraFields_{self.tag}", (), {"callsite": frame, "caller": frame})()


def operators_and(*events: Event) -> Node:
    tree = SimpleNamespace(experimental_event_tree=lambda: list(events))
    return read(SimpleNamespace(profiler=SimpleNamespace(kineto_results=tree)))  # type: ignore[arg-type]


def kineto(name: str, *children: Event) -> Event:
    return Event(name, "Kineto", list(children))


@pytest.mark.parametrize(
    ("events", "text"),
    [
        pytest.param(
            [Event("aten::neg", children=[kineto("cudaLaunchKernel", kineto("void neg<int>(int*)"))])],
            "aten::neg\n  cudaLaunchKernel\n    void neg",
            id="a_launch_stays_between_operator_and_kernel",
        ),
        pytest.param(
            [Event("aten::empty", children=[kineto("cudaMalloc")]), kineto("cudaDeviceSynchronize")],
            "aten::empty",
            id="calls_that_started_nothing_go",
        ),
        pytest.param(
            [Event("torch/profiler/profiler.py(10): stop", "PyCall", [Event("aten::zeros")]), Event("aten::neg")],
            "aten::neg",
            id="the_profiler_itself_goes_with_all_below",
        ),
        pytest.param(
            [Event("scope", children=[Event("aten::neg")]), kineto("scope", Event("aten::cos"))],
            "scope\n  aten::neg\naten::cos",
            id="the_devices_copy_of_a_scope_goes_and_what_fell_into_it_stays",
        ),
        pytest.param(
            [kineto("Lazy Function Loading", Event("aten::neg")), kineto("Activity Buffer Request")],
            "aten::neg",
            id="so_does_the_overhead_of_tracing",
        ),
    ],
)
def test_a_tree_has_what_the_work_did(events: list[Event], text: str) -> None:
    lines = str(operators_and(*events)).splitlines()
    assert "\n".join(line.removeprefix("  ") for line in lines[1:]) == text


def test_the_kind_of_a_device_event_follows_from_its_name() -> None:
    launch, kernel = kineto("cudaLaunchKernel", kineto("spin_kernel(long)")), kineto("Memcpy HtoD (Pinned -> Device)")
    kinds = [node.kind for node in operators_and(launch, kernel).walk()]
    assert kinds == [Kind.RUNTIME, Kind.DEVICE, Kind.DEVICE]


def span(name: str, start: int, end: int, tid: str = "1") -> Span:
    return Span("cpu_op", name, ("1", tid), start, end, {})


@pytest.mark.parametrize(
    ("spans", "crosses"),
    [
        ([span("a", 0, 10), span("b", 2, 8), span("c", 3, 4)], None),
        ([span("a", 0, 10), span("b", 10, 12)], None),
        ([span("a", 0, 10), span("b", 0, 10)], None),
        ([span("a", 0, 10), span("b", 5, 12)], ("a", "b")),
        ([span("b", 5, 12), span("a", 0, 10)], ("a", "b")),
        ([span("a", 0, 10), span("b", 1, 5), span("c", 4, 6)], ("b", "c")),
        ([span("a", 0, 10), span("b", 5, 12, tid="2")], None),
    ],
)
def test_spans_cross_where_one_ends_within_another_it_did_not_begin_in(
    spans: list[Span], crosses: tuple[str, str] | None
) -> None:
    found = chrome.crossing(spans)
    assert (found and (found[0].name, found[1].name)) == crosses


def test_depth_is_the_number_of_spans_around_on_the_same_thread() -> None:
    spans = [span("a", 0, 10), span("b", 1, 4), span("x", 2, 9, tid="2"), span("c", 2, 3), span("d", 4, 5)]
    assert chrome.indented(spans) == [(0, "a"), (1, "b"), (0, "x"), (2, "c"), (1, "d")]


COMPLETE = {"ph": "X", "name": "a", "cat": "cpu_op", "pid": 1, "tid": 2, "ts": 1.5, "dur": 0.25}


def written(*events: object) -> bytes:
    return json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()


def test_a_trace_is_read_to_the_nanosecond() -> None:
    big = COMPLETE | {"ts": 4396118988837.766, "args": {"External id": 7}}
    trace = chrome.parse(written(big))
    assert trace.spans == (
        Span("cpu_op", "a", ("1", "2"), 4396118988837766, 4396118988838016, {"External id": 7}),
    )  # fmt: skip
    assert trace.properties == {"schemaVersion": 1}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"traceEvents": [', "not strict JSON"),
        (b'{"traceEvents": [], "x": NaN}', "NaN is not JSON"),
        (b'{"traceEvents": [], "x": 1, "x": 2}', "duplicate keys"),
        (b'{"traceEvents": [], "x": "\xff"}', "not strict JSON"),
        (b'{"traceEvents": [], "x": "a\nb"}', "not strict JSON"),
        (b"[]", "no list 'traceEvents'"),
        (b'{"traceEvents": {}}', "no list 'traceEvents'"),
        (written("text"), "an event of phase None"),
        (written(COMPLETE | {"ph": "Z"}), "an event of phase 'Z'"),
        (written({k: v for k, v in COMPLETE.items() if k != "tid"}), "without ['tid']"),
        (written(COMPLETE | {"dur": -1}), "dur is -1"),
        (written(COMPLETE | {"ts": "1"}), "ts is '1'"),
        (written(COMPLETE | {"ts": True}), "ts is True"),
        (written(COMPLETE | {"name": 3}), "a name that is not a string"),
        (written(COMPLETE | {"args": []}), "args that are not an object"),
    ],
)
def test_what_a_viewer_would_guess_at_is_an_error(content: bytes, reason: str) -> None:
    with pytest.raises(TraceError) as error:
        chrome.parse(content)
    assert reason in str(error.value)
