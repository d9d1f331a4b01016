"""The text of a profile's table, from events with known times: the content and unit of each column."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler import profile as autograd_profile
from torch.autograd.profiler_util import EventList, FunctionEvent, FunctionEventAvg, Interval
from torch.profiler import schedule

from .trees import profiler

KIB, MIB, GIB = 1024, 1024**2, 1024**3


def event(name: str, start: float = 0.0, end: float | None = None, **more: Any) -> FunctionEvent:
    """Return an event on the host from `start` to `end`, in microseconds; without `end`, it takes one microsecond."""
    settings: dict[str, Any] = {"overload_name": "", "stack": [], "input_shapes": [], "flops": 0}
    return FunctionEvent(0, name, 0, start, start + 1.0 if end is None else end, **{**settings, **more})


def in_turn(*events: FunctionEvent) -> EventList:
    """Return events that take one microsecond each, one after the other."""
    for number, each in enumerate(events):
        each.time_range = Interval(2.0 * number, 2.0 * number + 1)
    return built(*events, with_flops=True)


def built(*events: FunctionEvent, **settings: Any) -> EventList:
    """Return the events as the list of a profile."""
    found = EventList(events, **settings)
    found._build_tree()
    return found


def cells(table: str) -> list[dict[str, str]]:
    """Return the rows of a table, as texts by the headers of their columns.

    A text may be wider than its column, so columns are separated by the two spaces between them.
    """
    lines = table.splitlines()
    rules = [number for number, line in enumerate(lines) if line and set(line) <= {"-", " "}]
    headers, *rows = (
        re.split(r"\s{2,}", lines[number].strip()) for number in (rules[0] + 1, *range(rules[1] + 1, rules[2]))
    )
    return [dict(zip(headers, row, strict=True)) for row in rows]


def test_table_has_times_shares_and_counts() -> None:
    """Each row has the own and the total time of its events, their shares of all own times, the mean and the count."""
    outer, inner = event("outer", 0, 1000), event("inner", 100, 350)
    (first, second) = cells(built(outer, inner, event("inner", 2000, 2250)).key_averages().table(sort_by="cpu_time"))

    assert first == {
        "Name": "outer",
        "Self CPU %": "60.00%",
        "Self CPU": "750.000us",
        "CPU total %": "80.00%",
        "CPU total": "1.000ms",
        "CPU time avg": "1.000ms",
        "# of Calls": "1",
    }
    assert second == {
        "Name": "inner",
        "Self CPU %": "40.00%",
        "Self CPU": "500.000us",
        "CPU total %": "40.00%",
        "CPU total": "500.000us",
        "CPU time avg": "250.000us",
        "# of Calls": "2",
    }


@pytest.mark.parametrize(
    ("time", "unit", "wanted"),
    [
        (999.0, None, "999.000us"),
        (1000.0, None, "1.000ms"),
        (999_999.0, None, "999.999ms"),
        (1_000_000.0, None, "1.000s"),
        (1500.0, "us", "1500.000us"),
        (1500.0, "ms", "1.500ms"),
        (1_500_000.0, "us", "1500000.000us"),
        (1_500_000.0, "ms", "1500.000ms"),
        (15_000.0, "s", "0.015s"),
    ],
)
def test_table_times_are_in_the_unit_that_fits_or_is_asked_for(time: float, unit: str | None, wanted: str) -> None:
    """A time is in the largest unit in which it is at least one; `time_unit` sets one unit for all times."""
    text = built(event("work", 0, time)).key_averages().table(time_unit=unit)
    (row,) = cells(text)
    assert [row[name] for name in ("Self CPU", "CPU total", "CPU time avg")] == [wanted] * 3
    assert text.splitlines()[-1] == f"Self CPU time total: {wanted}"


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        (KIB - 1, "1023 B"),
        (KIB, "1.00 KB"),
        (-KIB, "-1.00 KB"),
        (3 * KIB // 2, "1.50 KB"),
        (MIB - 1, "1024.00 KB"),
        (MIB, "1.00 MB"),
        (-5 * MIB, "-5.00 MB"),
        (GIB, "1.00 GB"),
        (-3 * GIB, "-3.00 GB"),
    ],
)
def test_table_sizes_are_in_the_unit_that_fits(size: int, wanted: str) -> None:
    """With memory, a row has its events' allocations with and without children, in the largest unit that fits."""
    outer, inner = event("outer", 0, 10, cpu_memory_usage=size), event("inner", 1, 2, cpu_memory_usage=size)
    rows = {row["Name"]: row for row in cells(built(outer, inner, profile_memory=True).key_averages().table())}
    assert (rows["outer"]["CPU Mem"], rows["outer"]["Self CPU Mem"]) == (wanted, "0 B")
    assert (rows["inner"]["CPU Mem"], rows["inner"]["Self CPU Mem"]) == (wanted, wanted)
    assert "CPU Mem" not in cells(built(event("outer")).key_averages().table())[0]


