"""Graphs of both APIs: captures, their use, and the state after errors."""

from __future__ import annotations

import gc
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from suites.cuda_warnings import of_empty_graphs
from suites.streams.busy import NOT_SHOWN, POISON, calibrate, ever, sleep_on

from .capturing import ELEMENTS, Api, apis, apis_that_print, captured, on_cuda, works

ROW = "test_cuda::TestCuda::"
#: The error for a replay without a capture, in releases up to 2.13 and in 2.15.
NOT_CAPTURED = r"(?i)without a preceding successful capture|capture_end\(\) must have been called"


@on_cuda
@pytest.mark.covers(f"{ROW}test_graph_is_current_stream_capturing")
def test_is_current_stream_capturing_on_captured_and_joined_streams(device: torch.device) -> None:
    """`is_current_stream_capturing` is True during a capture on its stream and on joined streams, otherwise False."""
    stream, joined, other = (torch.cuda.Stream(device) for _ in range(3))
    graph, x = torch.cuda.CUDAGraph(), torch.zeros(8, device=device)
    asked = torch.cuda.is_current_stream_capturing

    assert not asked()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        x.add_(1)
        assert asked()
        with torch.cuda.stream(other):
            assert not asked()
        joined.wait_stream(stream)
        with torch.cuda.stream(joined):
            assert asked()
            x.add_(1)
        stream.wait_stream(joined)
    assert not asked()
    with torch.cuda.stream(stream):
        assert not asked()


@apis
@pytest.mark.covers(f"{ROW}test_graph_capture_simple")
def test_capture_begin_and_capture_end_by_hand(api: Api, device: torch.device) -> None:
    """`capture_begin` and `capture_end` on a side stream capture ten additions, which each replay runs.

    Intermediate results are in the graph's own reserved memory, which later allocations do not overlap.
    """
    stream = torch.Stream(device)
    graph = api.new()
    a = torch.full((1000,), 1, device=device)
    torch.accelerator.synchronize(device)
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_reserved(device)
    stream.wait_stream(torch.accelerator.current_stream(device))
    with stream:
        api.begin(graph)
        b = a
        for _ in range(10):
            b = b + 1
        graph.capture_end()
    torch.accelerator.current_stream(device).wait_stream(stream)
    assert torch.accelerator.memory_reserved(device) > before

    others = [torch.full((1000,), -1, device=device) for _ in range(50)]
    for start in (1, 7):
        a.fill_(start)
        graph.replay()
        assert (b == start + 10).all()
    assert all(bool((other == -1).all()) for other in others)


@apis
@pytest.mark.covers(f"{ROW}test_graph_capture_reset_recapture")
def test_graph_reset_and_captured_again_and_again(api: Api, device: torch.device) -> None:
    """A graph can be reset and can capture again any number of times. It replays the last capture, without leaks."""
    graph, stream = api.new(), torch.Stream(device)
    x = torch.zeros(1 << 20, dtype=torch.int64, device=device)
    held = []
    for round_ in range(5):
        with api.capturing(graph, stream):
            y = x + round_
            x.copy_(y * 2)
        x.fill_(1)
        graph.replay()
        graph.replay()
        assert (x == ((1 + round_) * 2 + round_) * 2).all()
        held.append(torch.accelerator.memory_allocated(device))
        del y
        graph.reset()
    assert len(set(held)) == 1, f"memory grew: {held}"


@apis
def test_replay_refuses_a_graph_without_a_capture(api: Api, device: torch.device) -> None:
    """Replaying a graph without a capture, or after `reset`, raises."""
    graph = api.new()
    with pytest.raises(RuntimeError, match=NOT_CAPTURED):
        graph.replay()
    x = torch.zeros(8, device=device)
    graph = captured(api, device, lambda: x.add_(1))
    graph.reset()
    with pytest.raises(RuntimeError, match=NOT_CAPTURED):
        graph.replay()
    assert works(device)


