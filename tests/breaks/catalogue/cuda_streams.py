"""CUDA's streams and events in Python, on the simulated CUDA: order, waits, devices."""

from __future__ import annotations

import functools
from typing import Any

from tests.breaks.breaks import Theme, replace
from tests.breaks.kernels import torch_with_cuda

broken = Theme()
_on_cuda = functools.partial(broken, device="simcuda")


@_on_cuda(
    "An event is complete at the first query.",
    "suites/streams/test_cuda_events.py",
    "suites/streams/test_events.py",
    shows=lambda: _event(),
)
def cuda_events_are_always_done() -> None:
    import torch

    replace(torch.cuda.Event, "query", lambda _: lambda self: True)


def _event() -> object:
    torch = torch_with_cuda()
    event = torch.cuda.Event()
    torch.cuda._sleep(50_000_000)
    event.record()
    found = event.query()
    torch.cuda.synchronize()
    return found


@_on_cuda(
    "A stream does not wait for another stream.",
    "suites/streams/test_compiled_streams.py",
    "suites/streams/test_cuda_streams.py",
    "suites/streams/test_streams.py",
    shows=lambda: _waited(),
)
def cuda_streams_do_not_wait() -> None:
    import torch

    replace(torch.cuda.Stream, "wait_stream", lambda _: lambda self, stream: None)


def _waited() -> object:
    torch = torch_with_cuda()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(first):
        torch.cuda._sleep(50_000_000)
    second.wait_stream(first)
    found = second.query()
    torch.cuda.synchronize()
    return found


@_on_cuda(
    "A stream that is to wait for an event waits, once it is given work, for what the event stands for by then.",
    "suites/streams/test_events.py",
    shows=lambda: _recorded_again(),
)
def cuda_waits_are_for_the_latest_record() -> None:
    import torch

    wait = torch.cuda.Stream.wait_event
    waiting: dict[int, list[Any]] = {}

    def remember(self: Any, event: Any) -> None:
        waiting.setdefault(self.cuda_stream, []).append(event)

    def around(enter: Any) -> Any:
        def enters(self: Any) -> Any:
            for event in waiting.pop(self.cuda_stream, []):
                wait(self, event)
            return enter(self)

        return enters

    def idle(synchronize: Any) -> Any:
        def waits(device: Any = None) -> None:
            synchronize(device)
            waiting.clear()

        return waits

    replace(torch.cuda, "synchronize", idle)
    replace(torch.cuda.Stream, "wait_event", lambda _: remember)
    replace(torch.cuda.Stream, "__enter__", around)


def _recorded_again() -> object:
    torch = torch_with_cuda()
    writer, reader, idle = (torch.cuda.Stream() for _ in range(3))
    x, event = torch.zeros(4, device="cuda"), torch.cuda.Event()
    torch.cuda.synchronize()
    with torch.cuda.stream(writer):
        torch.cuda._sleep(50_000_000)
        x.fill_(1)
    writer.record_event(event)
    reader.wait_event(event)
    idle.record_event(event)
    with reader:
        found = x + 0
    torch.cuda.synchronize()
    return found.tolist()


@_on_cuda(
    "After a block of stream(None) the default stream is current.",
    "suites/streams/test_cuda_streams.py",
    shows=lambda: _after_none(),
)
def cuda_stream_none_leaves_the_default_stream() -> None:
    import torch

    def around(leave: Any) -> Any:
        def leaves(self: Any, *error: Any) -> None:
            leave(self, *error)
            if self.stream is None:
                torch.cuda.set_stream(torch.cuda.default_stream())

        return leaves

    replace(torch.cuda.StreamContext, "__exit__", around)


def _after_none() -> object:
    torch = torch_with_cuda()
    with torch.cuda.stream(torch.cuda.Stream()):
        with torch.cuda.stream(None):
            pass
        return torch.cuda.current_stream() == torch.cuda.default_stream()


@_on_cuda(
    "A stream that is made without a device is on the first one.",
    "suites/streams/test_two_devices.py",
    shows=lambda: _on_the_second(lambda torch: torch.cuda.Stream()),
)
def cuda_streams_are_on_the_first_device() -> None:
    import torch

    def around(new: Any) -> Any:
        def makes(cls: Any, device: Any = None, *arguments: Any, **named: Any) -> Any:
            return new(cls, "cuda:0" if device is None and not named else device, *arguments, **named)

        return makes

    replace(torch.cuda.Stream, "__new__", around)