@pytest.mark.parametrize(
    ("operations", "header", "wanted"),
    [
        (2, "Total FLOPs", ("2.000", "3000.000")),
        (1000, "Total KFLOPs", ("1.000", "1500.000")),
        (2_500_000, "Total MFLOPs", ("2.500", "3750.000")),
        (10**9, "Total GFLOPs", ("1.000", "1500.000")),
        (10**12, "Total TFLOPs", ("1.000", "1500.000")),
        (10**15, "Total PFLOPs", ("1.000", "1500.000")),
        (10**18, "Total PFLOPs", ("1000.000", "1500000.000")),
    ],
)
def test_table_operations_are_in_the_unit_of_the_smallest_number(
    operations: int, header: str, wanted: tuple[str, str]
) -> None:
    """The column of operations has one unit, that of the smallest number; a row without operations has two dashes."""
    events = [event("small", flops=operations), event("large", flops=operations * 1500), event("none")]
    rows = {row["Name"]: row for row in cells(in_turn(*events).key_averages().table())}
    assert (rows["small"][header], rows["large"][header], rows["none"][header]) == (*wanted, "--")


def test_table_without_operations_has_no_column_for_them() -> None:
    """A table with flops has no column for them if no event has any."""
    assert not [name for name in cells(in_turn(event("none")).key_averages().table())[0] if "FLOP" in name]


def test_table_has_overload_names_if_grouped_by_them() -> None:
    """Grouped by overload name, each overload has a row and its name; ungrouped, there is no such column."""
    events = in_turn(*(event("aten::add", overload_name=name) for name in ("Tensor", "out", "Tensor", "a_longer_name")))
    rows = cells(events.key_averages(group_by_overload_name=True).table(max_name_column_width=12))
    assert {row["Overload Name"]: row["# of Calls"] for row in rows} == {"Tensor": "2", "out": "1", "a_longer_...": "1"}
    (row,) = cells(events.key_averages().table())
    assert row["# of Calls"] == "4"
    assert "Overload Name" not in row


def test_table_has_shapes_if_grouped_by_them() -> None:
    """Grouped by shapes, each row has its shapes, cut at the requested width."""
    events = in_turn(*(event("aten::mm", input_shapes=shapes) for shapes in ([[4, 8], [8, 2]], [[16, 16], [16, 1]])))
    averages = events.key_averages(group_by_input_shapes=True)
    assert [row["Input Shapes"] for row in cells(averages.table())] == ["[[4, 8], [8, 2]]", "[[16, 16], [16, 1]]"]
    assert [row["Input Shapes"] for row in cells(averages.table(max_shapes_column_width=6))] == ["[[4, 8", "[[16,"]
    assert [row["Input Shapes"] for row in cells(averages.table(max_shapes_column_width=None))] == [
        "[[4, 8], [8, 2]]",
        "[[16, 16], [16, 1]]",
    ]
    (row,) = cells(events.key_averages().table())
    assert row["# of Calls"] == "2"
    assert "Input Shapes" not in row


