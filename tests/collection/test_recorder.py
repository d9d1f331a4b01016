"""The recorder sets the locations of tests, equal to those that pytest itself finds."""

from __future__ import annotations

import pytest

from harness.collection import recorder

pytest_plugins = ["pytester"]

_TESTS = """\
import functools
import unittest

import pytest


def twice(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper


@pytest.mark.parametrize("n", [1, 2])
def test_plain(n): pass


@pytest.mark.parametrize("n", [1, 2])
@twice
def test_wrapped(n): pass


class Base:
    @pytest.mark.parametrize("n", [1, 2])
    def test_inherited(self, n): pass


class TestOne(Base):
    def test_own(self): pass


class TestTwo(Base):
    @staticmethod
    def test_static(): pass


class TestOld(unittest.TestCase):
    def test_case(self): pass


class Elsewhere(pytest.Function):
    def reportinfo(self):
        return "elsewhere.py", int(self.name[-2]), "called " + self.name


def test_elsewhere(): pass


test_same = test_elsewhere
"""
_CONFTEST = """\
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector, name, obj):
    if name == "test_elsewhere":
        made = obj.__globals__["Elsewhere"]
        return [made.from_parent(collector, name=f"{name}[{n}]", callobj=obj) for n in (1, 2)]
"""


@pytest.mark.parametrize(
    ("order", "collected", "result"),
    [
        ("cde", "abcde", "abcde"),  # stepwise
        ("dca", "abcd", "dcab"),  # another order
        ("", "ab", "ab"),
        ("ab", "ab", "ab"),
        ("xa", "ab", "xab"),  # from a plugin that creates items
    ],
)
def test_what_was_deselected_has_a_place_in_the_order(order: str, collected: str, result: str) -> None:
    assert "".join(recorder.restore_deselected([*order], [*collected])) == result


def test_locations_are_those_of_pytest(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(_CONFTEST)
    pytester.makepyfile(_TESTS)
    alone, _ = pytester.inline_genitems("-pno:harness")
    located, _ = pytester.inline_genitems("-pno:harness")
    recorder.set_locations(located)
    assert {item.nodeid: item.location for item in located} == {item.nodeid: item.location for item in alone}
    assert {"called test_elsewhere[1]", "TestTwo.test_inherited[2]", "test_wrapped[2]"} <= {
        item.location[2] for item in located
    }