@apis
def test_capture_begin_needs_a_reset_of_a_captured_graph(api: Api, device: torch.device) -> None:
    """`capture_begin` of a graph with a capture raises until `reset`, and the capture stays usable."""
    x = torch.zeros(8, device=device)
    graph = captured(api, device, lambda: x.add_(1))
    with torch.Stream(device), pytest.raises(RuntimeError, match=r"already owns a captured graph|was not reset"):
        api.begin(graph)
    x.zero_()
    graph.replay()
    assert (x == 1).all()
    assert works(device)


@apis
def test_capture_propagates_an_exception(api: Api, device: torch.device) -> None:
    """An exception within a capture propagates unchanged and ends the capture; the device and further captures work."""

    class Own(Exception):  # noqa: N818
        pass

    x = torch.zeros(8, device=device)
    graph, stream = api.new(), torch.Stream(device)

    def interrupted() -> None:
        with api.capturing(graph, stream):
            x.add_(1)
            raise Own("from inside")

    with pytest.raises(Own, match="from inside"):
        interrupted()
    assert works(device)
    again = captured(api, device, lambda: x.add_(1), rehearse=False)
    x.zero_()
    again.replay()
    assert (x == 1).all()


@apis
@pytest.mark.parametrize("threads", [1, 3])
def test_graphs_of_several_threads_replay(api: Api, threads: int, device: torch.device) -> None:
    """Threads that capture one after another each have their own graph, which any thread can replay."""
    lock = threading.Lock()
    inputs = [torch.full((ELEMENTS,), n + 1, device=device) for n in range(threads)]
    outputs = [torch.zeros(ELEMENTS, dtype=torch.int64, device=device) for _ in range(threads)]

    def capture(number: int) -> Any:
        with lock:  # one capture at a time, as documented
            return captured(api, device, lambda: outputs[number].copy_(inputs[number] * 10))

    with ThreadPoolExecutor(threads) as pool:
        graphs = list(pool.map(capture, range(threads)))
        for value in (2, 5):
            for number, one in enumerate(inputs):
                one.fill_(value + number)
            torch.accelerator.synchronize(device)
            list(pool.map(lambda graph: graph.replay(), graphs))
            torch.accelerator.synchronize(device)
            for number, out in enumerate(outputs):
                assert (out == 10 * (value + number)).all()


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.requires(asynchronous=True)
@apis
@pytest.mark.parametrize("link", ["wait_stream", "event"])
def test_stream_that_waits_for_a_replay(api: Api, link: str, device: torch.device) -> None:
    """A stream that waits for a replay's stream, or for an event after the replay, sees what the replay wrote.

    The replay is late, and a control without a wait reads too early.
    """
    value, buffer = (torch.zeros(1 << 18, dtype=torch.int32, device=device) for _ in range(2))
    writer, reader = torch.Stream(device), torch.Stream(device)
    graph = captured(api, device, lambda: buffer.copy_(value), stream=writer)
    calibrate(device)

    def seen(number: int, *, waiting: bool) -> bool:
        buffer.fill_(POISON)
        value.fill_(number)
        torch.accelerator.synchronize(device)
        sleep_on(writer)
        with writer:
            graph.replay()
            event = torch.Event(device)
            event.record(writer)
        if waiting and link == "event":
            reader.wait_event(event)
        elif waiting:
            reader.wait_stream(writer)
        with reader:
            found = buffer.clone()
        torch.accelerator.synchronize(device)
        return bool((found == number).all())

    assert ever(lambda: not seen(1, waiting=False)), NOT_SHOWN
    assert all(seen(number, waiting=True) for number in range(1, 6))


@pytest.mark.requires(asynchronous=True)
@apis
def test_replay_follows_the_work_of_its_stream(api: Api, device: torch.device) -> None:
    """A replay runs on the current stream, and reads what earlier work wrote there, however late that work runs."""
    value, buffer = (torch.zeros(1 << 18, dtype=torch.int32, device=device) for _ in range(2))
    writer = torch.Stream(device)
    graph = captured(api, device, lambda: buffer.copy_(value), stream=writer)
    calibrate(device)

    for number in range(1, 4):
        buffer.fill_(POISON)
        torch.accelerator.synchronize(device)
        sleep_on(writer)
        with writer:
            value.fill_(number)
            graph.replay()
        torch.accelerator.synchronize(device)
        assert (buffer == number).all()


