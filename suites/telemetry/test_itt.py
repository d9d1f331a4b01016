"""ITT ranges and marks for Intel's profilers: they nest, and have no side effects."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.profiler import emit_itt
from torch.profiler import itt

from . import _torch_private as private


def test_itt_range_is_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.profiler.itt.range` marks a block and formats its message, and ends with the block.

    In a build without ITT, a range raises with that reason. Source: https://docs.pytorch.org/docs/stable/profiler.html,
    Intel Instrumentation and Tracing Technology APIs.
    """
    if not itt.is_available():
        with pytest.raises(RuntimeError, match="ITT functions not installed"), itt.range("block"):
            pass
        return
    calls: list[str] = []  # without a collector, ranges leave no trace
    push, pop = itt.range_push, itt.range_pop

    def reported_push(text: str) -> object:
        calls.append(text)
        return push(text)

    def reported_pop() -> object:
        calls.append("pop")
        return pop()

    monkeypatch.setattr(itt, "range_push", reported_push)
    monkeypatch.setattr(itt, "range_pop", reported_pop)
    with itt.range("block {} of {last}", 1, last=2), itt.range("inner"):
        itt.mark("within")
        calls.append("block")
    assert calls == ["block 1 of 2", "inner", "block", "pop", "pop"]


def test_emit_itt_marks_operators_and_changes_no_result(device: torch.device) -> None:
    """Within `emit_itt`, torch records for ITT, and results are the same; it can be entered only once.

    With `enabled=False` it does nothing, also within another `emit_itt`. An exception leaves the block and ends the
    recording.
    """
    x = torch.arange(1000.0, device=device)
    expected = (x.square() + 1).sum().item()
    emit = emit_itt(record_shapes=True)
    with emit as entered:
        assert entered is emit
        assert private.recorder_name() == "ITT"
        assert private.python_flag()
        with pytest.raises(RuntimeError, match="not reentrant"):
            emit.__enter__()
        assert (x.square() + 1).sum().item() == expected
    assert private.recorder_name() == "NONE"
    assert not private.python_flag()
    with emit_itt(enabled=False) as nothing:
        assert private.recorder_name() == "NONE"
        assert not private.python_flag()
    assert nothing is None
    with emit_itt():
        with emit_itt(enabled=False):
            pass
        assert private.recorder_name() == "ITT"
    with pytest.raises(LookupError), emit_itt():
        raise LookupError
    assert private.recorder_name() == "NONE"
