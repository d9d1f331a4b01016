"""Wrappers (``--under NAME``): a context in which a run calls each test.

This module defines the wrappers by name and does not import torch. The context is created in the process that runs the
test.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest

from harness import _compat
from harness.core.errors import HarnessError


class WrapperError(HarnessError):
    """The installed torch lacks something that the wrapper needs."""


@dataclass(frozen=True, slots=True)
class CallWrapper:
    """A wrapper. `make` returns a new context for one call of a test.

    `preload`: modules to import before executors are forked. `lacks` returns why `make` would fail with the installed
    torch, or an empty text. `keeps`: why memory stays allocated after a test under the wrapper, or an empty text. This
    memory cannot be distinguished from that of the test, so all tests under the wrapper get the mark ``keeps``.
    """

    make: Callable[[], AbstractContextManager[None]]
    preload: tuple[str, ...]
    lacks: Callable[[], str]
    keeps: str


class CallWrapperPlugin:
    """A plugin that calls each test in the wrapper's context. Fixtures are set up and torn down outside the context."""

    def __init__(self, name: str) -> None:
        """Raise WrapperError if the installed torch lacks something that the wrapper needs."""
        self._wrapper = CALL_WRAPPERS[name]
        if missing := self._wrapper.lacks():
            raise WrapperError(f"--under={name}: {missing}")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._wrapper.keeps:
            for item in items:
                item.add_marker(pytest.mark.keeps(self._wrapper.keeps))

    @pytest.hookimpl(wrapper=True, trylast=True)  # innermost: other hooks around the call stay outside the context
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        with self._wrapper.make():
            return (yield)


#: The beginnings of warnings that torch itself emits during a capture. If a suite turns warnings into errors, each of
#: them would make the capture fail.
_CAPTURE_WARNINGS = (
    r"The \.grad attribute of a Tensor that is not a leaf",
    r"Dynamo does not know how to trace the builtin `torch\._C\._dynamo\.",
    r"<class 'torch\.autograd\.function\.Function'> should not be instantiated",
)


@contextlib.contextmanager
def _compiled_autograd() -> Generator[None]:
    """Capture every backward pass, compile it with Dynamo and run it. Drop the compiled code afterwards.

    The back end is `eager`: this tests the capture, and the output of other back ends cannot be differentiated again.
    """
    import torch

    torch.compiler.reset()  # code that another test compiled, or failed to compile, must have no effect here
    try:
        with warnings.catch_warnings(), _compat.compiled_autograd(functools.partial(torch.compile, backend="eager")):
            for message in _CAPTURE_WARNINGS:
                warnings.filterwarnings("ignore", message)
            yield
    finally:
        torch.compiler.reset()


def _no_compiled_autograd() -> str:
    try:
        _compat.compiled_autograd(lambda graph: graph)
    except (ImportError, AttributeError, TypeError) as error:
        return f"this torch has no torch._dynamo.compiled_autograd._enable to call ({error})"
    return ""


#: The values of ``--under``.
CALL_WRAPPERS = {
    "compiled_autograd": CallWrapper(
        make=_compiled_autograd,
        preload=("torch._dynamo.compiled_autograd",),
        lacks=_no_compiled_autograd,
        # 5 or 6 tensors with torch 2.11 to 2.13, even after torch.compiler.reset()
        keeps="torch keeps some fake tensors of each capture",
    ),
}
