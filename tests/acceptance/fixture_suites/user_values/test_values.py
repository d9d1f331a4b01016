"""Values that a journal cannot contain, set by a case or a plugin. Each verdict is that of plain pytest."""

import warnings
from typing import Any

import pytest

EXPECTED = {
    "test_duration_below_zero": "passed",
    "test_duration_of_no_number": "passed",
    "test_duration_without_end": "passed",
    "test_duration_of_text": "passed",
    "test_no_start": "passed",
    "test_section_of_three": "passed",
    "test_sections_of_bytes": "passed",
    "test_no_sections": "passed",
    "test_property_alone": "passed",
    "test_no_phase": "error: a hook of a plugin or conftest raised AssertionError",
    "test_own_attribute": "passed",
    "test_fails_with_a_number": "failed: 5",
    "test_fails_with_a_broken_text": "failed: <conftest.Broken object",
    "test_property[pair-key]": "passed",
    "test_property[itself]": "passed",
    "test_property[many-digits]": "passed",
    "test_property[long]": "passed",
    "test_property[deep]": "passed",
    "test_property[broken]": "passed",
    "test_property[exits]": "passed",
    "test_property[no-number]": "passed",
    "test_property[surrogate]": "passed",
    "test_property_without_name": "passed",
    "test_warning_without_text": "passed",
    "test_raises_without_text": "failed: <locals>.SilentError: <exception str() failed>",
    "test_interrupts_without_text": "failed: raised Silent: <a Silent that cannot be shown: it raised",
}
OPTIONS = ["--case-timeout=30"]
# pytest counts it as failed, since it is a report of the call phase.
COUNTS = {"error": -1, "failed": 1}


def test_duration_below_zero() -> None: ...
def test_duration_of_no_number() -> None: ...
def test_duration_without_end() -> None: ...
def test_duration_of_text() -> None: ...
def test_no_start() -> None: ...
def test_section_of_three() -> None: ...
def test_sections_of_bytes() -> None: ...
def test_no_sections() -> None: ...
def test_property_alone() -> None: ...
def test_no_phase() -> None: ...
def test_own_attribute() -> None: ...


def test_fails_with_a_number() -> None:
    raise AssertionError


def test_fails_with_a_broken_text() -> None:
    raise AssertionError


class Broken:
    error: type[BaseException] = ValueError

    def __repr__(self) -> str:
        raise self.error

    __str__ = __repr__


class Exits(Broken):
    error = SystemExit


def itself() -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def deep() -> Any:
    inner: list[Any] = []
    for _ in range(10_000):
        inner = [inner]
    return inner


MADE: dict[str, Any] = {
    "pair-key": lambda: {(1, 2): 3},
    "itself": itself,
    "many-digits": lambda: 10**10_000,
    "long": lambda: "x" * (5 << 20),
    "deep": deep,
    "broken": Broken,
    "exits": Exits,
    "no-number": lambda: float("nan"),
    "surrogate": lambda: "\udc80",
}


@pytest.mark.parametrize("name", MADE)
def test_property(record_property: Any, name: Any) -> None:
    record_property("value", MADE[name]())


def test_property_without_name(record_property: Any) -> None:
    record_property((1, 2), 3)


def test_warning_without_text() -> None:
    class Silent(UserWarning):
        def __str__(self) -> str:
            return str(1 / 0) if self.args == ("later",) else "text"

    silent = Silent("now")
    warnings.warn(silent, stacklevel=1)
    silent.args = ("later",)


def test_raises_without_text() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            return str(1 / 0)

    raise SilentError


def test_interrupts_without_text() -> None:
    class Silent(KeyboardInterrupt):
        def __str__(self) -> str:
            return str(1 / 0)

    raise Silent
