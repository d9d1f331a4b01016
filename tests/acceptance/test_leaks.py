"""Whole runs with torch: leaks, changed state, and what only resembles them."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import Expected, check_journal, compare, expected
from tests.acceptance.project import SUITES, Project, Result
from tests.acceptance.rules import kinds

WAYS = [("batch", "-n0"), ("case", "-n2")]
#: A run takes around 15 s.
SEEDS = (1,)
#: Cases of all three suites that need few or no repetitions, and no long import.
QUICK = (
    "(torch_state or process_state or shared_fixtures or put_back or test_list or test_closure or test_descriptor)"
    " and not profiler and not dynamo"
)


def notes_wanted(*topics: str) -> dict[str, str]:
    """Return the required text of the notes on each case, from the tables ``NOTES`` of the suites' files."""
    wanted = {}
    for topic in topics:
        for path in sorted((SUITES / topic).glob("test_*.py")):
            for node in ast.parse(path.read_text()).body:
                match node:
                    case ast.Assign(targets=[ast.Name(id="NOTES")], value=value):
                        for name, text in ast.literal_eval(value).items():
                            wanted[f"suites/{topic}/{path.name}::{name}"] = text
    return wanted


def final_lines(result: Result) -> dict[str, dict[str, Any]]:
    """Return the last line on each case."""
    return {line["case"]: line for line in result.lines if line["event"] == "finish" and line["final"]}


def confirmations(result: Result) -> dict[str, dict[str, Any]]:
    return {line["case"]: line for line in result.lines if line["event"] == "confirmation"}


def compare_left(result: Result, wanted: Expected, *, alone: bool = False) -> None:
    """Compare the whole summary, and check that exactly the leaks were looked into."""
    compare(result, wanted, alone=alone)
    leaked = {case for case, outcome in wanted.outcomes.items() if outcome == "leaked"}
    looked_into = confirmations(result)
    assert {case for case, line in looked_into.items() if line["leaks"]} == leaked
    assert all(line["suspicions"] for line in looked_into.values())
    assert all(line["growths"] or line["failure"] for line in looked_into.values())
    finals = final_lines(result)
    for case in leaked:
        assert finals[case]["message"] == looked_into[case]["leaks"][0]


def compare_notes(result: Result, notes: dict[str, str]) -> None:
    finals = final_lines(result)
    missing = {case: finals[case].get("notes") for case, text in notes.items() if text not in _joined(finals[case])}
    assert not missing


def _joined(line: dict[str, Any]) -> str:
    return "\n".join(line.get("notes") or ())


def run(project: Project, mode: str, *arguments: str) -> Result:
    return project.run(f"--isolation={mode}", "--case-timeout=60", *arguments)


@pytest.mark.parametrize(("mode", "spread"), WAYS[:1])
def test_each_leak_is_reported_with_amount_and_origin(make_project: MakeProject, mode: str, spread: str) -> None:
    project = make_project("leaks")
    result = run(project, mode, spread, "--leak-search=300")
    wanted = expected(project, mode)
    compare_left(result, wanted, alone=mode == "case")
    compare_notes(result, notes_wanted("leaks"))
    assert Counter(wanted.outcomes.values())["leaked"] >= 25
    if mode == "batch" and spread == "-n0":
        _nothing_runs_after_a_leak(result)


def _nothing_runs_after_a_leak(result: Result) -> None:
    order = [line for line in result.lines if line["event"] == "finish"]
    for line, following in itertools.pairwise(order):
        if line["outcome"] in ("leaked", "contaminated"):
            assert following["executor"] != line["executor"], following["case"]


@pytest.mark.nightly  # one process per case: tests/checks/test_state_table.py
@pytest.mark.parametrize(("mode", "spread"), WAYS)
def test_each_contamination_is_reported_with_both_values(make_project: MakeProject, mode: str, spread: str) -> None:
    project = make_project("contaminations")
    result = run(project, mode, spread)
    wanted = expected(project, mode)
    compare_left(result, wanted, alone=mode == "case")
    compare_notes(result, notes_wanted("contaminations"))
    assert Counter(wanted.outcomes.values())["contaminated"] >= 35
    if spread == "-n0":
        _nothing_runs_after_a_leak(result)


