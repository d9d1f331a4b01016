"""A conformance project in a temporary folder, run through the harness as a user does: in a separate process."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import psutil

from harness.journal import journal, reader
from harness.journal.ledger import Ledger
from tests.acceptance.window import Window
from tests.reporting import build
from tests.warm import client
from tests.warm.client import FOREIGN, Process
from tests.warm.launch import MARK, MARK_LENGTH

SUITES = Path(__file__).with_name("fixture_suites")
SHARED_MEMORY = Path("/dev/shm")
#: Seconds after which a run, or a wait for an event in it, fails: far more than any needs.
PATIENCE = 600.0

_INI = """\
[pytest]
harness_suites = suites
harness_preload =
strict_markers = true
"""
_COUNTS = re.compile(r"^=+ (.+) in -?[0-9.]+s(?: \([0-9:]+\))? =+$", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """The result of a run. `ledger` is None without a journal, `junit` without a report."""

    status: int
    terminal: str
    run_dir: Path
    seconds: float

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of the journal as plain JSON values."""
        return journal_lines(self.run_dir)

    @property
    def contents(self) -> reader.JournalContents:
        return reader.read_journal(self.run_dir / journal.FILE_NAME)

    @property
    def ledger(self) -> Ledger:
        """The verdicts. Raises JournalError if there is no journal."""
        return Ledger.from_journal(self.contents)

    @property
    def verdicts(self) -> dict[str, str]:
        """The outcome of each case, by id."""
        return {verdict.case: verdict.outcome.value for verdict in self.ledger.verdicts}

    @property
    def junit(self) -> Element:
        """The root of junit.xml. Raises if the file is missing or not XML."""
        return ElementTree.parse(self.run_dir / "junit.xml").getroot()

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of pytest's last line, by word: ``{"passed": 3, "error": 1}``."""
        found = _COUNTS.findall(self.terminal)
        assert found, f"the run did not come to pytest's summary:\n{self.terminal}"
        pairs = (part.split(" ", 1) for part in found[-1].split(", ") if part[0].isdigit())
        return {{"errors": "error", "warning": "warnings"}.get(word, word): int(number) for number, word in pairs}

    def final(self, name: str) -> dict[str, Any]:
        """Return the journal's final line about the case whose id ends with `name`."""
        (found,) = (
            line
            for line in self.lines
            if line["event"] == "finish" and line["final"] and line["case"].endswith(f"::{name}")
        )
        return found

    def tail(self) -> str:
        """The end of the run's output, for messages."""
        return f"exit status {self.status}\n{self.terminal[-6000:]}"


