"""The reason of a failed doctest, read from pytest's real report."""

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
