"""`harness catalog --renamed` and `harness renamed` as their users meet them: in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from harness.gating import mustpass
from harness.gating.renamed import Renamed
from harness.journal import journal, record
from harness.scheduling.earlier_run import EarlierRun
from harness.scheduling.history import History
from harness.tools.matrix.reading import RunSummary, with_new_names
from harness.tools.matrix.reading import read as read_summary
from tests.tools.matrix import runs
from tests.tools.matrix.runs import CASES, Machine

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
FILE = "suites/sums/test_sums.py"
OLD = '''
import pytest


@pytest.mark.parametrize("size", [1, 2])
def test_what_is_added(size):
    """What is added is in the sum."""
    assert size + 1 > size


def test_gone():
    """Not any more."""
'''
NEW = OLD.partition("\n\ndef test_gone")[0].replace("test_what_is_added", "test_sum_has_every_term") + (
    '\n\ndef test_product():\n    """Products, too."""\n    assert 2 * 2 == 4\n'
)


def harness(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness.cli", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose cases have been renamed, with the catalogue from before and a must-pass list of old ids."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "suites/sums").mkdir(parents=True)
    (tmp_path / "configs").mkdir()
    (tmp_path / FILE).write_text(OLD)
    done = harness("catalog", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "old.json").write_text(done.stdout)
    mustpass.write(tmp_path / "mine.txt", [f"{FILE}::test_what_is_added[{each}]" for each in (1, 2)], "sums")
    (tmp_path / FILE).write_text(NEW)
    return tmp_path


def test_what_was_renamed_is_shown_and_recorded_and_files_follow(project: Path) -> None:
    done = harness("catalog", "--renamed", "old.json", "-o", "configs/renamed.json", cwd=project)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        f"{FILE}::test_what_is_added -> test_sum_has_every_term",
        f"gone: {FILE}::test_gone",
        f"new: {FILE}::test_product",
        "1 test renamed; 1 old cases are gone, 1 cases are new",
        "wrote configs/renamed.json: 1 old name. Files follow with: harness renamed FILE...",
    ]
    script, waivers = project / "ci.sh", project / "known.yaml"
    script.write_text("pytest suites -k test_what_is_added\n")
    waivers.write_text(f"waivers:\n  - case: {FILE}::test_what_is_added[*]  # kept\n  - case: '{FILE}::test_what*'\n")
    done = harness("renamed", "mine.txt", "ci.sh", "known.yaml", cwd=project)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "mine.txt: 2 ids of 2 renamed",
        "ci.sh: 1 name renamed",
        f"known.yaml:3: '{FILE}::test_what*' matched 1 tests by old names and does not match 1 of them now: "
        f"{FILE}::test_sum_has_every_term",
        "known.yaml: 1 name renamed",
    ]
    listed = mustpass.read(project / "mine.txt")
    assert listed.ids == tuple(f"{FILE}::test_sum_has_every_term[{each}]" for each in (1, 2))
    assert listed.description == "sums"
    assert script.read_text() == "pytest suites -k test_sum_has_every_term\n"
    assert f"- case: {FILE}::test_sum_has_every_term[*]  # kept\n" in waivers.read_text()
    before = {path: path.read_bytes() for path in (script, project / "mine.txt")}
    assert harness("renamed", "mine.txt", "ci.sh", cwd=project).returncode == 0
    assert {path: path.read_bytes() for path in before} == before


def test_a_catalogue_without_fingerprints_is_enough(project: Path) -> None:
    cases = json.loads((project / "old.json").read_text())
    for each in cases:
        del each["fingerprint"]
    (project / "old.json").write_text(json.dumps(cases))
    done = harness("catalog", "--renamed", "old.json", cwd=project)
    assert f"{FILE}::test_what_is_added -> test_sum_has_every_term" in done.stdout
    assert not (project / "configs/renamed.json").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["catalog", "-o", "x.json"], 4, "-o needs --renamed OLD.json"),
        (["catalog", "--renamed", "pytest.ini"], 4, "'pytest.ini' is not an output of 'harness catalog --format json'"),
        (["catalog", "--renamed", "nothing.json"], 4, "cannot read the catalogue 'nothing.json'"),
        (["renamed", "mine.txt"], 4, "'configs/renamed.json' names no renamed case"),
        (["renamed", "mine.txt", "--record", "old.json"], 4, "'old.json' is no file of renamed cases"),
    ],
)
def test_bad_input_is_one_sentence(project: Path, arguments: list[str], status: int, said: str) -> None:
    done = harness(*arguments, cwd=project)
    assert done.returncode == status
    assert said in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_runs_of_old_names_are_read_by_the_new_ones(tmp_path: Path) -> None:
    one, two, three = CASES
    renamed = Renamed({one.partition("[")[0]: "suites/x/test_x.py::test_new"})
    now = renamed.now(one)
    run_dir = runs.run(tmp_path / "run", Machine("n1"), {one: Outcome.FAILED})
    assert set(record.read(run_dir, renamed).cases) == {now, renamed.now(two), renamed.now(three)}
    assert EarlierRun.read(run_dir, ("red",), renamed).ids == (now,)
    summary = with_new_names(read_summary(run_dir), renamed)
    assert isinstance(summary, RunSummary)
    assert now in summary.ids
    assert one not in summary.ids
    assert History({one: 3.0, now: 5.0}).renamed(renamed.now).seconds == {now: 5.0}
    assert History({one: 3.0}).renamed(renamed.now).seconds == {now: 3.0}


def test_a_run_with_old_and_new_names_is_read_as_it_is(tmp_path: Path) -> None:
    one, two, _ = CASES
    run_dir = runs.run(tmp_path / "run", Machine("n1"))
    summary = with_new_names(read_summary(run_dir), Renamed({one.partition("[")[0]: two}))
    assert isinstance(summary, RunSummary)
    assert one in summary.ids
    assert any("both by old and by new names" in note for note in summary.notes)


def test_diff_compares_a_case_with_itself_by_its_old_name(tmp_path: Path) -> None:
    old = runs.run(tmp_path / "old", Machine("n1"))
    new = runs.run(tmp_path / "new", Machine("n1"), t=1_760_000_001.0)
    path = new / journal.FILE_NAME
    path.write_text(path.read_text().replace(CASES[0], "suites/x/test_x.py::test_new"))
    assert "1 missing" in harness("diff", str(old), str(new), cwd=tmp_path).stdout
    (tmp_path / "configs").mkdir()
    record_ = Renamed({CASES[0]: "suites/x/test_x.py::test_new"})
    (tmp_path / "configs/renamed.json").write_bytes(record_.to_bytes())
    assert "0 missing" in harness("diff", str(old), str(new), cwd=tmp_path).stdout
