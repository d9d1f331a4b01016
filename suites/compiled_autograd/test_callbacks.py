"""Callbacks that a backward queues: they run at the end of the pass, also of a captured one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from suites import _torch_private_compiled as private
from suites.autograd._torch_private import queue_callback
from suites.compiled import compare, compiled_backward

ROW = "test_compiled_autograd::TestCompiledAutograd::"


def asking(diary: list[str], *, breaks: bool = False) -> Any:
    """Return a function whose backward queues a callback that writes to the diary, and optionally breaks the graph."""

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
            queue_callback(lambda: diary.append("callback"))
            if breaks:
                torch._dynamo.graph_break()
            diary.append("backward")
            return gradients[0] * 2

    return Asks


def test_queue_callback_runs_once_at_the_end(device: torch.device) -> None:
    """A queued callback runs once per pass, after all functions, in a captured pass as in the engine's."""
    diary: list[str] = []

    def work() -> Iterator[object]:
        diary.clear()
        x = torch.ones(3, device=device, requires_grad=True)
        asks = asking(diary)
        for _ in range(2):
            asks.apply(asks.apply(x)).sum().backward()
            yield [x.grad, list(diary)]

    assert compare(work, backend="eager").captures == 2
    assert diary == ["backward", "backward", "callback", "callback"] * 2


@pytest.mark.covers(f"{ROW}test_callback_graph_break_throws_error")
def test_queue_callback_beside_a_graph_break_is_refused(device: torch.device) -> None:
    """Queueing a callback in a pass with a graph break raises and names `fullgraph=True`.

    The callback does not run early.
    """
    diary: list[str] = []
    x = torch.ones(3, device=device, requires_grad=True)

    with (
        pytest.raises(Exception, match="only supported when Compiled Autograd is enabled with fullgraph=True"),
        compiled_backward(backend="eager", fullgraph=False),
    ):
        asking(diary, breaks=True).apply(x).sum().backward()

    assert "callback" not in diary
    assert not private.enabled()
