"""Chrome trace files: valid, and with the events of the run. Cases write only below their temporary directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import profile, record_function, schedule, tensorboard_trace_handler

from . import chrome, workloads
from .chrome import Trace
from .node import Kind, Node
from .normal import fold_name
from .trees import profiler, quiet_collector, read, warm_up
from .workloads import Work

OPTIONS = [
    pytest.param({}, id="plain"),
    pytest.param({"profile_memory": True}, id="memory"),
    pytest.param({"record_shapes": True}, id="shapes"),
    pytest.param({"with_stack": True}, id="stack"),
    pytest.param({"profile_memory": True, "with_stack": True, "record_shapes": True}, id="everything"),
]
WORK = [
    pytest.param(workloads.forward_and_backward, id="passes"),
    pytest.param(workloads.scopes, id="scopes"),
    pytest.param(workloads.training_step, id="training_step"),
    pytest.param(workloads.on_function_tensor, id="torch_function"),
    pytest.param(workloads.on_dispatch_tensor, id="torch_dispatch"),
]
PROFILE = "Trace"  # the category of the span of the whole profile


def exported(prof: profile, folder: Path) -> Trace:
    """Return the trace of a finished profile, via a file."""
    file = folder / "trace.json"
    prof.export_chrome_trace(str(file))
    return chrome.load(file)


def profile_of(work: Work, **options: Any) -> profile:
    """Return a profile of one call of `work` with filled caches."""
    warm_up(work, **options)
    with quiet_collector(), profiler(**options) as prof:
        work()
    return prof


def operators(tree: Node, leave_out: Collection[str] = (), depth: int = 0) -> list[tuple[int, str]]:
    """Return the operators and scopes of a tree except those given, each with its nesting depth."""
    result = []
    for child in tree.children:
        counts = child.kind is Kind.OP and child.name not in leave_out
        result += [(depth, child.name)] if counts else []
        result += operators(child, leave_out, depth + counts)
    return result


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("workload", WORK)
def test_export_chrome_trace_has_the_operators_of_the_tree(
    workload: Callable[[], Work], options: dict[str, Any], tmp_path: Path
) -> None:
    """The file is a strict trace, whose operators nest by time on their thread as in the tree.

    It has the same scopes and operators as the tree, each equally often, and no others.
    """
    prof = profile_of(workload(), **options)

    trace = exported(prof, tmp_path)

    spans, scopes = trace.of("cpu_op"), [span.name for span in trace.of("user_annotation")]
    tree = read(prof)
    assert spans
    assert chrome.crossing(spans) is None
    assert chrome.indented(spans) == operators(tree, leave_out=scopes)
    assert Counter(scopes) == Counter(node.name for node in tree.of_kind(Kind.OP) if node.name in scopes)


@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(lambda: workloads.scopes(leave_open=False), id="scopes"),
        pytest.param(workloads.training_step, id="training_step"),
    ],
)
def test_export_chrome_trace_scopes_nest_as_in_the_tree(workload: Callable[[], Work], tmp_path: Path) -> None:
    """Closed scopes nest with each other and with operators, by time, as in the tree."""
    prof = profile_of(workload())

    spans = exported(prof, tmp_path).of(*chrome.HOST)

    assert chrome.crossing(spans) is None
    assert chrome.indented(spans) == operators(read(prof))


def test_export_chrome_trace_scope_never_left_ends_with_the_profile(tmp_path: Path) -> None:
    """A scope that was never closed ends in the file after everything that ran in it, and not after the profile."""
    trace = exported(profile_of(workloads.scopes()), tmp_path)

    (whole,) = trace.of(PROFILE)
    scopes = {span.name: span for span in trace.of("user_annotation")}
    open_scope = scopes["around backward"]
    assert open_scope.start_ns <= scopes["backward"].start_ns
    assert scopes["backward"].end_ns <= open_scope.end_ns <= whole.end_ns


@pytest.mark.parametrize("options", OPTIONS)
def test_export_chrome_trace_spans_nest_within_the_profile(options: dict[str, Any], tmp_path: Path) -> None:
    """Operators and frames nest on each thread, and all spans are within that of the profile.

    Scopes are not compared with frames, because they start in one call of torch and end in another.
    """
    trace = exported(profile_of(workloads.training_step(), **options), tmp_path)

    (whole,) = trace.of(PROFILE)
    assert chrome.crossing(trace.of("cpu_op", "python_function")) is None
    outside = [s for s in trace.spans if s.start_ns < whole.start_ns or s.end_ns > whole.end_ns]
    assert not outside, f"{outside[:3]} outside {whole}"


def test_export_chrome_trace_distinguishes_record_function_and_operators(tmp_path: Path) -> None:
    """`record_function` scopes are annotations, and dispatched operators are operators."""
    trace = exported(profile_of(workloads.scopes()), tmp_path)

    assert Counter(span.name for span in trace.of("user_annotation")) == {
        "pass": 1, "forward": 2, "around backward": 1, "backward": 1
    }  # fmt: skip
    assert not {"pass", "forward", "around backward", "backward"} & {span.name for span in trace.of("cpu_op")}


def test_export_chrome_trace_arrows_lead_from_forward_to_backward(tmp_path: Path) -> None:
    """Each arrow starts in a forward operator and ends, later, in the autograd node of its derivative."""
    trace = exported(profile_of(workloads.forward_and_backward()), tmp_path)

    arrows = [moment for moment in trace.moments if moment.category == "fwdbwd"]
    starts = {moment.arrow: moment for moment in arrows if moment.phase == "s"}
    ends = {moment.arrow: moment for moment in arrows if moment.phase == "f"}
    assert starts.keys() == ends.keys()
    assert len(arrows) == 2 * len(starts)
    begins = {span.start_ns: span.name for span in trace.of("cpu_op")}
    pairs = set()
    for arrow, start in starts.items():
        end = ends[arrow]
        assert start.at_ns < end.at_ns
        pairs.add(tuple(begins[moment.at_ns] for moment in (start, end)))
    assert pairs == {
        ("aten::mul", "MulBackward0"),
        ("aten::exp", "ExpBackward0"),
        ("aten::_to_copy", "ToCopyBackward0"),
        ("aten::add", "AddBackward0"),
        ("aten::sum", "SumBackward0"),
    }


def test_export_chrome_trace_has_profile_memory_events(tmp_path: Path) -> None:
    """With `profile_memory`, each allocation and release is an instant with bytes, address and total, in order."""
    prof = profile_of(workloads.forward_and_backward(), profile_memory=True)

    trace = exported(prof, tmp_path)

    blocks = [node.block for node in read(prof).of_kind(Kind.MEMORY) if node.block]
    instants = sorted((m for m in trace.moments if m.name == "[memory]"), key=lambda moment: moment.at_ns)
    assert blocks
    assert [(m.phase, m.args["Bytes"], m.args["Addr"], m.args["Total Allocated"]) for m in instants] == [
        ("i", block.size, block.address, block.total) for block in blocks
    ]


def test_export_chrome_trace_has_memory_only_with_profile_memory(tmp_path: Path) -> None:
    """Without `profile_memory`, the file has no allocations."""
    trace = exported(profile_of(workloads.forward_and_backward()), tmp_path)

    assert not [moment for moment in trace.moments if moment.name == "[memory]"]


def test_export_chrome_trace_frames_name_their_parent(tmp_path: Path) -> None:
    """Each frame has an id and that of its parent, whose time contains it; the resulting stacks are those of the tree.

    The outermost frame has no parent: null, and since torch 2.14 no field.
    """
    prof = profile_of(workloads.plain_code(), with_stack=True)

    trace = exported(prof, tmp_path)

    frames = {span.args["Python id"]: span for span in trace.of("python_function")}
    assert len(frames) == len(trace.of("python_function"))
    lines: Counter[tuple[str, ...]] = Counter()
    for span in frames.values():
        line, above = [span], span.args.get("Python parent id")
        while above in frames:
            assert frames[above] not in line, f"{span} is its own ancestor"
            line.append(frames[above])
            above = frames[above].args.get("Python parent id")
        for inner, outer in pairwise(line):
            assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns, f"{inner} not within {outer}"
        lines[tuple(fold_name(frame.name) for frame in line)] += 1
    python = (Kind.PYTHON, Kind.C_CALL)
    expected = Counter(
        (node.name, *(parent.name for parent in above if parent.kind in python))
        for node, above in read(prof).with_parents()
        if node.kind in python
    )
    assert expected
    # The file also has the profiler's own frames.
    assert not expected - lines, f"in the tree and not in the file: {expected - lines}"


def test_export_chrome_trace_record_shapes_gives_shapes_and_types(tmp_path: Path) -> None:
    """With `record_shapes`, an operator has the shape and type of each input tensor; without it, it has neither."""
    x = torch.ones(2, 3)
    row = torch.arange(3)

    shown = exported(profile_of(lambda: torch.add(x, row), record_shapes=True), tmp_path)
    hidden = exported(profile_of(lambda: torch.add(x, row)), tmp_path)

    (add,) = [span for span in shown.of("cpu_op") if span.name == "aten::add"]
    assert add.args["Input Dims"][:2] == [[2, 3], [3]]
    assert add.args["Input type"][:2] == ["float", "long int"]
    assert hidden.of("cpu_op")
    assert not [span for span in hidden.of("cpu_op") if {"Input Dims", "Input type"} & span.args.keys()]


def test_add_metadata_is_in_the_exported_file(tmp_path: Path) -> None:
    """Metadata added to a profile is in the file's fields, JSON as JSON and text as text."""
    prof = profiler()
    prof.start()
    prof.add_metadata("machine", "a name")
    prof.add_metadata_json("ranks", '{"size": [1, 2]}')
    prof.stop()

    properties = exported(prof, tmp_path).properties

    assert (properties["machine"], properties["ranks"]) == ("a name", {"size": [1, 2]})


