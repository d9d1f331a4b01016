"""Profilers and names of earlier releases that torch still has: the legacy profiler, files of nvprof, and old names."""

from __future__ import annotations

import json
import sqlite3
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.autograd import profiler_legacy as legacy
from torch.autograd.profiler import EnforceUnique, load_nvprof
from torch.autograd.profiler import profile as autograd_profile
from torch.autograd.profiler_util import EventList, FunctionEvent, FunctionEventAvg

from . import _torch_private as private


def work(device: torch.device) -> None:
    a = torch.ones(4, 8, device=device, requires_grad=True)
    (a @ torch.ones(8, 2, device=device)).sum().backward()


def test_legacy_profile_has_the_operators_of_its_block(device: torch.device, tmp_path: Path) -> None:
    """The legacy profiler records operators as trees, with shapes, and its results are those of its events.

    Source: https://docs.pytorch.org/docs/stable/autograd.html, `torch.autograd.profiler_legacy.profile`.
    """
    with legacy.profile(record_shapes=True, with_stack=True) as prof:
        work(device)
    torch.ones(2).exp()
    events = prof.function_events
    assert isinstance(events, EventList)
    found = {event.name: event for event in events}
    assert {"aten::matmul", "MmBackward0"} <= {event.cpu_parent.name for event in events if event.name == "aten::mm"}
    assert found["aten::matmul"].input_shapes == [[4, 8], [8, 2]]
    children = [event for event in events if event.cpu_parent is not None]
    assert all(event.cpu_parent.cpu_time_total >= event.cpu_time_total > 0 for event in children)
    assert "MmBackward0" in found
    assert "aten::exp" not in found
    assert any("test_legacy.py" in frame and ": work" in frame for frame in found["aten::matmul"].stack)
    assert [event.time_range.start for event in events] == sorted(event.time_range.start for event in events)
    for options in (
        {},
        {"row_limit": 3, "sort_by": "cpu_time_total"},
        {"max_src_column_width": 12},
        {"max_name_column_width": 8},
        {"max_shapes_column_width": 6},
        {"header": "HEADER", "top_level_events_only": True},
    ):
        assert prof.table(**options) == events.table(**options), options
    assert str(prof) == str(events)
    assert repr(prof) == repr(events)
    assert [each.count for each in prof.key_averages() if each.key == "aten::mm"] == [2]
    shapes = prof.key_averages(group_by_input_shape=True)
    assert {str(each.input_shapes) for each in shapes if each.key == "aten::mm"} == {
        str(event.input_shapes) for event in events if event.name == "aten::mm"
    }
    assert prof.total_average().count == len(events)
    assert prof.self_cpu_time_total == events.self_cpu_time_total > 0
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    names = [event["name"] for event in json.loads((tmp_path / "trace.json").read_text()) if event["ph"] == "X"]
    assert Counter(names) == Counter(event.trace_name for event in events)
    prof.export_stacks(str(tmp_path / "stacks"))
    assert "_work " in (tmp_path / "stacks").read_text()


class OwnError(Exception):
    """Raised within a profile."""


def test_legacy_profile_has_shapes_stacks_and_operations_on_request() -> None:
    """By default, events have names and times only; `with_flops` counts operations, which requires shapes.

    An exception leaves the block, and the events before it are kept.
    """

    def fails(prof: legacy.profile) -> None:
        with prof:
            torch.ones(4, 8) @ torch.ones(8, 2)
            raise OwnError

    for options in ({}, {"with_flops": True}, {"with_stack": True}):
        prof = legacy.profile(**options)
        with pytest.raises(OwnError):
            fails(prof)
        (found,) = (event for event in prof.function_events or () if event.name == "aten::mm")
        assert bool(found.input_shapes) == ("with_flops" in options)
        assert bool(found.flops) == ("with_flops" in options)
        assert bool(found.stack) == ("with_stack" in options)
        assert found.cpu_memory_usage == 0
        if "with_flops" in options:
            assert found.flops == 2 * 4 * 8 * 2
            assert "FLOPs" in prof.table()


