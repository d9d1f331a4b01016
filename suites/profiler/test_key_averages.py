"""Sums over a profile's events (`key_averages`, tables, stacks, operations), compared with the events."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from . import _torch_private as private
from .trees import profiler

pytestmark = pytest.mark.filterwarnings("ignore:.*group_by_.*:UserWarning")


def work(device: torch.device) -> None:
    a, b = torch.ones(4, 8, device=device), torch.ones(8, 2, device=device)
    wide = torch.ones(16, 16, device=device)
    for _ in range(3):
        a @ b
    wide @ wide
    with record_function("own range"):
        wide.add(1)


def recorded(device: torch.device, **options: Any) -> profile:
    with profiler(**options) as prof:
        work(device)
    return prof


def by_key(averages: Any) -> dict[str, Any]:
    return {each.key: each for each in averages}


def test_key_averages_adds_up_the_events_of_a_name(device: torch.device) -> None:
    """Each entry has the count, the summed times and the average times of the events of its name."""
    prof = recorded(device)
    events, found = prof.events(), by_key(prof.key_averages())

    counts = Counter(event.name for event in events)
    assert {name: found[name].count for name in counts} == counts
    assert counts["aten::matmul"] == 4
    assert counts["own range"] == 1
    for name in counts:
        own = [event for event in events if event.name == name]
        entry = found[name]
        assert entry.cpu_time_total == pytest.approx(sum(event.cpu_time_total for event in own))
        assert entry.self_cpu_time_total == pytest.approx(sum(event.self_cpu_time_total for event in own))
        assert entry.cpu_time == pytest.approx(entry.cpu_time_total / entry.count)
        assert entry.self_cpu_time_total <= entry.cpu_time_total
        assert entry.input_shapes == ""
    assert found["own range"].is_user_annotation
    assert not found["aten::matmul"].is_user_annotation


def test_self_cpu_time_is_the_time_without_children(device: torch.device) -> None:
    """The own time of an event is its time minus that of its children; `self_cpu_time_total` adds up own times."""
    prof = recorded(device)
    for event in prof.events():
        inner = sum(child.cpu_time_total for child in event.cpu_children)
        assert event.self_cpu_time_total == pytest.approx(event.cpu_time_total - inner)
        assert event.cpu_time_total == pytest.approx(event.time_range.end - event.time_range.start)
    averages = prof.key_averages()
    assert averages.self_cpu_time_total == pytest.approx(sum(each.self_cpu_time_total for each in averages))
    whole = prof.events().total_average()
    assert whole.count == len(prof.events())
    assert whole.self_cpu_time_total == pytest.approx(averages.self_cpu_time_total)
    assert whole.key == "Total"


def test_key_averages_group_by_input_shape(device: torch.device) -> None:
    """With `group_by_input_shape`, each combination of name and shapes has an entry; without it, all are one entry."""
    prof = recorded(device, record_shapes=True)

    grouped = [each for each in prof.key_averages(group_by_input_shape=True) if each.key == "aten::matmul"]
    assert {str(each.input_shapes): each.count for each in grouped} == {
        "[[4, 8], [8, 2]]": 3,
        "[[16, 16], [16, 16]]": 1,
    }
    (single,) = [each for each in prof.key_averages() if each.key == "aten::matmul"]
    assert single.count == 4


def test_key_averages_group_by_stack_n(device: torch.device) -> None:
    """With `group_by_stack_n`, each caller has an entry, with up to that many lines of its stack."""
    x = torch.ones(3, device=device)

    def first() -> None:
        x.add(1)

    def second() -> None:
        x.add(1)

    with profiler(with_stack=True, experimental_config=private.verbose_config()) as prof:
        first()
        second()
        second()

    for lines, wanted in ((1, [3]), (2, [1, 2]), (3, [1, 2])):
        grouped = [each for each in prof.key_averages(group_by_stack_n=lines) if each.key == "aten::add"]
        assert sorted(each.count for each in grouped) == wanted
        assert {len(each.stack) for each in grouped} == {lines}
        if lines > 1:
            assert {each.stack[1].rpartition(" ")[2]: each.count for each in grouped} == {"first": 1, "second": 2}
    (single,) = [each for each in prof.key_averages() if each.key == "aten::add"]
    assert single.count == 3
    assert not single.stack


def test_export_stacks_writes_a_line_per_stack_and_its_time(device: torch.device, tmp_path: Path) -> None:
    """`export_stacks` writes one line per event with a stack: the frames from the outermost in, and its time."""

    def calls_the_product() -> None:
        multiplies_ones()

    def multiplies_ones() -> None:
        torch.ones(300, 300, device=device) @ torch.ones(300, 300, device=device)

    with profiler(with_stack=True, experimental_config=private.verbose_config()) as prof:
        calls_the_product()
    file = tmp_path / "stacks"

    prof.export_stacks(str(file), "self_cpu_time_total")

    lines = [line.rpartition(" ") for line in file.read_text().splitlines()]
    assert lines
    for frames, _, number in lines:
        assert int(number) > 0
        assert " " not in frames
    own = [frames for frames, _, _ in lines if "multiplies_ones" in frames]
    assert own
    assert all(frames.index("calls_the_product") < frames.index("multiplies_ones") for frames in own)
    events = prof.events()
    assert len(lines) == sum(bool(event.stack) and int(event.self_cpu_time_total) > 0 for event in events)
    with pytest.raises(ValueError, match="metric should be one of"):
        events.export_stacks(str(file), "cpu_time")


def test_with_flops_counts_products_and_additions(device: torch.device) -> None:
    """With `with_flops`, a product of m x k and k x n counts 2·m·k·n operations, and an addition one per element."""
    prof = recorded(device, with_flops=True)
    found = by_key(prof.key_averages())
    assert found["aten::mm"].flops == 3 * 2 * 4 * 8 * 2 + 2 * 16 * 16 * 16
    assert found["aten::add"].flops == 16 * 16
    assert "FLOPs" in prof.key_averages().table()
    without = recorded(device)
    assert not by_key(without.key_averages())["aten::mm"].flops
    assert "FLOPs" not in without.key_averages().table()


def test_profile_memory_sums_what_operators_allocate() -> None:
    """With `profile_memory`, an entry has the bytes that its operators allocated and freed on the host."""
    with profiler(profile_memory=True) as prof:
        kept = [torch.ones(1024) for _ in range(2)]
    entry = by_key(prof.key_averages())["aten::ones"]
    assert entry.cpu_memory_usage == 2 * 4096
    inner = by_key(prof.key_averages())["aten::empty"]
    assert inner.self_cpu_memory_usage == inner.cpu_memory_usage == 2 * 4096
    assert entry.self_cpu_memory_usage == 0
    del kept


def test_profile_memory_of_a_block_without_its_operators() -> None:
    """The own memory of an event excludes what its children allocated and freed."""
    with profiler(profile_memory=True) as prof:
        with torch.profiler.record_function("replaced"):
            x = torch.ones(1024)
            x.set_()  # type: ignore[call-overload]
        with torch.profiler.record_function("freed_by_itself"):
            y = torch.ones(2048)
            del y
    found = by_key(prof.key_averages())
    assert found["aten::set_"].self_cpu_memory_usage == -4096
    assert (found["replaced"].cpu_memory_usage, found["replaced"].self_cpu_memory_usage) == (0, 0)
    freed = found["freed_by_itself"]
    assert (freed.cpu_memory_usage, freed.self_cpu_memory_usage) == (0, -8192)
    for event in prof.events():
        below = sum(child.cpu_memory_usage for child in event.cpu_children)
        assert event.self_cpu_memory_usage == event.cpu_memory_usage - below


def rows(table: str) -> list[list[str]]:
    """Return the cells of the entries of a table."""
    lines = table.splitlines()
    rules = [number for number, line in enumerate(lines) if set(line) <= {"-", " "} and line]
    return [line.split() for line in lines[rules[1] + 1 : rules[2]]]


def test_table_is_sorted_and_cut(device: torch.device) -> None:
    """`table` has one line per entry, sorted from the largest by `sort_by`, and at most `row_limit` lines."""
    prof = recorded(device)
    averages = prof.key_averages()
    assert len(rows(averages.table(row_limit=-1))) == len(averages)
    assert len(rows(averages.table(row_limit=2))) == 2
    wanted = [each.key for each in sorted(averages, key=lambda each: each.count, reverse=True)]
    counts = [int(row[-1]) for row in rows(averages.table(sort_by="count", row_limit=-1))]
    assert counts == sorted(counts, reverse=True)
    assert len(wanted) == len(counts)
    text = averages.table(sort_by="self_cpu_time_total", row_limit=-1)
    assert "Self CPU time total" in text
    first = max(averages, key=lambda each: each.self_cpu_time_total)
    assert rows(text)[0][0].startswith(first.key.split()[0][:20])


def test_table_header_and_top_level_events(device: torch.device) -> None:
    """`header` is at the top, `max_name_column_width` cuts names, `top_level_events_only` omits inner events."""
    prof = recorded(device)
    text = prof.events().table(header="WORK", top_level_events_only=True, row_limit=-1)
    assert "WORK" in text
    top = [event for event in prof.events() if event.cpu_parent is None]
    assert len(rows(text)) == len(top)
    assert "own r..." in prof.key_averages().table(max_name_column_width=8, row_limit=-1)


def test_toggle_collection_dynamic_leaves_out_a_part(device: torch.device) -> None:
    """Work that runs while the collection of operators is off is not in the profile, and later work is."""
    with profiler() as prof:
        torch.ones(2, device=device).sum()
        prof.toggle_collection_dynamic(False, [ProfilerActivity.CPU])
        torch.ones(2, device=device).prod()
        prof.toggle_collection_dynamic(True, [ProfilerActivity.CPU])
        torch.ones(2, device=device).cumsum(0)
    names = {event.name for event in prof.events()}
    assert {"aten::sum", "aten::cumsum"} <= names
    assert "aten::prod" not in names


def test_device_time_is_the_average_of_an_entry(device: torch.device) -> None:
    """`device_time` and `cpu_time` are an entry's summed times divided by its count; the CPU has no device time."""
    for entry in recorded(device).key_averages():
        assert entry.device_time == pytest.approx(entry.device_time_total / entry.count)
        assert entry.cpu_time == pytest.approx(entry.cpu_time_total / entry.count)
        if device.type == "cpu":
            assert entry.device_time == 0