@pytest.mark.ways(("mode", "spread"), WAYS)
def test_no_innocent_is_accused(make_project: MakeProject, mode: str, spread: str) -> None:
    project = make_project("innocents")
    result = run(project, mode, spread)
    wanted = expected(project, mode)
    compare_left(result, wanted, alone=mode == "case")
    assert Counter(wanted.outcomes.values())["passed"] >= 45
    if mode == "batch":
        assert _executors(result) == 1, "an executor was given up for an innocent"


def _executors(result: Result) -> int:
    """Return the number of executors that ran cases, without those that looked into suspicions."""
    return len({line["executor"] for line in result.lines if line["event"] == "start"})


@pytest.mark.nightly
def test_a_leak_of_shared_memory_is_not_held_against_neighbours(make_project: MakeProject) -> None:
    """The files belong to no process, so each process counts them. The cases of both workers take the same time."""
    project = make_project()
    each = 'import time, pytest\n\n@pytest.mark.parametrize("number", range({count}))\ndef test_{name}(number):\n'
    leaking = each.format(count=3, name="leaking") + (
        "    from multiprocessing import resource_tracker, shared_memory\n"
        "    memory = shared_memory.SharedMemory(create=True, size=4096)\n"
        '    resource_tracker.unregister(memory._name, "shared_memory")\n'
        "    memory.close()\n"
        '    with open("made", "a") as made:\n'
        '        made.write(memory.name + "\\n")\n'
        "    time.sleep(0.1)\n"
    )
    project.write("suites/test_leaking.py", leaking)
    project.write("suites/test_innocent.py", each.format(count=12, name="innocent") + "    time.sleep(0.1)\n")
    try:
        result = project.run("-n2", "--dist=loadfile")
    finally:
        for name in (project.folder / "made").read_text().split():
            (Path("/dev/shm") / name).unlink()
    found = Counter((verdict.case.split("::")[0], verdict.outcome.value) for verdict in result.ledger.verdicts)
    leaking_ones, innocents = ("suites/test_leaking.py", "leaked"), ("suites/test_innocent.py", "passed")
    assert found == {leaking_ones: 3, innocents: 12}, result.tail()


def test_checks_can_be_switched_off(make_project: MakeProject) -> None:
    """Nothing is checked: leaking cases pass, and cases that change state pass until another case notices."""
    project = make_project("leaks", "small_leaks")
    result = run(project, "case", "-n2", "--leak-check=off")
    assert set(result.verdicts.values()) == {"passed", "failed"}, result.tail()
    assert [case for case, outcome in result.verdicts.items() if outcome == "failed"] == [
        "suites/leaks/test_tensors.py::test_that_fails_as_well"
    ]
    assert confirmations(result) == {}


@pytest.mark.nightly
def test_contaminations_are_not_looked_for_either(make_project: MakeProject) -> None:
    project = make_project("contaminations")
    result = run(project, "case", "-n2", "--leak-check=off")
    reported = {case for case, outcome in result.verdicts.items() if outcome not in ("passed", "failed")}
    # State that the executor itself needs is still checked.
    assert reported == {"suites/contaminations/test_process_state.py::test_working_folder"}, result.tail()


@pytest.mark.nightly
def test_small_leaks_are_found_by_the_full_check_at_once(make_project: MakeProject) -> None:
    """The fast check finds them in the growth of the process, together with others."""
    project = make_project("small_leaks")
    full = run(project, "batch", "-n0", "--leak-check=full")
    compare_left(full, expected(project, "batch"))
    fast = run(project, "batch", "-n0")
    assert {case.partition("::")[2] for case, outcome in fast.verdicts.items() if outcome == "leaked"} == {
        "test_tensor",
        "test_mapping",
        "test_array",
    }, fast.tail()
    assert {case.partition("::")[2] for case, line in confirmations(fast).items() if line["leaks"]} == {"test_tensor"}
    apart = run(project, "case", "-n0")
    leaking = {case.partition("::")[2] for case, outcome in apart.verdicts.items() if outcome == "leaked"}
    assert "test_tensor" in leaking, apart.tail()
    # Memory kept by first calls may push the others over the threshold, and then they are found as well.
    assert leaking <= {"test_tensor", "test_mapping", "test_array"}, apart.tail()


