"""Processes that grow over many cases, none of which grows enough to be checked individually."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal
from tests.acceptance.project import Project, Result, paste
from tests.acceptance.rules import command, kinds

SPREAD = ["-n0", "-n2"]
MALLOC = "suites/batch_malloc/test_malloc.py::test_case[15]"
MAPPING = "suites/batch_mapping/test_mapping.py::test_case[3]"
PAIR = ("suites/batch_pair/test_pair.py::test_makes_a_list", "suites/batch_pair/test_pair.py::test_adds_to_it")
HEAP = "100.0 KiB more malloc memory of C code, NumPy or torch on the CPU per round over 9 rounds"
#: On a busy machine, the default limit for these short runs is too short for the search.
SEARCH = "--leak-search=600"


def batches(result: Result) -> list[dict[str, Any]]:
    return [line for line in result.lines if line["event"] == "batch"]


def finals(result: Result, case: str) -> list[dict[str, Any]]:
    return [line for line in result.lines if line["event"] == "finish" and line["case"] == case and line["final"]]


def expect_one_leaks(result: Result, case: str, message: str) -> dict[str, Any]:
    """Check that one case has leaked and all others have passed; return the case's last line in the journal."""
    left = {name: outcome for name, outcome in result.verdicts.items() if outcome != "passed"}
    assert left == {case: "leaked"}, result.tail()
    assert result.status == 1
    assert kinds(result) == []
    check_journal(result)
    first, last = finals(result, case)
    assert (first["outcome"], last["outcome"]) == ("passed", "leaked")
    assert last["alone"]
    assert last["message"].startswith(message)
    assert f"leaked: {message}" in result.terminal
    assert last["reproduce"].startswith(f"pytest '{case}' ")
    assert " --isolation=batch --leak-check=full --repeat=" in last["reproduce"]
    failures = [element for element in result.junit.iter("testcase") if element.find("failure") is not None]
    assert [element.attrib["name"] for element in failures] == [case.rpartition("::")[2]]
    (leaky,) = [line for line in batches(result) if line["leaks"]]
    assert case in leaky["cases"]
    assert leaky["leaks"] == [f"{case} leaks: {last['message']}"]
    assert f"run again because a process that ran {len(leaky['cases'])} cases had grown" in last["notes"]
    return last


@pytest.mark.nightly
@pytest.mark.ways("spread", SPREAD)
def test_a_case_that_leaks_a_little_each_time(make_project: MakeProject, spread: str) -> None:
    project = make_project("batch_malloc")
    result = project.run(spread, SEARCH)
    last = expect_one_leaks(result, MALLOC, HEAP)
    assert len(result.verdicts) == 24
    assert paste(project, f"{last['reproduce']} {SEARCH}").verdicts == {MALLOC: "leaked"}


RAISES = """\
import pytest

FILES = {}
MORE = []


def test_before():
    pass


def test_red():
    FILES.setdefault("red", bytearray(200_000))  # more than pytest keeps to show its first errors
    raise ValueError("red")


@pytest.mark.xfail(reason="known", strict=True)
def test_expected():
    FILES.setdefault("expected", bytearray(200_000))
    raise ValueError("expected")


def test_after():
    KEEPS
"""


@pytest.mark.parametrize("keeps", ["pass", "MORE.append(bytearray(200_000))"])
def test_what_pytest_keeps_of_an_error_is_no_growth(make_project: MakeProject, keeps: str) -> None:
    """pytest keeps it once. Memory that a passed case keeps is searched for."""
    project = make_project()
    project.write("suites/raises/test_raises.py", RAISES.replace("KEEPS", keeps))
    result = project.run("-n0", SEARCH)
    outcomes = {case.rpartition("::")[2]: outcome for case, outcome in result.verdicts.items()}
    assert (outcomes["test_red"], outcomes["test_expected"]) == ("failed", "waived")
    assert outcomes["test_after"] == ("passed" if keeps == "pass" else "leaked")
    assert bool(batches(result)) == (keeps != "pass"), result.tail()
    check_journal(result)


@pytest.mark.ways("spread", SPREAD)
def test_a_case_that_maps_some_memory_each_time(make_project: MakeProject, spread: str) -> None:
    result = make_project("batch_mapping").run(spread, SEARCH)
    last = expect_one_leaks(
        result,
        MAPPING,
        "3.0 MiB more address space outside malloc (mmap, thread stacks, Python arenas, libraries) per round",
    )
    # Python may also have taken an arena of 1 MiB, or have freed one.
    assert {f"mapped_bytes: {size}.0 MiB of anonymous memory" for size in (26, 27, 28)} & set(last["notes"])


