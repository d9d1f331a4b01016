"""pytest's own options, with the harness active, inactive, and disabled."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import RED, Expected, check_journal, compare, compare_junit, expected
from tests.acceptance.project import Result, open_gate

SPREADS = pytest.mark.ways("spread", ["-n0", "-n2"])


def stopped_early(result: Result, wanted: Expected) -> dict[str, str]:
    """Check a run that stopped early: cases that ran have verdicts, the rest are `not_run`, and all are reported."""
    check_journal(result)
    verdicts = result.verdicts
    assert verdicts.keys() == wanted.cases.keys()
    for case, outcome in verdicts.items():
        assert outcome in (wanted.outcomes[case], "not_run")
    compare_junit(result, {case: (outcome, "") for case, outcome in verdicts.items()})
    return verdicts


@SPREADS
def test_exitfirst(make_project: MakeProject, spread: str) -> None:
    project = make_project("mixed")
    result = project.run("-x", spread)
    verdicts = stopped_early(result, expected(project, "batch"))
    assert result.status == 1 if spread == "-n0" else result.status in (1, 2)
    assert "not_run" in verdicts.values()
    if spread == "-n0":
        assert list(verdicts.values()) == ["passed", "crashed", *["not_run"] * (len(verdicts) - 2)]


def test_maxfail(make_project: MakeProject) -> None:
    project = make_project("mixed")
    result = project.run("-n0", "--maxfail=2")
    verdicts = stopped_early(result, expected(project, "batch"))
    assert result.status == 1
    assert [outcome for outcome in verdicts.values() if outcome in RED - {"not_run"}] == ["crashed", "failed"]


@SPREADS
def test_keyword(make_project: MakeProject, spread: str) -> None:
    project = make_project("mixed")
    result = project.run("-k", "parametrised or crashes", spread)
    names = ("test_parametrised[0]", "test_parametrised[1]", "test_parametrised[2]", "test_crashes")
    compare(result, expected(project, "batch").only(names))


@pytest.mark.parametrize(("arguments", "what"), [(("-k", "nothing_like_it"), "deselected"), (("-m", "gpu"), "")])
def test_empty_selection(make_project: MakeProject, arguments: tuple[str, ...], what: str) -> None:
    project = make_project("plain")
    project.write("pytest.ini", (project.folder / "pytest.ini").read_text() + "markers = gpu\n")
    result = project.run(*arguments, "-n0")
    assert result.status == 5, result.tail()
    assert result.verdicts == {}
    assert what in result.terminal
    check_journal(result)
    compare_junit(result, {})


@SPREADS
def test_last_failed(make_project: MakeProject, spread: str) -> None:
    """All red cases run again, whatever the cause, and no others.

    Subtests of unittest are an exception: pytest itself does not remember their failure.
    """
    project = make_project("mixed", "fixtures")
    wanted = expected(project, "batch")
    first = project.run("--lf", spread)
    compare(first, wanted)
    second = project.run("--lf", spread)
    forgotten = "TestSubtests::test_one_fails"
    red = [case for case, outcome in wanted.outcomes.items() if outcome in RED and not case.endswith(forgotten)]
    assert sorted(second.verdicts) == sorted(red), second.tail()
    assert second.verdicts == {case: wanted.outcomes[case] for case in red}


def test_plugins_of_pytests_that_are_switched_off(make_project: MakeProject) -> None:
    """The collecting process gets no option that it does not know."""
    project = make_project()
    project.write("suites/test_it.py", "def test_it(): pass\n")
    names = ("junitxml", "capture", "setuponly", "faulthandler", "logging", "setupplan")
    result = project.run("-n0", *(word for name in names for word in ("-p", f"no:{name}")))
    assert result.status == 0, result.tail()
    assert set(result.verdicts.values()) == {"passed"}


def test_what_stops_the_collecting_process_alone_is_said(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/test_it.py", "def test_it(): pass\n")
    text = "import os, pytest\nif os.environ.get('OMP_WAIT_POLICY'): raise pytest.UsageError('not here')\n"
    project.write("suites/conftest.py", text)
    result = project.run("-n0", env={"OMP_WAIT_POLICY": None})
    assert result.status == 2, result.tail()
    assert "not here" in result.terminal


@pytest.mark.ways("options", [("-n0",), ("-n0", "--isolation=case"), ("-n0", "--start=cold")])
def test_stepwise(make_project: MakeProject, options: tuple[str, ...]) -> None:
    """It continues with the case that was red, before and after its fix, as plain pytest does."""
    project = make_project()
    text = "def test_it(n): assert n != 2 or os.environ.get('MENDED')\n"
    text = f"import os, pytest\n@pytest.mark.parametrize('n', range(5))\n{text}"
    project.write("suites/test_it.py", text)
    counts = []
    for more in (("-p", "no:harness", "-Wignore::pytest.PytestConfigWarning"), options):
        (project.folder / "cache").mkdir()
        cached = ("--sw", "-ocache_dir=cache", *more)
        envs: tuple[dict[str, str], ...] = ({}, {}, {"MENDED": "1"})
        counts += [project.run(*cached, env=env, results_dir=more is options).counts for env in envs]
        shutil.rmtree(project.folder / "cache")
    failed = {"failed": 1, "deselected": 2}
    assert counts[3:] == counts[:3] == [{"failed": 1, "passed": 2}, failed, {"passed": 3, "deselected": 2}]


@SPREADS
def test_own_junit_of_pytest(make_project: MakeProject, spread: str) -> None:
    """pytest's own report is available, too, with each case in it."""
    project = make_project("mixed")
    wanted = expected(project, "batch")
    result = project.run("--junitxml=own.xml", spread)
    compare(result, wanted)
    own = ElementTree.parse(project.folder / "own.xml").getroot()
    names = [element.attrib["name"] for element in own.iter("testcase")]
    assert sorted(names) == sorted(case.split("::")[-1] for case in wanted.cases)
    red = [element for element in own.iter("testcase") if {child.tag for child in element} & {"failure", "error"}]
    assert len(red) == sum(outcome in RED for outcome in wanted.outcomes.values())


