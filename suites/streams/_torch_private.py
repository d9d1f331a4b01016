"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason. (`busy` looks up
`torch.cuda._sleep` itself.)
"""

from __future__ import annotations

from collections.abc import Callable

from suites.reaching import reach


def queue_callback(callback: Callable[[], object]) -> None:
    """Queue a callback for the end of the current backward pass. This must be called within one."""
    reach("torch.autograd.Variable._execution_engine.queue_callback")(callback)
