"""Green contexts: a subset of a GPU's multiprocessors, and the work that runs on it.

The slowdown on a subset is a ratio of times on one device, with medians of several runs.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from .. import children
from .busy import calibrate, sleep_on

pytestmark = [
    pytest.mark.requires(device="cuda", not_={"rocm": True}, compute_capability=">=9.0", cuda_driver=">=12.8"),
    pytest.mark.timeout(300),
    # Issued since torch 2.15, which still supports these functions, so the cases still apply.
    pytest.mark.filterwarnings("ignore:`GreenContext.set_context` and `GreenContext.pop_context` are:FutureWarning"),
]

ROW = "test_cuda::TestCudaGreenContexts::"

#: The errors for a torch build or driver that is too old for green contexts or for workqueue configuration. Any other
#: error is a failure.
ABSENT = re.compile(
    r"not built with Green Context support|Green Context is only supported on|Green Context requires"
    r"|GreenContext requires the cuda\.bindings package"
    r"|driver too old to use|[Ww]orkqueue configuration (for green contexts )?requires"
)

#: Multiprocessors are allotted in steps of 8 from compute capability 9.0 on.
FEW = 16


def green(device: torch.device, **wanted: Any) -> Any:
    """Return a green context on a device. Skip the case if torch or the driver does not support it."""
    with skipped_where_absent():
        return torch.cuda.green_contexts.GreenContext.create(device_id=device.index, **wanted)


@contextmanager
def skipped_where_absent() -> Iterator[None]:
    """Skip the case if torch reports a missing feature in the block."""
    try:
        yield
    except RuntimeError as error:
        if ABSENT.search(str(error)):
            pytest.skip(f"green contexts of that kind are not supported here: {error}")
        raise


@contextmanager
def current(context: Any) -> Iterator[None]:
    """Make a green context current in the block."""
    context.set_context()
    try:
        yield
    finally:
        context.pop_context()


@pytest.fixture(autouse=True)
def in_use(device: torch.device) -> Iterator[None]:
    """Initialize the device before the case, which torch requires since 2.14 (see the case of the first use).

    Contexts are freed at the end of the case, and not by a later garbage collection.
    """
    torch.cuda.synchronize(device)
    yield
    torch.cuda.synchronize()
    gc.collect()


def milliseconds(work: Callable[[], object], runs: int = 7) -> float:
    """Return the milliseconds of work on the current stream, by events: the median of several runs after a warm-up."""
    times = []
    for _ in range(runs + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times[1:])[runs // 2]


def product(device: torch.device) -> Callable[[], torch.Tensor]:
    """Return work that fills a GPU, and takes longer on a part of it."""
    a = torch.randn(4096, 4096, device=device)
    return lambda: a @ a


class NotInitialisedError(Exception):
    """A driver call failed because the driver was not initialized."""


@pytest.mark.xfail(
    torch.__version__ >= (2, 14),
    raises=NotInitialisedError,
    reason="since torch 2.14 a green context asks the driver for the current context before anything has initialised it"
    " (GreenContext.__init__, since https://github.com/pytorch/pytorch/pull/185527)",
)
def test_greencontext_can_be_the_first_use_of_the_device(device: torch.device) -> None:
    """A green context can be created in a process that has not used the device yet.

    torch warns that it creates the primary context, and work in the green context is correct.
    """
    green(device, num_sms=FEW)
    script = f"""
