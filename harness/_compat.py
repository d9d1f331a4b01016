"""Private names of pytest, CPython and torch that nothing public replaces, each with a test that fails if it moves."""

from __future__ import annotations

import atexit
import threading
import weakref
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

#: `signal.getsignal` without the enum that it makes of each number, which takes ten times as long.
bare_signal_handler: Callable[[int], object] = getsignal


def tear_down_all(session: pytest.Session) -> None:
    """Finish every fixture and collector still set up in `session`.

    pytest does this itself in its ``pytest_sessionfinish``, together with writing caches and reports, which a process
    that ran a part of a session must not do.
    """
    session._setupstate.teardown_exact(None)


def run_exit_callbacks() -> None:
    """Run what was registered with `atexit`, last first, as the interpreter does when it ends."""
    atexit._run_exitfuncs()


def join_threads() -> None:
    """Wait for the threads that the interpreter waits for when it ends, once those of pools were told to end."""
    threading._shutdown()  # type: ignore[attr-defined]


def finalizers() -> list[weakref.finalize[..., Any]]:
    """The living `weakref.finalize` objects, each of which may run when the interpreter ends."""
    return list(weakref.finalize._registry)  # type: ignore[attr-defined]


def compiled_autograd(compiler: Callable[..., Any]) -> AbstractContextManager[None]:
    """A context in which torch captures each backward pass of this thread and hands it to `compiler`.

    The public way, ``torch._dynamo.config.compiled_autograd``, is for what ``torch.compile`` compiled alone.
    """
    from torch._dynamo import compiled_autograd

    context: AbstractContextManager[None] = compiled_autograd._enable(compiler)
    return context
