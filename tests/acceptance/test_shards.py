"""Shards: hosts run parts of the cases without communicating, and the parts merge into one run."""

from __future__ import annotations

import json

import pytest

from harness.core.caseid import Shard
from harness.gating import mustpass
from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal
from tests.acceptance.project import Project, Result
from tests.acceptance.rules import command, configure, refused

COUNT = 3
MANY = """
import pytest

@pytest.mark.parametrize("number", range(24))
def test_many(number): assert number != 17
"""


def shards(project: Project, *arguments: str, suites: str = "suites") -> list[Result]:
    return [project.run(*arguments, f"--shard={index}/{COUNT}", suites=suites) for index in range(1, COUNT + 1)]


def merge(project: Project, results: list[Result], *more: str) -> tuple[int, str, Result]:
    """Return the status and output of a merge, and the merged run."""
    out = project.folder / "merged"
    status, output = command(
        project, "report", "merge", *(str(each.run_dir) for each in results), "-o", str(out), *more
    )
    return status, output, Result(status, output, out, 0.0)


@pytest.mark.parametrize("spread", [pytest.param("-n0", marks=pytest.mark.nightly), "-n2"])
def test_merged_shards_equal_the_whole_run(make_project: MakeProject, spread: str) -> None:
    """All verdicts are equal and in the same order, with each possible outcome and in random order."""
    project = make_project("mixed", "plain", "policy_waived", "gated")
    project.write("suites/many/test_many.py", MANY)
    options = (spread, "--shuffle", "-k", "not test_many or not 20")
    whole = project.run(*options, "--seed=5")
    parts = shards(project, *options, "--seed=5")
    for index, part in enumerate(parts, start=1):
        check_journal(part)
        assert {*part.verdicts} == {case for case in whole.verdicts if Shard(index, COUNT).has(case)}
        assert f"harness: shard {index}/3; shuffled by the seed" in part.terminal
        assert f"shard {index}/3: must-pass lists and the least number of cases are checked in the" in part.terminal
    status, output, merged = merge(project, parts[::-1])
    assert status == whole.status == 1, output
    assert merged.verdicts == whole.verdicts
    assert not merged.contents.damaged
    assert len(list(merged.junit.iter("testcase"))) == len(whole.verdicts)
    assert len(json.loads((merged.run_dir / "environment.json").read_text())["shards"]) == COUNT
    assert command(project, "report", str(merged.run_dir))[0] == 1
    assert merge(project, parts)[:2] == (
        4,
        f"harness: '{merged.run_dir}' already contains a run: name another folder\n",
    )


@pytest.mark.nightly
def test_shards_without_a_seed_agree_on_one(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/many/test_many.py", MANY.replace("17", "-1"))
    parts = shards(project, "-n0")
    assert len({part.lines[0]["seed"] for part in parts}) == 1
    assert merge(project, parts)[0] == 0


@pytest.mark.nightly
def test_lists_and_the_least_number_hold_for_the_merged_run_alone(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/many/test_many.py", MANY.replace("17", "-1"))
    path = project.folder / "configs" / "must-pass" / "core.txt"
    path.parent.mkdir(parents=True)
    mustpass.write_must_pass(path, [f"suites/many/test_many.py::test_many[{number}]" for number in range(24)])
    configure(
        project, "profiles/all", description="all", minimum_cases=24, must_pass=["core"], gates="all", suites=["many"]
    )
    parts = shards(project, "-n0", "--profile=all")
    assert [part.status for part in parts] == [0, 0, 0], parts[0].tail()
    assert not [finding for part in parts for finding in part.ledger.findings]
    status, output, merged = merge(project, parts)
    assert (status, merged.ledger.lists[0].missed) == (0, ()), output
    assert "must-pass list core.txt (24 cases, " in output


@pytest.mark.nightly
def test_a_shard_without_a_case_is_merged_too(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/one/test_one.py", "def test_one(): pass\n")
    parts = shards(project, "-n0")
    assert sorted(part.status for part in parts) == [0, 5, 5]
    status, output, merged = merge(project, parts)
    assert (status, merged.verdicts) == (0, {"suites/one/test_one.py::test_one": "passed"}), output


@pytest.mark.parametrize("value", ["5/4", "0/3", "x", "", "1/3/5"])
def test_a_shard_that_cannot_be(make_project: MakeProject, value: str) -> None:
    refused(make_project("plain").run("-n0", f"--shard={value}"), f"--shard={value!r}: expected I/N with ")


def test_listing_shows_what_a_shard_would_run(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/many/test_many.py", MANY)
    listed = project.run("--collect-only", "-q", "--shard=2/3", results_dir=False)
    ids = [line for line in listed.terminal.splitlines() if "::" in line]
    assert ids
    assert all(Shard(2, 3).has(case) for case in ids)
