"""`harness notify` as users run it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness.cli.main import app
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_OK
from tests.fleet.history import nights

RULES = """\
channels:
  team: {kind: slack, url_env: NO_SUCH_VARIABLE}
  out: {kind: stdout}
routes:
  - {to: [team, out]}
"""


def notify(*words: object) -> Result:
    return CliRunner().invoke(app, ["notify", *map(str, words)], env={"HARNESS_HISTORY": ""})


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "notify.yaml"
    path.write_text(RULES)
    return path


def test_a_new_group_is_reported_and_a_channel_that_is_down_is_a_line(tmp_path: Path, rules: Path) -> None:
    db = nights.regression(tmp_path).path
    done = notify(tmp_path / "night3-n1", "--rules", rules, "--db", db)
    assert done.exit_code == EXIT_OK, done.output
    assert "1 new group of failures: n1 · H100, 2025-10-12" in done.stdout
    assert "since night2-n1: driver was '570.1' and is '580.1'" in done.stdout
    assert "harness: team: the environment variable NO_SUCH_VARIABLE is not set" in done.stderr


def test_the_same_red_is_not_reported_again(tmp_path: Path, rules: Path) -> None:
    db = nights.regression(tmp_path).path
    done = notify("night4-n1", "--rules", rules, "--db", db)
    assert (done.exit_code, done.stdout) == (EXIT_OK, "")
    assert "nothing new: n1 · H100, 2025-10-13: 0 messages sent" in done.stderr


def test_a_dry_run_sends_nothing_and_names_what_is_missing(tmp_path: Path, rules: Path) -> None:
    db = nights.regression(tmp_path).path
    done = notify("night3-n1", "--rules", rules, "--db", db, "--dry-run")
    assert "--- to team (slack): NO_SUCH_VARIABLE is not set\n1 new group" in done.stdout
    assert "--- to out (stdout)\n1 new group" in done.stdout
    assert done.stderr == ""


@pytest.mark.ways(
    ("words", "said"),
    [
        (("nothing",), "the history has no run 'nothing'"),
        (("night3-n1", "--rules", "nowhere.yaml"), "there is no file 'nowhere.yaml'"),
        (("night3-n1", "--db", "nowhere.duckdb"), "nowhere.duckdb"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, rules: Path, words: tuple[str, ...], said: str) -> None:
    db = nights.regression(tmp_path).path
    done = notify("--rules", rules, "--db", db, *words)
    assert isinstance(done.exception, HarnessError)
    assert said in str(done.exception)
