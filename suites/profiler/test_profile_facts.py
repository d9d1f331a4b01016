"""A profile's events and their contents, the sum of its cycles, refused arguments, and written files."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.profiler import KinetoStepTracker
from torch.autograd.profiler import profile as autograd_profile
from torch.profiler import (
    ExecutionTraceObserver,
    ProfilerAction,
    ProfilerActivity,
    profile,
    record_function,
    supported_activities,
    tensorboard_trace_handler,
)

from . import _torch_private as private
from . import chrome
from .trees import HOST, profiler, quiet_collector, warm_up

#: Names of `FunctionEvent` attributes, and of the recorded event's attribute for each.
SAME = {
    "id": "correlation_id",
    "overload_name": "overload_name",
    "thread": "start_thread_id",
    "fwd_thread": "fwd_thread_id",
    "input_shapes": "shapes",
    "concrete_inputs": "concrete_inputs",
    "kwinputs": "kwinputs",
    "scope": "scope",
    "sequence_nr": "sequence_nr",
    "device_type": "device_type",
    "device_index": "device_index",
    "device_resource_id": "device_resource_id",
    "flops": "flops",
    "is_user_annotation": "is_user_annotation",
    "is_python_function": "is_python_function",
    "activity_type": "activity_type",
    "flow_id": "flow_id",
    "flow_type": "flow_type",
    "flow_start": "flow_start",
    "external_id": "external_id",
    "linked_correlation_id": "linked_correlation_id",
    "structured_input_shapes": "structured_input_shapes",
    "structured_input_strides": "structured_input_strides",
    "input_dtypes": "dtypes",
    "python_id": "python_id",
    "python_parent_id": "python_parent_id",
    "python_module_id": "python_module_id",
}


@pytest.mark.requires(torch=">=2.13")
def test_events_have_the_facts_that_were_recorded() -> None:
    """Each event of a profile has the name, times and values of the recorded event, in the order of their starts.

    Concrete inputs are the numbers and lists of numbers that the operator received, with their signs. If events start
    together, the longer one comes first.
    """
    x, w = torch.ones(2, 3, requires_grad=True), torch.ones(3, 2)

    def work() -> None:
        with record_function("scope"):
            (x @ w).add(1.5, alpha=-2).sum([-1]).sum().backward()

    options = {"record_shapes": True, "with_flops": True, "with_stack": True}
    warm_up(work, **options)
    with quiet_collector(), profiler(**options) as prof:
        work()
    events, start = prof.events(), private.trace_start_ns(prof)
    keys = Counter((each.correlation_id(), each.name()) for each in private.kineto_events(prof))
    recorded = {(each.correlation_id(), each.name()): each for each in private.kineto_events(prof)}
    compared = [event for event in events if keys[event.id, event.trace_name] == 1]

    assert {"aten::mm", "scope", "MmBackward0"} <= {event.name for event in compared}
    for event in compared:
        source = recorded[event.id, event.trace_name]
        assert {name: getattr(event, name) for name in SAME} == {
            name: getattr(source, other)() for name, other in SAME.items()
        }
        assert event.time_range.start == (source.start_ns() - start) / 1000
        assert event.time_range.end == (source.end_ns() - start) / 1000
        assert not event.is_async
    for name in ("fwd_thread", "input_shapes", "concrete_inputs", "scope", "sequence_nr", "flops", "flow_id"):
        assert len({str(getattr(event, name)) for event in compared}) > 1, name
    assert [event.concrete_inputs for event in compared if event.name == "aten::add"] == [[None, None, -2]]
    assert [None, [-1], False, None] in [event.concrete_inputs for event in compared if event.name == "aten::sum"]
    order = [(event.time_range.start, -event.time_range.end) for event in events]
    assert order == sorted(order)


def test_events_have_names_without_mangling() -> None:
    """A mangled C++ name is shown demangled; a name of one letter, which is a mangled type, is kept."""
    with profiler() as prof:
        for name in ("_Z4calli", "i"):
            with record_function(name):
                pass
    assert [event.name for event in prof.events()] == ["call(int)", "i"]


def test_profile_memory_has_events_for_what_no_operator_does() -> None:
    """Memory that is freed outside of operators is a separate event at its time, with its size and its own id."""
    with profiler(profile_memory=True) as prof:
        first = torch.empty(1024)
        with record_function("between"):
            pass
        del first
        second = torch.empty(3)
        del second
    events = list(prof.events())
    freed = [event for event in events if event.name == "[memory]"]
    others = [event for event in events if event.name != "[memory]"]
    assert [event.cpu_memory_usage for event in freed] == [-4096, -12]
    assert [event.name for event in events] == ["aten::empty", "between", "[memory]", "aten::empty", "[memory]"]
    for event in freed:
        assert event.time_range.start == event.time_range.end
        assert (event.device_memory_usage, event.scope, event.device_index, event.sequence_nr) == (0, 0, 0, -1)
    top = max(event.id for event in others)
    assert [event.id for event in freed] == [top + 1, top + 2]
    assert len({event.id for event in events}) == len(events)


@pytest.mark.parametrize("accumulated", [True, False])
@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle")
@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
def test_acc_events_decides_whether_cycles_add_up(accumulated: bool) -> None:
    """With `acc_events`, a profile has the events of all its cycles, each once; without it, those of the last cycle."""
    seen: list[list[str]] = []

    def ready(prof: profile) -> None:
        seen.append(sorted(event.name for event in prof.events() if event.name.startswith("work")))

    plan = torch.profiler.schedule(wait=0, warmup=0, active=1, repeat=3)
    with profile(activities=HOST, acc_events=accumulated, schedule=plan, on_trace_ready=ready) as prof:
        for cycle in range(3):
            with record_function(f"work {cycle}"):
                torch.ones(1)
            prof.step()
    works = [f"work {cycle}" for cycle in range(3)]
    assert seen == ([works[:1], works[:2], works] if accumulated else [[each] for each in works])


@pytest.mark.own_process
@pytest.mark.requires(torch=">=2.13")
@pytest.mark.parametrize("accumulated", [True, False])
def test_profile_warns_once_that_it_forgets_its_cycles(accumulated: bool) -> None:
    """The second cycle of a profile without `acc_events` warns once that it clears the events of the first."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            prof = profile(activities=HOST, acc_events=accumulated)
            for _ in range(2):
                prof.start()
                prof.stop()
    found = [str(each.message) for each in seen]
    assert sum("clears events at the end of each cycle" in each for each in found) == (0 if accumulated else 1)


