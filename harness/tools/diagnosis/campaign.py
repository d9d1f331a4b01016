"""The fault campaign: which cases catch which fault of a device, and which faults no case catches.

The cases run once on the device without a fault, then once with each fault. A case catches a fault if it passed without
the fault and is red with it. `lost` and `not_run` do not count, because the case observed nothing. A failure counts if
the case itself saw it: a check failed, or a call in the case's own file raised. It does not count if a call in a helper
of several files raised, for example one that calibrates.

A case may be red for another reason. If the fault did not occur in it, it runs again with the fault, alone, and does
not count if it passes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.backends.table import BACKENDS
from harness.core.atomic import write_atomically
from harness.core.errors import HarnessError
from harness.core.outcome import Outcome
from harness.core.text import format_count, list_first, single_line
from harness.journal import journal, reader
from harness.journal.events import Finish
from harness.journal.ledger import Ledger
from harness.sim.native.faults import Injection, fault_catalogue
from harness.tools.diagnosis.order import inherited_environment

#: Name of the run without a fault. The other runs are named after their fault.
CLEAN = "clean"
TABLE, RECORD = "faults.txt", "faults.json"

#: The default device of a campaign.
DEFAULT_DEVICE = "soft"
_SHOWN = 3  # cases named in a line of the table; the JSON record has all of them
#: Outcomes with which the case itself observed nothing.
NO_CATCH = (Outcome.LOST, Outcome.NOT_RUN)
#: Outcomes of a case whose process may have ended before it reported how often the fault occurred.
_UNREPORTED = (Outcome.CRASHED, Outcome.TIMEOUT)
#: The beginning of the message of a failed check: of pytest, unittest or NumPy, or an exception of the suites' own.
_CHECK = re.compile(r"(\S*RanksError: rank \d+ raised )?(AssertionError\b|assert\b|Failed: |suites\.)")
#: A line of a traceback that names a place, such as "suites/streams/busy.py:90: RuntimeError".
_PLACE = re.compile(r"^(\S+\.py):\d+: ", re.MULTILINE)


class CampaignError(HarnessError):
    """The cases do not run, so the campaign has no result."""


@dataclass(frozen=True, slots=True)
class CampaignTally:
    """The result of one run: the cases that passed, the outcome of each red case, and how often the fault occurred.

    Only cases that reached their end report `struck`, so it may be too low if cases crash. `doubtful`: the red cases
    that reported no occurrence. The fault may have occurred in a process that they started. `stumbled`: the red cases
    in which a call in a helper raised.
    """

    passed: frozenset[str]
    wrong: Mapping[str, str]
    struck: int = 0
    doubtful: frozenset[str] = frozenset()
    stumbled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A line of the table. `caught_by` maps the ids of the cases that caught the fault to their outcomes.

    `not_counted`: the cases that were red although the fault did not occur in them, and that passed alone. `stumbled`:
    the cases that were red because a call in a helper raised.
    """

    fault: str
    breaks: str
    caught_by: Mapping[str, str]
    struck: int
    not_counted: tuple[str, ...] = ()
    stumbled: tuple[str, ...] = ()

    @property
    def caught(self) -> bool:
        return bool(self.caught_by)


@dataclass(frozen=True, slots=True)
class OrdersCampaign:
    """The result of a campaign. Without a fault, `passed` cases passed, and `wrong` has the outcomes of red cases.

    `device`: the kind of device that the cases ran on. `not_run`: the faults that have not run yet.
    """

    passed: int
    wrong: Mapping[str, str]
    rows: tuple[FaultRow, ...]
    device: str = DEFAULT_DEVICE
    not_run: tuple[str, ...] = ()

    @property
    def missed(self) -> tuple[str, ...]:
        return tuple(row.fault for row in self.rows if not row.caught)

    @property
    def green(self) -> bool:
        """Whether no case was red without a fault, and every fault was caught."""
        return not (self.wrong or self.missed or self.not_run)


