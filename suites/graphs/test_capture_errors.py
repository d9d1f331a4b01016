"""Work that cannot be captured: clear errors, and a working device afterwards. Harmful cases run in a child process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from suites import children

from .capturing import Api, apis, apis_in_this_process, apis_that_refuse, on_cuda, works

ROW = "test_cuda::TestCuda::"


def reported_in_a_child(
    device: torch.device, script: str, start: Callable[[str, torch.device], children.Ended] = children.fork
) -> str:
    """Return the error with which a script ends, after which its process must still exit with status 0.

    A child that dies by a signal, or reports nothing, fails the case. In cases with the mark `own_process`, the child
    is a fork; otherwise `children.run` starts an interpreter, which ends with Python's finalization.
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
    ended = start("\n".join(lines), device)
    (reported,) = (line for line in ended.lines() if line.startswith(("told:", "nothing")))
    return reported


@on_cuda
@pytest.mark.covers(f"{ROW}test_graph_error")
def test_capture_begin_on_the_default_stream_exits_normally(device: torch.device) -> None:
    """A capture on the default stream raises and names the requirement, and the process exits normally."""
    reported = reported_in_a_child(device, "torch.cuda.CUDAGraph().capture_begin()", children.run)
    assert "non-default stream" in reported


@apis_that_refuse
def test_capture_begin_on_the_default_stream_is_refused(api: Api, device: torch.device) -> None:
    """A capture on the default stream is also refused in this process; work and random numbers are unaffected."""
    graph = api.new()
    with pytest.raises(RuntimeError, match=r"(?i)default stream"):
        api.begin(graph)
    assert works(device)
    assert torch.rand(64, device=device).unique().numel() > 1


#: Calls that wait for the captured work.
READINGS: dict[str, Callable[[torch.Tensor, torch.Stream], object]] = {
    "item": lambda x, _: x.sum().item(),
    "cpu": lambda x, _: x.cpu(),
    "nonzero": lambda x, _: x.nonzero(),
    "accelerator_synchronize": lambda x, _: torch.accelerator.synchronize(x.device),
    "stream_synchronize": lambda _, stream: stream.synchronize(),
    "stream_query": lambda _, stream: stream.query(),
}


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
@pytest.mark.own_process
def test_item_and_other_reads_within_a_capture_are_errors(reading: str, device: torch.device) -> None:
    """Each call that synchronizes raises during a capture and mentions the capture."""
    begin = "x = torch.ones(8, device=DEVICE)\nwith torch.cuda.graph(torch.cuda.CUDAGraph()):\n    x.add_(1)"
    reported = reported_in_a_child(device, f"{begin}\n    {reading}")
    assert "captur" in reported.lower()


@apis_in_this_process
@pytest.mark.parametrize("reading", READINGS)
def test_item_and_other_reads_in_a_capture_leave_a_device_that_works(
    api: Api, reading: str, device: torch.device
) -> None:
    """Each call that synchronizes raises during a capture and mentions the capture.

    The graph then has nothing to replay, the work of the capture has not run, and the device computes.
    """
    x = torch.ones(8, device=device)
    stream, graph = torch.Stream(device), api.new()

    def capture() -> None:
        with api.capturing(graph, stream):
            x.add_(1)
            READINGS[reading](x, stream)

    with pytest.raises(RuntimeError, match=r"(?i)captur"):
        capture()
    with pytest.raises(RuntimeError, match=r"(?i)captur"):
        graph.replay()
    assert works(device)
    assert (x == 1).all()