def test_table_has_stacks_if_grouped_by_them() -> None:
    """Grouped by stack, each frame has a line; a frame too long for its column keeps its end, after three dots."""
    events = in_turn(event("aten::add", stack=["folder/file.py(1): add", "caller.py(22): calls"]))
    text = events.key_averages(group_by_stack_n=2).table(max_src_column_width=14)
    lines = text.splitlines()[3:-2]
    assert [line.rpartition("  ")[2] for line in (lines[0].rstrip(), lines[1].rstrip())] == [
        "....py(1): add",
        "...(22): calls",
    ]
    narrow = events.key_averages(group_by_stack_n=1).table(max_src_column_width=4)
    assert narrow.splitlines()[3].split()[-1] == "...d"


def test_table_has_node_ids_if_events_have_them() -> None:
    """There is a column for the node number only if an event has one."""
    (row,) = cells(built(event("work", node_id=3)).key_averages().table())
    assert row["Node ID"] == "3"
    (row,) = cells(built(event("work")).key_averages().table())
    assert "Node ID" not in row


def test_table_times_of_asynchronous_events_have_no_share() -> None:
    """The total time of an asynchronous event is no share of the own times: its column has 0."""
    events = EventList([event("waits", 0, 100, is_async=True), event("works", 0, 50)])
    rows = {row["Name"]: row for row in cells(events.table())}
    assert rows["waits"]["CPU total %"] == "0"
    assert rows["works"]["CPU total %"] not in ("0", "")


def test_table_cuts_names() -> None:
    """A name longer than its column is cut and ends with three dots; with None, no name is cut."""
    averages = in_turn(event("n" * 60), event("short")).key_averages()
    assert [row["Name"] for row in cells(averages.table())] == ["n" * 52 + "...", "short"]
    assert [row["Name"] for row in cells(averages.table(max_name_column_width=None))] == ["n" * 60, "short"]


def test_table_of_device_events() -> None:
    """Events of a device have columns under the device's name, and shares of the own times of device events only."""
    host = event("launches", 0, 10, use_device="cuda")
    kernels = [
        event(name, 20, 20 + time, use_device="cuda", device_type=DeviceType.CUDA)
        for name, time in (("kernel", 30), ("other", 10))
    ]
    text = built(host, *kernels, use_device="cuda").key_averages().table(sort_by="cuda_time_total", row_limit=2)
    first, second = cells(text)
    assert [row["Name"] for row in (first, second)] == ["kernel", "other"]
    assert [row["Self CUDA"] for row in (first, second)] == ["30.000us", "10.000us"]
    assert [row["Self CUDA %"] for row in (first, second)] == ["75.00%", "25.00%"]
    assert [row["CUDA total"] for row in (first, second)] == ["30.000us", "10.000us"]
    assert [row["CUDA time avg"] for row in (first, second)] == ["30.000us", "10.000us"]
    assert text.splitlines()[-2:] == ["Self CPU time total: 10.000us", "Self CUDA time total: 40.000us"]
    short = event("kernel", 20, 20.5, use_device="cuda", device_type=DeviceType.CUDA)
    assert cells(built(short, use_device="cuda").key_averages().table())[0]["CUDA total"] == "0.500us"


def test_table_of_no_time_has_no_shares() -> None:
    """If all events take no time, shares are not numbers, and means are zero."""
    (row,) = cells(built(event("instant", 5, 5)).key_averages().table())
    assert (row["Self CPU %"], row["CPU time avg"]) == ("NaN", "0.000us")
    assert EventList().table() == ""
    assert FunctionEventAvg().cpu_time == 0.0
    assert FunctionEventAvg().device_time == 0.0