def test_legacy_profile_counts_the_memory_that_operators_allocate() -> None:
    """With `profile_memory`, an operator has the memory that is allocated and freed within it.

    Memory that no operator frees is a separate event.
    """
    with legacy.profile(profile_memory=True) as prof:
        x = torch.empty(256)
        x.add(1)
        del x
    assert "CPU Mem" in prof.table()
    found = [(event.name, event.cpu_memory_usage) for event in prof.function_events or ()]
    assert ("aten::empty", 1024) in found
    assert ("aten::add", 1024) in found
    assert found.count(("[memory]", -1024)) == 2


class Record:
    """A record of the legacy profiler, at a time in microseconds. Each value is read by a call."""

    def __init__(self, kind: str, name: str = "", time: int = 0, **values: Any) -> None:
        self.time = time
        self.values = {
            "kind": kind,
            "name": name,
            "handle": 0,
            "node_id": -1,
            "is_remote": False,
            "thread_id": 1,
            "fwd_thread_id": 0,
            "shapes": [],
            "stack": [],
            "scope": 0,
            "sequence_nr": -1,
            "flops": 0,
            "is_async": False,
            "has_cuda": False,
            **values,
        }

    def __getattr__(self, name: str) -> Any:
        return lambda: self.values[name]

    def cpu_elapsed_us(self, other: Record) -> int:
        return other.time - self.time

    def cuda_elapsed_us(self, other: Record) -> int:
        return int(other.values["cuda"]) - int(self.values["cuda"])


def begin(name: str, time: int, handle: int, **values: Any) -> Record:
    return Record("push", name, time, handle=handle, **values)


def end(time: int, handle: int, **values: Any) -> Record:
    return Record("pop", "", time, handle=handle, **values)


def memory(host: int, device: int) -> Record:
    return Record("memory_alloc", cpu_memory_usage=host, cuda_memory_usage=device)


#: The start of a profile, from which times count.
START = Record("mark", "__start_profile", 100)


def legacy_event(name: str, number: int, start: int, end: int, **values: Any) -> FunctionEvent:
    common = {
        "node_id": -1,
        "trace_name": name,
        "thread": 1,
        "fwd_thread": 0,
        "input_shapes": [],
        "stack": [],
        "flops": 0,
    }
    return FunctionEvent(
        **{"id": number, "name": name, "start_us": start, "end_us": end, "is_legacy": True, **common, **values}
    )


def memory_event(host: int, device: int) -> FunctionEvent:
    return FunctionEvent(
        0, "[memory]", 0, 0, 0, stack=[], cpu_memory_usage=host, device_memory_usage=device, is_legacy=True
    )


def assert_same_events(records: Sequence[Sequence[Record]], wanted: Sequence[FunctionEvent]) -> None:
    """Check that the events of the records are `wanted`, with the same values of all attributes."""

    def facts(event: Any) -> dict[str, Any]:
        return {**vars(event), "time_range": (event.time_range.start, event.time_range.end)}

    assert [facts(event) for event in private.legacy_events(records)] == [facts(event) for event in wanted]


def test_legacy_records_of_a_range_are_one_event() -> None:
    """An event has the values of the record of its start, and times that count from the start of the profile.

    A name that starts twice in a row, as for operators that call themselves, is one event; helpers of the profiler are
    no events.
    """
    values = {"fwd_thread_id": 4, "shapes": [[2, 3]], "scope": 1, "sequence_nr": 7, "flops": 12}
    frames = ["model.py(3): forward", "torch/autograd/__init__.py(9): backward"]
    records = [
        Record("mark", "before", 50),
        START,
        begin("outer", 110, 1, stack=frames, **values),
        begin("outer", 111, 2),
        begin("aten::is_leaf", 112, 3),
        end(113, 3),
        begin("ProfilerStep#7", 114, 4, node_id=2),
        end(120, 4, node_id=2, is_remote=True),
        end(121, 2),
        end(130, 1),
        Record("mark", "twice", 131),
        begin("twice", 132, 5),
        begin("twice", 133, 5, node_id=1),
        end(134, 5, node_id=1),
        end(135, 5),
        begin("later", 140, 6),
        begin("inner", 140, 7),
        end(145, 7),
        end(150, 6),
        Record("mark", "__start_profile", 160),
        begin("open", 170, 8),
    ]
    others = [
        begin("open", 180, 9, thread_id=2),
        begin("task", 181, 10, thread_id=2, is_async=True),
        end(182, 10, thread_id=2),
        begin("moved", 183, 3, thread_id=2),
        end(184, 3, thread_id=5),
        end(190, 9, thread_id=2),
    ]
    wanted = [
        legacy_event(
            "outer", 1, 10, 30, fwd_thread=4, input_shapes=[[2, 3]], scope=1, sequence_nr=7, flops=12, stack=frames[:1]
        ),
        legacy_event("ProfilerStep*", 4, 14, 20, trace_name="ProfilerStep#7", node_id=2, is_remote=True),
        legacy_event("twice", 5, 32, 35),
        legacy_event("twice", 5, 33, 34, node_id=1),
        legacy_event("later", 6, 40, 50),
        legacy_event("inner", 7, 40, 45),
        legacy_event("open", 9, 80, 90, thread=2),
        legacy_event("task", 10, 81, 82, thread=2, is_async=True),
        legacy_event("moved", 3, 83, 84, thread=2, is_async=True),
    ]
    assert_same_events([records, others], wanted)


