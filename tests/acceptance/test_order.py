"""The order and the number of runs of cases: --shuffle, --retries, --repeat and --verify in whole runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from harness.gating import mustpass
from harness.scheduling import order
from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal, compare, expected
from tests.acceptance.project import Project, Result
from tests.acceptance.rules import configure, refused, waive

MODES = pytest.mark.ways("mode", ["batch", "case"])
NAMES = [f"suites/{letter}/test_{letter}.py::test_many[{n}]" for letter in "abc" for n in range(4)]


def many(make_project: MakeProject) -> Project:
    """Return a project with three files of four cases."""
    project = make_project()
    text = "import pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_many(n): pass\n"
    for letter in "abc":
        project.write(f"suites/{letter}/test_{letter}.py", text)
    return project


def drawn(seed: int) -> list[str]:
    return [NAMES[position] for position in order.shuffled_positions(NAMES, seed)]


def collected(result: Result) -> list[str]:
    """Return the order of the cases on each worker."""
    lines = [line for line in result.lines if line["event"] == "collected"]
    assert len({line["hash"] for line in lines}) == 1
    return next(line["ids"] for line in lines if line["ids"])


def starts(result: Result) -> list[str]:
    return [line["case"] for line in result.lines if line["event"] == "start"]


def test_shuffled_by_the_seed(make_project: MakeProject) -> None:
    """A seed determines one order, with any number of workers and any selection of cases."""
    project = many(make_project)
    one = project.run("-n0", "--shuffle", "--seed=1")
    assert one.status == 0, one.tail()
    assert starts(one) == collected(one) == drawn(1) != NAMES
    assert "shuffled by the seed" in one.terminal
    two = project.run("-n2", "--shuffle", "--seed=1")
    assert collected(two) == drawn(1)
    assert two.verdicts == one.verdicts
    other = project.run("-n0", "--shuffle", "--seed=2")
    assert starts(other) == drawn(2) != drawn(1)
    fewer = project.run("-n0", "--shuffle", "--seed=1", "-k", "test_a or test_c")
    assert starts(fewer) == [case for case in drawn(1) if "test_b" not in case]


def test_not_shuffled_on_request(make_project: MakeProject) -> None:
    project = many(make_project)
    configure(project, "profiles/mixed", description="mixed", shuffle=True)
    assert starts(project.run("-n0", "--profile=mixed", "--seed=1")) == drawn(1)
    assert starts(project.run("-n0", "--profile=mixed", "--seed=1", "--no-shuffle")) == NAMES
    listed = project.run("-n0", "--profile=mixed", "--seed=1", "--collect-only", "-q").terminal.splitlines()
    assert [line for line in listed if "::" in line] == drawn(1)


def attempts(result: Result, name: str) -> list[tuple[str, bool]]:
    """Return the outcome of each attempt at a case, and whether it was final."""
    lines = [line for line in result.lines if line["event"] == "finish" and line["case"].endswith(f"::{name}")]
    assert [line["attempt"] for line in lines] == list(range(1, len(lines) + 1))
    return [(line["outcome"], line["final"]) for line in lines]


@MODES
def test_red_cases_are_tried_again(make_project: MakeProject, mode: str) -> None:
    """Each attempt has a fresh process, until one passes. Waived outcomes are not retried."""
    project = make_project("tries")
    waive(project, case="*::test_waived")
    # A search for leaks would run a case once more in its process.
    result = project.run("-n0", f"--isolation={mode}", "--retries=2", "--waivers=known", "--leak-check=off")
    compare(result, expected(project, mode), alone=mode == "case")
    assert attempts(result, "test_passes_at_last") == [("failed", False), ("passed", True)]
    assert attempts(result, "test_never") == [("failed", False), ("failed", False), ("failed", True)]
    assert attempts(result, "test_waived") == [("failed", True)]
    company = mode == "batch"  # the attempt after other cases is confirmed alone, and that one is retried
    assert attempts(result, "test_crashes") == [*[("crashed", False)] * (2 + company), ("crashed", True)]
    for name in ("at_last", "never", "once", "crashes"):
        pids = project.probe(name)
        assert len(pids) == len(set(pids)) > 1
    assert len(project.probe("waived")) == 1
    assert "retries 2" in result.terminal


@MODES
def test_every_repetition_counts(make_project: MakeProject, mode: str) -> None:
    """A case passes if it passes each time, with new fixtures each time."""
    project = make_project("again")
    waive(project, case="*::test_waived")
    result = project.run("-n0", f"--isolation={mode}", "--repeat=3", "--waivers=known")
    wanted = expected(project, mode)
    check_journal(result)
    found = {verdict.case: (verdict.outcome.value, verdict.message) for verdict in result.ledger.verdicts}
    assert {case: outcome for case, (outcome, _) in found.items()} == wanted.outcomes, result.tail()
    assert all(found[case][1].startswith(words) for case, (_, words) in wanted.cases.items()), found
    finals = [line["case"] for line in result.lines if line["event"] == "finish" and line["final"]]
    assert finals == [case for case in wanted.cases for _ in range(3)]
    ground = project.probe("ground")
    ups = [line.split() for line in ground]
    assert [word for word, _ in ups] == ["up", "down"] * (len(ups) // 2)
    assert len(ups) // 2 == 15 - (4 if mode == "batch" else 0)  # the last repetition hands on to the next case
    assert len({pid for _, pid in ups}) == (1 if mode == "batch" else 15)
    crashing = [("crashed", True), ("crashed", True)]
    if mode == "batch":  # the crash after other cases is confirmed alone, and the repetitions continue
        crashing = [("crashed", False), ("crashed", True), ("passed", True)]
    assert attempts(result, "test_crashes") == [("passed", True), *crashing]
    assert result.status == 1


@MODES
@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_verify(make_project: MakeProject, mode: str, spread: str) -> None:
    """Cases that keep state, flaky cases and crashes are found, in loops in one process and then in fresh ones."""
    project = make_project("verified")
    result = project.run(spread, f"--isolation={mode}", "--verify=3")
    wanted = expected(project, mode)
    check_journal(result)
    found = {verdict.case: (verdict.outcome.value, verdict.message) for verdict in result.ledger.verdicts}
    wrong = {
        case: found[case] for case, (outcome, words) in wanted.cases.items() if not says(found[case], outcome, words)
    }
    assert not wrong, result.tail()
    assert result.status == 1
    pids = project.probe("good")
    case = "suites/verified/test_verified.py::test_good"
    runs = [line for line in result.lines if line.get("case") == case]
    assert len(pids) == 6, runs
    assert len(set(pids[:3])) == 1
    assert len(set(pids)) == 4
    said = f"VERIFIED {case} - verified: passed 6 times, the slowest in "
    assert said in result.terminal
    assert result.counts == {"passed": 1, "failed": 3, "skipped": 1, "xfailed": 1, "gated": 1}


def says(found: tuple[str, str], outcome: str, words: str) -> bool:
    return found[0] == outcome and found[1].startswith(words)


SLOW = """
import time
import pytest