def test_functionevent_has_what_it_is_given() -> None:
    """An event has each of its values under its name, and by default no values but one call on the host."""
    given: dict[str, Any] = {
        "overload_name": "out",
        "fwd_thread": 3,
        "input_shapes": [[1]],
        "stack": ["frame"],
        "scope": 2,
        "use_device": "cuda",
        "cpu_memory_usage": 4,
        "device_memory_usage": 5,
        "is_async": True,
        "is_remote": True,
        "sequence_nr": 6,
        "node_id": 7,
        "device_type": DeviceType.CUDA,
        "device_index": 8,
        "device_resource_id": 9,
        "is_legacy": True,
        "flops": 10,
        "trace_name": "traced",
        "concrete_inputs": [1.5],
        "kwinputs": {"dim": 0},
        "is_user_annotation": True,
    }
    found = FunctionEvent(1, "work", 2, 10.0, 25.0, **given)
    assert {name: getattr(found, name) for name in given} == given
    assert (found.id, found.name, found.thread, found.count) == (1, "work", 2, 1)
    assert (found.time_range.start, found.time_range.end) == (10.0, 25.0)
    assert found.time_range.elapsed_us() == 15.0

    plain = FunctionEvent(1, "work", 2, 10.0, 25.0)
    assert (plain.scope, plain.sequence_nr, plain.node_id, plain.device_index) == (0, -1, -1, 0)
    assert plain.device_type == DeviceType.CPU
    assert plain.device_resource_id == 2
    assert (plain.cpu_memory_usage, plain.device_memory_usage, plain.flops) == (0, 0, None)
    assert not any((plain.is_async, plain.is_remote, plain.is_legacy, plain.is_user_annotation, plain.stack))


def test_functioneventavg_adds_events_of_one_name() -> None:
    """A sum has the values of its first event and the totals of all; an event of another name is refused."""
    total = FunctionEventAvg()
    assert not any((total.is_async, total.is_remote, total.is_legacy))
    for start, flops in ((0, 5), (20, 7)):
        total += event(
            "work",
            start,
            start + 10,
            scope=3,
            is_async=True,
            is_remote=True,
            is_legacy=True,
            flops=flops,
            cpu_memory_usage=2,
            node_id=4,
        )
    assert (total.key, total.count, total.scope, total.node_id) == ("work", 2, 3, 4)
    assert (total.cpu_time_total, total.cpu_time, total.flops, total.cpu_memory_usage) == (20, 10.0, 12, 4)
    assert total.is_async
    assert total.is_remote
    assert total.is_legacy
    with pytest.raises(AssertionError, match="keys"):
        total += event("other")


def test_events_of_a_backward_have_the_stack_of_their_forward() -> None:
    """An event below a node of the backward pass has the stack of the forward event with its number and thread."""
    forward = event("aten::mul", 0, 10, sequence_nr=5, stack=["forward.py(1): mul"])
    later = event("aten::mul", 10, 20, sequence_nr=6, stack=["forward.py(2): mul"])
    node = event("MulBackward0", 30, 40, sequence_nr=5, scope=1, fwd_thread=0, stack=["engine.py(9): run"])
    inner = event("aten::neg", 31, 39, sequence_nr=-1, stack=["engine.py(10): neg"])
    foreign = event("MulBackward0", 50, 60, sequence_nr=6, scope=1, fwd_thread=8)
    alone = event("MulBackward0", 70, 80, sequence_nr=9, scope=1, fwd_thread=0, stack=["engine.py(9): run"])
    built(forward, later, node, inner, foreign, alone)
    assert forward.stack == ["forward.py(1): mul"]
    assert later.stack == ["forward.py(2): mul"]
    assert node.stack == inner.stack == ["forward.py(1): mul"]
    assert foreign.stack == alone.stack == []