@apis
@pytest.mark.requires(devices=2)
def test_graphs_on_two_devices(api: Api, device: torch.device) -> None:
    """Each device has its own graphs, and replays on one device do not affect the other."""
    second = torch.device(device.type, 1)
    made = []
    for where in (device, second):
        torch.accelerator.set_device_index(where.index)
        x = torch.zeros(ELEMENTS, device=where)
        made.append((where, x, captured(api, where, lambda x=x: x.add_(where.index + 1))))  # type: ignore[misc]  # noqa: B023
    for where, x, graph in reversed(made):
        torch.accelerator.set_device_index(where.index)
        x.zero_()
        for _ in range(3):
            graph.replay()
        torch.accelerator.synchronize(where)
    torch.accelerator.set_device_index(device.index)
    for where, x, _ in made:
        assert (x == 3 * (where.index + 1)).all()


@apis
@pytest.mark.covers(f"{ROW}test_cuda_graph_inference_mode")
def test_inference_mode_capture_and_replay(api: Api, device: torch.device) -> None:
    """Capture and replay work in inference mode, with a matrix product and random numbers."""
    weight = torch.eye(8, device=device).roll(1, 0) * 2
    x = torch.ones(8, 8, device=device)
    numbers = torch.arange(64.0, device=device).reshape(8, 8)
    with torch.inference_mode():
        result, noise = (torch.zeros(8, 8, device=device) for _ in range(2))

        def work() -> None:
            result.copy_(x @ weight)
            noise.uniform_()

        graph = captured(api, device, work)
        torch.manual_seed(9)
        drawn = [torch.empty(8, 8, device=device).uniform_() for _ in range(2)]
        torch.manual_seed(9)
        for value, wanted in zip((3.0, 5.0), drawn, strict=True):
            x.copy_(numbers + value)
            graph.replay()
            assert torch.equal(result, 2 * (numbers + value).roll(-1, 1))
            assert torch.equal(noise, wanted)
        assert not torch.equal(*drawn)


@apis_that_print
@pytest.mark.filterwarnings("ignore:DEBUG. calling:UserWarning")  # issued by CUDAGraph.debug_dump itself
@pytest.mark.covers(f"{ROW}test_graph_debugdump")
def test_debug_dump_writes_the_graph(api: Api, device: torch.device, tmp_path: Path) -> None:
    """If debugging is enabled first, a kept graph is written with its nodes and edges, in the Graphviz language.

    Without `keep_graph`, CUDA's graph is destroyed after the capture.
    """
    x = torch.zeros(ELEMENTS, device=device)
    stream, graph, path = torch.Stream(device), api.new(keep_graph=True), tmp_path / "graph.dot"
    graph.enable_debug_mode()
    with api.capturing(graph, stream):
        for _ in range(3):
            x.add_(1)
            x.mul_(2)
    graph.debug_dump(str(path))

    text = path.read_text()
    assert text.lstrip().startswith("digraph")
    assert text.count("->") >= 5, "the dump lacks the order of the six steps"
    assert text.rstrip().endswith("}")
    if api.name == "accelerator" and device.type != "cuda":
        graph.replay()
        assert (x == 14).all()


@on_cuda
@pytest.mark.covers(f"{ROW}test_graph_warn_if_has_zero_nodes")
def test_capture_without_work_warns(device: torch.device) -> None:
    """A capture without work warns at its end; a capture with work does not."""
    x = torch.zeros(8, device=device)
    for work, warned in ((lambda: None, True), (lambda: x.add_(1), False)):
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                work()
                graph.capture_end()
        assert any("CUDA Graph is empty" in str(one.message) for one in caught) is warned