def tally_cases(ledger: Ledger, fault: str = "") -> CampaignTally:
    """Summarise a run for the campaign. `fault` is the injected fault."""
    wrong = {
        verdict.case: verdict.outcome.value
        for verdict in ledger.verdicts
        if verdict.outcome.is_red and verdict.outcome not in NO_CATCH
    }
    struck = {
        verdict.case: sum(finish.struck.get(fault, 0) for finish in verdict.finishes) for verdict in ledger.verdicts
    }
    passed = frozenset(verdict.case for verdict in ledger.verdicts if verdict.outcome is Outcome.PASSED)
    doubtful = frozenset(case for case, outcome in wrong.items() if outcome not in _UNREPORTED and not struck[case])
    stumbled = frozenset(
        verdict.case
        for verdict in ledger.verdicts
        if verdict.case in wrong and verdict.decided is not None and _stumbled(verdict.decided)
    )
    return CampaignTally(passed, wrong, sum(struck.values()), doubtful, stumbled)


def _stumbled(finish: Finish) -> bool:
    """Return whether a call in a helper raised, so that no check of the case has failed."""
    if finish.outcome not in (Outcome.FAILED, Outcome.ERROR) or _CHECK.match(finish.message):
        return False
    file = finish.case.partition("::")[0]
    own = [path for path in _PLACE.findall(finish.detail) if path.partition("/")[0] == file.partition("/")[0]]
    return bool(own) and own[-1] != file


def row(
    fault: str, breaks: str, clean: CampaignTally, faulty: CampaignTally, passed_alone: Collection[str] = ()
) -> FaultRow:
    """Compare the run with a fault with the run without.

    `passed_alone`: the doubtful cases that passed when they ran again.
    """
    caught = {case: outcome for case, outcome in faulty.wrong.items() if case in clean.passed}
    counted = caught.keys() - faulty.stumbled - {*passed_alone}
    return FaultRow(
        fault,
        breaks,
        {case: outcome for case, outcome in caught.items() if case in counted},
        faulty.struck,
        tuple(case for case in caught if case in passed_alone),
        tuple(case for case in caught if case in faulty.stumbled and case not in passed_alone),
    )


def orders_text(campaign: OrdersCampaign) -> str:
    """Return the table as text, with the missed faults below it."""
    cells = [("fault", "caught by", "")]
    cells += [
        (entry.fault, str(len(entry.caught_by)) if entry.caught else "MISSED", _named(entry)) for entry in campaign.rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in (0, 1)]
    lines = [f"{fault:{widths[0]}}  {count:>{widths[1]}}  {names}".rstrip() for fault, count, names in cells]
    lines += [
        "",
        f"on {BACKENDS[campaign.device].noun} without a fault: {format_count(campaign.passed, 'case')} passed, "
        f"{len(campaign.wrong)} red",
    ]
    lines += [f"    {outcome} {case}" for case, outcome in campaign.wrong.items()]
    caught = len(campaign.rows) - len(campaign.missed)
    lines.append(f"{caught} of {len(campaign.rows)} faults caught" + _missed(campaign.missed))
    lines += [f"not run: {', '.join(campaign.not_run)}"] if campaign.not_run else []
    for entry in campaign.rows:
        lines += _left_out(entry, "in which it did not occur, green alone", entry.not_counted)
        lines += _left_out(entry, "in which a call in a helper raised", entry.stumbled)
    return "\n".join(lines) + "\n"


def orders_json(campaign: OrdersCampaign) -> str:
    """Return the whole result as JSON."""
    values = {
        "device": campaign.device,
        "passed_without_fault": campaign.passed,
        "red_without_fault": dict(campaign.wrong),
        "faults": [asdict(entry) for entry in campaign.rows],
        "missed": list(campaign.missed),
        "not_run": list(campaign.not_run),
    }
    return json.dumps(values, indent=2) + "\n"


def _named(entry: FaultRow) -> str:
    if not entry.caught:
        return f"{entry.breaks} (occurred {entry.struck} times)" if entry.struck else f"{entry.breaks} (never occurred)"
    return list_first([f"{case.rpartition('/')[2]} ({outcome})" for case, outcome in entry.caught_by.items()], _SHOWN)


