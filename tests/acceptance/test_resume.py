"""A resumed run: finished verdicts are replayed, the remaining cases run, and none runs twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.journal.journal import FILE_NAME
from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal
from tests.acceptance.project import Project, Result, Running, interrupt
from tests.acceptance.rules import command, configure

WAITS = "::test_waits"
SPREADS = pytest.mark.ways("spread", ["-n0", "-n2"])
SUITE = """
import os
import signal
import time
from pathlib import Path

import pytest

FOLDER = Path(os.environ["PROBE_DIR"])

@pytest.fixture(scope="module", autouse=True)
def ground():
    yield

@pytest.fixture(autouse=True)
def ran(request):
    with (FOLDER / "ran").open("a") as file:
        file.write(request.node.name + "\\n")

@pytest.fixture
def broken():
    raise ValueError("no ground")

@pytest.mark.parametrize("number", range(4))
def test_before(number): pass
def test_fails(): assert 1 == 2
def test_error(broken): pass
def test_crashes(): os.kill(os.getpid(), signal.SIGSEGV)
def test_skips(): pytest.skip("not now")
@pytest.mark.xfail(reason="known")
def test_expected(): assert 1 == 2
@pytest.mark.requires(memory=">=1000TiB")
def test_gated(): pass
def test_waits():
    (FOLDER / f"waits-{os.getpid()}").touch()
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
@pytest.mark.parametrize("number", range(int(os.environ.get("AFTER", "4"))))
def test_after(number): pass
"""
OUTCOMES = {
    **{f"test_before[{number}]": "passed" for number in range(4)},
    "test_fails": "failed",
    "test_error": "error",
    "test_crashes": "crashed",
    "test_skips": "skipped",
    "test_expected": "waived",
    "test_gated": "gated",
    "test_waits": "passed",
    **{f"test_after[{number}]": "passed" for number in range(4)},
}
COUNTS = {"failed": 2, "passed": 9, "skipped": 1, "xfailed": 1, "error": 1, "gated": 1}


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    project = make_project()
    project.write("suites/some/test_some.py", SUITE)
    (project.folder / "probe").mkdir()
    return project


@pytest.fixture
def begun() -> Iterator[list[Running]]:
    """Collect the runs that a test has started, and kill what is left of them."""
    runs: list[Running] = []
    yield runs
    for running in runs:
        running.kill_all()


def start(project: Project, begun: list[Running], *arguments: str, **more: Any) -> Running:
    """Start a run, and wait until one of its cases waits."""
    before = {*project.probe_names()}
    running = project.start(*arguments, **more)
    begun.append(running)
    running.wait_for(lambda: any(n.startswith("waits") for n in {*project.probe_names()} - before), "a case to wait")
    return running


def cut_off(project: Project, begun: list[Running], *arguments: str) -> Result:
    """Return a run whose controller was killed while a case waited."""
    running = start(project, begun, *arguments)
    running.process.kill()
    return running.result()


def resume(project: Project, run_dir: Path, *arguments: str, env: dict[str, str | None] | None = None) -> Result:
    """Resume the run, let the waiting case continue, and return the result."""
    (project.folder / "probe" / "go").touch()
    result = project.run(*arguments, f"--resume={run_dir.name}", results_dir=False, env=env)
    return replace(result, run_dir=run_dir)


def names(verdicts: dict[str, str]) -> dict[str, str]:
    return {case.partition("::")[2]: outcome for case, outcome in verdicts.items()}


def attempts(result: Result, name: str) -> list[tuple[int, str, bool]]:
    return [
        (line["attempt"], line["outcome"], line["final"])
        for line in result.lines
        if line["event"] == "finish" and line["case"].endswith(name)
    ]


@SPREADS
@pytest.mark.ways("mode", ["batch", "case"])
def test_a_killed_run_goes_on(project: Project, begun: list[Running], spread: str, mode: str) -> None:
    """Each case has one verdict, finished cases do not run again, and the running case has a lost attempt."""
    cut = cut_off(project, begun, spread, f"--isolation={mode}", "--seed=5")
    finished = {name for name, outcome in names(cut.verdicts).items() if outcome not in ("lost", "not_run")}
    ran = project.probe("ran")
    result = resume(project, cut.run_dir, spread, f"--isolation={mode}", "-v", "-rA")
    check_journal(result)
    assert names(result.verdicts) == OUTCOMES, result.tail()
    assert (result.status, result.counts) == (1, COUNTS), result.tail()
    again = project.probe("ran")[len(ran) :]
    assert not {*again} & finished
    assert {*again} == {*OUTCOMES} - finished - {"test_gated"}
    assert attempts(result, WAITS) == [(1, "lost", False), (2, "passed", True)]
    flight = len({line["case"] for line in result.lines if line["event"] == "finish" and line["outcome"] == "lost"})
    left = len(OUTCOMES) - len(finished)
    assert (
        f"resumed, part 2: {len(finished)} of 15 cases have their verdict and are replayed; {left} are left, "
        f"{flight} of them in flight when it was interrupted"
    ) in result.terminal
    assert result.terminal.count("PASSED (replayed)") >= 4
    assert "::test_waits PASSED (replayed)" not in result.terminal
    executors = [
        line["executor"] for line in result.lines if line["event"] == "executor" and line["state"] == "started"
    ]
    assert len(executors) == len({*executors})
    assert len(list(result.junit.iter("testcase"))) == len(OUTCOMES)
    assert [line["seed"] for line in result.lines if line["event"] == "run"] == [5, 5]
    assert (cut.run_dir / "environment-1.json").exists()
    assert command(project, "report", str(cut.run_dir))[0] == 1


@pytest.mark.nightly
def test_a_run_that_is_resumed_again_and_one_that_had_finished(project: Project, begun: list[Running]) -> None:
    cut = cut_off(project, begun, "-n0")
    again = start(project, begun, "-n0", f"--resume={cut.run_dir.name}", results_dir=False)
    again.process.kill()
    again.result()
    result = resume(project, cut.run_dir, "-n0")
    assert names(result.verdicts) == OUTCOMES
    assert attempts(result, WAITS) == [(1, "lost", False), (2, "lost", False), (3, "passed", True)]
    ran = project.probe("ran")
    last = resume(project, cut.run_dir, "-n2")
    assert (last.counts, last.status, project.probe("ran")) == (COUNTS, 1, ran), last.tail()
    assert "resumed, part 4: 15 of 15 cases have their verdict and are replayed; 0 are left" in last.terminal
    check_journal(last)


def test_a_run_that_was_stopped_goes_on(project: Project, begun: list[Running]) -> None:
    """Cases that were not run are run; a case that was stopped has no verdict yet."""
    running = start(project, begun, "-n2", "--grace=0")
    interrupt(running)
    cut = running.result()
    assert (cut.status, names(cut.verdicts)["test_waits"]) == (2, "not_run"), cut.tail()
    result = resume(project, cut.run_dir, "-n2")
    assert (names(result.verdicts), result.status) == (OUTCOMES, 1), result.tail()
    assert result.ledger.end is not None


def test_a_green_end(project: Project, begun: list[Running]) -> None:
    """A resumed run without red cases is green, also in its report."""
    cut = cut_off(project, begun, "-n0", "-k", "before or waits or after")
    result = resume(project, cut.run_dir, "-n0", "-k", "before or waits or after")
    assert (result.status, {*result.verdicts.values()}) == (0, {"passed"}), result.tail()
    assert command(project, "report", str(cut.run_dir))[0] == 0


def test_two_runs_cannot_write_to_one_folder(project: Project, begun: list[Running]) -> None:
    """Neither a second run nor a second resume can write to the folder of a running one."""
    running = start(project, begun, "-n0")
    words = f"--resume='{running.run_dir.name}': another run writes to it now: wait for its end, or stop it"
    first = project.run("-n0", f"--resume={running.run_dir.name}", results_dir=False)
    assert (first.status, words in first.terminal) == (4, True), first.tail()
    running.process.kill()
    cut = running.result()
    going_on = start(project, begun, "-n2", f"--resume={cut.run_dir.name}", results_dir=False)
    second = project.run("-n0", f"--resume={cut.run_dir.name}", results_dir=False)
    assert (second.status, words in second.terminal) == (4, True), second.tail()
    (project.folder / "probe" / "go").touch()
    assert going_on.result().status == 1
    assert names(cut.verdicts) == OUTCOMES


CHANGED = (
    ("--seed=6", "--seed was '5' and is '6'"),
    ("--repeat=2", "--repeat was '1' and is '2'"),
    ("--shard=1/2", "--shard was not set and is '1/2'"),
    ("--isolation=case", "--isolation was 'batch' and is 'case'"),
    ("--retries=1", "--retries was '0' and is '1'"),
    ("--waivers=known", "waivers was 'none' and is sha256:"),
    ("-k=before", "the list of cases has changed: 11 cases are gone (suites/some/test_some.py::test_fails, "),
)


def test_what_has_changed_is_said_and_nothing_is_touched(project: Project, begun: list[Running]) -> None:
    cut = cut_off(project, begun, "-n0", "--seed=5")
    waiver = {
        "case": "*::test_fails",
        "expect": "failed",
        "reason": "r",
        "link": "https://example.org/1",
        "owner": "me",
    }
    configure(project, "waivers/known", waivers=[{"expires": "2999-12-31", **waiver}])
    journal = (cut.run_dir / "journal.ndjson").read_bytes()
    for option, words in CHANGED:
        for spread in ("-n0", "-n2") if option == "-k=before" else ("-n0",):
            result = resume(project, cut.run_dir, spread, option)
            assert (result.status, words in result.terminal) == (4, True), result.tail()
            assert "Traceback" not in result.terminal
            assert (cut.run_dir / "journal.ndjson").read_bytes() == journal
    project.write("suites/some/helper.py", "NEW = 1\n")
    result = resume(project, cut.run_dir, "-n0", "--seed=5")
    assert (result.status, "conditions: suite files was sha256:" in result.terminal) == (4, True), result.tail()
    assert (cut.run_dir / "journal.ndjson").read_bytes() == journal
    assert not project.probe("ran")[len(OUTCOMES) :]


@pytest.mark.nightly
@SPREADS
def test_a_run_that_is_resumed_by_force_says_so(project: Project, begun: list[Running], spread: str) -> None:
    cut = cut_off(project, begun, spread, "--seed=5")
    project.write("suites/some/helper.py", "NEW = 1\n")
    result = resume(project, cut.run_dir, spread, "--force-resume", env={"AFTER": "5"})
    new = {"test_after[4]": "passed"}
    assert names(result.verdicts) == OUTCOMES | new, result.tail()
    assert {finding.kind for finding in result.ledger.findings} == set()
    (files, cases) = result.ledger.forced
    assert files.startswith("suite files was sha256:")
    assert cases == "the list of cases has changed: 1 case is new (suites/some/test_some.py::test_after[4])"
    status, output = command(project, "report", str(cut.run_dir))
    assert status == 1
    for text in (result.terminal, output):
        assert f"RESUMED BY FORCE {files}" in text
        assert f"RESUMED BY FORCE {cases}" in text
    assert any(each.attrib["name"] == "resumed_by_force" for each in result.junit.iter("property"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--resume=suites"], "--resume='suites': the folder has some and no run: name a run directory or a new"),
        (["--resume=foreign"], "journal.ndjson' is not a journal: it begins with b'{\"other\":1}"),
        (["--resume=empty", "--results-dir=other"], "a resumed run continues in its own run directory"),
        (["--force-resume"], "--force-resume needs --resume=DIR"),
        (
            ["--resume=empty", "--isolation=none"],
            "--resume continues cases in their own processes, so it needs isol",
        ),
        (["--only=failed"], "--only=failed needs --from=DIR"),
        (["--from=nothing", "--only=failed"], "--from='nothing': there is no journal at "),
        (["--from=empty", "--only=fialed"], "--only='fialed': expected verdicts separated by commas, of not_run, "),
    ],
)
def test_bad_input_is_one_sentence(project: Project, arguments: list[str], words: str) -> None:
    line = '{"event":"run","t":1,"schema":1,"run_id":"r","argv":[],"seed":1,"isolation":"batch","host":"h","pid":1,'
    project.write("empty/journal.ndjson", line + '"devices":["cpu"],"fail_on_flaky":false,"rootdir":"/"}\n')
    project.write("foreign/journal.ndjson", '{"other":1}\n')
    result = project.run("-n0", *arguments, results_dir=False)
    assert (result.status, words in " ".join(result.terminal.split())) == (4, True), result.tail()
    assert result.terminal.count("ERROR") == 1
    assert not (project.folder / "results").exists()
    assert list(project.temp.iterdir()) == []


#: What may be in the folder of a run of which no case has started: its journal, and what the new run says of it.
NOT_BEGUN = {
    "missing": (None, "there is no such folder yet"),
    "empty": ("", "its journal is empty"),
    "zeros": ("\0" * 300, "its journal is empty"),
    "torn": ('{"event":"run","t":1,"schema":1,"run_', "no case of the run there had started"),
    "uncollected": (
        '{"event":"run","t":1,"schema":1,"run_id":"r","argv":[],"seed":1,"isolation":"batch","host":"h","pid":1,'
        '"devices":["cpu"],"fail_on_flaky":false,"rootdir":"ROOT"}\n',
        "no case of the run there had started",
    ),
}


@pytest.mark.parametrize("name", NOT_BEGUN)
def test_one_command_starts_a_run_and_continues_it(project: Project, begun: list[Running], name: str) -> None:
    """A job that is requeued repeats its command: it starts what has not begun, and continues the rest."""
    found, why = NOT_BEGUN[name]
    if found is not None:
        found = found.replace("ROOT", str(project.folder))
        project.write(f"job/{FILE_NAME}", found)
    run_dir = project.folder / "job"
    first = start(project, begun, "-n0", "--resume=job", results_dir=False)
    first.process.kill()
    first.process.wait()
    text = first.terminal()
    assert f"harness: --resume='job': {why}, so this run starts from the beginning" in text
    kept = [path.read_text() for path in run_dir.glob("journal-not-begun-*.ndjson")]
    assert kept == [found] * (found is not None)
    again = resume(project, run_dir, "-n0")
    assert "resumed, part 2" in again.terminal
    check_journal(again)
    assert names(again.verdicts) == OUTCOMES


@SPREADS
def test_a_run_whose_collection_failed_starts_again_once_it_is_fixed(project: Project, spread: str) -> None:
    (project.folder / "probe" / "go").touch()
    project.write("suites/some/test_other.py", "import nosuch\n")
    failed = project.run(spread)
    assert "--resume" not in failed.terminal.partition("= harness =")[2]
    project.write("suites/some/test_other.py", "def test_other(): pass\n")
    mended = resume(project, failed.run_dir, spread)
    assert names(mended.verdicts) == {**OUTCOMES, "test_other": "passed"}
    assert not mended.ledger.findings


@pytest.mark.nightly
def test_cases_of_an_earlier_run_by_verdict(project: Project, begun: list[Running]) -> None:
    cut = cut_off(project, begun, "-n0")
    (project.folder / "probe" / "go").touch()
    fails = project.run("-n2", f"--from={cut.run_dir.name}", "--only=failed,crashed")
    assert names(fails.verdicts) == {"test_fails": "failed", "test_crashes": "crashed"}
    assert f"harness: only the 2 cases of {cut.run_dir} that are failed, crashed" in fails.terminal
    rest = project.run("-n0", f"--from={cut.run_dir.name}", "--only=lost,not_run")
    assert names(rest.verdicts) == {
        name: "passed" for name in OUTCOMES if name.startswith(("test_waits", "test_after"))
    }
    assert rest.status == 0
    red = project.run("-n0", f"--from={fails.run_dir.name}")
    assert {*names(red.verdicts)} == {"test_fails", "test_crashes"}
    none = project.run("-n0", f"--from={fails.run_dir.name}", "--only=timeout")
    assert (none.status, none.verdicts) == (5, {})
    project.write("suites/some/test_some.py", SUITE.replace("def test_fails", "def test_renamed"))
    renamed = project.run("-n0", f"--from={cut.run_dir.name}", "--only=failed")
    assert (renamed.status, [finding.kind for finding in renamed.ledger.findings]) == (1, ["from_missing"])
    project.write("suites/some/test_some.py", SUITE)
    listed = project.run("--collect-only", "-q", f"--from={fails.run_dir.name}", results_dir=False)
    assert sum("::" in line for line in listed.terminal.splitlines()) == 2


@pytest.mark.nightly
def test_a_shard_is_resumed_and_merged(project: Project, begun: list[Running]) -> None:
    parts = []
    for index in (1, 2):
        running = project.start("-n0", f"--shard={index}/2")
        begun.append(running)
        running.wait_for(lambda: len(running.lines()) > 6, "some cases to run")  # noqa: B023
        os.kill(running.process.pid, signal.SIGKILL)
        parts.append(running.result().run_dir)
    results = [resume(project, part, "-n0", f"--shard={index}/2") for index, part in enumerate(parts, start=1)]
    out = project.folder / "merged"
    status, output = command(project, "report", "merge", *map(str, parts), "-o", str(out))
    assert status == 1, output
    merged = replace(results[0], run_dir=out)
    assert names(merged.verdicts) == OUTCOMES
    assert not merged.ledger.findings


@SPREADS
def test_a_collection_that_fails_is_reported_and_nothing_is_touched(
    project: Project, begun: list[Running], spread: str
) -> None:
    cut = cut_off(project, begun, spread)
    journal = (cut.run_dir / "journal.ndjson").read_bytes()
    result = resume(project, cut.run_dir, spread, env={"AFTER": "none"})
    assert result.status in (1, 2), result.tail()
    assert "invalid literal for int() with base 10: 'none'" in result.terminal
    assert "list of cases has changed" not in result.terminal
    assert (cut.run_dir / "journal.ndjson").read_bytes() == journal
    assert resume(project, cut.run_dir, spread).counts == COUNTS
