"""What must not be captured: clear errors, and a device that works afterwards; what may harm it runs in a child."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from suites import children

from .capturing import Api, apis, apis_in_this_process, apis_that_refuse, on_cuda, works

ROW = "test_cuda::TestCuda::"


def told_in_a_child(device: torch.device, script: str) -> str:
    """The error that a script ends with as a line of its own, after which its process must still end well.

    A child that dies of a signal, or says nothing, fails the case.
    """
    lines = [
        "import torch",
        "torch.cuda.set_device(DEVICE)",
        "torch.ones(1, device=DEVICE).sum().item()",
        "try:",
        *(f"    {line}" for line in script.strip().splitlines()),
        "except RuntimeError as error:",
        "    print('told:', ' '.join(str(error).split()))",
        "else:",
        "    print('nothing was told')",
    ]
    ended = children.run("\n".join(lines), device)
    (told,) = (line for line in ended.lines() if line.startswith(("told:", "nothing")))
    return told


@on_cuda
@pytest.mark.covers(f"{ROW}test_graph_error")
def test_capture_begin_on_the_default_stream_ends_the_process_well(device: torch.device) -> None:
    """Contract: a capture on the default stream is refused, in words that say which streams can be, and the process
    ends well."""
    told = told_in_a_child(device, "torch.cuda.CUDAGraph().capture_begin()")
    assert "non-default stream" in told


@apis_that_refuse
def test_capture_begin_on_the_default_stream_is_refused(api: Api, device: torch.device) -> None:
    """Contract: the same within one process: refused before anything has begun, so all goes on as before: work, and
    random numbers."""
    graph = api.new()
    with pytest.raises(RuntimeError, match=r"(?i)default stream"):
        api.begin(graph)
    assert works(device)
    assert torch.rand(64, device=device).unique().numel() > 1


@on_cuda
@pytest.mark.parametrize(
    "reading",
    [
        "x.sum().item()",
        "x.cpu()",
        "x.nonzero()",
        "torch.cuda.synchronize()",
        "torch.cuda.current_stream().synchronize()",
    ],
)
@pytest.mark.covers(f"{ROW}test_cuda_graph_tensor_item_not_allowed")
def test_item_and_other_reads_within_a_capture_are_errors(reading: str, device: torch.device) -> None:
    """Contract: what waits for the device cannot be captured: each way to do it raises and speaks of the capture."""
    begin = "x = torch.ones(8, device=DEVICE)\nwith torch.cuda.graph(torch.cuda.CUDAGraph()):\n    x.add_(1)"
    told = told_in_a_child(device, f"{begin}\n    {reading}")
    assert "captur" in told.lower()


@on_cuda
@pytest.mark.parametrize(("mode", "fails"), [("global", True), ("thread_local", False), ("relaxed", False)])
@pytest.mark.covers(f"{ROW}test_cuda_graph_error_options")
def test_capture_error_mode_and_allocations_of_other_threads(mode: str, fails: bool, device: torch.device) -> None:
    """Contract: in mode "global", memory that another thread takes from the driver spoils the capture, with an error;
    in the others it does not, and the capture replays. (In a child: a spoiled capture may spoil more.)"""
    told = told_in_a_child(
        device,
        f"""
import threading
x = torch.zeros(8, device=DEVICE)
graph = torch.cuda.CUDAGraph()
problems = []
def allocate():
    try:
        runtime = torch.cuda.cudart()
        torch.cuda.check_error(runtime.cudaHostRegister(host.data_ptr(), host.numel(), 0))
    except RuntimeError as problem:
        problems.append(problem)
host = torch.empty(1 << 20, dtype=torch.uint8)
with torch.cuda.graph(graph, capture_error_mode={mode!r}):
    x.add_(1)
    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
graph.replay()
assert x.sum().item() == 8
if problems:
    raise problems[0]
