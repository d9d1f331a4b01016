"""The engine: apply a break, run cases, and judge which of them noticed it.

A break is a fault of a device (``--inject``), a change of torch by hand (the catalogue, kernels), or one by rules (a
mutant). Each way to run cases returns what was `Observed`, and `judge` decides who noticed. `run_breaks` takes breaks
through whole runs of pytest; `mutants.warm` takes mutants through forks of one process, since there are thousands.

A case notices a break if it passes without the break and is red with it. `lost` and `not_run` do not count, because the
case observed nothing. A case *stumbles*, and does not count, if its own check did not see the break: a break of torch
raised an error of its own there, such as a TypeError, or with a fault a call in a helper of several files raised, for
example one that calibrates. A case may be red for another reason: if a fault did not occur in it, it runs again with
the fault, alone, and does not count if it passes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.core.outcome import Outcome
from harness.core.text import single_line
from harness.journal import journal, reader
from harness.journal.events import Finish
from harness.journal.ledger import Ledger
from harness.tools.order import inherited_environment
from tests.breaks.breaks import Break, BreakError, is_mistake
from tests.breaks.source import VARIABLE
from tests.breaks.table import Result, Table

#: Name of the run without a break on a kind of device.
CLEAN = "clean"
#: The checkout: processes that load `tests.breaks` find it there, in whichever folder the cases are.
ROOT = Path(__file__).parents[2]
#: Outcomes with which the case itself observed nothing.
_NO_CATCH = (Outcome.LOST, Outcome.NOT_RUN)
#: Outcomes with which a case has checked nothing.
_NOTHING_CHECKED = (*_NO_CATCH, Outcome.GATED, Outcome.SKIPPED)
#: The beginning of the message of a failed check: of pytest, unittest or NumPy, or an exception of the suites' own.
_CHECK = re.compile(r"(\S*RanksError: rank \d+ raised )?(AssertionError\b|assert\b|Failed: |suites\.)")
#: A line of a traceback that names a place, such as "suites/streams/busy.py:90: RuntimeError".
_PLACE = re.compile(r"^(\S+\.py):\d+: ", re.MULTILINE)


#: Texts of checks that the case can show what it is about: a failure says nothing about that.
_UNSHOWN = ("the case proves nothing", "the process ended with")
#: Files of libraries that compare values for a test. An assertion elsewhere in a library is a check of its own.
_COMPARES = re.compile(r"/(torch/testing|numpy/testing|unittest)/")


def is_failed_check(message: str, path: str) -> bool:
    """Return whether the failure of a test is that of a check of its own. `path`: the file in which it was raised."""
    if not _CHECK.match(message) or any(text in message for text in _UNSHOWN):
        return False
    return "/site-packages/" not in path or bool(_COMPARES.search(path))


@dataclass(frozen=True, slots=True)
class Red:
    """The end of a red case: its outcome and its message.

    `in_helper`: a call in a helper raised instead of a check. `checked`: a check of the case itself failed; known only
    of cases that ran in a fork.
    """

    outcome: str
    text: str = ""
    in_helper: bool = False
    checked: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """What cases did in one run, with a break or without. All cases by their ids.

    - `passed`, `red`: the cases with these ends. `ran`: these and the others that checked something.
    - `struck`: how often the injected fault occurred. Only cases that reached their end report it.
    - `doubtful`: the red cases that reported no occurrence. It may have been in a process that they started, or have
      hung the case, or the machine was busy. A crash is no doubt: it ends the process that would report.
    - `unfit`: why the break could not be made; empty if it was.
    """

    passed: frozenset[str] = frozenset()
    red: Mapping[str, Red] = field(default_factory=dict)
    ran: frozenset[str] = frozenset()
    struck: int = 0
    doubtful: frozenset[str] = frozenset()
    unfit: str = ""


class Run(Protocol):
    """Runs cases with a break, or without. `name`: of the run. `options`: further ones for pytest. See `PytestRuns`."""

    def __call__(
        self, name: str, device: str, cases: Sequence[str], entry: Break | None, *options: str
    ) -> Observed: ...


def observed(ledger: Ledger, fault: str = "") -> Observed:
    """Return what a run of pytest observed. `fault`: the name of the injected fault."""
    verdicts = ledger.verdicts
    red = {
        verdict.case: Red(verdict.outcome.value, verdict.message, _in_helper(verdict.decided))
        for verdict in verdicts
        if verdict.outcome.is_red and verdict.outcome not in _NO_CATCH
    }
    struck = {verdict.case: sum(finish.struck.get(fault, 0) for finish in verdict.finishes) for verdict in verdicts}
    return Observed(
        passed=frozenset(verdict.case for verdict in verdicts if verdict.outcome is Outcome.PASSED),
        red=red,
        ran=frozenset(verdict.case for verdict in verdicts if verdict.outcome not in _NOTHING_CHECKED),
        struck=sum(struck.values()),
        doubtful=frozenset(case for case, end in red.items() if end.outcome != Outcome.CRASHED and not struck[case]),
    )


def _in_helper(finish: Finish | None) -> bool:
    """Return whether a call in a helper raised, so that no check of the case has failed."""
    if finish is None or finish.outcome not in (Outcome.FAILED, Outcome.ERROR) or _CHECK.match(finish.message):
        return False
    file = finish.case.partition("::")[0]
    own = [path for path in _PLACE.findall(finish.detail) if path.partition("/")[0] == file.partition("/")[0]]
    return bool(own) and own[-1] != file


def judge(
    entry: Break, clean: Collection[str], seen: Observed, not_counted: Collection[str] = (), *, counts: bool = False
) -> Result:
    """Return which cases noticed a break. `clean`: the cases that pass without it; the others are left out.

    `not_counted`: red cases in which a fault did not occur, and that passed alone. `counts`: `seen` counted how often
    the fault occurred.
    """
    ran = seen.ran.intersection(clean)
    red = {case: end for case, end in seen.red.items() if case in clean}
    # A fault has no code that could raise an error of its own. A break of torch may show in any call.
    stumbled = {
        case: end.text
        for case, end in red.items()
        if case not in not_counted and (end.in_helper if entry.fault else is_mistake(end.text))
    }
    noticed = {case: end.outcome for case, end in red.items() if case not in stumbled and case not in not_counted}
    unusable = seen.unfit
    if not (ran or unusable):
        unusable = "none of its cases ran with it: see the output of its run"
    elif counts and not (seen.struck or noticed or stumbled):
        unusable = "the fault never occurred"
    left_out = tuple(sorted(case for case in red if case in not_counted))
    return Result(entry.name, entry.breaks, entry.device, noticed, ran, unusable, stumbled, seen.struck, left_out)


@dataclass(frozen=True, slots=True)
class PytestRuns:
    """Runs cases with pytest in child processes, in the current folder.

    Each run has its own run directory in `results`, and pytest's output in a text file next to it. `options`: those of
    every run. `catalogue`: the file that has the breaks, or None for the catalogue.
    """

    results: Path
    options: tuple[str, ...]
    catalogue: Path | None = None

    def __call__(self, name: str, device: str, cases: Sequence[str], entry: Break | None, *options: str) -> Observed:
        """Run these cases once. Raise BreakError if the run has no journal."""
        if entry is None:
            return observed(self.ledger(name, device, cases, *options))
        if entry.fault:
            more = (f"--inject={entry.fault}", *entry.options, *options)
            return observed(self.ledger(name, device, cases, *more), re.split("[:,]", entry.fault)[0])
        words = f"{self.catalogue.absolute()}:{entry.name}" if self.catalogue else entry.name
        more = ("-p", "tests.breaks.source", *entry.options, *options)
        return observed(self.ledger(name, device, cases, *more, variables={VARIABLE: words}))

    def ledger(
        self, name: str, device: str, cases: Sequence[str], *options: str, variables: Mapping[str, str] | None = None
    ) -> Ledger:
        """Run cases. `variables` are added to the environment. Raise BreakError if the run has no journal."""
        run_dir, output = self.results / name, self.results / f"{name}.txt"
        command = [sys.executable, "-m", "pytest", *cases, *self.options, f"--harness-device={device}"]
        command += [f"--harness-results-dir={run_dir}", "-p", "no:cacheprovider", *options]
        self.results.mkdir(parents=True, exist_ok=True)
        with output.open("wb") as file:
            subprocess.run(
                command,
                env={**environment(os.environ), **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if not (run_dir / journal.FILE_NAME).exists():
            last = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            raise BreakError(f"the cases do not run ({name}): pytest printed {' '.join(map(single_line, last))!r}")
        return Ledger.from_journal(reader.read_journal(run_dir / journal.FILE_NAME))


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that loads `tests.breaks`."""
    path = os.pathsep.join(filter(None, [environ.get("PYTHONPATH", ""), str(ROOT)]))
    return {**inherited_environment(environ), "PYTHONPATH": path}


