"""The reason of a failed doctest or assertion in one line, read from pytest's real reports."""

from __future__ import annotations

import pytest

from harness.supervisor.case import doctest_reason, first_line

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (">>> 1 + 1\n3", "line 4: expected 3, got 2"),
        (">>> 1 + 1", "line 4: expected nothing, got 2"),
        (">>> x = 1\n1", "line 4: expected 1, got nothing"),
        (">>> 1 / 0\n1", "line 4: ZeroDivisionError('division by zero')"),
        (">>> print('a\\\\nb')\na\nc", "line 4: expected a …, got a …"),
        (">>> print('Expected:')\nGot:", "line 4: expected Got:, got Expected:"),
    ],
)
def test_the_reason_of_a_failing_doctest(pytester: pytest.Pytester, lines: str, expected: str) -> None:
    text = lines.replace("\n", "\n    ")
    pytester.makepyfile(test_it=f'def f():\n    """Broken example.\n\n    {text}\n    """\n')
    (report,) = pytester.inline_run("--doctest-modules").getfailures()
    assert isinstance(report, pytest.TestReport)
    assert doctest_reason(report.longreprtext) == expected
    assert first_line([report]) == expected


def test_a_report_of_differences(pytester: pytest.Pytester) -> None:
    text = "for n in range(4): print(n)\n    0\n    1\n    2\n    4"
    pytester.makepyfile(test_it=f'def f():\n    """\n    >>> {text}\n    """\n')
    (report,) = pytester.inline_run("--doctest-modules", "--doctest-report=udiff").getfailures()
    assert doctest_reason(report.longreprtext) == "line 3: the output differs"


def test_other_reports_have_none() -> None:
    assert doctest_reason("assert 1 == 2\n\ntest_a.py:3: AssertionError") == ""
    assert doctest_reason("") == ""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("assert is_three(4)", "assert is_three(4), where False = is_three(4)"),
        ("assert not is_three(3)", "assert not is_three(3), where True = is_three(3)"),
        ("assert all(\n    [0,\n     1]\n)", "assert all( [0, 1] ), where False = all([0, 1])"),
        (
            "assert is_three(lambda: 0)",
            "assert is_three(lambda: 0), where False = is_three(<function test_it.<locals>.<lambda>>)",
        ),
        ("helper()", "assert math.isnan(x), where False = isnan(1.0)"),
        ("assert Tensor()", "assert Tensor(), where tensor(False) = Tensor()"),
        ("assert None", "assert None"),
        # These say enough themselves.
        ("assert is_three(4), 'four'", "AssertionError: four"),
        ("assert 1 == 2", "assert 1 == 2"),
        ("x, y = True, False\nassert x and y", "assert (True and False)"),
    ],
)
def test_the_reason_of_an_assertion_that_compares_nothing(pytester: pytest.Pytester, lines: str, expected: str) -> None:
    body = lines.replace("\n", "\n    ")
    pytester.makepyfile(
        test_it=f"""\
import math

class Tensor:
    def __bool__(self): return False
    def __repr__(self): return "tensor(False)"

def is_three(x): return x == 3

def helper():
    x = 1.0
    assert math.isnan(x)

def test_it():
    {body}
"""
    )
    (report,) = pytester.inline_run().getfailures()
    assert isinstance(report, pytest.TestReport)
    assert first_line([report]) == expected


def test_without_the_source_the_reason_is_pytests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_it(): assert all([0])")
    (report,) = pytester.inline_run("--tb=short").getfailures()
    assert isinstance(report, pytest.TestReport)
    assert first_line([report]) == "assert False"
