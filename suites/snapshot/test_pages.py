"""Pages made from snapshots: HTML with the kind of plot and the unchanged snapshot."""

from __future__ import annotations

import copy
import html
from collections.abc import Callable

import pytest

from . import _torch_private as private
from . import builder, pages
from .builder import MIB, Paper, Snapshot, frame, stack

FILE = "snapshot.pickle"

#: The function that makes each page, and the kind that the page names.
PLOTS: dict[str, tuple[Callable[[Snapshot], str], str]] = {
    "trace": (lambda snapshot: private.trace_plot(snapshot), "Active Memory Timeline"),
    "cached": (lambda snapshot: private.trace_plot(snapshot, plot_segments=True), "Active Cached Memory Timeline"),
    "segments": (lambda snapshot: private.segment_plot(snapshot), "Allocator State History"),
}

SNAPSHOTS: dict[str, Callable[[], Snapshot]] = {
    "ordinary": builder.ordinary,
    "two_devices": builder.two_devices,
    "nothing": lambda: Paper(devices=0).snapshot(),
    "idle_devices": lambda: Paper(devices=8).snapshot(),
}

#: Function and file names that break a page that does not escape them.
HOSTILE = {
    "end_of_script": "</script><script>alert(1)</script>",
    "comment": "<!-- --><!DOCTYPE html>",
    "quotes": "'\"`\\",
    "placeholders": "$VIZ_KIND $SNAPSHOT",
    "lines": "one\ntwo\r\u2028three",
    "nul": "a\x00b",
    "letters": "größe_メモリ_🔥",
    "lone_surrogate": "\udc80",
    "long": "x" * 100_000,
}

plots = pytest.mark.parametrize(("plot", "kind"), PLOTS.values(), ids=PLOTS.keys())


@plots
@pytest.mark.parametrize("make", SNAPSHOTS.values(), ids=SNAPSHOTS.keys())
@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_memory_plots")
def test_trace_plot_and_segment_plot_contain_the_snapshot(
    plot: Callable[[Snapshot], str], kind: str, make: Callable[[], Snapshot]
) -> None:
    """A plot is an HTML document with one script, which shows the unchanged snapshot as the requested kind."""
    snapshot = make()

    shown = pages.plot(plot(copy.deepcopy(snapshot)))

    assert shown == pages.Plot(kind, {FILE: snapshot})


@plots
def test_trace_plot_and_segment_plot_change_no_snapshot(plot: Callable[[Snapshot], str], kind: str) -> None:
    """Making a page does not change the snapshot, and a second page is the same as the first."""
    snapshot = builder.ordinary()

    first = plot(snapshot)

    assert snapshot == builder.ordinary()
    assert plot(snapshot) == first
    assert pages.plot(first).kind == kind


@plots
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_trace_plot_and_segment_plot_escape_names_in_a_stack(
    plot: Callable[[Snapshot], str], kind: str, name: str
) -> None:
    """Any function or file name leaves the page's structure intact and is embedded unchanged."""
    paper = Paper()
    paper.reserve(0x1000_0000, 2 * MIB)
    paper.take(0x1000_0000, 512, frame(name, filename=name))
    snapshot = paper.snapshot()

    page = plot(snapshot)

    assert pages.plot(page) == pages.Plot(kind, {FILE: snapshot})
    assert pages.structure(page).elements == pages.structure(plot(Paper().snapshot())).elements
    assert name not in page or name in plot(Paper().snapshot())
    assert html.escape(name) not in page


def test_trace_plot_contains_data_of_any_length() -> None:
    """Snapshots of any length in bytes are complete: consecutive lengths cover all cases of base64 padding."""
    for length in range(12):
        snapshot = Paper().snapshot() | {"note": "x" * length}
        assert pages.plot(private.trace_plot(snapshot)).files == {FILE: snapshot}


def test_trace_plot_contains_a_large_snapshot() -> None:
    """A large snapshot, with ten thousand entries with stacks each, is complete."""
    paper = Paper()
    paper.reserve(0x1000_0000, 20 * MIB)
    for number in range(3333):
        paper.give_back(paper.take(0x1000_0000, 512 * (number % 7 + 1), *stack("work", "step", f"pass_{number}")))
    snapshot = paper.snapshot()

    shown = pages.plot(private.trace_plot(snapshot)).files[FILE]

    assert len(shown["device_traces"][0]) == 10_000
    assert shown == snapshot


