"""Warnings, which ``-Werror`` makes errors in executors, too; and handlers of loggers."""

import logging
import warnings
from collections.abc import Iterator

import pytest

EXPECTED = {"test_warns": "failed: UserWarning: mind the gap", "test_handlers": "passed"}
OPTIONS = ["-Werror"]

TRACE, OTHER = logging.getLogger("torch.__trace"), logging.getLogger("other")
OWN = logging.NullHandler()
TRACE.addHandler(OWN)
TRACE.propagate = OTHER.propagate = False


def test_warns() -> None:
    warnings.warn("mind the gap", stacklevel=1)


def look() -> None:
    """torch writes its trace if its logger has a handler, so pytest adds none to it, but does to other loggers."""
    assert TRACE.handlers == [OWN]
    assert any(type(handler).__module__.startswith("_pytest.") for handler in OTHER.handlers)


@pytest.fixture
def around() -> Iterator[None]:
    look()
    yield
    look()


@pytest.mark.usefixtures("around")
def test_handlers() -> None:
    look()