def test_legacy_records_of_memory_and_of_a_device_belong_to_the_open_ranges() -> None:
    """Memory counts for all open ranges of its thread, and is a separate event if there is none.

    A range has the time of its kernels on the device, unless it has none or is asynchronous.
    """
    records = [
        memory(5, 6),
        START,
        begin("outer", 110, 1),
        memory(64, 32),
        begin("aten::mm", 111, 2, has_cuda=True, device=1, cuda=1000),
        memory(8, 3),
        end(120, 2, cuda=1007),
        begin("aten::add", 121, 3, has_cuda=True, device=1, cuda=1010, is_async=True),
        end(122, 3, cuda=1020),
        begin("aten::view", 123, 4, has_cuda=True, device=0, cuda=1030),
        end(124, 4, cuda=1030),
        memory(-1, 0),
        end(130, 1),
        memory(-50, -26),
        begin("open", 140, 5),
    ]
    product = legacy_event("aten::mm", 2, 11, 20, use_device="cuda", cpu_memory_usage=8, device_memory_usage=3)
    product.append_kernel("aten::mm", 1, 7)
    wanted = [
        memory_event(5, 6),
        memory_event(-50, -26),
        memory_event(1, 2),
        legacy_event("outer", 1, 10, 30, cpu_memory_usage=71, device_memory_usage=35),
        product,
        legacy_event("aten::add", 3, 21, 22, use_device="cuda", is_async=True),
        legacy_event("aten::view", 4, 23, 24, use_device="cuda"),
    ]
    assert_same_events([records, [memory(1, 2)]], wanted)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([Record("mark", "__start_profile", 100, is_remote=True)], "start_record"),
        ([begin("work", 110, 1), end(120, 1)], "start_record"),
        ([START, begin("work", 110, 1), end(120, 1), end(130, 1)], "corresponding push"),
    ],
    ids=["remote begin", "no begin", "two ends"],
)
def test_legacy_records_without_a_begin_are_refused(records: Sequence[Record], reason: str) -> None:
    """Records without a profile start, without a range start, or for another host are refused."""
    with pytest.raises(AssertionError, match=reason):
        private.legacy_events([records])


def test_legacy_profile_has_the_limits_of_the_table_of_its_events() -> None:
    """By default, a table has the limits of that of its events, and averages do not distinguish stacks."""
    with legacy.profile() as prof:
        torch.ones(2).sin()
    made = [legacy_event(f"work {number:03}", number, 10 * number, 10 * number + 5) for number in range(103)]
    made += [
        legacy_event("n" * 200, 200, 2000, 2001, input_shapes=[[2] * 100], stack=["s" * 200]),
        legacy_event("same", 201, 2010, 2011, stack=["one"]),
        legacy_event("same", 202, 2020, 2021, stack=["other"]),
    ]
    events = EventList(made)
    private.build_tree(events)
    prof.function_events = events
    assert prof.table() == events.table()
    assert prof.key_averages().table(row_limit=1000).count("same") == 1
    assert prof.key_averages(group_by_stack_n=1).table(row_limit=1000).count("same") == 2


