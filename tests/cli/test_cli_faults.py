"""``harness faults run``: which of pytest's arguments name cases. Whole campaigns are acceptance tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.faults import _split


@pytest.mark.parametrize(
    ("arguments", "cases", "options"),
    [
        ("suites/a", ["suites/a"], []),
        ("suites/a/test_a.py::test_x[1--2] suites/a", ["suites/a/test_a.py::test_x[1--2]", "suites/a"], []),
        ("-v suites/a -n 2", ["suites/a"], ["-v", "-n", "2"]),
        ("-c own.toml suites/a", ["suites/a"], ["-c", "own.toml"]),
        ("--rootdir=suites suites/a", ["suites/a"], ["--rootdir=suites"]),
        ("--waivers own.toml suites/a", ["suites/a"], ["--waivers", "own.toml"]),
        ("-k event suites/b", [], ["-k", "event", "suites/b"]),  # the folder does not exist
    ],
)
def test_paths_that_are_not_the_value_of_an_option_name_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, cases: list[str], options: list[str]
) -> None:
    (tmp_path / "suites" / "a").mkdir(parents=True)
    (tmp_path / "suites" / "a" / "test_a.py").touch()
    (tmp_path / "own.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert _split(arguments.split()) == (cases, options)