def test_profile_with_a_plan_marks_each_recorded_step() -> None:
    """Each recorded step of a schedule is a scope, from the first one on; a profile without a schedule has none."""

    def steps(prof: profile) -> list[str]:
        with prof:
            for _ in range(2):
                torch.ones(1)
                prof.step()
        return [event.trace_name or "" for event in prof.events() if "ProfilerStep" in event.name]

    assert steps(profiler(schedule=lambda _: ProfilerAction.RECORD)) == [f"ProfilerStep#{step}" for step in range(3)]
    assert steps(profiler()) == []


@pytest.mark.requires(torch=">=2.13")
def test_schedule_cannot_say_device_stopped() -> None:
    """A schedule may not return `DEVICE_STOPPED`, in any step; the profile then stays in its step."""
    with pytest.raises(ValueError, match="DEVICE_STOPPED is set internally"):
        profiler(schedule=lambda _: ProfilerAction.DEVICE_STOPPED)
    plan = {0: ProfilerAction.RECORD, 1: ProfilerAction.DEVICE_STOPPED}
    with profiler(schedule=plan.__getitem__) as prof:
        with pytest.raises(ValueError, match="DEVICE_STOPPED is set internally"):
            prof.step()
        assert (prof.step_num, prof.current_action) == (0, ProfilerAction.RECORD)


