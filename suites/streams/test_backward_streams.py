"""Backward passes and streams: each function runs on the stream of its forward, and gradients are ordered.

The engine's waits cannot be disabled, so the cases use other controls: gradients are written after a sleep, and a
stream that does not wait is observed to read them too early.
"""

from __future__ import annotations

import pytest
import torch

from suites import children

from ..autograd._torch_private import queue_callback
from .apis import Api
from .backwards import late
from .busy import NOT_SHOWN, TRIALS, calibrate, ever, sleep_on

pytestmark = [
    pytest.mark.requires(accelerator=True),
    # A performance hint for a leaf that is used on several streams, which these cases do intentionally.
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match"),
]

ELEMENTS = 1 << 16


def leaf(device: torch.device, value: float = 1.0) -> torch.Tensor:
    return torch.full((ELEMENTS,), value, device=device, requires_grad=True)


def gradient(x: torch.Tensor) -> torch.Tensor:
    assert x.grad is not None
    return x.grad


@pytest.mark.covers("test_cuda::TestCuda::test_streaming_backwards_sync")
def test_backward_runs_a_function_on_the_stream_of_its_forward(api: Api, device: torch.device) -> None:
    """A backward pass runs each function on the stream of its forward, and restores the caller's current stream."""
    forward, caller = api.stream(device), api.stream(device)
    seen: list[int] = []
    x = leaf(device)
    calibrate(device)
    api.synchronize(device)

    with api.entered(forward):
        y = late(x, 2, api, seen).sum()
    caller.wait_stream(forward)
    with api.entered(caller):
        y.backward()
        assert api.current_stream(device).stream_id == caller.stream_id
    api.synchronize(device)

    assert seen == [forward.stream_id]
    assert (gradient(x) == 2).all()


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.requires(asynchronous=True)
@pytest.mark.covers("test_cuda::TestCuda::test_streaming_backwards_sync")
def test_backward_gradients_are_ready_on_the_callers_stream(api: Api, device: torch.device) -> None:
    """When `backward` returns, the caller's current stream waits for the streams of the leaves.

    Work enqueued on it next reads complete gradients, although they are written after a sleep on another stream. As a
    control, a third stream without a wait must be observed to read too early.
    """
    forward, caller, stranger = (api.stream(device) for _ in range(3))
    x = leaf(device)
    x.grad = torch.zeros_like(x)
    buffer = gradient(x)
    by_caller, by_stranger = torch.empty_like(buffer), torch.empty_like(buffer)
    calibrate(device)

    def stranger_was_early(factor: int) -> bool:
        buffer.zero_()
        api.synchronize(device)
        with api.entered(forward):
            y = late(x, factor, api, []).sum()
        caller.wait_stream(forward)
        with api.entered(caller):
            y.backward()
            by_caller.copy_(buffer)
        with api.entered(stranger):
            by_stranger.copy_(buffer)
        api.synchronize(device)
        assert gradient(x) is buffer
        assert (by_caller == factor).all()
        return not bool((by_stranger == factor).all())

    results = [stranger_was_early(factor) for factor in range(2, 2 + TRIALS)]
    assert any(results), NOT_SHOWN


@pytest.mark.covers("test_cuda::TestCuda::test_streaming_backwards_sync")
def test_wait_stream_joins_a_forward_and_backward_on_one_stream(api: Api, device: torch.device) -> None:
    """A pass on one stream is usable on another after one `wait_stream`, and the gradient is complete."""
    before, stream = api.current_stream(device), api.stream(device)
    calibrate(device)

    for factor in range(1, 1 + TRIALS):
        x = leaf(device)
        with api.entered(stream):
            stream.wait_stream(before)
            late(x, factor, api, []).sum().backward()
        before.wait_stream(stream)
        copied = gradient(x) + 0
        assert api.current_stream(device) == before
        assert (copied == factor).all()


@pytest.mark.covers("test_cuda::TestCuda::test_streaming_backwards_sync_graph_root")
def test_backward_waits_for_the_root_gradient(api: Api, device: torch.device) -> None:
    """A root gradient written late on the caller's stream is read by the forward's stream only afterwards."""
    forward, caller = api.stream(device), api.stream(device)
    a, b = leaf(device, 2.0), leaf(device, 3.0)
    calibrate(device)

    for trial in range(1, 1 + TRIALS):
        root = torch.full((ELEMENTS,), -1.0, device=device)
        a.grad = b.grad = None
        api.synchronize(device)
        with api.entered(forward):
            c = a * b
        with api.entered(caller):
            sleep_on(caller)
            root.fill_(trial)
            torch.autograd.backward(c, root)
            da, db = gradient(a) + 0, gradient(b) + 0
        api.synchronize(device)
        assert (da == 3 * trial).all()
        assert (db == 2 * trial).all()


@pytest.mark.races("the case is about a read without a wait")
@pytest.mark.requires(asynchronous=True)
def test_backward_root_gradient_read_without_a_wait_is_poison(api: Api, device: torch.device) -> None:
    """Control: the same multiplication on the forward's stream without the engine reads the root gradient's poison."""
    forward, caller = api.stream(device), api.stream(device)
    root, b = torch.empty(ELEMENTS, device=device), torch.full((ELEMENTS,), 3.0, device=device)
    calibrate(device)

    def early() -> bool:
        root.fill_(-1)
        api.synchronize(device)
        sleep_on(caller)
        with api.entered(caller):
            root.fill_(1)
        with api.entered(forward):
            product = root * b
        api.synchronize(device)
        return not bool((product == 3).all())

    assert ever(early), NOT_SHOWN