def test_reasons_are_shown(make_project: MakeProject) -> None:
    project = make_project("mixed", "verdicts")
    result = project.run("-n0", "-ra")
    compare(result, expected(project, "batch"))
    assert "not today" in result.terminal
    assert "memory: wanted >=1000TiB, found" in result.terminal


@pytest.mark.parametrize(
    ("option", "name", "outcome"), [("--pdb", "test_fails", "failed"), ("--trace", "test_passes", "passed")]
)
def test_isolation_steps_aside(make_project: MakeProject, option: str, name: str, outcome: str) -> None:
    """Options that need the case in pytest's process get it; standard input is closed, so a debugger exits."""
    project = make_project("plain")
    result = project.run(option, "-n0", "-k", name)
    assert f"isolation none (for {option})" in result.terminal
    assert not any(line["event"] == "executor" for line in result.lines)
    check_journal(result)
    assert "(Pdb)" in result.terminal
    assert result.status == (2 if outcome == "failed" else 0), result.tail()
    assert {*result.verdicts.values()} == {outcome}, "a quit debugger is no fault of the harness"


PRINTS = """
import ctypes, os, pathlib, sys

def test_prints():
    print("said by the case")
    print("said as an error", file=sys.stderr)
    os.close(os.open(os.environ["PROBE_DIR"] + "/gate", os.O_RDONLY))

def test_fails():
    print("said before a failure")
    assert 0

def test_dies():
    print("said before a null read")
    ctypes.string_at(0)
"""


@SPREADS
def test_output_is_shown_at_once_with_s(make_project: MakeProject, spread: str) -> None:
    """Isolation stays: a null read does not end the session."""
    project = make_project()
    project.write("suites/test_prints.py", PRINTS)
    (project.folder / "probe").mkdir()
    os.mkfifo(project.folder / "probe" / "gate")
    running = project.start("-s", spread, "--leak-check=off")  # otherwise a case may run again, and wait again
    running.wait_for(lambda: "said by the case" in running.terminal(), "output of a case that still runs")
    running.wait_for(lambda: "said as an error" in running.terminal(), "output of a case that still runs")
    open_gate(running, project.folder / "probe" / "gate")
    result = running.result()
    assert [*result.verdicts.values()] == ["passed", "failed", "crashed"], result.tail()
    for text in ("said by the case", "said as an error", "said before a failure"):
        assert result.terminal.count(f"{text}\n") == 1, result.tail()
    # The case that dies runs once more, alone, if its process had run others.
    assert result.terminal.count("said before a null read\n") in (1, 2)