@pytest.mark.requires(torch=">=2.13")
def test_profile_refuses_activities_that_do_not_fit() -> None:
    """Activities are those of `ProfilerActivity`, at least one, each once; by default all supported ones.

    A mapping names the kinds of events of an activity.
    """
    prof = profiler(activities=None)  # type: ignore[arg-type]
    assert prof.activities == supported_activities()
    with prof, record_function("scope"):
        pass
    assert "scope" in {event.name for event in prof.events()}
    assert ProfilerActivity.CPU in supported_activities()
    with pytest.raises(AssertionError, match="No valid profiler activities"):
        profiler(activities=[])
    for twice in ([ProfilerActivity.CPU] * 2, [ProfilerActivity.CPU, {ProfilerActivity.CPU: ["cpu_op"]}]):
        with pytest.raises(ValueError, match="specified more than once"):
            profiler(activities=twice)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Expected ProfilerActivity or dict"):
        profiler(activities=[ProfilerActivity.CPU, "cpu"])  # type: ignore[list-item]
    found = profiler(activities=[{ProfilerActivity.CPU: ["cpu_op"]}])  # type: ignore[list-item]
    assert (found.activities, found.activity_filters) == ({ProfilerActivity.CPU}, {ProfilerActivity.CPU: {"cpu_op"}})


@pytest.mark.requires(torch=">=2.13")
def test_profile_activities_with_kinds_decide_what_a_trace_has(tmp_path: Path) -> None:
    """The kinds of events given for an activity are those of the exported trace; an unknown kind is refused."""
    seen: dict[str, set[str]] = {}
    for kind in ("CPU_OP", "USER_ANNOTATION", "no such kind"):
        prof = profiler(activities=[{ProfilerActivity.CPU: [kind]}])  # type: ignore[list-item]
        if kind == "no such kind":
            with pytest.raises(RuntimeError, match="no such kind"):
                prof.start()
            continue
        with prof, record_function("scope"):
            torch.ones(2).sin()
        prof.export_chrome_trace(str(tmp_path / "trace.json"))
        seen[kind] = {span.category for span in chrome.load(tmp_path / "trace.json").spans} - {"Trace"}
    assert seen == {"CPU_OP": {"cpu_op"}, "USER_ANNOTATION": {"user_annotation"}}


@pytest.mark.requires(torch=">=2.13")
def test_post_processing_timeout_s_leaves_out_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    """Events not read within `post_processing_timeout_s` are left out with a warning; it must not be negative."""
    for timeout, names in ((0.0, []), (3600.0, ["aten::empty", "[memory]"]), (None, ["aten::empty", "[memory]"])):
        caplog.clear()
        with profiler(post_processing_timeout_s=timeout, profile_memory=True) as prof:
            torch.empty(2)
        assert [event.name for event in prof.events()] == names
        assert ("timed out after 0.000 seconds" in caplog.text) == (timeout == 0.0)
    with pytest.raises(ValueError, match="must be non-negative"):
        profiler(post_processing_timeout_s=-1.0).start()


class OwnError(Exception):
    """Raised within a profile."""


def test_autograd_profile_ends_with_an_exception_and_begins_once() -> None:
    """A profile propagates exceptions, keeps the events before them, and cannot be entered within itself or again.

    Its text is its table, which says if it has not recorded yet. With `enabled=False`, it records nothing.
    """
    prof = autograd_profile()
    assert str(prof) == "<unfinished torch.autograd.profile>"
    assert list(prof.function_events) == []
    prof = autograd_profile()

    def fails() -> None:
        with prof as entered:
            assert entered is prof
            torch.ones(2).sin()
            with pytest.raises(RuntimeError, match="not reentrant"):
                prof.__enter__()
            raise OwnError

    with pytest.raises(OwnError):
        fails()
    with pytest.raises(RuntimeError, match="not reentrant"):
        prof.__enter__()
    assert "aten::sin" in str(prof)
    assert not any(event.flops or event.input_shapes or event.stack for event in prof.function_events)
    assert "aten::sin" in {event.name for event in prof.function_events}
    with autograd_profile(enabled=False) as nothing:
        assert not private.profiler_enabled()
    assert nothing is None


