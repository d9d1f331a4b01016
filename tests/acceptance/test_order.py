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


TRIES = """
import os
import signal
from pathlib import Path

EXPECTED = {
    "test_passes": "passed",
    "test_passes_at_last": {
        "batch": "flaky: failed after other cases, passed alone: assert 1 >= 2",
        "case": "flaky: failed at first, passed on retry: assert 1 >= 2",
    },
    "test_never": "failed: assert 1 == 2",
    "test_between": "passed",
    "test_crashes_once": {
        "batch": "flaky: crashed after other cases, passed",
        "case": "flaky: crashed at first, passed",
    },
    "test_between_again": "passed",
    "test_crashes": "crashed: SIGKILL in call",
    "test_waived": "waived: waived: known",
    "test_last": "passed",
}

def times(name):
    with (Path(os.environ["PROBE_DIR"]) / name).open("a+") as file:
        file.write(f"{os.getpid()}\\n")
        file.seek(0)
        return len(file.readlines())

def test_passes(): pass
def test_passes_at_last():
    number = times("at_last")
    assert number >= 2
def test_never():
    times("never")
    assert 1 == 2
def test_between(): pass
def test_crashes_once():
    if times("once") == 1: os.kill(os.getpid(), signal.SIGKILL)
def test_between_again(): pass
def test_crashes():
    times("crashes")
    os.kill(os.getpid(), signal.SIGKILL)
def test_waived():
    times("waived")
    assert 1 == 3
def test_last(): pass
"""


def attempts(result: Result, name: str) -> list[tuple[str, bool]]:
    """Return the outcome of each attempt at a case, and whether it was final."""
    lines = [line for line in result.lines if line["event"] == "finish" and line["case"].endswith(f"::{name}")]
    assert [line["attempt"] for line in lines] == list(range(1, len(lines) + 1))
    return [(line["outcome"], line["final"]) for line in lines]


@MODES
def test_red_cases_are_tried_again(make_project: MakeProject, mode: str) -> None:
    """Each attempt has a fresh process, until one passes. Waived outcomes are not retried."""
    project = make_project()
    project.write("suites/tries/test_tries.py", TRIES)
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