@pytest.mark.ways("level", ["fast", "full"])
def test_what_a_case_says_it_keeps_is_not_looked_at(make_project: MakeProject, level: str) -> None:
    """Neither after the case nor at the end of its process, which has grown by 60 MiB; state is checked as usual."""
    project = make_project("keeping")
    result = run(project, "batch", "-n0", f"--leak-check={level}")
    compare_left(result, expected(project, "batch"))
    assert not [line for line in result.lines if line["event"] == "batch"]
    (reported,) = [
        element for element in result.junit.iter("testcase") if element.attrib["name"] == "test_that_says_so"
    ]
    assert "KEEPS a list that nobody empties" in "".join(reported.itertext())


@pytest.mark.nightly
@pytest.mark.ways(("mode", "spread"), WAYS)
def test_a_suspicion_that_cannot_be_confirmed_is_a_note(make_project: MakeProject, mode: str, spread: str) -> None:
    """Its second run crashes or hangs: the case keeps the verdict of its first run."""
    project = make_project("unconfirmed")
    result = project.run(f"--isolation={mode}", spread, "--case-timeout=3")
    compare_left(result, expected(project, mode), alone=mode == "case")
    compare_notes(result, notes_wanted("unconfirmed"))


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["batch", "case"])
def test_a_zygote_that_dies_during_a_confirmation(make_project: MakeProject, mode: str) -> None:
    """The case only gets a note, and the run continues under a new zygote."""
    project = make_project("unconfirmed_zygote")
    result = project.run(f"--isolation={mode}", "-n0", "--case-timeout=20")
    assert result.verdicts == expected(project, mode).outcomes, result.tail()
    compare_notes(result, notes_wanted("unconfirmed_zygote"))
    assert set(kinds(result)) <= {"zygote"}
    check_journal(result)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", SEEDS)
def test_verdicts_are_the_same_in_any_order(make_project: MakeProject, seed: int) -> None:
    """The quick cases of all suites run in one shuffled run. The last user of a shared fixture depends on the order."""
    project = make_project("leaks", "contaminations", "innocents")
    result = run(project, "batch", "-n0", "--shuffle", f"--seed={seed}", "-k", QUICK)
    wanted = expected(project, "batch").outcomes
    found = result.verdicts
    assert len(found) >= 85
    shared = {case for case in found if "test_shared_fixtures" in case}
    wrong = {case: found[case] for case in found.keys() - shared if found[case] != wanted[case]}
    assert not wrong, result.tail()
    verdicts = Counter(found[case] for case in shared)
    assert verdicts["contaminated"] >= 2, result.tail()
    assert verdicts.keys() <= {"passed", "contaminated"}
    check_journal(result)


@pytest.mark.parametrize("level", ["off", "fast", "full"])
def test_a_known_leak_is_green_at_each_level_of_the_checks(make_project: MakeProject, level: str) -> None:
    """Without checks, the run cannot see the leak, so it does not say that the leak is gone."""
    project = make_project()
    project.write(
        "suites/known/test_known.py",
        """
import pytest

KEPT = []
known = pytest.mark.leaks("known", link="https://example.org/1")

@known
def test_leaks():
    KEPT.append(bytearray(1 << 20))

@known
@pytest.mark.xfail(strict=True)
def test_leaks_and_fails():
    KEPT.append(bytearray(1 << 20))
    assert not KEPT
""",
    )
    result = project.run("-n0", f"--leak-check={level}")
    path = "suites/known/test_known.py"
    assert result.verdicts == {
        f"{path}::test_leaks": "passed" if level == "off" else "waived",
        f"{path}::test_leaks_and_fails": "waived",
    }, result.tail()
    assert result.status == 0
