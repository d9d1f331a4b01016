"""Private names of pytest, CPython and torch without a public equivalent. For each, a test fails if it changes."""

from __future__ import annotations

import atexit
import threading
import weakref
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

#: `signal.getsignal` without the conversion to an enum, which takes ten times as long.
bare_signal_handler: Callable[[int], object] = getsignal


def tear_down_all(session: pytest.Session) -> None:
    """Tear down every fixture and collector that is still set up in `session`.

    pytest does this in its ``pytest_sessionfinish``, which also writes caches and reports. A process that ran only a
    part of a session must not write those.
    """
    session._setupstate.teardown_exact(None)


def run_exit_callbacks() -> None:
    """Run the `atexit` callbacks, last registered first, as the interpreter does at its end."""
    atexit._run_exitfuncs()


def join_threads() -> None:
    """Tell thread pools to end, and wait for the threads that the interpreter waits for at its end."""
    threading._shutdown()  # type: ignore[attr-defined]


def finalizers() -> list[weakref.finalize[..., Any]]:
    """The live `weakref.finalize` objects. Each of them may run at the end of the interpreter."""
    return list(weakref.finalize._registry)  # type: ignore[attr-defined]


def compiled_autograd(compiler: Callable[..., Any]) -> AbstractContextManager[None]:
    """A context in which torch captures each backward pass of this thread and passes it to `compiler`.

    The public setting, ``torch._dynamo.config.compiled_autograd``, only affects code that ``torch.compile`` compiled.
    """
    from torch._dynamo import compiled_autograd

    context: AbstractContextManager[None] = compiled_autograd._enable(compiler)
    return context