def _on_the_second(make: Any) -> object:
    torch = torch_with_cuda()
    with torch.cuda.device(1):
        return make(torch).device.index


@_on_cuda(
    "A sum of tensors of two devices is taken on the first one's if that is the second device.",
    "suites/devices/test_selection.py",
    shows=lambda: _sum_of_two_devices(),
)
def cuda_operands_of_the_first_device_are_copied() -> None:
    import torch

    def around(add: Any) -> Any:
        def adds(a: Any, b: Any, **named: Any) -> Any:
            return add(a, b.to(a.device) if a.device == torch.device("cuda", 1) else b, **named)

        return adds

    replace(torch, "add", around)


def _sum_of_two_devices() -> object:
    torch = torch_with_cuda()
    try:
        return torch.add(torch.ones(2, device="cuda:1"), torch.ones(2, device="cuda:0")).tolist()
    except RuntimeError:
        return "refused"


@_on_cuda(
    "An event that was made with `blocking=True` does not wait in `synchronize`.",
    "suites/streams/test_events.py",
    shows=lambda: _waits_for_a_blocking_event(),
)
def blocking_events_do_not_block() -> None:
    import torch

    make: Any = torch.cuda.Event.__new__

    def made(cls: Any, *more: Any, **options: Any) -> Any:
        event = make(cls, *more, **options)
        event.is_blocking = options.get("blocking", False)
        return event

    def around(synchronize: Any) -> Any:
        return lambda self: None if self.is_blocking else synchronize(self)

    torch.cuda.Event.__new__ = staticmethod(made)  # type: ignore[method-assign, assignment]
    replace(torch.cuda.Event, "synchronize", around)


def _waits_for_a_blocking_event() -> object:
    torch = torch_with_cuda()
    torch.cuda._sleep(400_000_000)
    event = torch.cuda.Event(blocking=True)
    event.record()
    event.synchronize()
    done = event.query()
    torch.cuda.synchronize()
    return done


@_on_cuda(
    "A CUDA stream does not wait for a generic event.",
    "suites/streams/test_generic_cuda.py",
    shows=lambda: _reader_of_mixed_classes(lambda torch: (torch.cuda.Stream(), torch.Event("cuda"))),
)
def cuda_streams_do_not_wait_for_generic_events() -> None:
    import torch

    def around(wait: Any) -> Any:
        return lambda self, event: wait(self, event) if isinstance(event, torch.cuda.Event) else None

    replace(torch.cuda.Stream, "wait_event", around)


@_on_cuda(
    "A CUDA event is recorded on the current stream if it is given a generic one.",
    "suites/streams/test_generic_cuda.py",
    shows=lambda: _reader_of_mixed_classes(lambda torch: (torch.Stream("cuda"), torch.cuda.Event())),
)
def cuda_events_ignore_generic_streams() -> None:
    import torch

    def around(record: Any) -> Any:
        return lambda self, stream=None: record(self, stream if isinstance(stream, torch.cuda.Stream) else None)

    replace(torch.cuda.Event, "record", around)


@_on_cuda(
    "torch.cuda.set_stream does nothing if it is given a generic stream.",
    "suites/streams/test_generic_cuda.py",
    shows=lambda: _set_to_a_generic_stream(),
)
def set_stream_ignores_generic_streams() -> None:
    import torch

    replace(
        torch.cuda,
        "set_stream",
        lambda set_: lambda stream: set_(stream) if isinstance(stream, torch.cuda.Stream) else None,
    )


def _reader_of_mixed_classes(make: Any) -> object:
    """Return whether a stream is idle that is to wait for an event of another stream, with `make` for both."""
    torch = torch_with_cuda()
    stream, event = make(torch)
    reader = torch.cuda.Stream()
    with stream:
        torch.cuda._sleep(50_000_000)
    event.record(stream)
    reader.wait_event(event)
    found = reader.query()
    torch.cuda.synchronize()
    return found


def _set_to_a_generic_stream() -> object:
    torch = torch_with_cuda()
    before, stream = torch.cuda.current_stream(), torch.Stream("cuda")
    torch.cuda.set_stream(stream)
    found = torch.cuda.current_stream().stream_id == stream.stream_id
    torch.cuda.set_stream(before)
    return found