@pytest.mark.covers("test_cuda::TestCuda::test_streaming_backwards_multiple_streams")
@pytest.mark.parametrize("first_use", ["caller", "branch"])
@pytest.mark.parametrize(("how", "passes"), [("grad", 1), ("backward", 1), ("backward", 5)])
def test_backward_of_branches_on_two_streams_accumulates(
    api: Api, device: torch.device, first_use: str, how: str, passes: int
) -> None:
    """A leaf with two branches on different streams gets the sum of both late gradients, in any order of first use.

    This holds for one `autograd.grad` and for several `backward` passes, as read on the caller's stream.
    """
    caller, one, two = (api.stream(device) for _ in range(3))
    seen: list[int] = []
    calibrate(device)
    api.synchronize(device)

    with api.entered(caller):
        x = torch.randn(ELEMENTS, device=device).requires_grad_()
        total = torch.zeros(ELEMENTS, device=device)
        for _ in range(passes):
            start = x.clone() if first_use == "caller" else None
            one.wait_stream(caller)
            two.wait_stream(caller)
            with api.entered(one):
                left = late(x.clone() if start is None else start, 2, api, seen)
                done = one.record_event()
            with api.entered(two):
                right = late(x, 3, api, seen)
                two.wait_event(done)
                loss = (left + right).sum()
            if how == "grad":
                total += torch.autograd.grad((loss,), (x,))[0]
            else:
                loss.backward()
        result = total + 0 if how == "grad" else gradient(x) + 0
    api.synchronize(device)

    assert sorted(seen) == sorted([one.stream_id, two.stream_id] * passes)
    assert (result == 5 * passes).all()


@pytest.mark.covers("test_cuda::TestCuda::test_streaming_backwards_multiple_streams")
def test_backward_of_a_chain_over_many_streams_is_in_order(api: Api, device: torch.device) -> None:
    """A chain of eight functions on eight streams with late backwards gives the product of their factors, in order."""
    streams = [api.stream(device) for _ in range(8)]
    caller = api.current_stream(device)
    seen: list[int] = []
    x = leaf(device)
    calibrate(device)

    y, before = x, caller
    for stream in streams:
        stream.wait_stream(before)
        with api.entered(stream):
            y = late(y, 2, api, seen)
        before = stream
    caller.wait_stream(before)
    y.sum().backward()
    result = gradient(x) + 0

    assert (result == 2**8).all()
    assert seen == [stream.stream_id for stream in reversed(streams)]


@pytest.mark.covers("test_cuda::TestCuda::test_streaming_backwards_callback")
def test_queue_callback_reads_complete_gradients_on_the_callers_stream(api: Api, device: torch.device) -> None:
    """A queued callback runs with the caller's current stream, which then waits for the streams of the leaves.

    The callback's copies on that stream are complete, although both gradients are written late on other streams.
    """
    before, one, two, caller = api.current_stream(device), *(api.stream(device) for _ in range(3))
    calibrate(device)

    for trial in range(1, 1 + TRIALS):
        a, b = leaf(device, 1.0), leaf(device, float(trial))
        current: list[int] = []
        copies: list[torch.Tensor] = []

        def stash(a: torch.Tensor = a, b: torch.Tensor = b, current: list[int] = current) -> None:
            current.append(api.current_stream(device).stream_id)
            copies.extend((gradient(a).clone(), gradient(b).clone()))  # noqa: B023 - called before the trial ends

        api.synchronize(device)
        one.wait_stream(before)
        with api.entered(one):
            c = late(a, 2, api, [])
        two.wait_stream(before)
        with api.entered(two):
            d = late(b, 3, api, [])
            two.wait_stream(one)
            e = c * d
        e.register_hook(lambda _, stash=stash: queue_callback(stash))
        caller.wait_stream(two)
        with api.entered(caller):
            e.sum().backward()
        api.synchronize(device)

        assert current == [caller.stream_id]
        assert (copies[0] == 6 * trial).all()
        assert (copies[1] == 6).all()


def test_backward_passes_in_sequence_accumulate_in_order(api: Api, device: torch.device) -> None:
    """Consecutive late passes from different streams, ordered by explicit waits, accumulate in the leaf."""
    streams = [api.stream(device) for _ in range(3)]
    x = leaf(device)
    calibrate(device)
    api.synchronize(device)

    before = api.current_stream(device)
    for factor, stream in enumerate(streams, start=1):
        stream.wait_stream(before)
        with api.entered(stream):
            late(x, factor, api, []).sum().backward()
        before = stream
    before.synchronize()
    api.synchronize(device)

    assert (gradient(x) == 1 + 2 + 3).all()


MISMATCH = """
import warnings, torch
torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(ENABLED)
stream = torch.Stream(DEVICE)
x = torch.ones(64, device=DEVICE, requires_grad=True)
kept = x.view_as(x).grad_fn  # holds the node of the leaf, which has the stream of its making
torch.accelerator.synchronize(DEVICE)
with stream:
    y = (x * 2).sum()
torch.accelerator.synchronize(DEVICE)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    y.backward()
    torch.accelerator.synchronize(DEVICE)
texts = [str(each.message) for each in seen]
print(sum("AccumulateGrad node's stream does not match" in text for text in texts), x.grad.unique().tolist())
"""


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.own_process
def test_set_warn_on_accumulate_grad_stream_mismatch_decides(device: torch.device, enabled: bool) -> None:
    """A leaf that gets its gradient on another stream than that of its creation warns, unless this is disabled.

    The gradient is the same. torch warns once per process, so a child process runs the pass.
    """
    ended = children.fork(MISMATCH.replace("ENABLED", str(enabled)) + children.AT_ONCE, device)
    assert ended.lines() == [f"{int(enabled)} [2.0]"]
