"""The fixture `engine`, and the check that a case has run with the engine it was given.

Supervisors import this file too, so torch is imported where it is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from .names import EAGER, ENGINES, WHOLE

if TYPE_CHECKING:
    from .engines import Engine

#: Warnings of the compiler that tell of nothing but how it works: pieces it could not compile as one, what it tries.
OF_THE_COMPILER = (
    "Dynamo does not know how to trace the builtin",
    ".*should not be instantiated. Methods on autograd functions are all static",
    "Using `torch.compile.module.` when there are global hooks on modules",
)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The eager engine, then compiled autograd; under the latter every backward pass of the case is captured.

    The back end is the cheapest that runs what was captured: what is asked here is whether the captured graph means
    the same, not what a compiler makes of it.
    """
    from suites.compiled import compiled_backward

    from .engines import Engine

    with ExitStack() as stack:
        recording = None
        if request.param != EAGER:
            stack.enter_context(warnings.catch_warnings())
            for message in OF_THE_COMPILER:
                warnings.filterwarnings("ignore", message)
            recording = stack.enter_context(compiled_backward("eager", fullgraph=request.param == WHOLE))
        chosen = Engine(request.param, lambda: recording.captures if recording else 0)
        yield chosen
    chosen.settle()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """Mark the cases for compiled autograd."""
    made = yield
    for item in made if isinstance(made, list) else ():
        callspec = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("engine", EAGER) != EAGER:
            from suites.compiled import KEEPS, KEPT

            item.add_marker(pytest.mark.keeps(KEEPS, **KEPT))
    return made


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """After a case that passed, and as part of it: has its engine been at work?"""
    from .engines import Engine

    result = yield
    engine = pyfuncitem.funcargs.get("engine")
    if isinstance(engine, Engine):
        engine.check()
    return result
