"""Each fixture suite in each isolation mode, without xdist and with two workers: the whole summary is compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from harness.core.caseid import case_seed
from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected
from tests.acceptance.project import Project, Result

#: Ways to run: the isolation mode and the number of workers.
BATCH, BATCH_2, CASE, CASE_2, NONE, NONE_2 = ((mode, number) for mode in ("batch", "case", "none") for number in (0, 2))
WAYS = {BATCH, BATCH_2, CASE, CASE_2}


@dataclass(frozen=True)
class Suites:
    """Fixture suites that run together: in each change in the ways `day`, and each night in the ways `night` as well.

    `look` checks what else the run has left.
    """

    topics: tuple[str, ...]
    day: tuple[tuple[str, int], ...]
    night: tuple[tuple[str, int], ...] = tuple(sorted(WAYS))
    look: Callable[[Project, Result], None] | None = None
    marks: tuple[pytest.MarkDecorator, ...] = ()


def look_at_a_crash(_: Project, result: Result) -> None:
    """Information about a broken case is reported for that case only."""
    line = result.final("test_segv")
    assert line["exit_status"] == -11
    assert line["message"] == "SIGSEGV in call"
    assert "Fatal Python error: Segmentation fault" in line["detail"]
    assert "in test_segv" in line["detail"]
    assert line["stdout"] == "last words of test_segv\n"
    assert line["devices"] == ["cpu"]
    assert line["seed"] == case_seed(result.lines[0]["seed"], line["case"])
    case = next(element for element in result.junit.iter("testcase") if element.attrib["name"] == "test_segv")
    assert "in test_segv" in (case.findtext("error") or "")
    assert case.findtext("system-out") == "last words of test_segv\n"
    assert result.terminal.count("last words of test_segv") == 1
    for other in result.lines:
        if other["event"] == "finish" and other["case"] != line["case"]:
            assert "test_segv" not in str(other)


def look_at_hangs(_: Project, result: Result) -> None:
    """The report of a hanging case has its stacks, with the hanging line, even if the case holds the GIL."""
    for name in ("test_python", "test_c_without_lock", "test_c_with_lock"):
        assert f"in {name}" in result.final(name)["detail"]
    assert "in hangs_in_setup" in result.final("test_setup")["detail"]
    assert "in hangs_in_teardown" in result.final("test_teardown")["detail"]
    assert result.final("test_python")["stdout"] == "waiting in Python\n"


def look_at_output(_: Project, result: Result) -> None:
    """Output of a case in Python, in C and to descriptors is its own, and reports keep head and tail of 100 MB."""
    assert (result.run_dir / "journal.ndjson").stat().st_size < 2 << 20
    assert (result.run_dir / "junit.xml").stat().st_size < 1 << 20
    assert len(result.terminal) < 8 << 20
    line = result.final("test_100_megabytes_and_fails")
    assert "bytes cut" in line["stdout"]
    assert line["stdout"].startswith("xxx")
    assert line["stdout"].endswith("xxx\n")
    assert "\\udc80" in result.final("test_prints")["stdout"]
    assert "\\udc80" in result.final("test_prints")["stderr"]
    assert "from C" in result.final("test_prints_from_c")["stdout"]
    assert "\\xff" in result.final("test_writes_bytes")["stdout"]
    assert "\\udc80" in result.final("test_logs")["log"]
    for name in ("test_before", "test_after", "test_ids[::]"):
        assert not result.final(name).keys() & {"stdout", "stderr", "log"}


def look_at_daemons(project: Project, _: Result) -> None:
    """The harness has killed the daemons that cases have left, also those without the run's environment."""
    assert list(_living_daemons(project)) == []


def look_at_kept_files(project: Project, result: Result) -> None:
    """A file whose path is too long is left out, and the others are kept."""
    kept = result.run_dir / "files"
    assert [path.read_text() for path in kept.rglob("kept")] == ["kept"]
    assert "File name too long" in "".join(path.read_text() for path in kept.glob("*.left-out.txt"))
    assert not list(project.temp.glob("harness-*"))


def look_at_the_temporary_folder(project: Project, _: Result) -> None:
    """Neither a case nor the harness has left a file there."""
    assert [path for path in project.temp.rglob("*") if path.is_file()] == []
    assert not list(project.temp.glob("harness-*"))


def look_at_clocks(_: Project, result: Result) -> None:
    """Durations are those of the machine's clock."""
    finishes = [line for line in result.lines if line["event"] == "finish" and "/test_clocks.py::" in line["case"]]
    assert len(finishes) >= 6
    phases = [seconds for line in finishes for seconds in line["phases"].values()]
    assert len(phases) == 3 * len(finishes)
    assert all(0 < seconds < result.seconds for seconds in phases)
    moments = [line["t"] for line in result.lines]
    assert max(moments) - min(moments) < result.seconds


def look_at_exit_handlers(project: Project, _: Result) -> None:
    cases, of_case, of_import = (project.probe(name) for name in ("cases", "of-case", "of-import"))
    assert sorted(of_case) == sorted(cases)
    assert len(of_import) == 1
    assert of_import[0] not in cases
    assert project.probe_names() == ["cases", "of-case", "of-import"], "no folder is left"