def test_setup_plan(make_project: MakeProject) -> None:
    project = make_project("fixtures")
    result = project.run("--setup-plan", "-n0")
    assert "isolation none (for --setup-" in result.terminal
    assert "SETUP    S in_session" in result.terminal
    assert project.probe_names() == []
    check_journal(result)


def test_without_the_plugin(make_project: MakeProject) -> None:
    """``-p no:harness`` is plain pytest: no run directory, no output of the harness, pytest's own counts."""
    project = make_project("plain")
    project.write("pytest.ini", "[pytest]\n")
    before = set(project.folder.iterdir())
    result = project.run("-p", "no:harness")
    assert result.status == 1
    assert result.counts == {"passed": 2, "failed": 1, "skipped": 1, "xfailed": 1}
    assert "harness" not in result.terminal.replace(str(project.folder), "")
    assert {path.name for path in set(project.folder.iterdir()) - before} <= {f"{result.run_dir.name}.out", "probe"}


def test_collect_only(make_project: MakeProject) -> None:
    """Listing the cases runs none, and creates no run directory."""
    project = make_project("mixed")
    result = project.run("--collect-only", "-q", "-n0")
    assert result.status == 0
    assert not result.run_dir.exists()
    listed = [line for line in result.terminal.splitlines() if "::" in line]
    assert sorted(listed) == sorted(expected(project, "batch").cases)


def test_default_run_directory(make_project: MakeProject) -> None:
    """Without options, the harness runs the cases under its suites, and names the run directory itself."""
    project = make_project("plain")
    project.write("elsewhere/test_elsewhere.py", "def test_other():\n    pass\n")
    result = project.run("-n0", suites=".", results_dir=False)
    made = [path for path in (project.folder / "results").iterdir() if path.is_dir()]
    assert len(made) == 1
    inside = Result(result.status, result.terminal, made[0], result.seconds)
    assert result.counts["passed"] == 3
    assert inside.verdicts == expected(project, "batch").outcomes
    assert {path.name for path in made[0].iterdir()} >= {"journal.ndjson", "junit.xml", "environment.json"}
    json.loads((made[0] / "environment.json").read_text())


@pytest.mark.ways(
    ("mark", "complaint", "spread"),
    [
        ("requires(flux_capacitor=True)", "flux_capacitor", "-n0"),
        ("requires(memory='much')", "much", "-n0"),
        ("requires('cuda')", "cuda", "-n0"),
        ("timeout('soon')", "soon", "-n0"),
        ("timeout(-1)", "-1", "-n2"),
        ("timeout()", "number of seconds", "-n0"),
    ],
)
def test_malformed_mark(make_project: MakeProject, mark: str, complaint: str, spread: str) -> None:
    """It is a collection error that names file and case: no case runs, and none is green."""
    project = make_project("plain")
    project.write(
        "suites/plain/test_malformed.py",
        f"import pytest\n\n@pytest.mark.{mark}\n@pytest.mark.parametrize('n', [7])\ndef test_marked(n):\n    pass\n",
    )
    result = project.run(spread)
    assert result.status == 2 if spread == "-n0" else result.status in (1, 2)
    assert "suites/plain/test_malformed.py::test_marked[7]" in result.terminal
    assert complaint in result.terminal
    assert "passed" not in result.terminal
    check_journal(result)


@pytest.mark.parametrize("what", ["suites", "suites/test_it.py", "suites/test_it.py::test_it"])
def test_a_profile_that_selects_nothing(make_project: MakeProject, what: str) -> None:
    project = make_project()
    project.write("suites/test_it.py", "def test_it(): pass\n")
    project.write("configs/profiles/small.yaml", "description: x\ncases: ['*::test_is']\n")
    result = project.run("-n0", "--profile=small", suites=what)
    assert result.status == 1, result.tail()
    assert "FINDING profile_matches_nothing: " in result.terminal
    assert "small.yaml" in result.terminal