def run_breaks(
    breaks: Sequence[Break],
    run: Run,
    unusable: Mapping[str, str],
    *,
    jobs: int,
    first: bool,
    log: Callable[[str], object],
    keep: Callable[[Table], object],
) -> Table:
    """Run the cases without a break, once per kind of device, and then the cases of each break with it.

    - `unusable`: reasons why breaks cannot be used, by name. They do not run.
    - `jobs`: the number of parallel runs. `first`: a run with a break ends at its first red case.
    - `log` gets one line per run, and `keep` the table after each break.

    Raise BreakError if there are no cases, if they do not run, or if none passes without a break.
    """
    usable = [entry for entry in breaks if entry.name not in unusable]
    rows = {name: _unusable(entry, unusable[name]) for entry in breaks if (name := entry.name) in unusable}
    with ThreadPoolExecutor(jobs) as pool:
        devices = sorted({entry.device for entry in usable})
        clean = dict(zip(devices, pool.map(lambda device: _clean(usable, device, run, log), devices), strict=True))
        red = {case: end.outcome for seen in clean.values() for case, end in seen.red.items()}
        passed = sum(len(seen.passed) for seen in clean.values())

        def table() -> Table:
            done = tuple(rows[entry.name] for entry in breaks if entry.name in rows)
            return Table(done, passed, red, tuple(entry.name for entry in breaks if entry.name not in rows))

        found = pool.map(lambda entry: _result(entry, clean[entry.device].passed, run, log, first=first), usable)
        for result in found:
            rows[result.name] = result
            keep(table())
    return table()