QUOTES = pytest.mark.xfail(
    torch.__version__ < (2, 14),
    raises=chrome.TraceError,
    reason="https://github.com/pytorch/pytorch/issues/146900: torch up to 2.13 does not escape quotes in names",
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param('a "quoted" word', id="quote", marks=QUOTES),
        pytest.param('{"device": "cpu"}', id="json", marks=QUOTES),
        pytest.param("back\\slash", id="backslash"),
        pytest.param("ends with \\", id="backslash_at_end"),
        pytest.param("two\nlines", id="newline"),
        pytest.param("tab\tand bell\a", id="control"),
        pytest.param("naïve 漢字 \N{GRINNING FACE}", id="unicode"),
        pytest.param("</script><b>&amp;", id="markup"),
        pytest.param("x" * 5000, id="long"),
        pytest.param("", id="empty"),
    ],
)
def test_record_function_of_any_name_leaves_the_exported_file_valid(name: str, tmp_path: Path) -> None:
    """A scope with any name leaves the file valid and contains what ran in its block.

    The name is compared only if it is plain text, because torch may replace characters that JSON requires to be
    escaped.
    """
    x = torch.ones(2)

    def work() -> None:
        with record_function(name):
            torch.sin(x)

    trace = exported(profile_of(work), tmp_path)

    scope, operator = trace.of(*chrome.HOST)
    assert chrome.indented([scope, operator]) == [(0, scope.name), (1, "aten::sin")]
    if name.isascii() and name.isprintable() and "\\" not in name:
        assert scope.name in (name, name.replace('"', "'"))  # torch 2.14 replaces it like this


