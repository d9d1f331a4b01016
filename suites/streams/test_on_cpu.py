"""The same classes on the CPU, where work is complete when a call returns."""

from __future__ import annotations

import pytest
import torch


def test_cpu_streams_are_all_equal() -> None:
    """The CPU has a single stream: further streams, of any priority, are equal to it."""
    assert torch.Stream("cpu") == torch.Stream("cpu") == torch.Stream("cpu", priority=-1)


@pytest.mark.parametrize("how", ["event", "stream"])
def test_event_record_on_the_cpu_is_refused(how: str) -> None:
    """Recording an event on the CPU raises with that reason."""
    event, stream = torch.Event("cpu"), torch.Stream("cpu")

    with pytest.raises(RuntimeError, match=r"(?i)cpu.*support"):
        event.record(stream) if how == "event" else stream.record_event(event)

    assert event.query()


def test_non_blocking_copy_on_the_cpu_is_done_on_return() -> None:
    """On the CPU `non_blocking` has no effect: the target is complete when the call returns."""
    source, target = torch.empty(1 << 20), torch.empty(1 << 20, dtype=torch.float64)
    for value in range(5):
        source.fill_(value)
        target.fill_(-1)

        assert target.copy_(source, non_blocking=True) is target

        assert (target == value).all()


@pytest.mark.parametrize("non_blocking", [False, True])
def test_to_the_same_device_copies_only_when_asked(non_blocking: bool) -> None:
    """`to` without a change returns the tensor itself; `copy=True` or a new dtype makes a copy."""
    x = torch.arange(5.0)

    assert x.to("cpu", non_blocking=non_blocking) is x
    for changed in (
        x.to("cpu", non_blocking=non_blocking, copy=True),
        x.to("cpu", torch.float64, non_blocking=non_blocking),
    ):
        assert changed.data_ptr() != x.data_ptr()
        assert changed.tolist() == x.tolist()


def test_is_pinned_is_false_unless_asked_for() -> None:
    """A plain CPU tensor and the result of a non-blocking CPU copy are pageable."""
    x = torch.ones(4)

    assert not x.is_pinned()
    assert not x.to(torch.float64, non_blocking=True).is_pinned()


def test_record_stream_on_a_host_tensor_is_refused() -> None:
    """`record_stream` on a CPU tensor raises an error that names the operator."""
    with pytest.raises(NotImplementedError, match="record_stream"):
        torch.ones(1).record_stream(torch.Stream("cpu"))


def test_torch_cpu_module_selects_streams_as_the_others_do() -> None:
    """`torch.cpu` has the same stream functions, for code that uses its device's module.

    A stream is current within its block, also nested, and the previous one is restored, also after an exception.
    """
    module = torch.get_device_module("cpu")
    before, outer, inner = module.current_stream(), module.Stream(), module.Stream()

    def block() -> None:
        with module.stream(outer):
            assert module.current_stream() is outer
            with module.stream(inner):
                assert module.current_stream() is inner
            assert module.current_stream() is outer
            raise LookupError

    with pytest.raises(LookupError):
        block()

    assert module.current_stream() is before
    module.synchronize()
