"""The table from the kind of a problem to its verdict and next step, and the files that replace rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.gating.configfile import ConfigError
from harness.ready import rules
from harness.ready.model import Step, Verdict
from harness.ready.rules import RULES, worst_first
from harness.ready.steps import load_rules
from tests.ready.problems import make_problem


def test_every_row_names_a_source() -> None:
    assert all(rule.source.startswith("https://") or rule.source == rules.OWN for rule in RULES.values())


def test_no_row_is_ready() -> None:
    """A problem always shows in the verdict; a file may decide otherwise."""
    assert all(rule.verdict is not Verdict.READY for rule in RULES.values())


def test_a_row_that_is_not_ready_has_a_step() -> None:
    assert not [kind for kind, rule in RULES.items() if rule.verdict is Verdict.NOT_READY and rule.step is Step.NOTHING]


def test_a_file_replaces_the_fields_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "steps.yaml"
    file.write_text("processes: {verdict: not_ready}\nlog_unreadable:\n  verdict: degraded\n  step: nothing\n")
    loaded = load_rules(file)
    assert (loaded["processes"].verdict, loaded["processes"].step) == (Verdict.NOT_READY, Step.END_PROCESSES)
    assert (loaded["log_unreadable"].verdict, loaded["log_unreadable"].step) == (Verdict.DEGRADED, Step.NOTHING)
    assert loaded["rows_failed"] == RULES["rows_failed"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("proceses: {verdict: degraded}\n", ("'proceses'", "did you mean 'processes'?")),
        ("processes: {verdict: red}\n", ("steps.yaml:1", "processes.verdict", "'red'", "not_ready")),
        ("\nprocesses:\n  stop: reboot\n", ("steps.yaml:3", "processes", "stop")),
        ("processes: degraded\n", ("steps.yaml:1", "processes")),
        ("- processes\n", ("steps.yaml",)),
    ],
)
def test_an_error_in_a_file_names_the_place(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    file = tmp_path / "steps.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_rules(file)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"steps\.yaml"):
        load_rules(tmp_path / "steps.yaml")


def test_the_worst_problem_is_first_then_the_step_that_costs_most_then_the_node() -> None:
    made = [
        make_problem("persistence", check="persistence", wanted="", found="", gpu="GPU-1"),
        make_problem("rows_pending", check="rows", wanted="", found="", gpu="GPU-1"),
        make_problem("rows_failed", check="rows", wanted="", found="", gpu="GPU-1"),
        make_problem("unkillable", check="processes", wanted="", found=""),
        make_problem("gpu_lost", check="device", wanted="", found="", gpu="GPU-2"),
        make_problem("log_unreadable", check="kernel_log", wanted="", found=""),
    ]
    kinds = ["rows_failed", "unkillable", "gpu_lost", "rows_pending", "log_unreadable", "persistence"]
    assert [problem.kind for problem in worst_first(made)] == kinds