@pytest.mark.nightly
@pytest.mark.parametrize("spread", [("-n0",), ("-n2", "--dist=loadfile")])  # other distributions may part the two
def test_two_cases_that_leak_together(make_project: MakeProject, spread: tuple[str, ...]) -> None:
    """Neither leaks alone: a finding names both, with the amount and the allocating line.

    The finding's shell line finds the same.
    """
    project = make_project("batch_pair")
    result = project.run(*spread, SEARCH)
    assert set(result.verdicts.values()) == {"passed"}, result.tail()
    assert len(result.verdicts) == 24
    assert result.status == 1
    check_journal(result)
    (finding,) = result.ledger.findings
    assert finding.kind == "batch_leak"
    assert finding.cases == PAIR
    amount = re.match(
        rf"{PAIR[1]} leaks only in one process with {PAIR[0]}: ([\d.]+)( KiB more malloc.*)", finding.message
    )
    assert amount is not None, finding.message
    assert 99 < float(amount[1]) < 102  # C code may keep a little in addition to the 100 KiB
    assert amount[2].startswith(HEAP.removeprefix("100.0")), finding.message
    assert "suites/batch_pair/test_pair.py:21" in finding.message
    assert f"FINDING batch_leak: {PAIR[1]} leaks only in one process with {PAIR[0]}" in result.terminal
    assert finding.reproduce is not None
    assert f"\n    {finding.reproduce}\n" in result.terminal
    assert finding.reproduce in "".join(result.junit.itertext())
    status, reported = command(project, "report", str(result.run_dir))
    assert (status, f"\n    {finding.reproduce}\n" in reported) == (1, True), reported
    pasted = paste(project, finding.reproduce)
    (again,) = pasted.ledger.findings
    assert (again.kind, again.cases) == ("batch_leak", PAIR), pasted.tail()
    assert [*pasted.verdicts] == [*PAIR]


@pytest.mark.ways("spread", SPREAD)
def test_caches_and_first_uses_are_suspected_and_acquitted(make_project: MakeProject, spread: str) -> None:
    result = make_project("batch_innocents").run(spread, SEARCH)
    assert set(result.verdicts.values()) == {"passed"}, result.tail()
    assert kinds(result) == []
    assert result.status == 0
    check_journal(result)
    looked = batches(result)
    assert looked
    for line in looked:
        assert line["suspicions"].keys() == {"heap_bytes"}
        assert (line["trials"], line["leaks"], line["failure"]) == (1, [], "")


def test_several_leaks_in_one_batch_are_distinguished(make_project: MakeProject) -> None:
    result = make_project("batch_malloc", "batch_mapping", "batch_pair").run("-n0", SEARCH)
    assert {case for case, outcome in result.verdicts.items() if outcome == "leaked"} == {MALLOC, MAPPING}
    (finding,) = result.ledger.findings
    assert finding.cases == PAIR
    (line,) = batches(result)
    assert "heap_bytes" in line["suspicions"]
    assert len(line["leaks"]) == 3


def test_what_the_next_case_gives_back_is_no_leak(make_project: MakeProject) -> None:
    """Two tables stay, so that there is growth to search for."""
    project = make_project()
    project.write(
        "suites/passing/test_passing.py",
        """
PASSING, TABLES = [], []

def test_takes():
    PASSING.append(bytearray(100 << 10))

def test_gives_back():
    PASSING.clear()

def test_makes_a_table():
    if not TABLES:
        TABLES.append(bytearray(200 << 10))

def test_makes_another():
    if len(TABLES) < 2:
        TABLES.append(bytearray(200 << 10))
""",
    )
    result = project.run("-n0", SEARCH)
    assert set(result.verdicts.values()) == {"passed"}, result.tail()
    (line,) = batches(result)
    assert (line["trials"], line["leaks"]) == (1, [])


@pytest.mark.parametrize("arguments", [("--isolation=case",), ("--leak-check=off",)])
def test_nothing_is_found_where_nothing_is_compared(make_project: MakeProject, arguments: tuple[str, ...]) -> None:
    """With one process per case, no process grows over several; and the check can be switched off."""
    result = make_project("batch_malloc", "batch_pair").run("-n0", *arguments)
    assert set(result.verdicts.values()) == {"passed"}, result.tail()
    assert kinds(result) == []
    assert batches(result) == []