def test_profile_that_has_not_run_is_empty(tmp_path: Path) -> None:
    """A profile that has not run has no events, an empty table and no time."""
    prof = autograd_profile()
    assert prof.table() == ""
    assert len(prof.key_averages()) == 0
    assert prof.total_average().count == 0
    assert prof.self_cpu_time_total == 0
    with pytest.raises(AssertionError, match="with_stack=True"):
        prof.export_stacks(str(tmp_path / "stacks"), "self_cpu_time_total")


def test_table_of_device_memory() -> None:
    """With memory, events of a device also have their allocations on it, with and without their children."""
    outer, inner = (
        event(name, start, end, use_device="cuda", device_memory_usage=size, cpu_memory_usage=KIB)
        for name, start, end, size in (("outer", 0, 10, 3 * MIB), ("inner", 1, 2, MIB))
    )
    averages = built(outer, inner, use_device="cuda", profile_memory=True).key_averages()
    rows = {row["Name"]: row for row in cells(averages.table())}
    assert [rows["outer"][name] for name in ("CUDA Mem", "Self CUDA Mem", "CPU Mem", "Self CPU Mem")] == [
        "3.00 MB",
        "2.00 MB",
        "1.00 KB",
        "0 B",
    ]
    assert [rows["inner"][name] for name in ("CUDA Mem", "Self CUDA Mem")] == ["1.00 MB", "1.00 MB"]
    for size, shown in ((0, False), (1, True)):
        work = event("work", use_device="cuda", device_memory_usage=size)
        (row,) = cells(built(work, use_device="cuda", profile_memory=True).key_averages().table())
        assert ("CUDA Mem" in row) == shown


def test_table_begins_with_its_header() -> None:
    """A header is between a rule as wide as the table and the column names, as is the note that events are left out."""
    events = built(event("outer", 0, 10), event("inner", 1, 2))
    lines = events.table(header="WORK", top_level_events_only=True).splitlines()
    width = len(lines[4].rstrip())
    assert lines[:4] == ["=" * width, "WORK", "=" * width, "This report only display top-level ops statistics"]
    assert {*lines[4]} == {"-", " "}
    assert [row["Name"] for row in cells(events.table(top_level_events_only=True))] == ["outer"]
    assert [row["Name"] for row in cells(events.table())] == ["outer", "inner"]
    assert not [line for line in events.table().splitlines() if "=" in line or "top-level" in line]


def test_table_has_the_rows_up_to_its_limit() -> None:
    """`row_limit` is the number of rows, by default 100; -1 means all."""
    events = in_turn(*(event(f"event {number}") for number in range(120)))
    for limit, wanted in (({"row_limit": 3}, 3), ({}, 100), ({"row_limit": -1}, 120)):
        assert [row["Name"] for row in cells(events.table(**limit))] == [f"event {number}" for number in range(wanted)]


@pytest.mark.parametrize(("length", "cut"), [(8, False), (9, True), (10, True)])
def test_table_cuts_names_of_the_width_of_the_column(length: int, cut: bool) -> None:
    """A name without room for three dots is cut to make room for them."""
    table = built(event("n" * length)).key_averages().table(max_name_column_width=12)
    (row,) = cells(table)
    assert len(table.split()[0]) == 12
    assert row["Name"] == ("n" * 9 + "..." if cut else "n" * length)


def test_steps_of_a_profile_are_one_row() -> None:
    """Each step is an event with its number; in sums and tables, the steps of a profile are one entry."""
    with profiler(schedule=schedule(wait=0, warmup=1, active=3, repeat=1)) as prof:
        for _ in range(4):
            torch.ones(2).sum()
            prof.step()
    steps = [each for each in prof.events() if each.name.startswith("ProfilerStep")]
    assert {each.name for each in steps} == {"ProfilerStep*"}
    assert {each.trace_name for each in steps} == {"ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"}
    entries = {each.key: each.count for each in prof.key_averages() if "ProfilerStep" in each.key}
    assert entries == {"ProfilerStep*": 3}


