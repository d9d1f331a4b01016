"""Patterns for case ids: the ids that they match, and the runs that collect all matching cases."""

from __future__ import annotations

import time

import pytest

from harness.gating.patterns import literal_prefix, matches_pattern, pattern_reaches

CASE = "suites/streams/test_x.py::TestCopy::test_copy[cuda-0.5]"


@pytest.mark.parametrize(
    ("pattern", "case_id", "expected"),
    [
        pytest.param(CASE, CASE, True, id="an id stands for itself, brackets and all"),
        pytest.param(CASE, CASE + "x", False, id="the whole id, at the end"),
        pytest.param("treams/test_x.py::*", CASE, False, id="the whole id, at the beginning"),
        pytest.param("*", CASE, True, id="a star is anything"),
        pytest.param("*", "", True, id="a star is also nothing"),
        pytest.param("suites/*[cuda-*]", CASE, True, id="a star crosses slashes and colons"),
        pytest.param("suites/**::test_copy*", CASE, True, id="two stars are one star"),
        pytest.param("suites/*::test_copy[cpu-*]", CASE, False, id="parameters are compared"),
        pytest.param("t[ab]", "ta", False, id="brackets are no set of characters"),
        pytest.param("t[!a]", "t[!a]", True, id="nor is an exclamation mark a negation"),
        pytest.param("t[0.5]", "t[0x5]", False, id="a dot is a dot"),
        pytest.param("t[?]", "t[1]", True, id="a question mark is one character"),
        pytest.param("t[?]", "t[]", False, id="a question mark is not none"),
        pytest.param("t[?]", "t[12]", False, id="a question mark is not two"),
        pytest.param("t[*]", "t[a\nb]", True, id="a line end is a character"),
        pytest.param("t[?]", "t[\n]", True, id="a line end is one character"),
        pytest.param("t", "t\n", False, id="a line end at the end counts"),
        pytest.param("*ab*ab", "ab", False, id="parts do not share characters"),
        pytest.param("*ab*ab", "xabab", True, id="parts may touch"),
        pytest.param("*ab", "abab", True, id="the last part matches at the end, not at its first place"),
        pytest.param("a*?c", "abbc", True, id="a star and a question mark"),
        pytest.param("a*?", "a", False, id="a star and a question mark are at least one character"),
        pytest.param("", "", True, id="the empty pattern is the empty id"),
        pytest.param("", "t", False, id="the empty pattern is no other id"),
    ],
)
def test_a_pattern_matches_whole_ids(pattern: str, case_id: str, expected: bool) -> None:
    assert matches_pattern(pattern, case_id) is expected


def test_a_pattern_with_many_stars_does_not_take_for_ever() -> None:
    begin = time.process_time()
    assert not matches_pattern("*a" * 200 + "b", "a" * 5000)
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("suites/a/*", "suites/a/"), ("t[?]*", "t["), ("*", ""), (CASE, CASE), ("", "")],
)
def test_the_literal_prefix_ends_before_the_first_wildcard(pattern: str, expected: str) -> None:
    assert literal_prefix(pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "arguments", "expected"),
    [
        pytest.param("suites/a/*", ["suites"], True, id="a folder above"),
        pytest.param("suites/a/*", ["suites/a"], True, id="the folder itself"),
        pytest.param("suites/a/*", ["suites/a/"], True, id="a slash at the end of the argument"),
        pytest.param("suites/a/*", ["./suites/a"], True, id="a dot at the beginning of the argument"),
        pytest.param("suites/a/*", ["suites/b", "suites/a"], True, id="one of several"),
        pytest.param("suites/a/*", ["suites/b"], False, id="another folder"),
        pytest.param("suites/a/*", ["suites/a/test_x.py"], False, id="a file of the folder is not all of it"),
        pytest.param("suites/a*", ["suites/a"], False, id="the pattern also matches a sibling"),
        pytest.param("suites/ab/*", ["suites/a"], False, id="a folder with the same name prefix"),
        pytest.param("suites/a/test_x.py::*", ["suites/a/test_x.py"], True, id="the file"),
        pytest.param("suites/a/test_x.py*", ["suites/a/test_x.py"], False, id="also a file with the same name prefix"),
        pytest.param(CASE, ["suites"], True, id="an id, and its suite"),
        pytest.param("*", ["."], True, id="everything, and the whole project"),
        pytest.param("*", [""], True, id="the whole project, said with nothing"),
        pytest.param("*", [".."], True, id="a folder around the project"),
        pytest.param("*", ["suites"], False, id="everything is more than one folder"),
        pytest.param("suites/a/*", ["../suites"], False, id="a folder beside the project"),
        pytest.param("*", [], False, id="no argument collects nothing"),
        pytest.param("f.py::test_a", ["f.py::test_a"], True, id="the case itself"),
        pytest.param("f.py::test_a", ["./f.py::test_a"], True, id="the case itself, with a dot"),
        pytest.param("f.py::test_a[*]", ["f.py::test_a"], True, id="the parameters of the function"),
        pytest.param("f.py::test_a*", ["f.py::test_a"], False, id="also a function with the same name prefix"),
        pytest.param("f.py::test_ab", ["f.py::test_a"], False, id="a function with the same name prefix"),
        pytest.param("f.py::A::*", ["f.py::A"], True, id="the members of the class"),
        pytest.param("f.py::A::test", ["f.py::A::test[1]"], False, id="one parameter is not the function"),
        pytest.param("f.py::*", ["f.py::test_a"], False, id="one function is not the file"),
        pytest.param("f.py::test_a[x/../y]", ["f.py::test_a[x/../y]"], True, id="parameters are no path"),
    ],
)
def test_a_run_reaches_a_pattern_if_it_collects_everything_the_pattern_can_match(
    pattern: str, arguments: list[str], expected: bool
) -> None:
    assert pattern_reaches(pattern, arguments) is expected