def test_legacy_profile_that_has_not_ended_has_no_results(tmp_path: Path) -> None:
    """Before the end of its block, a profile refuses its results, and it can be entered only once.

    Without `enabled`, it records nothing, and without a GPU it warns that it cannot record one.
    """
    prof = legacy.profile()
    assert repr(prof) == "<unfinished profiler_legacy.profile>"
    assert str(prof).startswith("<unfinished")
    for wrong in (
        prof.table,
        prof.key_averages,
        prof.total_average,
        lambda: prof.self_cpu_time_total,
        lambda: prof.export_chrome_trace(str(tmp_path / "trace")),
        lambda: prof.export_stacks(str(tmp_path / "stacks")),
    ):
        with pytest.raises(RuntimeError, match="didn't finish running"):
            wrong()
    with prof, pytest.raises(RuntimeError, match="not reentrant"):
        prof.__enter__()
    with pytest.raises(AssertionError, match="requires with_stack=True"):
        prof.export_stacks(str(tmp_path / "stacks"))
    assert not list(tmp_path.iterdir())
    with legacy.profile(enabled=False) as nothing:
        assert not private.profiler_enabled()
    assert nothing is None


@pytest.mark.requires(cuda=False)
def test_legacy_profile_without_a_gpu_warns() -> None:
    """`use_cuda` without a GPU warns, and the profile records the host; a disabled profile requires no GPU."""
    with pytest.warns(UserWarning, match="CUDA is not available"):
        prof = legacy.profile(use_cuda=True)
    assert prof.use_cuda is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        legacy.profile(enabled=False, use_cuda=True)
        assert legacy.profile().use_cuda is False


@pytest.mark.requires(device="cuda")
def test_legacy_profile_times_operators_on_the_device(device: torch.device) -> None:
    """With `use_cuda`, each operator has the time between the events recorded around it on the device."""
    with legacy.profile(use_cuda=True) as prof:
        work(device)
    found = {event.name: event for event in prof.function_events or ()}
    assert found["aten::matmul"].use_device == "cuda"
    timed = [event for event in found.values() if event.kernels]
    assert "aten::mm" in {event.name for event in timed}
    for event in timed:
        assert [(each.name, each.device) for each in event.kernels] == [(event.name, device.index)]
        assert event.kernels[0].duration > 0


#: The parts of nvprof's database that torch reads.
TABLES = """
CREATE TABLE StringTable (_id_ INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_MARKER (id INTEGER, name INTEGER, timestamp INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    _id_ INTEGER PRIMARY KEY, cbid INTEGER, start INTEGER, end INTEGER, correlationId INTEGER
);
CREATE TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL (name INTEGER, start INTEGER, end INTEGER, correlationId INTEGER);
"""

#: The number of `cudaLaunchKernel` among CUPTI's callbacks.
LAUNCH = 211