def look_at_finalised_processes(project: Project, _: Result) -> None:
    assert project.probe_names() == ["test_shared", "test_waived"]


def look_for_one_executor_per_worker(_: Project, result: Result) -> None:
    started = [line for line in result.lines if line["event"] == "executor" and line["state"] == "started"]
    assert sorted(line["executor"] for line in started) == ["gw0-e1", "gw1-e1"]


def look_for_executors(_: Project, result: Result) -> None:
    """Without isolation there are none."""
    assert not any(line["event"] == "executor" for line in result.lines)


def look_at_ranks(project: Project, result: Result) -> None:
    """The page names the rank that broke, and no process is left."""
    page = (result.run_dir / "report.html").read_text(encoding="utf-8")
    for line in (
        "rank 1 of 3 raised ValueError: the second",
        "rank 2 of 3 was killed by SIGSEGV; ranks 0 and 1 raised too",
        "rank 1 of 2 was killed by SIGKILL",
        "rank 0 of 2 ended with exit status 3 before its body returned",
        "rank 1 of 2 did not end within 1 s: test_ranks.py:",
        "rank 0 of 2 did not end within 1 s: it is stopped by a signal",
        "rank 1 of 2 left a process running",
    ):
        assert line in page
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        assert not any(str(project.folder) in word for word in command)
        assert command[1:] != ["-c", "import signal; signal.pause()"]


_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root may change users and groups")
SUITES = (
    Suites(("deaths",), day=(BATCH_2,), look=look_at_a_crash),
    Suites(("hangs",), day=(CASE,), look=look_at_hangs),
    Suites(("leftovers",), day=(BATCH_2,), look=look_at_daemons),
    Suites(("noise",), day=(BATCH,), look=look_at_output),
    Suites(("damage",), day=(CASE,)),
    Suites(("company", "poison"), day=(BATCH_2,)),
    Suites(("fixtures", "verdicts"), day=(BATCH,)),
    Suites(("plain", "verdicts"), day=(NONE_2,), night=(NONE,), look=look_for_executors),
    Suites(("gated",), day=(BATCH_2, NONE), night=(BATCH, NONE_2)),
    Suites(("harm", "before_fork", "wider_scopes"), day=(BATCH_2, CASE), look=look_at_kept_files),
    Suites(("inside",), day=(BATCH_2, CASE), look=look_at_the_temporary_folder),
    Suites(("exit_handlers",), day=(BATCH_2, CASE), night=(), look=look_at_exit_handlers),
    Suites(("finalised",), day=(BATCH,), night=(), look=look_at_finalised_processes),
    Suites(("late",), day=(BATCH,), night=()),
    Suites(("raw_ids",), day=(BATCH_2,)),
    Suites(("raw_ids", "surrogate_ids"), day=(BATCH,), night=(CASE,)),
    Suites(("serial",), day=(BATCH_2,), night=(), look=look_for_one_executor_per_worker),
    Suites(("session_teardown",), day=(BATCH,), night=(BATCH_2,)),
    Suites(("stopped_clocks",), day=(NONE,), night=(), look=look_at_clocks),
    Suites(("user_values", "stopped_clocks", "replaced_streams"), day=(BATCH,), look=look_at_clocks),
    Suites(("torch_threads", "second_run"), day=(BATCH,)),
    Suites(("process_state",), day=(BATCH,)),
    Suites(("process_user",), day=(BATCH,), marks=(_ROOT,)),
    Suites(("exits",), day=(CASE,), night=(CASE_2,)),
    Suites(("stubborn",), day=(), night=(BATCH,)),
    Suites(("ranks",), day=(CASE,), night=(BATCH,), look=look_at_ranks, marks=(pytest.mark.long,)),
    Suites(("policy_faults", "policy_ends", "policy_company"), day=(BATCH,)),
    Suites(("policy_strict",), day=(BATCH_2, NONE), night=(CASE,)),
)


def _runs() -> Iterator[Any]:
    for suites in SUITES:
        for mode, workers in dict.fromkeys([*suites.day, *suites.night]):
            marks = [*suites.marks, *([] if (mode, workers) in suites.day else [pytest.mark.nightly])]
            yield pytest.param(suites, mode, workers, id=f"{'+'.join(suites.topics)}-{mode}-{workers}", marks=marks)


@pytest.mark.parametrize(("suites", "mode", "workers"), list(_runs()))
def test_whole_summary(make_project: MakeProject, suites: Suites, mode: str, workers: int) -> None:
    project = make_project(*suites.topics)
    wanted = expected(project, mode)
    try:
        result = project.run(f"--isolation={mode}", f"-n{workers}", *wanted.options, env={"WORKERS": str(workers)})
        compare(result, wanted, alone=mode == "case")
        assert f"seed {result.lines[0]['seed']}" in result.terminal
        if suites.look is not None:
            suites.look(project, result)
    finally:
        for process in _living_daemons(project):
            process.kill()


def _living_daemons(project: Project) -> Iterator[psutil.Process]:
    """Return the daemons that cases of `project` have started and that still run."""
    for pid in map(int, project.probe("daemons")):
        try:
            process = psutil.Process(pid)
            if "signal.pause()" in " ".join(process.cmdline()):  # the id may belong to another process by now
                yield process
        except psutil.NoSuchProcess:
            continue
