"""The live table of a run, in the window of a terminal emulator."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal
from tests.acceptance.project import Project, Result, open_gate
from tests.acceptance.window import Window

FILE = "suites/slow/test_slow.py"
#: The middle case waits until the other end of a pipe is opened.
CASES = """
import os, pytest

WAITED = []

@pytest.mark.parametrize("number", range(150))
def test_first(number): pass
def test_fails(): assert 1 == 2
def test_waits():
    if not WAITED:  # the leak check may have the case run again in its process
        WAITED.append(open(os.environ["PROBE_DIR"] + "/gate").close())
@pytest.mark.parametrize("number", range(5))
def test_last(number): print("printed")
"""
TERMINAL = {"TERM": "xterm-256color", "COLUMNS": None, "LINES": None}
#: Wide enough for any path of a run directory.
WIDE = 250
SPREADS = pytest.mark.ways("spread", ["-n0", "-n2"])


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    project = make_project()
    project.write(FILE, CASES)
    gate = project.folder / "probe" / "gate"
    gate.parent.mkdir(exist_ok=True)
    os.mkfifo(gate)
    return project


def run(
    project: Project,
    window: Window,
    *arguments: str,
    until: Callable[[], bool] = lambda: True,
    env: dict[str, str | None] | None = None,
) -> Result:
    """Run in the window. The waiting case continues when `until` holds."""
    running = project.start("--seed=3", "--dist=loadfile", *arguments, env={**TERMINAL, **(env or {})}, window=window)
    try:
        running.started("test_waits")
        running.wait_for(until, "what should be in the window")
        open_gate(running, project.folder / "probe" / "gate")
        result = running.result()
    except BaseException as error:
        running.kill_all()
        error.add_note("\n".join(window.all()[-60:]))
        raise
    window.finish()
    check_journal(result)
    return result


def plain(lines: list[str]) -> list[str]:
    """Return the lines without the parts that differ between runs."""
    text = "\n".join(lines)
    text = re.sub(r"run-\w+|gw\d|\b\d+\.\d+s?\b|(?<=waits on )\S+", "~", text)
    return [line.rstrip("= ") for line in text.split("\n")]


@SPREADS
@pytest.mark.parametrize(
    "how",
    [(), *(pytest.param((word,), marks=pytest.mark.nightly) for word in ("-v", "-q", "-rA"))],
    ids=lambda words: "".join(words) or "plain",
)
def test_the_table_is_below_what_pytest_prints_and_goes_without_a_trace(
    project: Project, spread: str, how: tuple[str, ...]
) -> None:
    worker = "main" if spread == "-n0" else "gw[01]"

    def reported() -> bool:
        lines = "\n".join(window.shown())
        return (
            re.search(rf"(?m)^{worker} +cpu +[0-9: ]+(s|min)  {re.escape(FILE)}::test_waits$", lines) is not None
            and f"last red: {FILE}::test_fails (failed)" in lines
            and re.search(
                r"(?m)^151 of 157 cases done \(150 passed, 1 red\); 6 left \(.*\); [0-9: ]+(s|min) so far$", lines
            )
            is not None
        )

    with Window(WIDE) as window:
        result = run(project, window, spread, *how, until=reported)
    with Window(WIDE) as quiet:
        run(project, quiet, spread, *how, "--progress=off")
    assert result.status == 1
    assert b"last red" not in quiet.written
    assert plain(window.all()) == plain(quiet.all())


@pytest.mark.nightly
def test_cases_in_this_process_print_above_it(project: Project) -> None:
    """Without isolation the cases run in the process that draws. With -s they print directly."""
    arguments = ("-n0", "--isolation=none", "-s")
    with Window(WIDE) as window:
        run(
            project,
            window,
            *arguments,
            "--progress=live",
            until=lambda: any("so far" in line for line in window.shown()),
        )
    with Window(WIDE) as quiet:
        run(project, quiet, *arguments)
    assert plain(window.all()) == plain(quiet.all())
    assert b"so far" not in quiet.written


def test_a_window_that_is_small_and_changes(project: Project) -> None:
    with Window(34, 10) as window:

        def reported() -> bool:
            lines = window.shown()
            if len(window.written) < before:
                return False
            return any(line.startswith(("gw0", "gw1")) for line in lines) and any("157 cases" in line for line in lines)

        before = 0
        running = project.start("-n2", env=TERMINAL, window=window)
        try:
            running.started("test_waits")
            running.wait_for(reported, "a table in a small window")
            for columns, lines in ((90, 20), (40, 9), (60, 30)):
                before = len(window.written) + 1
                window.resize(columns, lines)
                running.wait_for(reported, f"a table in {columns} columns and {lines} lines")
            open_gate(running, project.folder / "probe" / "gate")
            assert running.result().status == 1
        finally:
            running.kill_all()
        window.finish()
        assert "so far" not in window.shown()[-1]


def test_a_run_that_is_killed_leaves_the_cursor(project: Project) -> None:
    with Window(WIDE) as window:
        running = project.start("-n0", env=TERMINAL, window=window)
        try:
            running.started("test_waits")
            running.wait_for(lambda: any("so far" in line for line in window.shown()), "a table")
            running.process.kill()
            running.result()
        finally:
            running.kill_all()
        window.finish()
        assert not window.cursor_is_hidden


@pytest.mark.ways(
    ("given", "env"),
    [(("--progress=plain",), {}), ((), {"TERM": "dumb"}), ((), {"HARNESS_PROGRESS": "off"})],
    ids=["plain", "dumb", "off"],
)
def test_no_table(project: Project, given: tuple[str, ...], env: dict[str, str | None]) -> None:
    with Window(WIDE) as window:
        run(project, window, "-n0", *given, env=env)
    assert b"so far" not in window.written


def test_a_resumed_run(project: Project) -> None:
    with Window(WIDE) as window:
        running = project.start("-n0", env=TERMINAL, window=window)
        running.started("test_waits")
        running.process.kill()
        cut = running.result()
    with Window(WIDE) as window:
        done = r"^151 of 157 cases done \(150 passed, 1 red\); 6 left; [0-9: ]+(s|min) so far$"
        running = project.start("-n0", f"--resume={cut.run_dir.name}", results_dir=False, env=TERMINAL, window=window)
        try:
            running.wait_for(lambda: any(re.match(done, line) for line in window.shown()), "what was done before")
            open_gate(running, project.folder / "probe" / "gate")
            assert running.result().status == 1
        finally:
            running.kill_all()
