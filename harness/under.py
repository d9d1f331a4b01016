"""Wrappers that a run puts round each test (``--under NAME``): a context that the test's call is made in.

A wrapper is named here and made in the process that runs the test; the names alone import nothing of torch.
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
from harness.errors import HarnessError


class WrapperError(HarnessError):
    """A wrapper that the installed torch does not have."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """`make` gives a new context for one call of a test.

    `preload`: modules to import before executors are forked. `lacks` tells in words why `make` would fail with what is
    installed, or returns an empty text. `keeps` tells why memory stays behind with it, which nobody could tell from a
    test's own, so that tests within it are marked with ``keeps``; or is an empty text.
    """

    make: Callable[[], AbstractContextManager[None]]
    preload: tuple[str, ...]
    lacks: Callable[[], str]
    keeps: str


class Around:
    """A plugin that calls each test within the wrapper's context; fixtures are set up and torn down outside of it."""

    def __init__(self, name: str) -> None:
        """Raises WrapperError where the installed torch has not what the wrapper needs."""
        self._wrapper = WRAPPERS[name]
        if missing := self._wrapper.lacks():
            raise WrapperError(f"--under={name}: {missing}")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._wrapper.keeps:
            for item in items:
                item.add_marker(pytest.mark.keeps(self._wrapper.keeps))

    @pytest.hookimpl(wrapper=True, trylast=True)  # innermost: what else is round the call is not in the context
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        with self._wrapper.make():
            return (yield)


#: How warnings begin that torch gives itself while it captures; where a suite makes errors of warnings, each would make
#: one of the capture.
_OF_CAPTURING = (
    r"The \.grad attribute of a Tensor that is not a leaf",
    r"Dynamo does not know how to trace the builtin `torch\._C\._dynamo\.",
    r"<class 'torch\.autograd\.function\.Function'> should not be instantiated",
)


@contextlib.contextmanager
def _compiled_autograd() -> Generator[None]:
    """Every backward pass is captured and run as Dynamo compiled it; what was compiled is dropped afterwards.

    With the back end `eager`: what is looked at is the capture, and the others cannot be differentiated again.
    """
    import torch

    torch.compiler.reset()  # what another test compiled, or gave up compiling, decides nothing here
    try:
        with warnings.catch_warnings(), _compat.compiled_autograd(functools.partial(torch.compile, backend="eager")):
            for message in _OF_CAPTURING:
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


#: Each name that ``--under`` takes.
WRAPPERS = {
    "compiled_autograd": Wrapper(
        make=_compiled_autograd,
        preload=("torch._dynamo.compiled_autograd",),
        lacks=_no_compiled_autograd,
        # 5 or 6 of them, torch 2.11 to 2.13, also after torch.compiler.reset()
        keeps="torch keeps some fake tensors of each capture",
    ),
}