def test_events_that_only_hold_one_of_their_name_are_one() -> None:
    """An event whose only child has the same name takes over the child's children and kernels, at any nesting depth."""
    outer, middle, inner, child = (
        event(name, start, end, use_device="cuda")
        for name, start, end in (("same", 0, 10), ("same", 1, 9), ("same", 2, 8), ("child", 3, 4))
    )
    inner.append_kernel("kernel", 0, 5)
    two = [event("two", 20, 30), event("two", 21, 22), event("two", 23, 24)]
    events = built(outer, middle, inner, child, *two)
    assert [each.name for each in events] == ["same", "child", "two", "two", "two"]
    assert [(each.name, each.duration) for each in events[0].kernels] == [("kernel", 5)]
    assert events[0].cpu_children == [child]
    assert child.cpu_parent is events[0]
    assert [each.cpu_parent for each in two[1:]] == [two[0]] * 2


def test_events_that_begin_at_once_nest_by_their_length() -> None:
    """If events start together, the longest one is the outermost, whatever their order."""
    short, long, middle = event("short", 0, 2), event("long", 0, 9), event("middle", 0, 5)
    built(short, long, middle)
    assert [each.cpu_parent for each in (short, middle, long)] == [middle, long, None]


def test_key_averages_has_no_stacks_by_default() -> None:
    """By default, events of all stacks are one entry without a stack; each further grouping distinguishes them."""
    shapes, stack = [[1]], ["a.py(1): a", "b.py(2): b"]
    events = in_turn(
        event("work", stack=stack, input_shapes=shapes, overload_name="x"),
        event("work", stack=["c.py(1): c"], input_shapes=[[2]], overload_name="y"),
        event("work", is_user_annotation=True),
        event("work", node_id=1),
    )
    (first, annotation, node) = events.key_averages()
    assert [each.count for each in (first, annotation, node)] == [2, 1, 1]
    assert (first.stack, first.input_shapes, first.overload_name) == ([], "", "")
    assert (annotation.is_user_annotation, node.node_id) == (True, 1)
    assert [each.stack for each in events.key_averages(group_by_stack_n=1)][:2] == [stack[:1], ["c.py(1): c"]]
    assert next(each.stack for each in events.key_averages(group_by_stack_n=5)) == stack
    assert [each.input_shapes for each in events.key_averages(group_by_input_shapes=True)][:2] == [shapes, [[2]]]
    assert [each.overload_name for each in events.key_averages(group_by_overload_name=True)][:2] == ["x", "y"]


def test_times_and_memory_of_events_that_are_asynchronous_or_of_a_device() -> None:
    """An asynchronous event has no own time, memory or device time, and a device event no time or memory of the host.

    The device time of a host event includes the kernels of its children, and its own device time does not. A range on
    the device counts for no total.
    """
    sizes: dict[str, Any] = {"use_device": "cuda", "cpu_memory_usage": 3, "device_memory_usage": 5}
    waits = event("waits", 0, 10, is_async=True, **sizes)
    waits.append_kernel("z", 0, 9)
    kernel = event("kernel", 20, 27, device_type=DeviceType.CUDA, **sizes)
    outer, inner, legacy = event("outer", 30, 40, **sizes), event("inner", 31, 35), event("legacy", 50, 60, **sizes)
    inner.use_device = "cuda"
    outer.append_kernel("a", 0, 2)
    inner.append_kernel("b", 0, 4)
    legacy.append_kernel("c", 0, 6)
    legacy.is_legacy = True
    note = event("range", 20, 120, device_type=DeviceType.CUDA, is_user_annotation=True, use_device="cuda")
    events = built(waits, kernel, note, outer, inner, legacy, use_device="cuda")

    def facts(each: FunctionEvent) -> tuple[float, ...]:
        return (
            each.self_cpu_time_total,
            each.cpu_time_total,
            each.device_time_total,
            each.self_device_time_total,
            each.self_cpu_memory_usage,
            each.self_device_memory_usage,
        )

    assert facts(waits) == (0, 10, 0, 0, 0, 0)
    assert facts(kernel) == (0, 0, 7, 7, 0, 0)
    assert facts(outer) == (6, 10, 6, 2, 3, 5)
    assert facts(inner) == (4, 4, 4, 4, 0, 0)
    assert facts(legacy) == (10, 10, 6, 6, 3, 5)
    assert events.table().splitlines()[-2:] == ["Self CPU time total: 20.000us", "Self CUDA time total: 13.000us"]
    plain = event("no device")
    plain.append_kernel("z", 0, 9)
    assert (plain.device_time_total, plain.self_device_time_total) == (0, 0)