def _unusable(entry: Break, why: str) -> Result:
    return Result(entry.name, entry.breaks, entry.device, unusable=why)


def _clean(breaks: Sequence[Break], device: str, run: Run, log: Callable[[str], object]) -> Observed:
    cases = sorted({suite for entry in breaks if entry.device == device for suite in entry.suites})
    if lost := [case for case in cases if not Path(case.partition("::")[0]).exists()]:
        raise BreakError(f"the suite {lost[0]!r} does not exist: run this where it is, or name others with --suites")
    name = f"{CLEAN}-{device}"
    seen = run(name, device, cases, None)
    log(f"{device} without a break: {len(seen.passed)} passed, {len(seen.red)} red")
    if not seen.passed:
        raise BreakError(f"no case passes without a break on {device!r}, so no case can notice one: see {name}.txt")
    return seen


def _result(entry: Break, clean: Collection[str], run: Run, log: Callable[[str], object], *, first: bool) -> Result:
    """Run the cases with a break, and the doubtful ones again, alone."""
    folder = entry.name.replace(":", "-")

    def judged(name: str, *options: str) -> Result:
        seen = run(name, entry.device, entry.suites, entry, *options)
        doubtful = sorted(seen.doubtful.intersection(clean)) if entry.fault else []
        alone = run(f"{name}-alone", entry.device, doubtful, entry, "--isolation=case").passed if doubtful else ()
        return judge(entry, clean, seen, alone, counts=bool(entry.fault))

    result = judged(folder, *(["--maxfail=1"] if first else []))
    if first and not result.noticed_by and (result.not_counted or result.stumbled):  # it ended at one that counts not
        result = judged(f"{folder}-whole")
    noticed = f"noticed by {len(result.noticed_by)} of {len(result.ran)}"
    log(f"{entry.name}: {result.unusable or (noticed if result.noticed_by else f'MISSED by {len(result.ran)}')}")
    return result