def _on_the_default_stream(register: Any) -> Any:
    """Return a function that registers a hook, which then runs on the default stream."""

    def registers(owner: Any, hook: Any, **options: Any) -> Any:
        import torch

        def moved(*arguments: Any) -> Any:
            with torch.cuda.stream(torch.cuda.default_stream()):
                return hook(*arguments)

        return register(owner, moved, **options)

    return registers


def _stream_of_a_hook(register: Any) -> object:
    """Return whether a hook runs with the stream of the forward pass current."""
    torch = torch_with_cuda()
    stream, module, seen = torch.cuda.Stream(), torch.nn.Identity(), []
    with torch.cuda.stream(stream):
        x = torch.ones(4, device="cuda", requires_grad=True)
        register(torch, x, module, lambda *_: seen.append(torch.cuda.current_stream() == stream))
        total = module(x * 1).sum()
    total.backward()
    return seen


@_on_cuda(
    "Hooks of tensors run on the default stream.",
    "suites/streams/test_hook_streams.py",
    shows=lambda: _stream_of_a_hook(lambda _torch, x, _module, hook: x.register_hook(hook)),
)
def hooks_of_tensors_run_on_the_default_stream() -> None:
    import torch

    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        replace(torch.Tensor, name, _on_the_default_stream)


@_on_cuda(
    "Hooks of several gradients run on the default stream.",
    "suites/streams/test_hook_streams.py",
    shows=lambda: _stream_of_a_hook(
        lambda torch, x, _module, hook: torch.autograd.graph.register_multi_grad_hook((x,), hook)
    ),
)
def multi_grad_hooks_run_on_the_default_stream() -> None:
    import torch

    replace(torch.autograd.graph, "register_multi_grad_hook", _on_the_default_stream)


@_on_cuda(
    "Backward hooks of modules run on the default stream.",
    "suites/streams/test_hook_streams.py",
    shows=lambda: _stream_of_a_hook(lambda _torch, _x, module, hook: module.register_full_backward_hook(hook)),
)
def hooks_of_modules_run_on_the_default_stream() -> None:
    import torch

    for name in ("register_full_backward_hook", "register_full_backward_pre_hook"):
        replace(torch.nn.Module, name, _on_the_default_stream)


@_on_cuda(
    "A checkpoint computes again on the default stream.",
    "suites/streams/test_hook_streams.py",
    shows=lambda: _stream_of_a_checkpoint(),
)
def checkpoints_compute_again_on_the_default_stream() -> None:
    import torch.utils.checkpoint

    def around(checkpoint: Any) -> Any:
        def checkpoints(function: Any, *arguments: Any, **options: Any) -> Any:
            calls: list[None] = []

            def moved(*given: Any) -> Any:
                calls.append(None)
                again = len(calls) > 1
                with torch.cuda.stream(torch.cuda.default_stream() if again else torch.cuda.current_stream()):
                    return function(*given)

            return checkpoint(moved, *arguments, **options)

        return checkpoints

    replace(torch.utils.checkpoint, "checkpoint", around)


def _stream_of_a_checkpoint() -> object:
    torch = torch_with_cuda()
    stream, seen = torch.cuda.Stream(), []

    def doubled(x: Any) -> Any:
        seen.append(torch.cuda.current_stream() == stream)
        return x * x

    with torch.cuda.stream(stream):
        x = torch.ones(4, device="cuda", requires_grad=True)
        total = torch.utils.checkpoint.checkpoint(doubled, x, use_reentrant=False).sum()
    total.backward()
    return seen


@_on_cuda(
    "A wait for an event asks again and again whether it is done.",
    "suites/streams/test_cuda_events.py",
    shows=lambda: _asked(),
)
def cuda_events_are_polled() -> None:
    import torch

    def polled(_: Any) -> Any:
        def wait(self: Any) -> None:
            while not self.query():
                pass

        return wait

    replace(torch.cuda.Event, "synchronize", polled)


def _asked() -> object:
    import time

    torch = torch_with_cuda()
    event = torch.cuda.Event(blocking=True)
    torch.cuda._sleep(500_000_000)
    event.record()
    began = time.thread_time()
    event.synchronize()
    return time.thread_time() - began > 0.05