def nvprof_file(
    file: Path,
    *,
    strings: Sequence[str],
    ranges: Sequence[tuple[int, int, int, int]],
    launches: Sequence[tuple[int, int, int, int]],
    kernels: Sequence[tuple[int, int, int, int]],
) -> str:
    """Write a file of nvprof, and return its path.

    `ranges`: (id, number of the name, start, end); `launches`: (callback, start, end, correlation); `kernels`: (number
    of the name, start, end, correlation).
    """
    connection = sqlite3.connect(file)
    connection.executescript(TABLES)
    connection.executemany("INSERT INTO StringTable VALUES (?, ?)", list(enumerate(strings, 1)))
    markers = [(number, name, start) for number, name, start, _ in ranges]
    markers += [(number, 0, end) for number, _, _, end in ranges]
    connection.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_MARKER VALUES (?, ?, ?)", markers)
    connection.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (cbid, start, end, correlationId) VALUES (?, ?, ?, ?)", launches
    )
    connection.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL VALUES (?, ?, ?, ?)", kernels)
    connection.commit()
    connection.close()
    return str(file)


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the connections to databases, which torch leaves to Python; it warns of that since 3.13."""
    connect, connections = sqlite3.connect, []

    def connected(*args: Any) -> sqlite3.Connection:
        connections.append(connect(*args))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", connected)
    yield
    for connection in connections:
        connection.close()


@pytest.mark.usefixtures("closing")
def test_load_nvprof_has_the_ranges_of_the_file_and_their_kernels(tmp_path: Path) -> None:
    """Each range is an event with its demangled name and times, in the order of the starts.

    A kernel belongs to the ranges that contain the call that launched it (`torch.autograd.profiler.load_nvprof`).
    """
    file = nvprof_file(
        tmp_path / "trace.prof",
        strings=["inner", "outer", "_Z4workif", "kernel"],
        ranges=[(1, 1, 30, 60), (2, 2, 10, 100), (3, 3, 110, 120)],
        launches=[(LAUNCH, 40, 45, 7), (LAUNCH, 70, 75, 8), (LAUNCH, 130, 135, 9)],
        kernels=[(4, 50, 57, 7), (4, 80, 180, 8), (4, 200, 300, 9)],
    )
    events = load_nvprof(file)
    assert isinstance(events, EventList)
    assert [(event.id, event.name, event.time_range.start, event.time_range.end) for event in events] == [
        (2, "outer", 10, 100),
        (1, "inner", 30, 60),
        (3, "work(int, float)", 110, 120),
    ]
    assert [sorted(each.duration for each in event.kernels) for event in events] == [[7, 100], [7], []]
    assert {each.device for event in events for each in event.kernels} == {0}
    assert {(event.node_id, event.thread) for event in events} == {(0, 0)}


@pytest.mark.usefixtures("closing")
@pytest.mark.parametrize(
    ("ranges", "launches", "error", "reason"),
    [
        ([(1, 1, 0, 90), (1, 1, 10, 80)], [], RuntimeError, r"duplicate key: \(1,\)"),
        ([(1, 1, 0, 90)], [(LAUNCH + 1, 40, 45, 7)], AssertionError, "cbid to be 211, but got 212"),
        ([(1, 1, 0, 90)], [(LAUNCH, 20, 25, 6), (LAUNCH, 40, 45, 8)], RuntimeError, r"duplicate key: \(1, 2\)"),
    ],
    ids=["ranges of one id", "kernel of another call", "kernels of one launch"],
)
def test_load_nvprof_refuses(ranges: Any, launches: Any, error: type[Exception], reason: str, tmp_path: Path) -> None:
    """Two ranges of one id are refused, as are a kernel without a launch and two kernels of one launch."""
    file = nvprof_file(
        tmp_path / "trace.prof",
        strings=["work"],
        ranges=ranges,
        launches=launches,
        kernels=[(1, 50, 60, 7), (1, 60, 70, 8), (1, 70, 80, 8)],
    )
    with pytest.raises(error, match=reason):
        load_nvprof(file)


def test_enforceunique_refuses_a_key_that_it_has_seen() -> None:
    """A key can be seen only once; keys with other values, or the same values in another order, are different keys."""
    unique = EnforceUnique()
    for key in ((1,), (1, 2), (2, 1), ("1",)):
        unique.see(*key)
    with pytest.raises(RuntimeError, match=r"duplicate key: \(1, 2\)"):
        unique.see(1, 2)
    EnforceUnique().see(1)


def test_old_names_of_device_times_warn_and_have_the_same_values() -> None:
    """The names with `cuda` are deprecated: each warns, and returns the value of the name with `device`."""
    child = FunctionEvent(2, "kernel", 0, 2.0, 5.0, use_device="cuda", device_memory_usage=100)
    parent = FunctionEvent(1, "work", 0, 1.0, 9.0, use_device="cuda", device_memory_usage=700)
    parent.append_kernel("one", 0, 6.0)
    child.append_kernel("two", 0, 4.0)
    parent.append_cpu_child(child)
    child.set_cpu_parent(parent)
    values = {"device_time": 10.0, "device_time_total": 10.0, "self_device_time_total": 6.0}
    for name, value in {**values, "self_device_memory_usage": 600}.items():
        assert getattr(parent, name) == value, name
        old = name.replace("device", "cuda")
        with pytest.warns(FutureWarning, match=f"`{old}` is deprecated"):
            assert getattr(parent, old) == value
    parent.is_legacy = True  # the kernels of such an event are also those of its children
    assert (parent.device_time_total, parent.self_device_time_total) == (6.0, 2.0)


def test_functionevent_times_and_children_are_of_known_devices() -> None:
    """Only host events have kernels, children and parents; a time on a device requires one of torch's devices."""
    host = FunctionEvent(1, "work", 0, 1.0, 9.0)
    kernel = FunctionEvent(2, "kernel", 0, 2.0, 5.0, device_type=DeviceType.CUDA, use_device="cuda")
    other = FunctionEvent(3, "other", 0, 2.0, 5.0, device_type=private.unregistered_device_type(), use_device="cuda")
    assert kernel.device_time_total == kernel.self_device_time_total == 3.0
    for wrong in (
        lambda: kernel.append_kernel("inner", 0, 1.0),
        lambda: kernel.append_cpu_child(host),
        lambda: host.append_cpu_child(kernel),
        lambda: host.append_cpu_child("work"),
        lambda: kernel.set_cpu_parent(host),
        lambda: host.set_cpu_parent(kernel),
        lambda: host.set_cpu_parent("work"),
        lambda: other.device_time_total,
        lambda: other.self_device_time_total,
    ):
        with pytest.raises(AssertionError, match="Expected"):
            wrong()
    assert (host.cpu_children, host.cpu_parent, kernel.kernels) == ([], None, [])
    with pytest.raises(AssertionError, match="Expected tree to be built"):
        EventList([host]).key_averages()
    average = FunctionEventAvg()
    average += host
    with pytest.raises(AssertionError, match="Expected other to be a FunctionEvent"):
        average.add("work")
    assert average.count == 1