def test_autograd_profile_adds_up_and_prints_its_events() -> None:
    """`torch.autograd.profiler.profile` adds up own times and counts of its events, and prints the requested rows."""
    with torch.autograd.profiler.profile() as prof:
        work(torch.device("cpu"))
    events = list(prof.function_events)

    assert prof.self_cpu_time_total == pytest.approx(sum(event.self_cpu_time_total for event in events))
    whole = prof.total_average()
    assert (whole.key, whole.count) == ("Total", len(events))
    assert whole.self_cpu_time_total == pytest.approx(prof.self_cpu_time_total)

    table = prof.table(sort_by="cpu_time_total", row_limit=2, header="of the test")
    longest = sorted(events, key=lambda event: -event.cpu_time_total)[:2]
    rows = [line.split()[0] for line in table.splitlines() if line.split()[:1] and line.split()[0].startswith("aten::")]
    assert table.splitlines()[1].strip() == "of the test"
    assert len(rows) + table.count("own range") == 2
    assert all(event.name in table for event in longest)


def test_export_chrome_trace_of_an_event_list_has_its_events(tmp_path: Path) -> None:
    """`EventList.export_chrome_trace` writes each event of the host with its name, start, duration and thread."""
    with torch.autograd.profiler.profile() as prof:
        work(torch.device("cpu"))
    events = prof.function_events
    assert isinstance(events, torch.autograd.profiler_util.EventList)
    file = tmp_path / "trace.json"
    events.export_chrome_trace(str(file))

    spans = [span for span in json.loads(file.read_text(encoding="utf-8")) if span["ph"] == "X"]
    assert [span["name"] for span in spans] == [event.name for event in events]
    for span, event in zip(spans, events, strict=True):
        assert span["ts"] == pytest.approx(event.time_range.start)
        assert span["dur"] == pytest.approx(event.time_range.elapsed_us())
        assert span["tid"] == event.thread
