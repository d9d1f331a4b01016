"""NVTX ranges and marks for profilers: they nest, and have no side effects."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.autograd.profiler import emit_nvtx

from . import _torch_private as private

cuda = pytest.mark.requires(device="cuda")


@cuda
@pytest.mark.covers("test_cuda::TestCuda::test_nvtx")
def test_nvtx_range_push_and_range_pop_return_their_depth() -> None:
    """`range_push` returns the depth of the new range, and `range_pop` the depth of the ended one.

    Depths start at 0. They are negative if no tool is attached.
    """
    nvtx = torch.cuda.nvtx

    pushed = [nvtx.range_push(name) for name in ("outer", "inner", "innermost")]
    nvtx.mark("within")
    popped = [nvtx.range_pop() for _ in range(3)]

    if pushed[0] >= 0:
        assert [depth - pushed[0] for depth in pushed] == [0, 1, 2]
        assert popped == pushed[::-1]
    else:
        assert set(pushed) == {pushed[0]}
        assert all(depth < 0 for depth in popped)


@cuda
@pytest.mark.covers("test_cuda::TestCuda::test_nvtx")
def test_nvtx_range_start_and_range_end_may_overlap() -> None:
    """Ranges with handles may overlap, and may be started and ended in any order and thread."""
    nvtx = torch.cuda.nvtx
    first, second = nvtx.range_start("first"), nvtx.range_start("second")

    thread = threading.Thread(target=nvtx.range_end, args=(first,))
    thread.start()
    thread.join()
    nvtx.range_end(second)

    assert isinstance(first, int)
    assert isinstance(second, int)


@cuda
@pytest.mark.covers("test_cuda::TestCuda::test_nvtx")
def test_nvtx_range_is_a_context_and_a_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.cuda.nvtx.range` marks a block or function and formats its message.

    An exception propagates and ends the range, so the depth is restored.
    """
    nvtx = torch.cuda.nvtx
    before = nvtx.range_push("probe")
    nvtx.range_pop()
    calls: list[str] = []  # without a tool, depths are meaningless
    push, pop = nvtx.range_push, nvtx.range_pop

    def reported_push(text: str) -> int:
        calls.append(text)
        return push(text)

    def reported_pop() -> int:
        calls.append("pop")
        return pop()

    monkeypatch.setattr(nvtx, "range_push", reported_push)
    monkeypatch.setattr(nvtx, "range_pop", reported_pop)

    @nvtx.range("function")
    def double(x: int) -> int:
        calls.append("call")
        return 2 * x

    def block() -> None:
        with nvtx.range("block {} of {}", 1, 2):
            calls.append("block")
            raise LookupError

    assert double(21) == 42
    with pytest.raises(LookupError):
        block()
    assert calls == ["function", "call", "pop", "block 1 of 2", "block", "pop"]
    assert nvtx.range_push("probe") == before
    nvtx.range_pop()


@cuda
@pytest.mark.covers("test_cuda::TestCuda::test_nvtx")
def test_nvtx_range_and_emit_nvtx_change_no_result(device: torch.device) -> None:
    """Work within ranges, including those of the autograd profiler, gives the same results."""
    x = torch.arange(1000.0, device=device)
    expected = (x.square() + 1).sum().item()

    with torch.cuda.nvtx.range("work"), torch.autograd.profiler.emit_nvtx():
        result = (x.square() + 1).sum().item()

    assert result == expected


@pytest.mark.requires(cuda=False, rocm=False)
@pytest.mark.covers("test_cuda::TestCuda::test_nvtx")
@pytest.mark.parametrize("name", ["range_push", "mark", "range_pop"])
def test_nvtx_range_without_nvtx_in_the_build_raises(name: str) -> None:
    """In a build without NVTX, a range raises with that reason."""
    with pytest.raises(RuntimeError, match=r"NVTX functions not installed"):
        getattr(torch.cuda.nvtx, name)(*(() if name == "range_pop" else ("x",)))


@cuda
def test_emit_nvtx_waits_for_the_device_at_both_ends(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """`emit_nvtx` waits for earlier work before it begins, and for the work of its block before it ends."""
    waits: list[str] = []
    synchronize = torch.cuda.synchronize

    def counted(*of: object) -> None:
        waits.append(private.recorder_name())
        synchronize(*of)

    monkeypatch.setattr(torch.cuda, "synchronize", counted)
    with emit_nvtx():
        torch.ones(4, device=device)
    with emit_nvtx(enabled=False):
        pass
    assert waits == ["NONE", "NVTX"]


@cuda
@pytest.mark.covers("test_cuda::TestCuda::test_nvtx")
def test_emit_nvtx_is_entered_once_and_does_nothing_if_disabled(device: torch.device) -> None:
    """Within `emit_nvtx`, torch records for NVTX; it cannot be entered again.

    With `enabled=False` it does nothing, also within another `emit_nvtx`. An exception leaves the block and ends the
    recording.
    """
    emit = emit_nvtx(record_shapes=True)
    with emit as entered:
        assert entered is emit
        assert private.recorder_name() == "NVTX"
        assert private.python_flag()
        with pytest.raises(RuntimeError, match="not reentrant"):
            emit.__enter__()
        assert torch.ones(4, device=device).sum().item() == 4
    assert private.recorder_name() == "NONE"
    assert not private.python_flag()
    with emit_nvtx(enabled=False) as nothing:
        assert private.recorder_name() == "NONE"
        assert not private.python_flag()
    assert nothing is None
    with emit_nvtx():
        with emit_nvtx(enabled=False):
            pass
        assert private.recorder_name() == "NVTX"
    with pytest.raises(LookupError), emit_nvtx():
        raise LookupError
    assert private.recorder_name() == "NONE"
