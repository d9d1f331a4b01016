"""Texts and pages from snapshots of the allocator."""

from __future__ import annotations

from typing import Any

from tests.breaks.breaks import Theme

broken = Theme()

_SUMMARIES, _FLAMES, _PAGES, _CYCLES, _DUMPS = (
    f"suites/snapshot/test_{name}.py" for name in ("summaries", "flame_graphs", "pages", "cycles", "dumps")
)
_VIZ, _OF_CYCLES = "torch.cuda._memory_viz", "torch.utils.viz._cycles"
_MIB = 1 << 20


def _snapshot() -> dict[str, Any]:
    """Return two segments, a large one on another stream among them, with blocks of each state, and a trace."""

    def block(size: int, state: str, asked: int, name: str) -> dict[str, Any]:
        frames = [{"filename": f"{name}.py", "line": 3, "name": name}]
        return {"size": size, "requested_size": asked, "state": state, "address": 0, "frames": frames}

    first = [block(_MIB, "active_allocated", _MIB // 2, "f"), block(_MIB, "inactive", 0, "g")]
    second = [block(30 * _MIB, "active_allocated", 30 * _MIB, "h"), block(_MIB, "active_allocated", _MIB, "f")]
    second += [block(12 * _MIB, "inactive", 0, "g"), block(_MIB, "active_pending_free", _MIB, "p")]
    segments = [
        {"address": 1 << 28, "total_size": 2 * _MIB, "allocated_size": _MIB, "stream": 0, "blocks": first},
        {"address": 1 << 30, "total_size": 44 * _MIB, "allocated_size": 31 * _MIB, "stream": 7, "blocks": second},
    ]
    trace = [
        {"action": "segment_alloc", "addr": 1 << 28, "size": 2 * _MIB, "stream": 0, "frames": []},
        *({"action": "alloc", "addr": (1 << 28) + n * 512, "size": 512, "stream": 0, "frames": []} for n in range(3)),
        {"action": "free_requested", "addr": 1 << 28, "size": 512, "stream": 0, "frames": []},
        {"action": "free_completed", "addr": 1 << 28, "size": 512, "stream": 0, "frames": []},
        {"action": "oom", "addr": 0, "size": 99, "device_free": 7, "stream": 0, "frames": []},
        {"action": "segment_free", "addr": 1 << 28, "size": 2 * _MIB, "stream": 0, "frames": []},
    ]
    return {"segments": segments, "device_traces": [trace, trace[:2]]}


def _summary() -> object:
    from torch.cuda import _memory_viz

    return _memory_viz.segsum(_snapshot())


def _trace() -> object:
    from torch.cuda import _memory_viz

    return _memory_viz.trace(_snapshot())


def _flames() -> object:
    from torch.cuda import _memory_viz

    whole = _snapshot()
    texts = [make(whole, format_flamegraph=str) for make in (_memory_viz.segments, _memory_viz.memory)]
    return [*texts, _memory_viz.compare(whole["segments"], whole["segments"][:1], format_flamegraph=str)]


def _filtered() -> object:
    from torch.cuda import _memory_viz

    return [
        [event["action"] for event in trace]
        for trace in _memory_viz.filter_alloc_free_pairs(_snapshot())["device_traces"]
    ]


#: Name, sentence, function, text, replacement, demonstration, suite.
_EDITS: tuple[tuple[str, str, str, str, str, Any, str], ...] = (
    (
        "summary_counts_allocated_as_reserved", "A summary reports requested memory as reserved.", "segsum",
        '{Bytes(total_reserved)}\\n', '{Bytes(total_allocated)}\\n', _summary, _SUMMARIES,
    ),
    (
        "summary_forgets_rounding", "A summary reports memory lost to rounding as free outside of blocks.", "segsum",
        "_report_free(free_external, free_internal)", "_report_free(free_external + free_internal, 0)",
        _summary, _SUMMARIES,
    ),
    (
        "summary_forgets_the_stream", "A picture of a segment does not name its stream.", "segsum",
        "free{stream}\\n", "free\\n", _summary, _SUMMARIES,
    ),
    (
        "summary_draws_small_segments", "Segments below a page have a picture, too.", "segsum",
        'if seg["total_size"] >= PAGE_SIZE:', "if True:", _summary, _SUMMARIES,
    ),
    (
        "summary_draws_no_fractions", "A place with several blocks has the letter of the last one.", "segsum",
        'if occupied[j] != " ":', "if False:", _summary, _SUMMARIES,
    ),
    (
        "summary_ignores_a_mismatch", "Blocks that do not fill their segment are summed up without an error.", "segsum",
        "if seg_free_external + seg_free_internal + seg_allocated != seg[\"total_size\"]:", "if False:",
        lambda: _mismatch(), _SUMMARIES,
    ),
    (
        "summary_pictures_add_up", "Beside a picture is what is free in all segments so far.", "segsum",
        "_report_free(seg_free_external, seg_free_internal)", "_report_free(free_external, free_internal)",
        _summary, _SUMMARIES,
    ),
    (
        "sizes_are_in_thousands", "Sizes are in units of a thousand.", "_format_size", "1024.0", "1000.0",
        _summary, _SUMMARIES,
    ),
    (
        "trace_names_places_by_address", "A trace has the address of an allocation instead of its place.", "trace",
        "offset = addr - seg_addr", "offset = addr", _trace, _SUMMARIES,
    ),
    (
        "trace_counts_no_frees", "A trace does not record that a free has completed.", "trace",
        'out.write(f"# free completed for {name} {Bytes(size)}\\n")', "pass", _trace, _SUMMARIES,
    ),
    (
        "trace_swaps_requested_and_free", "A trace records free memory as requested memory.", "trace",
        '{Bytes(size)} requested, {Bytes(free)} free', '{Bytes(free)} requested, {Bytes(size)} free',
        _trace, _SUMMARIES,
    ),
    (
        "trace_repeats_a_name", "A trace gives each allocation the same name.", "trace",
        "next_name += 1", "pass", _trace, _SUMMARIES,
    ),
    (
        "trace_of_the_first_device", "A trace has the first device only.", "trace",
        'for i, d in enumerate(data["device_traces"]):', 'for i, d in enumerate(data["device_traces"][:1]):',
        _trace, _SUMMARIES,
    ),
    (
        "trace_skips_segment_frees", "A trace does not record that a segment is released.", "trace",
        'out.write(f"cudaFree({name}) # {Bytes(size)}\\n")', "pass", _trace, _SUMMARIES,
    ),
    (
        "flames_forget_gaps", "A flame graph leaves out what blocks lose by rounding.", "_write_blocks",
        "if gaps:", "if False:", _flames, _FLAMES,
    ),
    (
        "flames_forget_the_state", "A flame graph shows every block as allocated.", "_write_blocks",
        "{b['state']};{frames_fragment(frames)}", "active_allocated;{frames_fragment(frames)}", _flames, _FLAMES,
    ),
    (
        "flames_are_upside_down", "The stacks of a flame graph are upside down.", "_write_blocks",
        "reverse=True", "reverse=False", lambda: _stack(), _FLAMES,
    ),
    (
        "flames_show_the_dispatcher", "The stacks of a flame graph have calls of the dispatcher.", "_frame_filter",
        '"/Redispatch",', "", lambda: _filter(), _FLAMES,
    ),
    (
        "flames_compare_before_only", "A comparison of snapshots leaves out what is new.", "compare",
        'if _seg_key(seg) not in before_segs:', "if False:", lambda: _compared(), _FLAMES,
    ),
    (
        "flames_forget_the_stream", "A flame graph of memory puts all streams together.", "memory",
        "prefix = f\"stream_{seg['stream']}\"", 'prefix = "stream_0"', _flames, _FLAMES,
    ),
    (
        "filter_keeps_frees", "A trace without what was freed still has the frees.", "filter_alloc_free_pairs",
        "filterSet.add(idx)", "pass", _filtered, _PAGES,
    ),
    (
        "filter_of_the_first_device", "What was freed is filtered on the first device only.", "filter_alloc_free_pairs",
        'range(len(data["device_traces"]))', "range(1)", lambda: _filtered_second(), _PAGES,
    ),
    (
        "page_of_segments_is_of_blocks", "The page of segments shows blocks.", "trace_plot",
        '"Active Cached Memory Timeline"', '"Active Memory Timeline"', lambda: _page(), _PAGES,
    ),
)  # fmt: skip

for _name, _breaks, _of, _old, _new, _shows, _suite in _EDITS:
    broken.edit(_name, _breaks, f"{_VIZ}:{_of}", _old, _new, _suite, shows=_shows)


broken.edit(
    "cycles_are_kept", "What was seen of cycles is never freed.", f"{_OF_CYCLES}:observe_garbage",
    "observer(gc.garbage)", "observer(gc.garbage); observe_garbage.kept = [*gc.garbage]",
    _CYCLES, shows=lambda: _held(),
)  # fmt: skip
broken.edit(
    "cycles_of_young_objects_are_missed", "Cycles are seen in full collections only.", f"{_OF_CYCLES}:observe_garbage",
    "if not enabled:", "if not enabled or info['generation'] != 2:", _CYCLES, shows=lambda: _seen_young(),
)  # fmt: skip
broken.edit(
    "cycles_have_no_labels", "The drawing of a cycle does not name the attributes that refer to objects.",
    f"{_OF_CYCLES}:to_dot", "escape(label)", 'escape("")', _CYCLES, shows=lambda: _drawn(),
)  # fmt: skip
broken.edit(
    "history_clears_for_compile_context", "Two options of the record of memory are taken for each other.",
    "torch.cuda.memory:_record_memory_history_impl",
    "clear_history,\n        compile_context,", "compile_context,\n        clear_history,", _DUMPS,
    shows=lambda: _asked_for(),
)  # fmt: skip


def _observed(generation: int) -> tuple[int, int]:
    """Return how many objects of a cycle are observed, and how many references to its content are left afterwards."""
    import gc
    import sys

    from torch.utils.viz import _cycles

    held, seen = bytearray(3), list[int]()
    gc.disable()
    gc.collect()
    remove = _cycles.observe_garbage(lambda garbage: seen.append(sum(each[1:] == [held] for each in garbage)))
    cycle: list[Any] = []
    cycle += [cycle, held]
    cycle = []
    gc.collect(generation)
    len(cycle)  # a call, since the observer runs at calls
    len(cycle)
    remove()
    return sum(seen), sys.getrefcount(held)


def _held() -> object:
    return _observed(2)


def _seen_young() -> object:
    return _observed(0)


def _drawn() -> object:
    import torch
    from torch.utils.viz import _cycles

    held = {"key": torch.ones(2)}
    nodes = _cycles.create_graph(
        [held, held["key"]], context=lambda _: None, filter=lambda each: isinstance(each, torch.Tensor)
    )
    return _cycles.to_dot(nodes)


def _asked_for() -> object:
    import torch

    told: list[object] = []
    torch._C._cuda_record_memory_history = lambda *each: told.append(each)  # type: ignore[attr-defined]
    torch.cuda.memory._record_memory_history(clear_history=True)
    return told


def _filter() -> object:
    from torch.cuda import _memory_viz

    return _memory_viz._frame_filter("call", "/build/RedispatchFunctions.h")


def _mismatch() -> object:
    from torch.cuda import _memory_viz

    whole = _snapshot()
    whole["segments"][0]["blocks"][1]["size"] += 512
    whole["segments"][0]["total_size"] += 0
    return _memory_viz.segsum(whole)


def _stack() -> object:
    from torch.cuda import _memory_viz

    whole = _snapshot()
    frames = whole["segments"][0]["blocks"][0]["frames"]
    frames.append({"filename": "caller.py", "line": 9, "name": "caller"})
    return _memory_viz.memory(whole, format_flamegraph=str)


def _compared() -> object:
    from torch.cuda import _memory_viz

    whole = _snapshot()
    return _memory_viz.compare(whole["segments"][:1], whole["segments"], format_flamegraph=str)


def _filtered_second() -> object:
    from torch.cuda import _memory_viz

    whole = _snapshot()
    whole["device_traces"] = [[], whole["device_traces"][0]]
    return [len(trace) for trace in _memory_viz.filter_alloc_free_pairs(whole)["device_traces"]]


def _page() -> object:
    from torch.cuda import _memory_viz

    return "Cached" in _memory_viz.trace_plot(_snapshot(), plot_segments=True)
