"""Shards that do not form one run: an error names what is missing, double or different, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.journal import journal, reader
from tests.acceptance.conftest import MakeProject
from tests.acceptance.project import Project, Result
from tests.acceptance.rules import command

CASES = """
import pytest

@pytest.mark.parametrize("number", range(9))
def test_it(number): pass
"""


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    project = make_project()
    project.write("suites/some/test_some.py", CASES)
    return project


def shard(project: Project, index: int, *arguments: str) -> Result:
    return project.run("-n0", f"--shard={index}/2", *(arguments or ("--seed=3",)))


def merge(project: Project, *folders: Path) -> tuple[int, list[str]]:
    status, output = command(project, "report", "merge", *map(str, folders), "-o", "merged")
    assert not (project.folder / "merged").exists()
    return status, output.splitlines()


@pytest.mark.nightly
def test_bad_input(project: Project, tmp_path: Path) -> None:
    """Each mistake is reported in one sentence."""
    first, second = shard(project, 1).run_dir, shard(project, 2).run_dir
    whole = project.run("-n0", "--seed=3").run_dir
    status, lines = merge(project, first)
    assert status == 1
    assert [line.partition(", with")[0] for line in lines] == ["harness: shard 2/2 is missing"]
    run_id = reader.read_run_journal(first / journal.FILE_NAME).events[0].run_id  # type: ignore[union-attr]
    assert merge(project, first, first) == (
        1,
        [f"harness: {str(first)!r} and {str(first)!r} are the same run, {run_id}: give each shard once"],
    )
    status, (line,) = merge(project, whole, whole)
    assert (status, line.partition("is not a shard: ")[2][:28]) == (4, "its run had all cases; give ")
    status, (line,) = merge(project, first, tmp_path)
    assert status == 4
    assert line.startswith(
        f"harness: there is no journal at '{tmp_path}/journal.ndjson': give the run directory of a run"
    )
    third = project.run("-n0", "--seed=3", "--shard=3/3").run_dir
    status, (line,) = merge(project, first, second, third)
    assert status == 1
    assert "is one of 3 shards, but shard 1/2" in line


def test_another_tree_seed_or_torch(project: Project) -> None:
    first, second = shard(project, 1), shard(project, 2, "--seed=4")
    status, (line,) = merge(project, first.run_dir, second.run_dir)
    assert (status, line.partition("is not like the others: ")[2]) == (1, "--seed is '4' here and '3' in most others")
    lines = second.lines
    lines[0] |= {"seed": 3, "identity": {**lines[0]["identity"], "torch": "1.0"}}
    (second.run_dir / "journal.ndjson").write_text(
        "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
    )
    status, (line,) = merge(project, first.run_dir, second.run_dir)
    assert status == 1
    assert "shard 2/2 (" in line
    assert "is not like the others: torch is '1.0' here and " in line
    project.write("suites/some/helper.py", "NEW = 1\n")
    status, (line,) = merge(project, first.run_dir, shard(project, 2).run_dir)
    assert status == 1
    assert "is not like the others: suite files is sha256:" in line


@pytest.mark.nightly
def test_an_environment_that_is_none_is_named(project: Project) -> None:
    first, second = shard(project, 1).run_dir, shard(project, 2).run_dir
    file = second / "environment.json"
    file.write_text("[]")
    status, (line,) = merge(project, first, second)
    assert (status, line) == (
        4,
        f"harness: {str(file)!r} is not the environment file of a run: expected a JSON object",
    )
    file.write_text('{"devices": [1, {"name": "no uuid"}]}')
    status, output = command(project, "report", "merge", str(first), str(second), "-o", "merged")
    assert status == 0, output
    assert json.loads((project.folder / "merged" / "environment.json").read_text())["shards"]["2/2"]["devices"][0] == 1


def test_a_shard_that_was_killed_makes_the_merged_run_red(project: Project) -> None:
    """Its unfinished cases are not run, and the run counts as unfinished."""
    first, second = shard(project, 1), shard(project, 2)
    kept = [line for line in second.lines if line["event"] in ("run", "collected")]
    (second.run_dir / "journal.ndjson").write_text(
        "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in kept)
    )
    status, output = command(
        project, "report", "merge", str(first.run_dir), str(second.run_dir), "-o", str(project.folder / "merged")
    )
    assert status == 1
    assert "the run did not finish" in output
    merged = Result(status, output, project.folder / "merged", 0.0)
    assert {case for case, outcome in merged.verdicts.items() if outcome == "not_run"} == {*second.verdicts}