@pytest.mark.parametrize("plot", [private.trace_plot, private.segment_plot])
def test_trace_plot_and_segment_plot_device_argument_is_deprecated(plot: Callable[..., str]) -> None:
    """Pages contain all devices; the `device` argument is deprecated, warns and has no effect."""
    with pytest.warns(FutureWarning, match="device"):
        chosen = plot(builder.two_devices(), device=1)

    assert chosen == plot(builder.two_devices())


# Filtering of freed allocations


def filtered(snapshot: Snapshot) -> Snapshot:
    shown: Snapshot = pages.plot(private.trace_plot(copy.deepcopy(snapshot), filter_freed=True)).files[FILE]
    return shown


def test_filter_freed_leaves_out_what_was_freed() -> None:
    """`filter_freed` keeps, in order, live allocations and other events, and does not change the segments."""
    snapshot = builder.ordinary()
    trace = snapshot["device_traces"][0]
    gone = {entry["addr"] for entry in trace if entry["action"] == "free_requested"}
    kept = [
        entry
        for entry in trace
        if entry["action"] not in ("alloc", "free_requested", "free_completed") or entry["addr"] not in gone
    ]

    shown = filtered(snapshot)

    assert shown == snapshot | {"device_traces": [kept]}
    assert [entry["action"] for entry in kept] == [
        "segment_alloc", "segment_alloc", "alloc", "alloc", "segment_alloc", "segment_free", "oom",
    ]  # fmt: skip


def test_filter_freed_distinguishes_allocations_at_a_reused_address() -> None:
    """If two of three allocations at one address were freed, only the third is kept."""
    paper = Paper()
    paper.reserve(0x1000_0000, 2 * MIB)
    for name in ("first", "second"):
        paper.give_back(paper.take(0x1000_0000, 512, *stack(name)))
    paper.take(0x1000_0000, 512, *stack("third"))

    shown = filtered(paper.snapshot())

    assert [(entry["action"], entry["frames"]) for entry in shown["device_traces"][0]] == [
        ("segment_alloc", []),
        ("alloc", stack("third")),
    ]


def test_filter_freed_filters_each_device_by_itself() -> None:
    """Equal addresses on different devices are independent."""
    first, second = Paper(), Paper()
    for paper in (first, second):
        paper.reserve(0x1000_0000, 2 * MIB)
    address = first.take(0x1000_0000, 512, *stack("stays"))
    second.give_back(second.take(0x1000_0000, 512, *stack("goes")))
    snapshot = first.snapshot()
    snapshot["device_traces"] += second.snapshot()["device_traces"]

    shown = filtered(snapshot)["device_traces"]

    assert [[entry["action"] for entry in trace] for trace in shown] == [["segment_alloc", "alloc"], ["segment_alloc"]]
    assert shown[0][1]["addr"] == address


def test_filter_freed_pairs_no_free_from_before_the_recording() -> None:
    """A free without a recorded allocation removes no other allocation, and is kept."""
    paper = Paper()
    paper.reserve(0x1000_0000, 2 * MIB)
    old = paper.take(0x1000_0000, 512, noted=False)
    paper.take(0x1000_0000, 512, *stack("stays"))
    paper.give_back(old, *stack("first"))
    paper.give_back(paper.take(0x1000_0000, 512))  # at the address of the old one
    paper.give_back(paper.take(0x1000_0000, 512, noted=False), *stack("second"))
    paper.take(0x1000_0000, 512, *stack("new"))

    kept = filtered(paper.snapshot())["device_traces"][0]

    assert [entry["frames"] for entry in kept if entry["action"] == "alloc"] == [stack("stays"), stack("new")]
    requests = [entry["frames"] for entry in kept if entry["action"] == "free_requested"]
    assert requests == [stack("first"), stack("second")]


# Invalid snapshots


@pytest.mark.parametrize("snapshot", [{}, {"segments": []}, None, []], ids=repr)
def test_filter_freed_without_traces_is_an_error(snapshot: object) -> None:
    """Data without traces cannot be filtered and raises, as does data of another type."""
    with pytest.raises(KeyError if isinstance(snapshot, dict) else TypeError):
        private.trace_plot(snapshot, filter_freed=True)
