"""The names of torch, undocumented, that this suite depends on. Nothing else in the suite reaches for one.

A release that lacks a name makes the case *skipped*, with the name in the reason, not failed. (`busy` asks for
`torch.cuda._sleep` itself.)
"""

from __future__ import annotations

from collections.abc import Callable

from suites.reaching import reach


def queue_callback(callback: Callable[[], object]) -> None:
    """Have the engine call back when the backward pass that is running ends. To be called within one."""
    reach("torch.autograd.Variable._execution_engine.queue_callback")(callback)