def test_time_limits(make_project: MakeProject) -> None:
    """The mark overrides the command line, which overrides the environment; the multiplier applies to all of them."""
    project = make_project("limits")
    result = project.run(
        "-n0", "--isolation=case", "--case-timeout=0.4", "--timeout-multiplier=2", env={"HARNESS_CASE_TIMEOUT": "100"}
    )
    compare(result, expected(project, "case"), alone=True)


@pytest.mark.nightly
@pytest.mark.ways("isolation", ["batch", "case"])
def test_a_case_that_had_no_processor_says_so(make_project: MakeProject, isolation: str) -> None:
    """A runnable case that gets no processor reports this at its limit; one that waits for an event does not."""
    project = make_project()
    project.write(
        "suites/slow/test_slow.py",
        """
import os
import threading

def test_waits():
    threading.Event().wait()

def test_starves():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if not os.fork():
        while True:  # this process takes the processor
            pass
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        pass
""",
    )
    result = project.run("-n0", f"--isolation={isolation}", "--case-timeout=6")
    messages = {line["case"].split("::")[1]: line["message"] for line in result.lines if line["event"] == "finish"}
    assert messages["test_waits"] == "did not finish within 6 s (in call)"
    begin, _, reason = messages["test_starves"].partition("; ")
    assert begin == messages["test_waits"]
    assert re.fullmatch("the machine was too busy: of [0-9]+ s, it waited [0-9]+ s for a processor", reason)


@pytest.mark.parametrize("options", [(), ("--fail-on-flaky",)])
def test_flaky_is_green_and_on_request_red(make_project: MakeProject, options: tuple[str, ...]) -> None:
    project = make_project("flaky")
    result = project.run("-n0", *options)
    wanted = replace(expected(project, "batch"), options=options)
    assert wanted.status() == len(options)
    compare(result, wanted)
    attempts = [line for line in result.lines if line["event"] == "finish" and line["case"].endswith("::test_flaky")]
    assert [(line["outcome"], line["alone"], line["final"]) for line in attempts] == [
        ("crashed", False, False),
        ("passed", True, True),
    ]


@pytest.mark.parametrize("spread", ["-n0", "-n2"])
def test_an_unknown_operator_is_a_usage_error(make_project: MakeProject, spread: str) -> None:
    project = make_project()
    text = "import pytest\n\n@pytest.mark.operator('nn.functional.conv2d')\ndef test_it(): pass\n"
    project.write("suites/test_it.py", text)
    result = project.run("--operators=nn.functional.conv", spread)
    assert result.status == 4, result.tail()
    wanted = "expected an operator that a case of this run tests: did you mean nn.functional.conv2d?"
    assert result.terminal.count(f"ERROR: --operators='nn.functional.conv': {wanted}") == 1
    assert "INTERNALERROR" not in result.terminal


def test_a_red_case_is_not_repeated_in_the_short_summary(make_project: MakeProject) -> None:
    """A failed test that is no case is named there, since the harness's summary has cases only."""
    project = make_project()
    project.write("suites/own/test_own.py", "def test_red(): assert 0\n")
    project.write("other/test_plain.py", "def test_plain(): assert 0\n")
    assert project.run("-n0").terminal.count("FAILED suites/own/test_own.py::test_red") == 1
    assert project.run("-n0", "-rf").terminal.count("FAILED suites/own/test_own.py::test_red") == 2
    assert "FAILED other/test_plain.py::test_plain" in project.run("other", "-n0").terminal


@SPREADS
def test_a_run_writes_the_reports_that_are_asked_for(make_project: MakeProject, spread: str) -> None:
    project = make_project()
    project.write("suites/test_it.py", "def test_it(): pass\ndef test_red(): assert 0\n")
    result = project.run(spread, "--report=json", "--report", "prometheus:numbers.prom")
    assert result.status == 1, result.tail()
    report = json.loads((result.run_dir / "report.json").read_text())
    assert [(case["outcome"], case["red"]) for case in report["cases"]] == [("passed", False), ("failed", True)]
    assert "harness_run_red_cases 1" in (project.folder / "numbers.prom").read_text()
    again = project.run(spread, "--report=yaml")
    assert again.status == 4
    assert "--report='yaml': there is no report format 'yaml': expected json, markdown, prometheus" in again.terminal