@apis
@pytest.mark.covers(f"{ROW}test_graph_capture_oom")
def test_outofmemoryerror_within_a_capture(api: Api, device: torch.device) -> None:
    """An allocation in a capture that does not fit raises OutOfMemoryError; then the device works, without leaks."""
    stream = torch.Stream(device)
    x = torch.zeros(ELEMENTS, device=device)
    before = torch.accelerator.memory_allocated(device)

    def too_much() -> None:
        with api.capturing(api.new(), stream):
            x.add_(1)
            torch.empty(1 << 50, dtype=torch.uint8, device=device)

    with pytest.raises(torch.OutOfMemoryError, match=r"(?i)memory"):
        too_much()
    assert works(device)
    gc.collect()
    assert torch.accelerator.memory_allocated(device) == before
    again = captured(api, device, lambda: x.add_(1), rehearse=False)
    x.zero_()
    again.replay()
    assert (x == 1).all()


@on_cuda
@pytest.mark.covers(f"{ROW}test_repeat_graph_capture_cublas_workspace_memory")
def test_cublas_workspaces_do_not_grow_with_captures(device: torch.device) -> None:
    """cuBLAS workspaces are per stream and handle.

    A hundred captures on one stream do not increase the allocated memory.
    """
    a, b = torch.rand(1024, 512, device=device), torch.rand(512, 64, device=device)
    wanted = a @ b
    held = []
    for number in range(100):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            found = a @ b
        graph.replay()
        if number % 20 == 0:
            torch.testing.assert_close(found, wanted)  # a capture may use other kernels, with another order of sums
        del graph, found
        if number in (10, 99):
            torch.cuda.synchronize()
            held.append(torch.cuda.memory_allocated(device))
    assert held[1] <= held[0]


@pytest.mark.requires(asynchronous=True)
@apis
def test_graph_that_is_deleted_frees_its_memory(api: Api, device: torch.device) -> None:
    """A graph's memory is freed once the graph and its outputs are deleted, also with pending replays.

    The case must observe a pending replay at least once.
    """
    x = torch.ones(1 << 16, device=device)
    calibrate(device)
    torch.accelerator.synchronize(device)
    before = torch.accelerator.memory_allocated(device)

    def dropped_while_it_ran() -> bool:
        outputs: list[torch.Tensor] = []
        graph = captured(api, device, lambda: outputs.append(x * 2), rehearse=False)
        assert torch.accelerator.memory_allocated(device) > before
        stream = torch.accelerator.current_stream(device)
        sleep_on(stream)
        for _ in range(5):
            graph.replay()
        at_work = not stream.query()
        outputs.clear()
        del graph
        gc.collect()
        torch.accelerator.synchronize(device)
        assert torch.accelerator.memory_allocated(device) == before
        return at_work

    assert ever(dropped_while_it_ran), NOT_SHOWN


@apis
@of_empty_graphs  # torch 2.11 raises
@pytest.mark.parametrize("place", ["first", "second"])
def test_replay_within_a_capture_is_part_of_it_or_raises(api: Api, place: str, device: torch.device) -> None:
    """A replay within another capture becomes part of it (a child graph), or raises an error about the capture.

    It never runs immediately, and the device still works.
    """
    x = torch.ones(ELEMENTS, device=device)
    inner = captured(api, device, lambda: x.add_(1))
    x.fill_(1)
    torch.accelerator.synchronize(device)
    stream, outer = torch.Stream(device), api.new()

    def nest() -> None:
        with api.capturing(outer, stream):
            if place == "second":
                x.mul_(3)
            inner.replay()

    refused = False
    try:
        nest()
    except RuntimeError as error:
        refused = True
        assert "captur" in str(error).lower()  # noqa: PT017
    torch.accelerator.synchronize(device)
    assert (x == 1).all(), "the replay ran during the capture"

    if not refused:
        for value in (5, 7):
            x.fill_(value)
            outer.replay()
            assert (x == (value if place == "first" else 3 * value) + 1).all()
    x.fill_(10)
    inner.replay()
    assert (x == 11).all()
    assert works(device)