def _left_out(entry: FaultRow, why: str, cases: Sequence[str]) -> list[str]:
    named = f"{format_count(len(cases), 'case')} {why}: {list_first(cases, _SHOWN)}"
    return [f"not counted for {entry.fault}: {named}"] if cases else []


def _missed(names: Sequence[str]) -> str:
    return f"; missed: {', '.join(names)}" if names else ""


# Runs


@dataclass(frozen=True, slots=True)
class Runs:
    """Starts the runs of a campaign: pytest with `cases` and `arguments`, in the current folder, on one kind of device.

    Each run has its own run directory in `results`, and pytest's output in a text file next to it.
    """

    cases: tuple[str, ...]
    arguments: tuple[str, ...]
    results: Path
    device: str = DEFAULT_DEVICE

    def run(
        self,
        name: str,
        *options: str,
        cases: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> Ledger:
        """Run all cases, or just these `cases`. `variables` are added to the environment.

        Raise CampaignError if the run ended before it had a journal.
        """
        run_dir, output = self.results / name, self.results / f"{name}.txt"
        command = [
            sys.executable,
            "-m",
            "pytest",
            *(cases or self.cases),
            *self.arguments,
            f"--harness-device={self.device}",
            f"--harness-results-dir={run_dir}",
        ]
        command += ["-p", "no:cacheprovider", *options]
        self.results.mkdir(parents=True, exist_ok=True)
        with output.open("wb") as file:
            subprocess.run(
                command,
                env={**inherited_environment(os.environ), **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if not (run_dir / journal.FILE_NAME).exists():
            last = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            raise CampaignError(f"the cases do not run ({name}): pytest printed {' '.join(map(single_line, last))!r}")
        return Ledger.from_journal(reader.read_journal(run_dir / journal.FILE_NAME))


def run_orders(
    injections: Sequence[Injection],
    run: Callable[..., Ledger],
    results: Path,
    *,
    device: str,
    first: bool,
    log: Callable[[str], object],
) -> OrdersCampaign:
    """Run the cases without a fault and with each fault, and update the record in `results` after each fault.

    `run` takes the name of a run, options for pytest and `cases`, the only ones to run. The faults are those of this
    kind of device. With `first`, a run with a fault ends at its first red case. `log` gets a line per run. Raise
    CampaignError if no case passes without a fault.
    """
    clean = tally_cases(run(CLEAN))
    log(f"{CLEAN}: {len(clean.passed)} passed, {len(clean.wrong)} red")
    if not clean.passed:
        raise CampaignError(f"no case passes without a fault, so no case can catch one: see {results / CLEAN}.txt")
    campaign = OrdersCampaign(len(clean.passed), clean.wrong, (), device)
    for number, injection in enumerate(injections, 1):
        new = _with_fault(injection, clean, run, fault_catalogue(device)[injection.name], first=first)
        log(f"{injection}: caught by {len(new.caught_by)}" if new.caught else f"{injection}: MISSED")
        rest = tuple(map(str, injections[number:]))
        campaign = replace(campaign, rows=(*campaign.rows, new), not_run=rest)
        write_atomically(results / TABLE, orders_text(campaign).encode("utf-8", "backslashreplace"))
        write_atomically(results / RECORD, orders_json(campaign).encode("ascii"))
    return campaign


def _with_fault(
    injection: Injection, clean: CampaignTally, run: Callable[..., Ledger], breaks: str, *, first: bool
) -> FaultRow:
    """Run the cases with a fault, and the doubtful ones again, alone."""
    inject = f"--inject={injection}"

    def judged(name: str, *options: str) -> FaultRow:
        faulty = tally_cases(run(name, inject, *options), injection.name)
        doubtful = sorted(faulty.doubtful & clean.passed)
        passed = (
            tally_cases(run(f"{name}-alone", inject, "--isolation=case", cases=doubtful)).passed if doubtful else ()
        )
        return row(str(injection), breaks, clean, faulty, passed)

    if not first:
        return judged(injection.name)
    result = judged(injection.name, "--maxfail=1")
    if not result.caught and (result.not_counted or result.stumbled):  # the run ended at a case that does not count
        result = judged(f"{injection.name}-whole")
    return result