import torch
context = torch.cuda.green_contexts.GreenContext.create(device_id={device.index}, num_sms={FEW})
context.set_context()
print((torch.ones(1000, device=DEVICE) * 3).sum().item())
context.pop_context()
"""

    ended = children.run(script, device)

    if "CUDA_ERROR_NOT_INITIALIZED" in ended.err:
        raise NotInitialisedError(ended.err[-1000:])
    assert ended.lines() == ["3000.0"]
    assert "there was no primary context" in ended.err


@pytest.mark.covers(f"{ROW}test_greencontext_restores_stream")
def test_greencontext_restores_the_stream_when_left(device: torch.device) -> None:
    """Within a green context, its own stream is current, whatever stream was current before.

    Afterwards the previous stream is current again: the same CUDA stream, with another id in torch (CUDAGreenContext
    only keeps CUDA's handle).
    """
    context = green(device, num_sms=FEW)
    side = torch.cuda.Stream(device)

    for before in (torch.cuda.default_stream(device), side):
        with torch.cuda.stream(before):
            with current(context):
                assert torch.cuda.current_stream(device) == torch.cuda.default_stream(device) != side
            assert torch.cuda.current_stream(device).cuda_stream == before.cuda_stream


def test_greencontext_work_is_right_and_ordered(device: torch.device) -> None:
    """Entering and leaving a green context orders work before, inside and after it, without synchronization."""
    context = green(device, num_sms=FEW)
    x = torch.zeros(1 << 24, dtype=torch.int32, device=device)
    calibrate(device)

    for turn in range(10):
        sleep_on(torch.cuda.current_stream(device), 5)
        x.fill_(turn)
        with current(context):
            sleep_on(torch.cuda.current_stream(device), 5)
            x.mul_(3).add_(1)
        x.add_(5)
        assert (x == 3 * turn + 6).all()


@pytest.mark.requires(silicon=True)
@pytest.mark.covers(f"{ROW}test_greencontext_carveout")
def test_greencontext_work_is_slower_on_a_part(device: torch.device) -> None:
    """A matrix product on 16 multiprocessors takes at least twice as long as on the whole device.

    The device has several times as many.

    After the context, it is as fast as before.
    """
    if torch.cuda.get_device_properties(device).multi_processor_count < 4 * FEW:
        pytest.skip("the device has too few multiprocessors to distinguish a part from the whole")
    work = product(device)
    whole = milliseconds(work)
    with current(green(device, num_sms=FEW)):
        part = milliseconds(work)

    assert part > 2 * whole
    assert milliseconds(work) < part / 1.5


@pytest.mark.requires(silicon=True)
@pytest.mark.covers(f"{ROW}test_greencontext_stream_carveout")
def test_greencontext_stream_stays_in_its_part(device: torch.device) -> None:
    """Work on a green context's stream runs on its part, even if the context is not current."""
    if torch.cuda.get_device_properties(device).multi_processor_count < 4 * FEW:
        pytest.skip("the device has too few multiprocessors to distinguish a part from the whole")
    work, context = product(device), green(device, num_sms=FEW)
    whole = milliseconds(work)
    stream = context.Stream()
    stream.wait_stream(torch.cuda.current_stream(device))

    with torch.cuda.stream(stream):
        part = milliseconds(work)

    assert part > 2 * whole


@pytest.mark.requires(cuda_graphs=True, silicon=True)
@pytest.mark.covers(f"{ROW}test_greencontext_graphs")
def test_greencontext_graph_captured_in_it_stays_in_its_part(device: torch.device) -> None:
    """A graph captured on a green context's stream is correct, and runs on that part wherever it is replayed."""
    if torch.cuda.get_device_properties(device).multi_processor_count < 4 * FEW:
        pytest.skip("the device has too few multiprocessors to distinguish a part from the whole")
    a = torch.randn(4096, 4096, device=device)
    work = product(device)
    whole = milliseconds(work)
    context, graph = green(device, num_sms=FEW), torch.cuda.CUDAGraph()
    stream = context.Stream()

    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        result = a @ a
    torch.cuda.synchronize(device)
    with torch.cuda.graph(graph, stream=stream):
        result = a @ a
    result.zero_()
    part = milliseconds(graph.replay)

    torch.testing.assert_close(result, a @ a)
    assert part > 2 * whole


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.covers(f"{ROW}test_greencontext_workqueue_concurrency_limit")
@pytest.mark.requires(cuda=">=13.1")
def test_greencontext_max_workqueue_concurrency_can_be_limited(device: torch.device) -> None:
    """A context can limit the concurrency of its work queues up to the device's maximum, and its work is correct.

    This holds with all or some multiprocessors. A limit without a queue scope raises.
    """
    with skipped_where_absent():
        most = torch.cuda.green_contexts.GreenContext.max_workqueue_concurrency(device_id=device.index)
    assert most >= 1

    for wanted in ({}, {"num_sms": FEW}):
        for limit in {1, most}:
            context = green(device, workqueue_scope="balanced", workqueue_concurrency_limit=limit, **wanted)
            with current(context):
                x = torch.arange(100_000, device=device)
                assert (x + 1 - x == 1).all()
    with pytest.raises((RuntimeError, ValueError), match="workqueue_scope"):
        torch.cuda.green_contexts.GreenContext.create(workqueue_concurrency_limit=1, device_id=device.index)


@pytest.mark.parametrize("count", [0, -8, 100_000])
def test_greencontext_of_a_missing_part_is_refused(device: torch.device, count: int) -> None:
    """A context without multiprocessors, or with more than the device has, raises, and the device still works."""
    with pytest.raises((RuntimeError, ValueError, TypeError, OverflowError), match=r"number of SMs|incompatible"):
        green(device, num_sms=count)

    assert torch.ones(4, device=device).sum().item() == 4
