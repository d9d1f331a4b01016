"""Waivers, profiles, hardware files and must-pass lists in whole runs."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from harness.gating import mustpass
from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected
from tests.acceptance.project import Project, paste
from tests.acceptance.rules import command, configure, kinds, refused, waive

MODES = pytest.mark.ways("mode", ["batch", "case"])
RAW = {
    "test_fails": "failed",
    "test_setup_fails": "error",
    "test_crashes": "crashed",
    "test_hangs": "timeout",
    "test_contaminates": "contaminated",
    "test_leaks": "leaked",
}


@pytest.mark.ways("spread", ["-n0", "-n2"])
@MODES
def test_waived_cases_are_green(make_project: MakeProject, mode: str, spread: str) -> None:
    """Only the known outcomes are waived; the journal keeps the outcome and names the waiver."""
    project = make_project("policy_waived")
    waivers = "suites/policy_waived/waivers.yaml"
    result = project.run(f"--isolation={mode}", spread, f"--waivers={waivers}")
    assert result.status == 0, result.tail()
    compare(result, expected(project, mode), alone=mode == "case")
    finals = {line["case"].split("::")[1]: line for line in result.lines if line["event"] == "finish" and line["final"]}
    assert {name: finals[name]["outcome"] for name in RAW} == RAW
    for number, name in enumerate(RAW, start=2):
        assert finals[name]["ruling"]["outcome"] == "waived"
        assert finals[name]["ruling"]["source"] == f"{waivers}:{number}"
    held = [line["source"] for line in result.lines if line["event"] == "waiver"]
    assert [f"{waivers}:{number}" for number in range(2, 2 + len(RAW))] == held[: len(RAW)]
    assert result.counts["xfailed"] == 9
    assert result.ledger.run is not None
    assert result.ledger.run.settings["waivers"] == waivers


RULED = """
import pytest
def test_good(): pass
def test_skips(): pytest.skip("not today")
"""


@pytest.mark.nightly
def test_the_reproduce_line_has_the_rules_that_decided(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/ruled/test_ruled.py", RULED)
    project.write("configs/profiles/strict.yaml", "description: no skips\nskips: forbidden\n")
    waive(project, case="*::test_good", expect=["failed"])
    result = project.run("-n0", "--waivers=known", "--profile=strict")
    verdicts = {verdict.case.rpartition("::")[2]: verdict for verdict in result.ledger.verdicts}
    assert {name: verdict.outcome.value for name, verdict in verdicts.items()} == {
        "test_good": "unexpected_pass",
        "test_skips": "failed",
    }
    for name, verdict in verdicts.items():
        assert verdict.reproduce is not None, name
        pasted = paste(project, verdict.reproduce)
        assert pasted.verdicts == {verdict.case: verdict.outcome.value}, pasted.tail()
        shutil.rmtree(pasted.run_dir)


TWO_SUITES = {
    "suites/a/test_a.py": "def test_one(): pass\ndef test_two(): assert 1 == 2\n",
    "suites/b/test_b.py": "def test_one(): pass\ndef test_two(): pass\ndef test_slow(): pass\n",
}


def two_suites(make_project: MakeProject) -> Project:
    project = make_project()
    for name, text in TWO_SUITES.items():
        project.write(name, text)
    return project


@pytest.mark.parametrize(
    ("case", "arguments", "found"),
    [
        ("suites/c/*", (), ["waiver_matches_nothing"]),
        ("*::test_gone", (), ["waiver_matches_nothing"]),
        ("suites/b/*", ("-k", "test_a"), []),  # collected, and deselected afterwards
        ("suites/b/test_b.py::test_gone", ("--ignore=suites/b",), []),
    ],
)
def test_a_waiver_that_matches_no_case(
    make_project: MakeProject, case: str, arguments: tuple[str, ...], found: list[str]
) -> None:
    project = two_suites(make_project)
    waive(project, case=case, expect=["failed", "passed"])
    result = project.run("-n0", "--waivers=known", *arguments)
    assert kinds(result) == found, result.tail()


def test_a_waiver_is_not_blamed_for_what_the_run_was_asked_to_leave_out(make_project: MakeProject) -> None:
    project = two_suites(make_project)
    waive(project, case="suites/b/test_b.py::test_gone")
    assert kinds(project.run("-n0", "--waivers=known", suites="suites/a")) == []
    assert kinds(project.run("-n0", "--waivers=known", suites="suites/b")) == ["waiver_matches_nothing"]
    first = project.run("-n0", "--waivers=known", "--lf")
    second = project.run("-n0", "--waivers=known", "--lf")
    assert list(second.verdicts) == ["suites/a/test_a.py::test_two"], second.tail()
    assert kinds(first) == kinds(second) == []


@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_a_profile_selects(make_project: MakeProject, spread: str) -> None:
    project = two_suites(make_project)
    wanted = {"suites": ["b"], "cases": ["suites/a/*::test_one"], "exclude": ["*::test_slow"]}
    configure(project, "profiles/few", description="few", **wanted)
    result = project.run(spread, "--profile=few")
    assert result.status == 0, result.tail()
    names = ("suites/a/test_a.py::test_one", "suites/b/test_b.py::test_one", "suites/b/test_b.py::test_two")
    assert result.verdicts == dict.fromkeys(names, "passed")
    left_out = [set(line["deselected"]) for line in result.lines if line["event"] == "collected" and line["ids"]]
    assert left_out == [{"suites/a/test_a.py::test_two", "suites/b/test_b.py::test_slow"}]
    assert result.ledger.run is not None
    assert result.ledger.run.profile == "few"
    assert "harness: profile few" in result.terminal
    if spread == "-n0":
        assert "2 deselected" in result.terminal


def test_collect_only_shows_what_a_profile_selects(make_project: MakeProject) -> None:
    project = two_suites(make_project)
    configure(project, "profiles/few", description="few", suites=["b"], exclude=["*::test_slow"])
    result = project.run("--collect-only", "-q", "-n0", "--profile=few")
    assert result.status == 0, result.tail()
    listed = [line for line in result.terminal.splitlines() if "::" in line]
    assert listed == ["suites/b/test_b.py::test_one", "suites/b/test_b.py::test_two"]
    assert "1 deselected" in result.terminal  # suites/a is not read
    assert not result.run_dir.exists()
    refused(project.run("--collect-only", "--profile=fwe"), "did you mean 'few'?")


@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_files_of_which_a_run_selects_no_case_are_not_read(make_project: MakeProject, spread: str) -> None:
    """Waivers and exclusions for their cases are not treated as mistakes either."""
    project = two_suites(make_project)
    project.write("suites/b/test_raises.py", "raise RuntimeError('read')\n")
    project.write("suites/c/test_raises.py", "raise RuntimeError('read')\n")
    configure(
        project,
        "profiles/few",
        description="few",
        cases=["suites/a/*::test_one"],
        exclude=["suites/b/test_raises.py::*"],
    )
    waive(project, case="suites/c/test_raises.py::test_x")
    result = project.run(spread, "--profile=few", "--waivers=known")
    assert result.status == 0, result.tail()
    assert [*result.verdicts] == ["suites/a/test_a.py::test_one"]
    unread = [line["unread"] for line in result.lines if line["event"] == "collected" and line["ids"]]
    assert {"suites/b/", "suites/c/"} <= {*unread[0]}

    again = project.run(spread, "--from", str(result.run_dir), "--only=passed", "--waivers=known")
    assert again.status == 0, again.tail()
    assert [*again.verdicts] == [*result.verdicts]

    named = project.run("-n0", "--profile=few", suites="suites/b/test_raises.py")
    assert "RuntimeError: read" in named.terminal  # files that the user names are always read


def test_a_profile_that_selects_nothing_of_what_is_read_is_a_finding(make_project: MakeProject) -> None:
    project = two_suites(make_project)
    configure(project, "profiles/few", description="few", cases=["suites/a/*"])
    result = project.run("-n0", "--profile=few", suites="suites/b")
    assert kinds(result) == ["profile_matches_nothing", "too_few_cases"]
    assert "the profile selects none of the cases of this run; look at its suites, cases and exclude" in result.terminal


@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_a_profile_that_leaves_nothing_is_red(make_project: MakeProject, spread: str) -> None:
    project = two_suites(make_project)
    configure(project, "profiles/none", description="none", exclude=["suites/*"])
    result = project.run(spread, "--profile=none")
    assert result.status == 1, result.tail()
    assert result.verdicts == {}
    assert kinds(result) == ["profile_matches_nothing", "too_few_cases"]


def test_options_that_isolation_none_ignores_are_named(make_project: MakeProject) -> None:
    project = two_suites(make_project)
    waive(project, case="suites/a/test_a.py::test_two")
    configure(project, "profiles/strict", description="strict", skips="forbidden", waivers=["known"], repeats=2)
    result = project.run("-n0", "--profile=strict", "--isolation=none")
    assert result.verdicts["suites/a/test_a.py::test_two"] == "failed"
    assert "ignored without isolation: repeat 2, waivers, forbidden skips" in result.terminal


def test_a_profile_says_more_than_the_ini_file(make_project: MakeProject) -> None:
    """tests/configuration/test_options.py has the other levels."""
    project = make_project()
    project.write("suites/one/test_one.py", "def test_one(): pass\n")
    configure(project, "profiles/some", description="some", repeats=3)
    result = project.run("-n0", "--profile=some", "-oharness_repeat=2")
    assert result.status == 0, result.tail()
    assert [line["final"] for line in result.lines if line["event"] == "finish"] == [True] * 3
    assert result.lines[0]["settings"]["repeat"] == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "description: few\nsuits: [a]\n",
            ("configs/profiles/few.yaml:2", "suits: there is no such key", "did you mean 'suites'?"),
        ),
        ("description: few\ngates:\n  - memroy\n", ("configs/profiles/few.yaml:3", "did you mean 'memory'?")),
        ("description: few\nskips: no\n", ("configs/profiles/few.yaml:2",)),
        ("description: few\nwaivers: [known]\n", ("configs/profiles/few.yaml:2", "waiver file 'known'")),
        ("description: few\nrequires: {driver: 570.10}\n", ("configs/profiles/few.yaml:2", "in quotes")),
        (
            "description: few\nrequires: {device: cuda}\n",
            ("device cpu does not meet the requirements of profile few: device: wanted cuda",),
        ),
        ("description: few\nhardware: gpu\n", ("configs/profiles/few.yaml:2", "did you mean 'gpus'?")),
    ],
)
def test_a_profile_that_cannot_be_used_stops_the_run(
    make_project: MakeProject, text: str, words: tuple[str, ...]
) -> None:
    project = two_suites(make_project)
    configure(project, "hardware/gpus", description="GPUs", device={"device": "cuda"})
    project.write("configs/profiles/few.yaml", text)
    refused(project.run("-n0", "--profile=few"), *words)


def test_a_profile_that_names_no_case_is_red(make_project: MakeProject) -> None:
    project = two_suites(make_project)
    project.write(
        "configs/profiles/few.yaml",
        'description: few\nsuites:\n  - b\n  - gone\ncases:\n  - "suites/b/*::test_gone"\n'
        'exclude: ["suites/b/*::test_never"]\n',
    )
    result = project.run("-n0", "--profile=few")
    assert result.status == 1
    assert result.counts["passed"] == 3
    assert kinds(result) == ["profile_matches_nothing"] * 3
    reported = [finding.message for finding in result.ledger.findings]
    assert [":4: " in reported[0], ":6: " in reported[1], ":7: " in reported[2]] == [True] * 3, reported
    assert "suite 'gone' matches no case of this run" in reported[0]
    assert kinds(project.run("-n0", "--profile=few", suites="suites/b/test_b.py::test_one")) == []


def test_files_by_path(make_project: MakeProject) -> None:
    """A value with a slash is a path from the folder where pytest was started, also inside a profile."""
    project = two_suites(make_project)
    case = "suites/a/test_a.py::test_two"
    waive(project, case=case)
    (project.folder / "configs/waivers/known.yaml").rename(project.folder / "mine-waived.yaml")
    project.write("mine/hardware.yaml", json.dumps({"description": "here", "device": {"device": "cpu"}}))
    mustpass.write_must_pass(project.folder / "mine" / "core.txt", ["suites/b/test_b.py::test_one"])
    files = {"waivers": ["./mine-waived.yaml"], "must_pass": ["mine/core.txt"], "hardware": "mine/hardware.yaml"}
    project.write("mine/held", json.dumps({"description": "mine", **files}))
    mustpass.write_must_pass(project.folder / "more.txt", ["suites/b/test_b.py::test_two"])
    result = project.run("-n0", "--profile=mine/held", "--must-pass=more.txt")
    assert result.status == 0, result.tail()
    assert result.verdicts[case] == "waived"
    assert "must-pass list core.txt (1 case," in result.terminal
    assert "must-pass list more.txt (1 case," in result.terminal, "those of profile and command line add up"


@pytest.mark.ways(
    ("mark", "text"),
    [("types('double')", "types('double'): expected names among float64"), ("types()", "names of one or more types")],
)
def test_a_mark_of_no_type_is_an_error_of_the_collection(make_project: MakeProject, mark: str, text: str) -> None:
    project = make_project()
    project.write("suites/types/test_types.py", f"import pytest\n@pytest.mark.{mark}\ndef test_a(): pass\n")
    result = project.run("-n0")
    assert result.status == 2
    assert text in result.terminal


def test_the_wrong_hardware_stops_the_run(make_project: MakeProject) -> None:
    project = two_suites(make_project)
    configure(project, "hardware/gpus", description="GPUs", device={"device": "cuda"})
    refused(
        project.run("-n0", "--hardware=gpus"), "device cpu does not match hardware gpus: device: wanted cuda, found cpu"
    )


@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_must_pass_lists(make_project: MakeProject, spread: str) -> None:
    """Each case must have run and passed, regardless of waivers; the hash identifies the list."""
    project = make_project("listed")
    file = "suites/listed/test_listed.py"
    waive(project, case=f"{file}::test_waived")
    folder = project.folder / "configs/must-pass"
    folder.mkdir()
    names = ("fails", "gated", "waived", "left_out", "unknown")
    for name in names:
        mustpass.write_must_pass(folder / f"{name}.txt", [f"{file}::test_passes", f"{file}::test_{name}"])
    good = mustpass.write_must_pass(folder / "good.txt", [f"{file}::test_passes"])
    kept = ("-k", "not left_out", "--waivers=known", spread)
    result = project.run(*kept, f"--must-pass=good,{','.join(names)}")
    assert result.status == 1
    missed = {f.message: f.cases for f in result.ledger.findings if f.kind == "must_pass"}
    assert list(missed.values()) == [(f"{file}::test_{name}",) for name in names], result.tail()
    for name, text in zip(names, missed, strict=True):
        assert text.startswith(f"must-pass list {name}.txt (2 cases, sha256:")
        assert text.endswith(f"not satisfied, 1 did not pass, the first {file}::test_{name}")
        assert f"\n{text}\n" in result.terminal
    satisfied = f"must-pass list good.txt (1 case, {good.hash[:19]}): satisfied"
    assert f"\n{satisfied}\n" in result.terminal
    alone = project.run("-k", "test_passes", spread, "--must-pass=good")
    assert alone.status == 0, alone.tail()
    reported = alone.junit.find("testsuite/properties/property[@name='must_pass']")
    assert reported is not None
    assert reported.attrib["value"] == satisfied


def test_an_edited_must_pass_list_stops_the_run(make_project: MakeProject) -> None:
    project = two_suites(make_project)
    path = project.folder / "core.txt"
    mustpass.write_must_pass(path, ["suites/b/test_b.py::test_one", "suites/b/test_b.py::test_two"])
    path.write_text(path.read_text().replace("test_two", "test_slow"))
    refused(project.run("-n0", "--must-pass=./core.txt"), "core.txt:4", "edited by hand", "harness catalog --must-pass")


@pytest.mark.nightly
def test_catalog_keeps_must_pass_lists(make_project: MakeProject) -> None:
    """The command writes a list, checks it, and rewrites it only on request; per hardware, and without exceptions."""
    project = make_project("listed")
    file = "suites/listed/test_listed.py"
    configure(project, "hardware/mine", description="mine", device={"device": "cpu"})
    keep = ("catalog", "--must-pass", "core.txt", "--hardware=mine", "--exclude=*::test_fails", "--exclude=*waived")
    status, output = command(project, *keep, "--description=what  must\nwork")
    written = mustpass.read_must_pass(project.folder / "core.txt")
    assert (status, written.ids) == (0, (f"{file}::test_left_out", f"{file}::test_passes")), output
    assert written.description == "what must work"
    assert written.hash in output
    assert command(project, *keep)[0] == 0
    path = project.folder / file
    path.write_text(path.read_text().replace("test_left_out", "test_new"))
    before = (project.folder / "core.txt").read_text()
    status, output = command(project, *keep)
    assert status == 1
    assert f"does not exist: {file}::test_left_out\n" in output
    assert f"not on the list: {file}::test_new\n" in output
    assert "use --update to remove them from the list" in output
    assert (project.folder / "core.txt").read_text() == before
    assert command(project, *keep, "--update")[0] == 0
    assert mustpass.read_must_pass(project.folder / "core.txt").ids == (f"{file}::test_new", f"{file}::test_passes")


def test_the_report_of_a_killed_run_tells_its_lists(make_project: MakeProject) -> None:
    project = make_project()
    file = "suites/cut/test_cut.py"
    project.write(file, "import threading\ndef test_passes(): pass\ndef test_waits(): threading.Event().wait()\n")
    mustpass.write_must_pass(project.folder / "good.txt", [f"{file}::test_passes"])
    mustpass.write_must_pass(project.folder / "more.txt", [f"{file}::test_passes", f"{file}::test_waits"])
    running = project.start("-n0", "--must-pass=./good.txt,./more.txt")
    try:
        running.started("test_waits")
        running.process.kill()
        killed = running.result()
    except BaseException:
        running.kill_all()
        raise
    status, output = command(project, "report", str(killed.run_dir))
    assert status == 1, output
    assert re.search(r"^must-pass list good\.txt \(1 case, sha256:\w+\): satisfied$", output, re.MULTILINE), output
    assert re.search(r"^must-pass list more\.txt .*: not satisfied, 1 did not pass", output, re.MULTILINE), output
    assert "the run did not finish" in output
    reported = killed.junit.find("testsuite/properties/property[@name='must_pass']")
    assert reported is not None
    assert "good.txt" in reported.attrib["value"]
