"""The fixture `engine`, and the check that a case ran under its engine.

Supervisor processes import this file too, so torch is imported only where it is used.
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

#: Compiler warnings about its own operation: graph breaks and retries.
OF_THE_COMPILER = (
    "Dynamo does not know how to trace the builtin",
    ".*should not be instantiated. Methods on autograd functions are all static",
    "Using `torch.compile.module.` when there are global hooks on modules",
)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Run the case with the eager engine, and then with compiled autograd, which captures its every backward pass.

    The backend is the cheapest one that runs the captured graph: the cases check that the captured graph has the same
    meaning, and not what a compiler generates from it.
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
    """Add the `keeps` marker to the cases that run under compiled autograd.

    Each captures again, which takes a hundred times longer than the pass. If a function has further parameters, the
    default run therefore has only the first set.
    """
    made = yield
    first = True
    for item in made if isinstance(made, list) else ():
        callspec = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("engine", EAGER) != EAGER:
            from suites.compiled import KEEPS, KEPT

            item.add_marker(pytest.mark.keeps(KEEPS, **KEPT))
            if not first:
                item.add_marker("extended")
            first = False
    return made


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """After a case passes, and as part of it, check that its engine ran."""
    from .engines import Engine

    result = yield
    engine = pyfuncitem.funcargs.get("engine")
    if isinstance(engine, Engine):
        engine.check()
    return result