def test_autograd_profile_warns_of_devices_that_it_does_not_have() -> None:
    """`use_cuda` is deprecated, unknown devices are left out with a warning, and a profile requires an activity."""
    with pytest.warns(UserWarning, match="The other is not a valid device option"):
        assert autograd_profile(use_device="other").use_device is None

    def of_cuda() -> autograd_profile:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "CUDA is not available")
            return autograd_profile(use_cuda=True)

    with pytest.warns(FutureWarning, match="use_cuda. will be deprecated"):
        found = of_cuda()
    assert found.use_device == ("cuda" if torch.cuda.is_available() else None)
    with pytest.warns(FutureWarning, match="use_cuda. is deprecated"):
        profile(activities=HOST, use_cuda=False)
    with pytest.raises(AssertionError, match="supported only with Kineto"):
        autograd_profile(use_cpu=False)
    with pytest.raises(AssertionError, match="No activities specified"):
        autograd_profile(use_cpu=False, use_kineto=True)


def test_profile_that_has_not_begun_refuses_its_results(tmp_path: Path) -> None:
    """Before its first step, a profile has no id, no events, averages, traces or stacks, and cannot end."""
    prof, file = profiler(), str(tmp_path / "file")
    for wrong in (
        prof.events,
        prof.key_averages,
        prof.stop_trace,
        prof.start_trace,
        lambda: prof.export_chrome_trace(file),
        lambda: prof.export_stacks(file),
    ):
        with pytest.raises(AssertionError, match="Profiler must be initialized"):
            wrong()
    prof.toggle_collection_dynamic(False, HOST)
    assert prof.get_trace_id() is None
    assert not list(tmp_path.iterdir())


@pytest.mark.requires(torch=">=2.13")
def test_trace_only_profile_has_a_file_and_no_events(tmp_path: Path) -> None:
    """With `trace_only`, a profile exports a trace and refuses its events; with stacks, it warns and has both."""
    with profiler(experimental_config=private.trace_only_config()) as prof:
        torch.ones(2).sin()
    with pytest.raises(RuntimeError, match="not available when trace_only=True"):
        prof.events()
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    assert "aten::sin" in {span.name for span in chrome.load(tmp_path / "trace.json").of("cpu_op")}
    config = private.trace_only_config()
    with pytest.warns(UserWarning, match="trace_only=True is incompatible with with_stack=True"):
        prof = profiler(experimental_config=config, with_stack=True)
    assert config.trace_only
    warm_up(lambda: torch.ones(2).sin(), with_stack=True)
    with prof:
        torch.ones(2).sin()
    assert "aten::sin" in {event.name for event in prof.events()}


def test_set_custom_trace_id_callback_names_the_trace(tmp_path: Path) -> None:
    """The callback is called once per trace; without one, each trace has its own id of 32 hexadecimal digits."""
    calls: list[int] = []

    def name() -> str:
        calls.append(1)
        return f"trace{len(calls)}"

    ids = []
    for callback in (None, None, name):
        prof = profiler()
        prof.set_custom_trace_id_callback(callback)
        with prof:
            torch.ones(1)
        ids.append(prof.get_trace_id())
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    assert ids[2] == "trace1"
    assert len(calls) == 1
    assert ids[0] != ids[1]
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in ids[:2])
    assert chrome.load(tmp_path / "trace.json").properties["trace_id"] == "trace1"