def test_functionevent_and_its_average_say_what_they_are() -> None:
    """The text of an event has its name, times, memory and children; the text of an average has its name and times."""
    event = FunctionEvent(
        1, "work", 3, 10.0, 25.0, input_shapes=[[2]], use_device="cuda", cpu_memory_usage=4, sequence_nr=6
    )
    event.append_kernel("kernel", 0, 7.0)
    event.append_cpu_child(FunctionEvent(2, "inner", 3, 11.0, 12.0))
    average = FunctionEventAvg()
    average += event
    for part in (
        "id=1 name=work",
        "cpu_time=15.000us",
        "cpu_children=[2]",
        "cuda_time=7.000us",
        "thread=3",
        "seq_nr=6",
    ):
        assert part in repr(event)
    for part in ("key=work", "self_cpu_time=14.000us", "cpu_time=15.000us", "cuda_time=7.000us", "cpu_memory_usage=4"):
        assert part in repr(average)


def test_autograd_profile_of_devices_that_are_not_here_warns() -> None:
    """A known device that is not present is left out with a warning; a device that cannot be recorded is refused."""
    for name in ("xpu", "hpu"):
        with pytest.warns(UserWarning, match=f"{name.upper()} is not available"):
            assert autograd_profile(use_device=name).use_device is None
    with pytest.raises(AssertionError, match="MTIA profiling is not supported"):
        autograd_profile(use_device="mtia")


def test_autograd_profile_text_is_that_of_its_events() -> None:
    """`repr` and `str` of a profile are those of its events; before its end, they say that it has not ended."""
    prof = autograd_profile()
    assert repr(prof) == str(prof) == "<unfinished torch.autograd.profile>"
    with prof:
        torch.ones(2).sin()
    assert "name=aten::sin" in repr(prof)
    assert repr(prof) == repr(prof.function_events)
    assert str(prof) == str(prof.function_events)


@pytest.mark.requires(torch=">=2.13")
def test_autograd_profile_with_stacks_has_events_despite_trace_only() -> None:
    """`trace_only` with stacks is disabled with a warning, in a copy of the settings."""
    config = private.trace_only_config()
    with pytest.warns(UserWarning, match="trace_only=True is incompatible with with_stack=True"):
        prof = autograd_profile(with_stack=True, experimental_config=config)
    assert config.trace_only
    assert not prof.experimental_config.trace_only
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert autograd_profile(experimental_config=config).experimental_config.trace_only


@pytest.mark.requires(accelerator=True)
def test_autograd_profile_of_an_accelerator_has_its_operators(device: torch.device) -> None:
    """With the device's type as `use_device`, a profile has the operators on it, and no earlier or later ones.

    Without `use_kineto`, a profile of the device also records the host (torch/autograd/profiler.py, `profile`).
    """
    for use_kineto in (True, False):
        with autograd_profile(use_device=device.type, use_kineto=use_kineto) as prof:
            work(device)
        torch.ones(2, device=device).exp()
        assert prof.use_device == device.type
        names = [event.name for event in prof.function_events]
        assert {"aten::mm", "aten::matmul", "MmBackward0"} <= {*names}
        assert "aten::exp" not in names
    with pytest.raises(AssertionError, match="Device-only events supported only with Kineto"):
        autograd_profile(use_device=device.type, use_cpu=False)