def test_what_has_leaked_by_itself_is_not_looked_into_again(make_project: MakeProject) -> None:
    """A case that is found alone ends its process; the batch before it is innocent."""
    project = make_project("batch_mapping")
    project.write(
        "suites/large/test_large.py",
        """
import pytest

KEPT = []

@pytest.mark.parametrize("n", range(6))
def test_large(n):
    if n == 4:
        KEPT.append(bytearray(8 << 20))
""",
    )
    result = project.run("-n0", "-k", "large", SEARCH)
    assert {case for case, outcome in result.verdicts.items() if outcome == "leaked"} == {
        "suites/large/test_large.py::test_large[4]"
    }
    assert batches(result) == []


def test_a_trial_that_dies_accuses_nobody(make_project: MakeProject) -> None:
    """A case kills its process when it runs again: the suspicion remains unconfirmed, and is reported as such."""
    project = make_project("batch_malloc")
    project.write(
        "suites/dies/test_dies.py",
        """
import os
import signal

RUNS = []

def test_dies_the_second_time():
    RUNS.append(1)
    if len(RUNS) > 1:
        os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    result = project.run("-n0", SEARCH)
    assert set(result.verdicts.values()) == {"passed"}, result.tail()
    assert kinds(result) == []
    (line,) = batches(result)
    assert line["leaks"] == []
    assert line["failure"] == "a process that ran 25 of the cases again: SIGKILL"
    check_journal(result)


def test_a_waived_leak_stays_waived(make_project: MakeProject) -> None:
    """A case that is expected to leak runs apart, so it does not add to another batch's growth."""
    project = make_project()
    project.write(
        "suites/waived/test_waived.py",
        """
import ctypes
import pytest

MALLOC = ctypes.CDLL(None).malloc
MALLOC.restype = ctypes.c_void_p
MALLOC.argtypes = [ctypes.c_size_t]

@pytest.mark.leaks("known", link="https://example.org/1")
def test_known():
    assert MALLOC(1 << 20)

@pytest.mark.parametrize("n", range(8))
def test_other(n):
    pass
""",
    )
    result = project.run("-n0", SEARCH)
    assert result.verdicts.pop("suites/waived/test_waived.py::test_known") == "waived", result.tail()
    assert batches(result) == []


def test_a_case_that_keeps_for_no_reason_is_refused(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/bad/test_bad.py", "import pytest\n@pytest.mark.keeps()\ndef test_a(): pass\n")
    result = project.run("-n0", SEARCH)
    assert result.status == pytest.ExitCode.INTERRUPTED
    assert "suites/bad/test_bad.py:2: keeps(...) needs one reason" in result.tail()


SLOW = """
import ctypes
import time
import pytest

MALLOC = ctypes.CDLL(None).malloc
MALLOC.restype = ctypes.c_void_p
MALLOC.argtypes = [ctypes.c_size_t]

@pytest.mark.parametrize("n", range(12))
def test_slow(n):
    time.sleep(0.3)

def test_leaks():
    time.sleep(PAUSE)
    assert MALLOC(SIZE << 10)

def test_last():
    pass
"""
LEAKS = "suites/slow/test_slow.py::test_leaks"


def slow(make_project: MakeProject, *, pause: float, size: int = 200) -> Project:
    project = make_project()
    project.write("suites/slow/test_slow.py", SLOW.replace("PAUSE", str(pause)).replace("SIZE", str(size)))
    return project


def test_without_time_for_a_search_growth_is_reported_and_not_red(make_project: MakeProject) -> None:
    result = make_project("batch_malloc").run("-n0", "--leak-search=off")
    assert set(result.verdicts.values()) == {"passed"}, result.tail()
    assert (result.status, kinds(result)) == (0, [])
    (line,) = batches(result)
    assert (line["trials"], line["tried"], line["leaks"], line["failure"]) == (0, 0, [], "--leak-search=off")
    reported = "over 24 cases, not shown to be a leak: none of them ran again; --leak-search=off"
    assert "GREW executor main-e1 by " in result.terminal
    assert reported in result.terminal
    assert reported in (result.run_dir / "report.html").read_text(encoding="utf-8")
    assert "leak search" not in result.terminal.partition("isolation: ")[2]
    check_journal(result)


@pytest.mark.nightly
def test_a_batch_too_large_for_the_time_is_searched_case_by_case(make_project: MakeProject) -> None:
    """Rounds of all cases would take 43 s, so only the case that grew most is tried."""
    result = slow(make_project, pause=0).run("-n0", "--leak-search=30")
    left = {case: verdict for case, verdict in result.verdicts.items() if verdict != "passed"}
    assert left == {LEAKS: "leaked"}, result.tail()
    (line,) = batches(result)
    assert (line["tried"], line["failure"]) == (1, "")
    assert ", 1 leak search in " in result.terminal.partition("isolation: ")[2]
    check_journal(result)


def test_a_search_that_does_not_fit_into_its_time_is_given_up_and_reported(make_project: MakeProject) -> None:
    result = slow(make_project, pause=0.3).run("-n0", "--leak-search=2")
    assert set(result.verdicts.values()) == {"passed"}, result.tail()
    assert (result.status, kinds(result)) == (0, [])
    (line,) = batches(result)
    assert (line["leaks"], line["unproven"], line["tried"]) == ([], [], 0)
    assert line["failure"].startswith("one of 12 rounds of 1 case takes ")
    assert line["failure"].endswith(" left for leak searches; --leak-search=SECONDS gives more")
    assert (
        f"not shown to be a leak: 0 of them ran again in {line['seconds']:.1f} s; {line['failure']}" in result.terminal
    )


@pytest.mark.ways(("seconds", "verdict"), [(1, "passed"), (600, "leaked")])
def test_the_growth_of_one_case_is_confirmed_within_the_same_time(
    make_project: MakeProject, seconds: int, verdict: str
) -> None:
    project = slow(make_project, pause=0.2, size=300)
    result = project.run("-n0", "-k", "leaks", f"--leak-search={seconds}")
    assert result.verdicts == {LEAKS: verdict}, result.tail()
    (last,) = finals(result, LEAKS)
    unknown = "a suspected leak could not be confirmed: the 1 s for leak searches are used up; --leak-search=SECONDS"
    assert any(unknown in note for note in last.get("notes", ())) == (verdict == "passed")


@pytest.mark.ways("spread", SPREAD)
def test_every_case_has_its_verdict_before_a_search_begins(make_project: MakeProject, spread: str) -> None:
    """This also holds if the process that grew has already ended, because the next case needs its own."""
    project = make_project("batch_malloc")
    mark = '@pytest.mark.leaks("known", link="https://example.org/1")'
    keeps = "KEPT.append(bytearray(1 << 20))"
    project.write("suites/own/test_own.py", f"import pytest\nKEPT = []\n{mark}\ndef test_own():\n    {keeps}\n")
    result = project.run(spread, SEARCH)
    assert result.verdicts[MALLOC] == "leaked", result.tail()
    searches = [
        number
        for number, line in enumerate(result.lines)
        if line["event"] == "activity" and line["what"].startswith("searching for leaks")
    ]
    before = {line["case"] for line in result.lines[: searches[0]] if line["event"] == "finish" and line["final"]}
    if spread == "-n0":  # with several workers, each searches after its own cases
        assert before == result.verdicts.keys()
    assert MALLOC in before


@pytest.mark.nightly
def test_a_long_list_of_cases_is_a_file(make_project: MakeProject) -> None:
    """Of twelve cases, each leaks too little to be found alone: the command names a file, and finds the same."""
    project = make_project()
    project.write(
        "suites/many/test_many.py",
        """
import ctypes
import pytest

MALLOC = ctypes.CDLL(None).malloc
MALLOC.restype = ctypes.c_void_p
MALLOC.argtypes = [ctypes.c_size_t]

@pytest.mark.parametrize("n", range(12))
def test_leaks_a_part(n):
    assert MALLOC(30 << 10)
""",
    )
    result = project.run("-n0", SEARCH)
    (finding,) = result.ledger.findings
    assert len(finding.cases) == 12
    assert finding.message.startswith("these 12 cases leak together, each of them a part; the first is suites/many/")
    assert finding.reproduce is not None
    assert max(map(len, result.terminal.splitlines())) < 700
    listed = result.run_dir / "cases" / "main-e1-12.txt"
    assert listed.read_text().splitlines() == list(finding.cases)
    (again,) = paste(project, f"{finding.reproduce} {SEARCH}").ledger.findings
    assert (again.kind, again.cases) == ("batch_leak", finding.cases)