def labels(file: Path) -> set[tuple[str, ...]]:
    """Return the names and the order of processes and threads in a trace, threads without the name of the process."""
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return {
        (event["name"], str(event["pid"]), str(event["tid"]), str(event["args"]).replace(" (python)", ""))
        for event in json.loads(content)["traceEvents"]
        if event["ph"] == "M"
    }


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_export_chrome_trace_in_python_writes_the_same_events(ending: str, tmp_path: Path) -> None:
    """With `use_python_export`, a file has the spans, arrows and metadata of the usual one, and names with quotes."""
    x = torch.ones(2, 3, requires_grad=True)
    prof = profiler(record_shapes=True)
    prof.preset_metadata_json("preset", '{"a": [1]}')
    prof.preset_metadata_json("later", "2")
    with prof, record_function("scope"):
        (x * 2).sum().backward()
        prof.add_metadata("machine", "a name")
    usual, other = tmp_path / f"usual{ending}", tmp_path / f"other{ending}"
    prof.export_chrome_trace(str(usual))
    prof.export_chrome_trace(str(other), use_python_export=True)
    wanted, found = chrome.load(usual), chrome.load(other)

    def lines(trace: chrome.Trace) -> list[tuple[Any, ...]]:
        spans = [(s.category, s.name, s.line, s.start_ns, s.end_ns, str(s.args)) for s in trace.spans if s.args]
        return sorted(line for line in spans if line[0] != "Trace")

    def arrows(trace: chrome.Trace) -> list[tuple[Any, ...]]:
        return sorted((m.phase, m.category, m.line, m.at_ns, m.arrow) for m in trace.moments if m.arrow)

    assert lines(found) == lines(wanted)
    assert arrows(found) == arrows(wanted) != []
    for trace in (wanted, found):
        assert (trace.properties["preset"], trace.properties["later"]) == ({"a": [1]}, 2)
        assert trace.properties["machine"] == "a name"
        assert trace.properties["record_shapes"] == 1
    assert found.properties["baseTimeNanoseconds"] == wanted.properties["baseTimeNanoseconds"]
    (whole,), (usual_whole,) = found.of("Trace"), wanted.of("Trace")
    assert usual_whole.start_ns <= whole.start_ns <= whole.end_ns <= usual_whole.end_ns
    inner = [span for span in found.spans if span is not whole]
    assert (whole.start_ns, whole.end_ns) == (min(s.start_ns for s in inner), max(s.end_ns for s in inner))
    assert [(m.name, m.at_ns) for m in found.moments if m.phase == "i"] == [
        ("Iteration Start: PyTorch Profiler", whole.start_ns),
        ("Record Window End", whole.end_ns + 1000),
    ]
    # The export in Python calls each process "python".
    named = {label for label in labels(other) if label[0] not in ("process_name", "thread_name")}
    assert named - labels(usual) == set()
    assert {name for name, *_ in labels(other)} == {name for name, *_ in labels(usual)}

    with profiler() as quoted, record_function('a "quoted" word'):
        quoted.add_metadata("machine", 'its "name"')
    quoted.export_chrome_trace(str(other), use_python_export=True)
    found = chrome.load(other)
    assert [span.name for span in found.of("user_annotation")] == ['a "quoted" word']
    assert found.properties["machine"] == 'its "name"'


@pytest.mark.requires(torch=">=2.13")
def test_tensorboard_trace_handler_options_decide_name_and_kind_of_the_file(tmp_path: Path) -> None:
    """The file is named after host and process by default; `use_gzip` and `use_python_export` take effect."""
    with profiler(on_trace_ready=tensorboard_trace_handler(str(tmp_path))):
        torch.ones(2).sin()
    (file,) = tmp_path.iterdir()
    assert file.name.startswith(f"{socket.gethostname()}_{os.getpid()}.")
    assert "host_name" in chrome.load(file).properties
    file.unlink()
    with profiler(on_trace_ready=tensorboard_trace_handler(str(tmp_path), "w", use_gzip=True, use_python_export=True)):
        torch.ones(2).sin()
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("w.")
    assert file.name.endswith(".pt.trace.json.gz")
    trace = chrome.load(file)
    assert "host_name" not in trace.properties
    assert "aten::sin" in {span.name for span in trace.of("cpu_op")}


def stacks_of(prof: Any, name: str) -> list[str]:
    return [entry for event in prof.function_events if event.name == name for entry in event.stack]