@pytest.mark.timeout(3)
def test_slow(): time.sleep(2.5)
"""


def test_verify_wants_room_below_the_time_limit(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/new/test_new.py", SLOW)
    result = project.run("-n0", "--verify=1")
    (verdict,) = result.ledger.verdicts
    assert verdict.outcome == "failed"
    wanted = r"not verified: the slowest run took \d+\.\d s, over 80% of the limit of 3 s"
    assert re.match(wanted, verdict.message), verdict.message
    assert verdict.message.endswith(" s, over 80% of the limit of 3 s")
    assert attempts(result, "test_slow") == [("passed", False), ("passed", True)]


@pytest.mark.parametrize(
    ("options", "env"),
    [(("--isolation=none",), None), (("--pdb",), None), ((), {"HARNESS_ISOLATION": "none"})],
)
def test_verify_needs_isolation(make_project: MakeProject, options: tuple[str, ...], env: Any) -> None:
    project = make_project("plain")
    refused(project.run("-n0", "--verify=2", *options, env=env), "--verify runs cases in fresh processes")


def test_ids_and_texts_that_try_to_break_reports(make_project: MakeProject) -> None:
    """Quotes, brackets, line ends, escapes and XML in ids, and in a waiver's reason."""
    project = make_project("hostile")
    case = "suites/hostile/test_hostile.py::test_größe[a 'b' \"c\"]"
    waive(project, case=case, reason="\u001b[31mred")
    refused(project.run("-n0", "--waivers=known"), "known.yaml:1: waivers[0].reason: '\\x1b[31mred' has control char")
    reason = "]]></skipped><b>&amp; \u202ered {0} %s [/red]"
    waive(project, case=case, reason=reason)
    first = project.run("-n0", "-rA", "--waivers=known")
    cases = [verdict.case for verdict in first.ledger.verdicts]
    assert len(set(cases)) == 8
    wanted = {**dict.fromkeys(cases, "failed"), cases[0]: "passed", case: "waived"}
    assert first.verdicts == wanted, first.tail()
    check_journal(first)
    assert len(list(first.junit.iter("testcase"))) == 8
    assert not set(first.terminal) & {"\x1b", "\x00", "\r"}
    (skipped,) = first.junit.iter("skipped")
    assert reason.replace("\u202e", "\\u202e") in skipped.attrib["message"]  # what reverses text is escaped
    path = project.folder / "core.txt"
    mustpass.write_must_pass(path, cases)
    again = project.run("-n2", "--waivers=known", "--must-pass=./core.txt")
    assert again.verdicts == wanted
    (finding,) = again.ledger.findings
    assert finding.cases == tuple(sorted(cases[1:]))