@on_cuda
@pytest.mark.parametrize(("mode", "fails"), [("global", True), ("thread_local", False), ("relaxed", False)])
@pytest.mark.covers(f"{ROW}test_cuda_graph_error_options")
@pytest.mark.own_process
def test_capture_error_mode_and_allocations_of_other_threads(mode: str, fails: bool, device: torch.device) -> None:
    """In mode "global", another thread's unsafe runtime call invalidates the capture with an error.

    In the other modes it does not, and the capture can be replayed. The case runs in a child process, because an
    invalid capture may affect other cases.
    """
    reported = reported_in_a_child(
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
        assert "captur" in reported.lower()
    else:
        assert reported == "nothing was told"


@on_cuda
@pytest.mark.parametrize(("mode", "fails"), [("global", True), ("thread_local", True), ("relaxed", False)])
@pytest.mark.own_process
def test_capture_error_mode_and_unsafe_calls_of_the_capturing_thread(
    mode: str, fails: bool, device: torch.device
) -> None:
    """In modes "global" and "thread_local", the capturing thread's own unsafe runtime call is an error.

    In mode "relaxed" it is not, and the capture can be replayed.
    """
    reported = reported_in_a_child(
        device,
        f"""
x = torch.zeros(8, device=DEVICE)
graph = torch.cuda.CUDAGraph()
host = torch.empty(1 << 20, dtype=torch.uint8)
with torch.cuda.graph(graph, capture_error_mode={mode!r}):
    x.add_(1)
    torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.numel(), 0))
graph.replay()
assert x.sum().item() == 8
""",
    )
    if fails:
        assert "captur" in reported.lower()
    else:
        assert reported == "nothing was told"


@apis
@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
@pytest.mark.covers(f"{ROW}test_cuda_graph_error_options")
def test_capture_error_mode_lets_another_thread_allocate_and_compute(api: Api, mode: str, device: torch.device) -> None:
    """In modes other than "global", another thread can allocate and synchronize during a capture.

    Both results are correct.
    """
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
    """In mode "global", a synchronize in another thread during a capture raises there, or invalidates the capture.

    The device works afterwards.
    """
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
@pytest.mark.own_process
def test_capture_error_mode_global_of_cudagraph_sees_another_thread_wait(device: torch.device) -> None:
    """In mode "global", a capture of `torch.cuda.CUDAGraph` detects that another thread synchronizes the whole device.

    CUDA only tracks calls that are unsafe for any capture, and a synchronize of the thread's own stream is not.
    """
    reported = reported_in_a_child(
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
    assert "captur" in reported.lower()


@apis
def test_capture_error_mode_unknown_is_an_error(api: Api, device: torch.device) -> None:
    """An unknown mode raises with its name, and no capture begins."""
    graph = api.new()
    with torch.Stream(device), pytest.raises(RuntimeError, match=r"mode.*thread_locale"):
        api.begin(graph, mode="thread_locale")
    assert works(device)


# Stale streams: gradients accumulate on the stream of the leaf's first use


@pytest.fixture
def stale_streams_overridden(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Yield whether autograd overrides stale streams that are not captured. Restore the initial setting afterwards."""
    torch.autograd.graph.set_override_stale_capture_stream(request.param)
    yield request.param
    torch.autograd.graph.set_override_stale_capture_stream(False)


@apis
@pytest.mark.requires(torch=">=2.13")
@pytest.mark.parametrize("stale_streams_overridden", [False], indirect=True)
@pytest.mark.usefixtures("stale_streams_overridden")
@pytest.mark.covers(f"{ROW}test_graph_capture_stale_default_stream_error")
def test_backward_in_a_capture_with_a_leaf_of_the_default_stream_is_an_error(api: Api, device: torch.device) -> None:
    """A backward in a capture raises if its leaf was used on the default stream and that graph is still alive.

    The backward would add the default stream to the capture.
    """
    weight = torch.ones(8, device=device, requires_grad=True)
    held = (weight * 2).sum()
    held.backward(retain_graph=True)
    stream = torch.Stream(device)

    def capture() -> None:
        with api.capturing(api.new(), stream):
            (weight * 3).sum().backward()

    with pytest.raises(RuntimeError, match=r"stale reference to the default stream"):
        capture()
    assert works(device)
    assert held.item() == 16


@apis
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
def test_backward_in_a_capture_with_stale_streams_overridden(api: Api, warmed_up_on: str, device: torch.device) -> None:
    """With the override, autograd accumulates on the capturing stream, and each replay adds its gradient."""
    weight = torch.ones(8, device=device, requires_grad=True)
    current = torch.accelerator.current_stream(device)
    before = torch.Stream(device) if warmed_up_on == "side" else current
    before.wait_stream(current)
    with before:
        held = (weight * 2).sum()
        held.backward(retain_graph=True)
    torch.accelerator.synchronize(device)
    graph, stream = api.new(), torch.Stream(device)
    with api.capturing(graph, stream):
        (weight * 3).sum().backward()
    assert weight.grad is not None
    weight.grad.zero_()
    for number in range(1, 4):
        graph.replay()
        assert (weight.grad == 3 * number).all()
    del held