def test_stacks_leave_out_the_call_of_backward() -> None:
    """The stack of an event has the caller of `backward`, by whatever name, and not torch's own function."""

    def calls_backward_itself() -> None:
        torch.ones(2, requires_grad=True).exp().sum().backward()

    warm_up(calls_backward_itself, with_stack=True)
    with autograd_profile(with_stack=True, experimental_config=private.verbose_config()) as prof:
        calls_backward_itself()
    found = [entry for event in prof.function_events for entry in event.stack]
    assert any("calls_backward_itself" in entry for entry in found)
    assert not [entry for entry in found if "autograd/__init__" in entry and "backward" in entry]
    assert not [entry for entry in found if "autograd/__init__" in entry and "_make_grads" in entry]
    with autograd_profile(with_stack=True, experimental_config=private.verbose_config()) as prof:
        x = torch.ones(2, requires_grad=True)
        torch.autograd.grad(x.exp().sum(), x)
    found = [entry for event in prof.function_events for entry in event.stack]
    assert any("autograd/__init__" in entry and entry.endswith(": grad") for entry in found)


def test_autograd_profile_table_and_averages_are_those_of_its_events() -> None:
    """`table` and `key_averages` of a profile pass on their arguments, and have the defaults of its events."""

    def a_function_with_a_name_that_is_far_longer_than_the_column_of_the_table_for_the_stacks_of_events() -> None:
        torch.ones(2, 3).add(1)
        torch.ones(4, 5).add(1)

    with autograd_profile(
        with_stack=True, record_shapes=True, experimental_config=private.verbose_config(capture_overload_names=True)
    ) as prof:
        a_function_with_a_name_that_is_far_longer_than_the_column_of_the_table_for_the_stacks_of_events()
        torch.ones(2, 3).add(1)
    events = prof.function_events
    for options in (
        {},
        {"max_src_column_width": 40},
        {"max_name_column_width": 8},
        {"max_shapes_column_width": 6},
        {"row_limit": 2},
        {"header": "HEADER", "top_level_events_only": True},
        {"sort_by": "cpu_time_total"},
    ):
        assert prof.table(**options) == events.table(**options), options
    for grouping, count in (
        ({}, 1),
        ({"group_by_input_shape": True}, 2),
        ({"group_by_stack_n": 1}, None),
        ({"group_by_overload_name": True}, 1),
    ):
        found = [each for each in prof.key_averages(**grouping) if each.key == "aten::add"]
        assert count is None or len(found) == count, grouping
        assert sum(each.count for each in found) == 3
        assert {len(each.stack) for each in found} == {grouping.get("group_by_stack_n", 0)}
        assert {each.overload_name for each in found} == {"Tensor" if "group_by_overload_name" in grouping else ""}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_executiontraceobserver_writes_its_file_when_it_is_unregistered(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A name that ends in `.gz` gives a compressed file. A second registration waits for the end of the first."""
    observer = ExecutionTraceObserver()
    assert not observer.is_registered
    file, other = tmp_path / name, tmp_path / "other.json"
    assert observer.register_callback(str(file)) is observer
    observer.register_callback(str(other))
    assert observer.is_registered
    assert observer.get_output_file_path() == str(file)
    observer.start()
    torch.ones(2).sin()
    observer.unregister_callback()
    assert not observer.is_registered
    assert not other.exists()
    content = gzip.decompress(file.read_bytes()) if name.endswith(".gz") else file.read_bytes()
    assert "aten::sin" in [node["name"] for node in json.loads(content)["nodes"]]
    assert list(tmp_path.iterdir()) == [file]
    observer.register_callback(str(other))
    assert observer.is_registered
    observer.unregister_callback()
    assert other.exists()
    capfd.readouterr()


def test_executiontraceobserver_has_a_folder_for_resources_on_request(tmp_path: Path) -> None:
    """With `set_extra_resource_collection`, a folder for the trace's resources is created beside the file."""
    observer = ExecutionTraceObserver().register_callback(str(tmp_path / "trace.json"))
    assert observer.get_resources_dir() is None
    observer.set_extra_resource_collection(True)
    folder = tmp_path / "trace_resources"
    assert folder.is_dir()
    assert observer.get_resources_dir() == str(folder)
    observer.set_extra_resource_collection(False)
    assert observer.get_resources_dir() is None
    observer.unregister_callback()
    observer.register_callback(str(tmp_path / "later.json"))
    observer.extra_resources_collection, observer.resources_dir = True, ""
    assert observer.get_resources_dir() is None
    assert not (tmp_path / "later_resources").exists()
    observer.unregister_callback()
    of_path = ExecutionTraceObserver.get_resources_dir_for_et_path
    assert of_path(str(tmp_path / "new.json")) is None
    assert of_path(str(tmp_path / "new.json"), create_dir=True) == str(tmp_path / "new_resources")
    assert (tmp_path / "new_resources").is_dir()


@pytest.mark.parametrize("extras", [False, True])
def test_enable_pytorch_execution_trace_gives_each_profile_an_observer(
    extras: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`ENABLE_PYTORCH_EXECUTION_TRACE=1` gives a profile an observer with a temporary file; by default it has none."""
    assert profiler().execution_trace_observer is None
    monkeypatch.setenv("ENABLE_PYTORCH_EXECUTION_TRACE", "1")
    monkeypatch.setenv("ENABLE_PYTORCH_EXECUTION_TRACE_EXTRAS", "1" if extras else "0")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with profiler() as prof:
        torch.ones(2).sin()
    observer = prof.execution_trace_observer
    assert isinstance(observer, ExecutionTraceObserver)
    assert not observer.is_registered
    file = Path(observer.get_output_file_path() or "")
    assert file.parent == tmp_path
    assert file.name.endswith(".et.json")
    assert "aten::sin" in [node["name"] for node in json.loads(file.read_text())["nodes"]]
    assert (observer.get_resources_dir() is not None) is extras


def test_kinetosteptracker_counts_the_steps_of_each_that_asks() -> None:
    """The count is that of the furthest tracker; a later tracker starts at the count, and only further steps count."""
    count, names = KinetoStepTracker.current_step(), ("first", "second")
    try:
        for name in names:
            KinetoStepTracker.init_step_count(name)
        found = [KinetoStepTracker.increment_step(name) for name in ("first", "second", "second", "first")]
        assert found == [count + 1, count + 1, count + 2, count + 2]
        assert KinetoStepTracker.increment_step("third") == count + 3
    finally:
        erased = [KinetoStepTracker.erase_step_count(name) for name in (*names, "third", "third")]
    assert erased == [True, True, True, False]
    assert KinetoStepTracker.current_step() == count + 3


@pytest.mark.own_process
def test_trace_of_a_process_of_a_group_names_the_group(tmp_path: Path) -> None:
    """The trace of a process in a group has the backend, rank and size, and its execution trace has the group."""
    file, other = tmp_path / "trace.json", tmp_path / "execution.json"
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        with profiler(execution_trace_observer=ExecutionTraceObserver().register_callback(str(other))) as prof:
            torch.ones(2).sin()
        prof.export_chrome_trace(str(file))
    finally:
        torch.distributed.destroy_process_group()
    found = chrome.load(file).properties["distributedInfo"]
    assert (found["backend"], found["rank"], found["world_size"]) == ("gloo", 0, 1)
    assert found["pg_count"] == len(found["pg_config"]) == 1
    assert "## process_group:init ##" in [node["name"] for node in json.loads(other.read_text())["nodes"]]


def test_events_of_threads_are_trees_of_their_own() -> None:
    """With `profile_all_threads`, an event is a child only of events of its own thread.

    This also holds if another thread waits for it within an event; the wait counts as time of the waiting event.
    """

    def serve() -> None:
        with record_function("there"):
            torch.ones(3).sin()

    with (
        profiler(experimental_config=private.verbose_config(profile_all_threads=True)) as prof,
        record_function("here"),
    ):
        torch.ones(3).cos()
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join()

    events = prof.events()
    found = {event.name: event for event in events if event.name in ("here", "there")}
    here, there = found["here"], found["there"]
    assert here.time_range.start < there.time_range.start < there.time_range.end < here.time_range.end
    assert [(event.cpu_parent, [child.name for child in event.cpu_children]) for event in (here, there)] == [
        (None, ["aten::ones", "aten::cos"]),
        (None, ["aten::ones", "aten::sin"]),
    ]
    assert here.thread != there.thread
    assert {child.thread == event.thread for event in events for child in event.cpu_children} == {True}
    assert here.self_cpu_time_total > there.cpu_time_total
