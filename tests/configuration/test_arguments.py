"""Options of the harness among the arguments of a session: short and long forms, and values that are paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.config.argparsing import Parser

from harness.configuration import arguments
from harness.configuration.arguments import reproduce_arguments
from harness.configuration.options import OPTIONS

OURS = ("--device", "--seed", "--shuffle", "--profile")


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["a", "--device", "cpu", "b"], ["a", "--harness-device=cpu", "b"]),
        (["--device=cpu"], ["--harness-device=cpu"]),
        (["--device", "--seed", "1"], ["--harness-device", "--harness-seed=1"]),  # pytest refuses the first one
        (["--device"], ["--harness-device"]),
        (["--shuffle", "a"], ["--harness-shuffle", "a"]),
        (["--no-shuffle"], ["--no-shuffle"]),
        (["--start", "cold"], ["--start", "cold"]),
        (["--devices", "--harness-seed", "1"], ["--devices", "--harness-seed", "1"]),
        (["--seed=a=b"], ["--harness-seed=a=b"]),
        (["--seed", "1", "--", "--seed", "2"], ["--harness-seed=1", "--", "--seed", "2"]),
    ],
)
def test_short_forms_become_long_ones_and_can_be_had_back(words: Sequence[str], result: Sequence[str]) -> None:
    made, changes = arguments.rewrite_short_flags(words, OURS)
    assert made == list(result)
    assert arguments.restore_short_flags(made, changes, OURS) == list(words)
    assert arguments.restore_short_flags(made, changes, ()) == made


@pytest.mark.parametrize(
    ("words", "taken", "result"),
    [
        (["--seed", "1", "a", "--harness-device", "cpu"], (), ["--harness-seed=1", "a", "--harness-device=cpu"]),
        (["--seed", "1", "--device", "x"], ("--device",), ["--harness-seed=1", "--device", "x"]),
        (["--no-health", "--", "--seed", "1"], (), ["--harness-no-health", "--", "--seed", "1"]),
    ],
)
def test_arguments_that_later_processes_get(words: Sequence[str], taken: Sequence[str], result: Sequence[str]) -> None:
    assert arguments.unambiguous_arguments(words, taken) == tuple(result)


def test_every_flag_has_a_long_form_of_its_own() -> None:
    assert len(set(arguments.LONG_FORMS.values())) == len(arguments.LONG_FORMS) >= len(OPTIONS)
    assert all(made.startswith("--harness-") for made in arguments.LONG_FORMS.values())
    assert not arguments.LONG_FORMS.keys() & set(arguments.LONG_FORMS.values())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--profile", "here"], {"--profile"}),
        (["--profile", "here/x"], set()),
        (["--profile", "here::x"], {"--profile"}),
        (["--profile", "gone"], set()),
        (["--profile", "\0"], set()),
        (["--profile=here"], set()),
        (["--profile"], {"--profile"}),
        (["--profile", "--seed", "here"], {"--profile", "--seed"}),
        (["--shuffle", "here"], set()),
    ],
)
def test_what_may_be_of_a_conftest_behind_the_value(tmp_path: Path, words: Sequence[str], expected: set[str]) -> None:
    (tmp_path / "here").mkdir()
    assert arguments.ambiguous_flags(words, OURS, tmp_path) == expected


def test_a_file_of_arguments_is_read_where_it_has_short_forms(tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("--device\ncpu\ntest_a.py::test_it[x y]\n")
    (tmp_path / "others").write_text("test_b.py\n")
    words = ["@ours", "@others", "@gone", "--", "@ours"]
    expanded = ["--device", "cpu", "test_a.py::test_it[x y]", "@others", "@gone", "--", "@ours"]
    assert arguments.expand_argument_files(words, tmp_path) == expanded


@pytest.mark.parametrize("action", [None, "store_true", "append"])
def test_what_others_have_declared(action: str | None) -> None:
    parser = Parser(_ispytest=True)
    parser.addoption("--device", **({} if action is None else {"action": action}))
    parser.addoption("--seed", type=int)
    assert arguments.declared_flags(parser, OURS, []) == {"--device", "--seed"}
    assert arguments.declared_flags(parser, (), []) == set()


def test_an_option_that_another_plugin_requires_hides_nothing() -> None:
    parser = Parser(_ispytest=True)
    parser.addoption("--wanted", required=True)
    parser.addoption("--device")
    assert arguments.declared_flags(parser, OURS, ["--wanted", "x", "--seed", "1"]) == {"--device"}
    assert arguments.declared_flags(parser, OURS, ["--seed", "1"]) == set()  # pytest refuses the session


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