def test_export_chrome_trace_gz_has_the_same_events(tmp_path: Path) -> None:
    """A name that ends in `.gz` gives a compressed file with the profile's events, and no other file."""
    prof = profile_of(workloads.forward_and_backward())
    file = tmp_path / "trace.json.gz"

    prof.export_chrome_trace(str(file))

    assert chrome.indented(chrome.load(file).of("cpu_op")) == operators(read(prof))
    assert list(tmp_path.iterdir()) == [file]


def test_export_chrome_trace_of_an_aborted_profile(tmp_path: Path) -> None:
    """A profile ended by an exception gives a valid file with the events before it, including the open scope."""
    x = torch.rand(3)
    prof = profiler()

    def run() -> None:
        with prof, record_function("scope"):
            torch.sin(x)
            raise LookupError

    with pytest.raises(LookupError):
        run()

    trace = exported(prof, tmp_path)

    assert chrome.indented(trace.of(*chrome.HOST)) == [(0, "scope"), (1, "aten::sin")]


def test_schedule_exports_the_active_steps_only(tmp_path: Path) -> None:
    """With a schedule, each cycle is one file with its active steps, in order.

    Waiting and warm-up steps are not in the file.
    """
    x = torch.rand(3)
    files: list[Path] = []

    def ready(prof: profile) -> None:
        files.append(tmp_path / f"{len(files)}.json")
        prof.export_chrome_trace(str(files[-1]))

    plan = schedule(wait=1, warmup=1, active=2, repeat=2)
    with quiet_collector(), profiler(schedule=plan, on_trace_ready=ready) as prof:
        for step in range(9):
            with record_function(f"step {step}"):
                torch.sin(x)
            prof.step()

    def cycle(*steps: int) -> list[tuple[int, str]]:
        return [e for n in steps for e in ((0, f"ProfilerStep#{n}"), (1, f"step {n}"), (2, "aten::sin"))]

    assert [chrome.indented(chrome.load(file).of(*chrome.HOST)) for file in files] == [cycle(2, 3), cycle(6, 7)]


def test_tensorboard_trace_handler_writes_one_trace(tmp_path: Path) -> None:
    """`tensorboard_trace_handler` writes one valid trace to its directory, named after the worker."""
    x = torch.rand(3)
    with profiler(on_trace_ready=tensorboard_trace_handler(str(tmp_path), worker_name="worker")):
        torch.sin(x)

    (file,) = tmp_path.iterdir()
    assert file.name.startswith("worker.")
    assert file.name.endswith(".pt.trace.json")
    assert [span.name for span in chrome.load(file).of("cpu_op")] == ["aten::sin"]