class Running:
    """A run in progress, in its own session."""

    def __init__(self, process: Process, output: Path, run_dir: Path, mark: str) -> None:
        self.process = process
        self.run_dir = run_dir
        self.mark = mark
        self._output = output
        self._begun = time.monotonic()

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the journal so far."""
        return journal_lines(self.run_dir)

    def terminal(self) -> str:
        """Return the output so far."""
        return self._output.read_text(encoding="utf-8", errors="backslashreplace")

    def started(self, case: str) -> dict[str, Any]:
        """Wait for a line that reports the start of `case`, and return the latest such line."""
        self.wait_for(lambda: any(_starts(line, case) for line in self.lines()), f"the start of {case}")
        return next(line for line in reversed(self.lines()) if _starts(line, case))

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Poll until `condition` holds. Fail if the run ends, or after PATIENCE seconds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            over = self.process.poll() is not None
            if (over and not condition()) or time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for {what}:\n{self._output.read_text(errors='replace')[-6000:]}")
            time.sleep(0.01)

    def processes(self) -> list[psutil.Process]:
        """Return all living processes of the run."""
        return marked(self.mark)

    def result(self) -> Result:
        """Wait for the end of the run and of all its processes."""
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"the run does not end:\n{self._output.read_text(errors='replace')[-6000:]}") from None
        seconds = time.monotonic() - self._begun
        self._expect_nothing_left()
        for path in SHARED_MEMORY.glob(f"harness-acceptance-{self.mark}-*"):
            path.unlink()  # a fixture suite deliberately leaves files there that outlive its processes
        text = self._output.read_text(encoding="utf-8", errors="backslashreplace")
        return Result(status=status, terminal=text, run_dir=self.run_dir, seconds=seconds)

    def kill_all(self) -> None:
        """Kill all remaining processes, so that a failed test leaves none."""
        for process in self.processes():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()

    def _expect_nothing_left(self) -> None:
        # A process that the kernel kills because its parent ended needs a moment to end.
        _, left = psutil.wait_procs(self.processes(), timeout=10)
        described = [f"{process.pid} {process.cmdline()}" for process in left if process.is_running()]
        if described:
            self.kill_all()
            raise AssertionError(f"the run left processes behind: {described}")


class Project:
    """A folder with a pytest.ini and suites, in which runs are started."""

    def __init__(self, folder: Path, *topics: str) -> None:
        """Create the project with copies of the fixture suites in the folders `topics`."""
        self.folder = folder
        self.temp = folder / "tmp"
        self.temp.mkdir(parents=True)
        self.write("pytest.ini", _INI)
        for topic in topics:
            shutil.copytree(SUITES / topic, folder / "suites" / topic, ignore=shutil.ignore_patterns("__pycache__"))

    def write(self, name: str, text: str) -> None:
        """Write `text` in UTF-8 to a file of the project."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def keep(self, *names: str) -> None:
        """Remove all test files but those of these names."""
        for path in self.folder.glob("suites/**/test_*.py"):
            if path.name not in names:
                path.unlink()

    def start(
        self,
        *arguments: str,
        suites: str | None = "suites",
        folder: str = ".",
        env: Mapping[str, str | None] | None = None,
        results_dir: bool = True,
        cold: bool = False,
        window: Window | None = None,
    ) -> Running:
        """Start ``pytest SUITES ARGUMENTS`` and return immediately; `results_dir` adds a run directory.

        The process is a warm one (`tests.warm`), unless `cold`. Its output goes to a file, or to the `window`.

        It starts in `folder` of the project. Without `suites`, only the arguments are given. `env` is added to the
        environment; a value of None removes the variable.
        """
        name = f"run-{secrets.token_hex(4)}"
        here = self.folder / folder
        run_dir = here / name
        mark = secrets.token_hex(MARK_LENGTH // 2)
        command = ["-m", "pytest", *([] if suites is None else [suites]), *arguments]
        if results_dir and "no:harness" not in arguments:
            command.append(f"--results-dir={name}")
        if not any(argument in ("--lf", "--ff", "--sw") for argument in arguments):
            command += ["-p", "no:cacheprovider"]
        if "no:harness" in arguments:  # the harness itself keeps hypothesis from being imported
            command += ["-p", "no:hypothesispytest"]
        outer = os.environ.items()
        environment = {key: value for key, value in outer if not key.startswith((*FOREIGN, "CUDA_VISIBLE_DEVICES"))}
        wanted: dict[str, str | None] = {
            MARK: mark,
            "TMPDIR": str(self.temp),
            "CUDA_VISIBLE_DEVICES": "",
            "COLUMNS": "200",
            "PROBE_DIR": str(self.folder / "probe"),
            **(env or {}),
        }
        environment = {key: value for key, value in (environment | wanted).items() if value is not None}
        output = self.folder / f"{name}.out"
        (self.folder / "probe").mkdir(exist_ok=True)
        with output.open("wb") as file:
            process = client.start(command, here, environment, window.output if window else file, cold=cold)
        return Running(process, output, run_dir, mark)

    def run(
        self,
        *arguments: str,
        suites: str | None = "suites",
        folder: str = ".",
        env: Mapping[str, str | None] | None = None,
        results_dir: bool = True,
        cold: bool = False,
    ) -> Result:
        """Run `start` to its end."""
        running = self.start(*arguments, suites=suites, folder=folder, env=env, results_dir=results_dir, cold=cold)
        try:
            return running.result()
        except BaseException:
            running.kill_all()
            raise

    def probe_names(self) -> list[str]:
        """Return the names of the files that cases have created in their PROBE_DIR."""
        return sorted(path.name for path in (self.folder / "probe").iterdir())

    def probe(self, name: str) -> list[str]:
        """Return the lines that cases have appended to this file in their PROBE_DIR; none if there is no such file."""
        path = self.folder / "probe" / name
        return path.read_text().splitlines() if path.exists() else []


def journal_lines(run_dir: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a journal, even while it is being written; none if there is no journal yet."""
    try:
        data = (run_dir / journal.FILE_NAME).read_bytes()
    except FileNotFoundError:
        return []
    return build.read_lines(data)


def marked(mark: str) -> list[psutil.Process]:
    """Return all living processes with `mark` in their environment, including those that are not descendants."""
    return list(_marked(mark))


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.Error:
            continue


def _starts(line: Mapping[str, Any], case: str) -> bool:
    return line["event"] == "start" and str(line["case"]).endswith(case)


def interrupt(running: Running) -> None:
    """Send SIGINT to the run's process group, as Ctrl-C at a terminal does."""
    os.killpg(running.process.pid, signal.SIGINT)


def open_gate(running: Running, path: Path) -> None:
    """Let a case continue that waits to open the pipe at `path`."""

    def opened() -> bool:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # no case waits there yet
            return False
        return True

    running.wait_for(opened, "the case to wait")


def paste(project: Project, command: str) -> Result:
    """Run a line in a shell, as a user would."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "TMPDIR": str(project.temp), "CUDA_VISIBLE_DEVICES": "", "HOME": str(project.folder)}
    done = subprocess.run(
        ["bash", "-c", f"{command} --results-dir=pasted"],
        cwd=project.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert shlex.split(command)[0] == "pytest"
    return Result(done.returncode, done.stdout + done.stderr, project.folder / "pasted", 0.0)