def test_export_stacks_writes_the_own_times_of_the_device(tmp_path: Path) -> None:
    """`self_cuda_time_total`, `self_xpu_time_total` and that of another device are the own times of the device.

    Spaces and semicolons in a frame become underscores; events without a stack or shorter than a microsecond are
    omitted.
    """
    events = [
        event("a", 0, 10, stack=["in ner;x", "outer"], use_device="cuda"),
        event("b", 20, 20.5, stack=["short"], use_device="cuda"),
        event("c", 30, 40, use_device="cuda"),
        event("d", 50, 51, stack=["one"], use_device="cuda"),
    ]
    for each, time in zip(events, (7, 0.5, 9, 1), strict=True):
        each.append_kernel("kernel", 0, time)
    found = built(*events, use_device="cuda")
    file = tmp_path / "stacks"
    for metric in ("self_cuda_time_total", "self_xpu_time_total", "self_privateuse1_time_total"):
        found.export_stacks(str(file), metric)
        assert file.read_text().splitlines() == ["outer;in_ner_x 7", "one 1"]
    found.export_stacks(str(file), "self_cpu_time_total")
    assert file.read_text().splitlines() == ["outer;in_ner_x 10", "one 1"]


def test_table_has_stacks_on_the_left_of_their_column() -> None:
    """Frames are left-aligned in the last column, one per line, with an empty line after each entry."""
    events = built(event("work", stack=["a.py(1): a", "longer.py(22): calls"]), event("plain", 5, 6))
    lines = events.table().splitlines()
    column = lines[0].rstrip().rindex("  ") + 2
    assert [line[column:].rstrip() for line in lines[1:8]] == [
        "Source Location",
        "-" * 24,
        "a.py(1): a",
        "longer.py(22): calls",
        "",
        "",
        "",
    ]
    assert lines[6].split()[0] == "plain"


def test_export_chrome_trace_of_events_names_nodes_and_draws_arrows(tmp_path: Path) -> None:
    """A remote event has its node and thread as its thread, and each kernel has an arrow from its event.

    An event without a name for traces is omitted. Without events, there are no rows.
    """
    remote = event("far", 0, 10, is_remote=True, node_id=3, trace_name="far")
    near, hidden = event("near", 20, 30, trace_name="near"), event("hidden", 40, 50)
    for name in ("a", "b"):
        near.append_kernel(name, 0, 1)
    file = tmp_path / "trace.json"
    built(remote, near, hidden).export_chrome_trace(str(file))
    rows = json.loads(file.read_text())
    assert [row["tid"] for row in rows] == [" node_id:3, thread_id:0 ", 0, 0, 0]
    assert [(row["name"], row["ph"], row["ts"]) for row in rows] == [
        ("far", "X", 0.0),
        ("near", "X", 20.0),
        ("near", "s", 20.0),
        ("near", "s", 20.0),
    ]
    assert [row["id"] for row in rows[2:]] == [0, 1]
    assert {row["cat"] for row in rows[2:]} == {"cpu_to_cuda"}
    built().export_chrome_trace(str(file))
    assert file.read_text() == "[]"
