"""Streams and events shared with code outside torch: raw handles, the stream protocol, other processes."""

from __future__ import annotations

import pytest
import torch

from .. import children
from ..runtime.cudart import Runtime
from .busy import NOT_SHOWN, Relay, calibrate, ever, sleep_on

pytestmark = pytest.mark.requires(device="cuda")


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.covers("test_cuda::TestCuda::test_streams")
def test_externalstream_of_a_raw_handle_is_that_stream(device: torch.device) -> None:
    """`torch.cuda.ExternalStream` of a stream's raw handle is the same stream: work on either makes both busy."""
    stream = torch.cuda.Stream(device)
    external = torch.cuda.ExternalStream(stream.cuda_stream, device=device)
    x = torch.zeros(16, device=device)
    calibrate(device)
    assert external.cuda_stream == stream.cuda_stream
    assert external.device == device

    def busy(first: torch.cuda.Stream, second: torch.cuda.Stream) -> bool:
        x.zero_()
        torch.cuda.synchronize(device)
        sleep_on(first)
        with torch.cuda.stream(second):
            x.add_(1)
        at_work = not first.query() and not second.query()
        unwritten = not bool(x.any())  # read on the default stream, which waits for neither
        second.synchronize()
        assert first.query()
        assert (x == 1).all()
        return at_work and unwritten

    assert ever(lambda: busy(stream, external))
    assert ever(lambda: busy(external, stream))


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.covers("test_cuda::TestCuda::test_streams")
def test_externalstream_wait_stream_orders_both_ways(device: torch.device) -> None:
    """`wait_stream` orders torch streams and external streams in both directions.

    Without it the reader reads poison.
    """
    own = torch.cuda.Stream(device)
    foreign = torch.cuda.ExternalStream(torch.cuda.Stream(device).cuda_stream, device=device)

    for writer, reader in ((own, foreign), (foreign, own)):
        relay = Relay(writer, reader)
        assert relay.shows_wrong_order(), NOT_SHOWN
        assert relay.always_in_order(lambda relay=relay: relay.reader.wait_stream(relay.writer))  # type: ignore[misc]


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.covers("test_cuda::TestCuda::test_external_stream_wraps_null_handle")
def test_externalstream_of_handle_0_is_the_default_stream(device: torch.device) -> None:
    """An external stream with handle 0 is the device's default stream: equal to it, and busy with its work."""
    default = torch.cuda.default_stream(device)
    external = torch.cuda.ExternalStream(0, device=device)
    calibrate(device)
    assert external.cuda_stream == 0
    assert external == default

    def busy() -> bool:
        sleep_on(default)
        at_work = not external.query()
        external.synchronize()
        assert default.query()
        return at_work

    assert ever(busy)


@pytest.mark.requires(torch=">=2.12")
@pytest.mark.covers("test_cuda::TestCuda::test_cuda_stream_protocol")
def test_cuda_stream_protocol_gives_version_and_handle(device: torch.device) -> None:
    """`__cuda_stream__` returns the protocol version, 0, and the raw handle for other libraries."""
    stream = torch.cuda.Stream(device)

    for one in (stream, torch.cuda.default_stream(device), torch.cuda.ExternalStream(stream.cuda_stream, device)):
        assert tuple(one.__cuda_stream__()) == (0, one.cuda_stream)


@pytest.mark.requires(rocm=False)
def test_externalstream_of_cudastreamcreatewithflags_can_be_used(device: torch.device) -> None:
    """A stream that another library created with the runtime can be used like torch's own.

    Its delayed write is visible after a synchronize, and torch does not destroy the stream.
    """
    x = torch.zeros(1000, device=device)
    runtime = Runtime.of_torch()
    calibrate(device)
    torch.cuda.synchronize(device)
    with runtime.stream() as handle:
        assert handle.value
        stream = torch.cuda.ExternalStream(handle.value, device=device)
        for value in range(1, 4):
            sleep_on(stream)
            with torch.cuda.stream(stream):
                x.fill_(value)
            stream.synchronize()
            assert (x == value).all()
        del stream
        runtime.call("cudaStreamQuery", handle)


@pytest.mark.timeout(150)
@pytest.mark.requires(rocm=False)
@pytest.mark.covers("test_cuda::TestCuda::test_events")
def test_event_from_ipc_handle_is_pending_in_another_process(device: torch.device) -> None:
    """An event with `interprocess=True` has a handle from which another process opens the same event.

    The event is pending there while the first process sleeps, and complete afterwards. The handle is of type bytes. The
    other process reports when it has opened the event; only then does the sleep of half a second start, and the other
    process reports the event's state before and after its synchronize.
    """
    script = """
import subprocess, sys, torch
OTHER = '''
import sys, torch
event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), bytes.fromhex(sys.argv[1]))
print("open", flush=True)
sys.stdin.readline()
before = event.query()
event.synchronize()
print(before, event.query(), flush=True)
'''
stream = torch.cuda.Stream(DEVICE)
event = torch.cuda.Event(interprocess=True)
event.record(stream)
stream.synchronize()
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
with subprocess.Popen([sys.executable, "-c", OTHER, event.ipc_handle().hex()], **pipes) as other:
    print(other.stdout.readline().strip())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)
    event.record(stream)
    other.stdin.write("go\\n")
    other.stdin.flush()
    print(other.stdout.readline().strip(), stream.query())
print(other.returncode)
"""

    assert children.run(script, device).lines() == ["open", "False True True", "0"]


def test_ipc_handle_of_an_event_without_interprocess_is_refused(device: torch.device) -> None:
    """`ipc_handle` of an event without `interprocess` raises."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))

    with pytest.raises(RuntimeError, match=r"(CUDA|HIP) error"):
        event.ipc_handle()
    torch.cuda.synchronize(device)


def test_ipc_handle_of_an_event_with_enable_timing_is_refused(device: torch.device) -> None:
    """An interprocess event with `enable_timing` raises, in `ipc_handle` at the latest, and the device still works."""
    event = torch.cuda.Event(enable_timing=True, interprocess=True)

    with pytest.raises(RuntimeError, match=r"(CUDA|HIP) error"):
        event.ipc_handle()
    assert torch.ones(3, device=device).sum().item() == 3