""",
    )
    if fails:
        assert "captur" in told.lower()
    else:
        assert told == "nothing was told"


@apis
@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
@pytest.mark.covers(f"{ROW}test_cuda_graph_error_options")
def test_capture_error_mode_lets_another_thread_allocate_and_compute(api: Api, mode: str, device: torch.device) -> None:
    """Contract: in the modes that look at one thread alone, or at none, another thread allocates fresh memory and
    waits for its results while this one captures; both are right."""
    x = torch.zeros(8, device=device)
    results: list[float] = []

    def other() -> None:
        with torch.Stream(device) as stream:
            results.append(torch.ones(3 << 20, device=device).sum().item())
            stream.synchronize()

    graph, stream = api.new(), torch.Stream(device)
    with api.capturing(graph, stream, mode=mode):
        x.add_(1)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        x.mul_(2)
    graph.replay()
    torch.accelerator.synchronize(device)
    assert (x == 2).all()
    assert results == [float(3 << 20)]


@apis_in_this_process
def test_capture_error_mode_global_sees_another_thread_wait(api: Api, device: torch.device) -> None:
    """Contract: in mode "global", which watches all threads, a thread that waits for the device during a capture is
    told so, or the capture is; nothing goes on as if it were right. The device works afterwards."""
    x = torch.zeros(8, device=device)
    problems: list[str] = []

    def other() -> None:
        try:
            torch.accelerator.synchronize(device)
        except RuntimeError as problem:
            problems.append(str(problem))

    def capture() -> None:
        with api.capturing(api.new(), torch.Stream(device), mode="global"):
            x.add_(1)
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

    try:
        capture()
    except RuntimeError as problem:
        problems.append(str(problem))
    assert any("captur" in problem.lower() for problem in problems)
    assert works(device)


@on_cuda
def test_capture_error_mode_global_of_cudagraph_sees_another_thread_wait(device: torch.device) -> None:
    """Contract: the same for `torch.cuda.CUDAGraph`. CUDA watches calls that are unsafe for any capture, of which
    waiting for one's own stream is none: the other thread waits for the whole device."""
    told = told_in_a_child(
        device,
        """
import threading
x = torch.zeros(8, device=DEVICE)
problems = []
before = torch.cuda.current_stream()
def wait():
    try:
        torch.cuda.synchronize(DEVICE)
    except RuntimeError as problem:
        problems.append(problem)
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="global"):
        x.add_(1)
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
except RuntimeError as problem:
    problems.append(problem)
torch.cuda.set_stream(before)
torch.cuda.synchronize(DEVICE)
assert torch.arange(100, device=DEVICE).sum().item() == 4950
if problems:
    raise problems[0]
""",
    )
    assert "captur" in told.lower()


@apis
def test_capture_error_mode_unknown_is_an_error(api: Api, device: torch.device) -> None:
    """Contract: a mode that does not exist is refused by name, and nothing has begun."""
    graph = api.new()
    with torch.Stream(device), pytest.raises(RuntimeError, match=r"mode.*thread_locale"):
        api.begin(graph, mode="thread_locale")
    assert works(device)


# A stream of an earlier time: gradients accumulate on the stream of the leaf's first use


@pytest.fixture
def stale_streams_overridden(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether autograd replaces streams that are not captured, put back to its initial state afterwards."""
    torch.autograd.graph.set_override_stale_capture_stream(request.param)
    yield request.param
    torch.autograd.graph.set_override_stale_capture_stream(False)


@on_cuda
@pytest.mark.requires(torch=">=2.13")
@pytest.mark.parametrize("stale_streams_overridden", [False], indirect=True)
@pytest.mark.usefixtures("stale_streams_overridden")
@pytest.mark.covers(f"{ROW}test_graph_capture_stale_default_stream_error")
def test_backward_in_a_capture_with_a_leaf_of_the_default_stream_is_an_error(device: torch.device) -> None:
    """Contract: a backward pass in a capture whose leaf was used on the default stream before, and whose graph is
    still held, would draw that stream in: an error that says so."""
    weight = torch.ones(8, device=device, requires_grad=True)
    held = (weight * 2).sum()
    held.backward(retain_graph=True)
    stream = torch.cuda.Stream(device)

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local"):
            (weight * 3).sum().backward()

    with pytest.raises(RuntimeError, match=r"stale reference to the default stream"):
        capture()
    assert works(device)
    assert held.item() == 16


@on_cuda
@pytest.mark.requires(torch=">=2.13")
@pytest.mark.parametrize("stale_streams_overridden", [True], indirect=True)
@pytest.mark.usefixtures("stale_streams_overridden")
@pytest.mark.parametrize(
    "warmed_up_on",
    [
        pytest.param(
            "default", marks=pytest.mark.covers(f"{ROW}test_graph_capture_override_stale_stream_default_warmup")
        ),
        pytest.param("side", marks=pytest.mark.covers(f"{ROW}test_graph_capture_override_stale_stream_side_warmup")),
    ],
)
def test_backward_in_a_capture_with_stale_streams_overridden(warmed_up_on: str, device: torch.device) -> None:
    """Contract: told to override, autograd accumulates on the stream that is captured, wherever the leaf was used
    before: the capture succeeds and each replay adds its gradient."""
    weight = torch.ones(8, device=device, requires_grad=True)
    before = torch.cuda.Stream(device) if warmed_up_on == "side" else torch.cuda.default_stream(device)
    before.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(before):
        held = (weight * 2).sum()
        held.backward(retain_graph=True)
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        (weight * 3).sum().backward()
    assert weight.grad is not None
    weight.grad.zero_()
    for number in range(1, 4):
        graph.replay()
        assert (weight.grad == 3 * number).all()
    del held