def test_flaky_cases_are_red_on_request(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/tries/test_tries.py", TRIES)
    result = project.run("-n0", "--retries=2", "--fail-on-flaky", "-k", "at_last")
    assert result.status == 1
    wanted = expected(project, "case").only(("test_passes_at_last",))
    compare(result, wanted, fail_on_flaky=True)


REPEATED = """
import os
import signal
from pathlib import Path
import pytest

EXPECTED = {
    "test_passes": "passed",
    "test_fails_the_second_time": "failed: failed in 1 of 3 repetitions: assert 2 != 2",
    "test_fails": "failed: failed in 3 of 3 repetitions: assert 1 == 2",
    "test_waived": "waived: waived: known",
    "test_skips": "skipped: skipped in 3 of 3 repetitions",
}

def note(name, what):
    with (Path(os.environ["PROBE_DIR"]) / name).open("a+") as file:
        file.write(f"{what}\\n")
        file.seek(0)
        return len(file.readlines())

@pytest.fixture(scope="module", autouse=True)
def ground():
    note("ground", f"up {os.getpid()}")
    yield
    note("ground", f"down {os.getpid()}")

def test_passes(): pass
def test_fails_the_second_time():
    number = note("second", "run")
    assert number != 2
def test_fails(): assert 1 == 2
def test_waived(): assert note("waived", "run") != 2
def test_skips(): pytest.skip("not today")
"""


@MODES
def test_every_repetition_counts(make_project: MakeProject, mode: str) -> None:
    """A case passes if it passes each time, with new fixtures each time."""
    project = make_project()
    project.write("suites/again/test_again.py", REPEATED)
    waive(project, case="*::test_waived")
    result = project.run("-n0", f"--isolation={mode}", "--repeat=3", "--waivers=known")
    wanted = expected(project, mode)
    check_journal(result)
    found = {verdict.case: (verdict.outcome.value, verdict.message) for verdict in result.ledger.verdicts}
    assert {case: outcome for case, (outcome, _) in found.items()} == wanted.outcomes, result.tail()
    assert [found[case][1].startswith(words) for case, (_, words) in wanted.cases.items()] == [True] * 5, found
    finals = [line["case"] for line in result.lines if line["event"] == "finish" and line["final"]]
    assert finals == [case for case in wanted.cases for _ in range(3)]
    ground = project.probe("ground")
    ups = [line.split() for line in ground]
    assert [word for word, _ in ups] == ["up", "down"] * (len(ups) // 2)
    assert len(ups) // 2 == 15 - (4 if mode == "batch" else 0)  # the last repetition hands on to the next case
    assert len({pid for _, pid in ups}) == (1 if mode == "batch" else 15)
    assert result.status == 1


CRASHES = """
import os
import signal
from pathlib import Path

EXPECTED = {"test_before": "passed", "test_crashes": "crashed: crashed in 1 of 3 repetitions: SIGKILL in call"}

def test_before(): pass
def test_crashes():
    with (Path(os.environ["PROBE_DIR"]) / "runs").open("a+") as file:
        file.write("run\\n")
        file.seek(0)
        number = len(file.readlines())
    if number in (2, 3):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_repetition_that_crashes(make_project: MakeProject) -> None:
    """The crash after other cases is confirmed alone, and the repetitions continue."""
    project = make_project()
    project.write("suites/again/test_again.py", CRASHES)
    result = project.run("-n0", "--repeat=3")
    verdict = result.ledger.verdicts[1]
    assert (verdict.outcome, verdict.message) == ("crashed", "crashed in 1 of 3 repetitions: SIGKILL in call")
    crashing = [("passed", True), ("crashed", False), ("crashed", True), ("passed", True)]
    assert attempts(result, "test_crashes") == crashing
    assert result.counts == {"failed": 1, "passed": 1}
    assert result.status == 1


VERIFIED = """
import os
import signal
from pathlib import Path
import pytest

EXPECTED = {
    "test_good": "passed: verified: passed 6 times, the slowest in ",
    "test_keeps_state": "failed: not verified: passed 1 of 3 times in one process and 3 of 3 times in fresh",
    "test_comes_and_goes": "failed: not verified: passed 3 of 3 times in one process and 2 of 3 times in fresh p",
    "test_crashes_once": "failed: not verified: passed 2 of 3 times in one process and 3 of 3 times in fresh",
    "test_skips": "skipped: Skipped: not today",
    "test_expected": "waived: expected failure: known",
    "test_gated": "gated: memory",
}

def times(name):
    with (Path(os.environ["PROBE_DIR"]) / name).open("a+") as file:
        file.write(f"{os.getpid()}\\n")
        file.seek(0)
        return len(file.readlines())

STATE = []

def test_good(): times("good")
def test_keeps_state():
    STATE.append(1)
    assert len(STATE) == 1
def test_comes_and_goes():
    assert times("comes") != 5
def test_crashes_once():
    if times("once") == 2: os.kill(os.getpid(), signal.SIGKILL)
def test_skips(): pytest.skip("not today")
@pytest.mark.xfail(reason="known")
def test_expected(): assert 1 == 2
@pytest.mark.requires(memory=">=1000TiB")
def test_gated(): pass
"""


@MODES
@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_verify(make_project: MakeProject, mode: str, spread: str) -> None:
    """Cases that keep state, flaky cases and crashes are found, in loops in one process and then in fresh ones."""
    project = make_project()
    project.write("suites/new/test_new.py", VERIFIED)
    result = project.run(spread, f"--isolation={mode}", "--verify=3")
    wanted = expected(project, mode)
    check_journal(result)
    found = {verdict.case: (verdict.outcome.value, verdict.message) for verdict in result.ledger.verdicts}
    wrong = {
        case: found[case] for case, (outcome, words) in wanted.cases.items() if not said(found[case], outcome, words)
    }
    assert not wrong, result.tail()
    assert result.status == 1
    pids = project.probe("good")
    runs = [line for line in result.lines if line.get("case") == "suites/new/test_new.py::test_good"]
    assert len(pids) == 6, runs
    assert len(set(pids[:3])) == 1
    assert len(set(pids)) == 4
    assert "VERIFIED suites/new/test_new.py::test_good - verified: passed 6 times, the slowest in " in result.terminal
    assert result.counts == {"passed": 1, "failed": 3, "skipped": 1, "xfailed": 1, "gated": 1}


def said(found: tuple[str, str], outcome: str, words: str) -> bool:
    return found[0] == outcome and found[1].startswith(words)


SLOW = """
import time
import pytest

@pytest.mark.timeout(3)
def test_slow():
    ends = time.monotonic() + 2.5
    while time.monotonic() < ends:
        pass
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


HOSTILE = """
import pytest

@pytest.mark.parametrize("text", [
    "plain", "a 'b' \\"c\\"", "<a href='x'>&amp;</a>", "[x][",
    "one\\ntwo\\r\\x1b[31m\\x00", "größe\\u2028\\U0001f600", "::", "*?",
])
def test_größe(text):
    if text != "plain":  # pytest prints the texts that a comparison was of as they are
        raise AssertionError(repr(text))
"""


def test_ids_and_texts_that_try_to_break_reports(make_project: MakeProject) -> None:
    """Quotes, brackets, line ends, escapes and XML in ids, and in a waiver's reason."""
    project = make_project()
    project.write("suites/hostile/test_hostile.py", HOSTILE)
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
