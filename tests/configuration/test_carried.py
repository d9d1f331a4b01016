"""The arguments of a run that the line that reproduces a case repeats."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.configuration.carried import reproduce_arguments


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["suites", "-n2", "-x", "-rA", "-v", "--tb", "short", "--maxfail", "3"], []),
        (["suites", "-n", "2", "--runslow", "other"], ["--runslow"]),
        (["--answer", "43", "suites", "-W", "error", "-Wignore"], ["--answer", "43", "-W", "error", "-Wignore"]),
        (["--answer", "suites", "--import-mode=importlib"], ["--answer", "--import-mode=importlib"]),
        (["-p", "harness.plugin", "-p", "no:cacheprovider", "-pmine"], ["-pmine"]),
        (["--device", "cpu", "--harness-seed", "3", "--seed=1"], ["--device", "cpu"]),  # the first is another plugin's
        (["-k", "a or b", "-m", "slow", "suites"], ["-m", "slow"]),
        (["-m", ""], ["-m", ""]),
        (["-oxfail_strict=1", "-c", "my.ini", "--rootdir", "."], []),
        (["--runslow", "@cases", "--", "-odd"], ["--runslow"]),
        ([], []),
    ],
)
def test_what_may_decide_is_carried(words: Sequence[str], result: Sequence[str]) -> None:
    assert reproduce_arguments(words, ["suites", "other"], ["-m", "not slow"], ["--device"]) == list(result)


def test_what_selects_is_not_where_nothing_else_selects() -> None:
    assert reproduce_arguments(["-m", "slow"], [], ["-ra"], []) == []
