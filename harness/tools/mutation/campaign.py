"""Run cases without a break and with each break of torch, and build the table of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from harness.core.outcome import Outcome
from harness.journal.ledger import Ledger
from harness.tools.diagnosis import campaign as runs
from harness.tools.diagnosis.campaign import NO_CATCH, CampaignTally
from harness.tools.mutation.breaks import Break, BreakError, is_mistake
from harness.tools.mutation.plugin import VARIABLE
from harness.tools.mutation.table import BreakRow, Table

#: Name of the run without a break on a kind of device.
CLEAN = "clean"
#: Outcomes with which a case has checked nothing.
_NOTHING_CHECKED = (*NO_CATCH, Outcome.GATED, Outcome.SKIPPED)


class MutationRun(Protocol):
    """Runs cases. See `Runner`."""

    def __call__(self, name: str, device: str, cases: Sequence[str], entry: Break | None) -> Ledger: ...


class Runner:
    """Runs pytest in child processes, always with the same `options`. `catalogue`: a file of breaks, or None."""

    def __init__(self, results: Path, options: Sequence[str], catalogue: Path | None) -> None:
        self._results = results
        self._options = tuple(options)
        self._catalogue = catalogue

    def __call__(self, name: str, device: str, cases: Sequence[str], entry: Break | None) -> Ledger:
        """Run these cases once. Raise CampaignError if the run has no journal."""
        started = runs.Runs(tuple(cases), tuple(self._options), self._results, device)
        if entry is None:
            return started.run(name)
        if entry.apply is None:
            return started.run(name, f"--inject={entry.fault}", *entry.options)
        words = f"{self._catalogue.absolute()}:{entry.name}" if self._catalogue else entry.name
        return started.run(name, "-p", "harness.tools.mutation.plugin", *entry.options, variables={VARIABLE: words})


def run_mutations(
    breaks: Sequence[Break],
    run: MutationRun,
    unusable: Mapping[str, str],
    *,
    jobs: int,
    log: Callable[[str], object],
) -> Table:
    """Run the cases without a break, once per kind of device, and then the cases of each break with it.

    `unusable`: reasons why breaks cannot be used, by name. `jobs`: the number of parallel runs. `log` gets one line
    per run. Raise BreakError if there are no cases, CampaignError if they do not run.
    """
    usable = [entry for entry in breaks if entry.name not in unusable]
    with ThreadPoolExecutor(jobs) as pool:
        devices = sorted({entry.device for entry in usable})
        clean = dict(zip(devices, pool.map(lambda device: _clean(usable, device, run, log), devices), strict=True))
        rows = dict(
            zip(
                (entry.name for entry in usable),
                pool.map(lambda entry: _row(entry, clean[entry.device], run, log), usable),
                strict=True,
            )
        )
    wrong = {case: outcome for tally in clean.values() for case, outcome in tally.wrong.items()}
    return Table(
        tuple(
            rows.get(entry.name) or BreakRow(entry.name, entry.breaks, entry.device, unusable=unusable[entry.name])
            for entry in breaks
        ),
        wrong,
    )


def _clean(breaks: Sequence[Break], device: str, run: MutationRun, log: Callable[[str], object]) -> CampaignTally:
    cases = sorted({suite for entry in breaks if entry.device == device for suite in entry.suites})
    if lost := [case for case in cases if not Path(case.partition("::")[0]).exists()]:
        raise BreakError(f"the suite {lost[0]!r} does not exist: run this where it is, or name others with --suites")
    tally = runs.tally_cases(run(f"{CLEAN}-{device}", device, cases, None))
    log(f"{device} without a break: {len(tally.passed)} passed, {len(tally.wrong)} red")
    return tally


def _row(entry: Break, clean: CampaignTally, run: MutationRun, log: Callable[[str], object]) -> BreakRow:
    ledger = run(entry.name, entry.device, entry.suites, entry)
    tally = runs.tally_cases(ledger, entry.fault)
    checked = frozenset(verdict.case for verdict in ledger.verdicts if verdict.outcome not in _NOTHING_CHECKED)
    ran = checked & clean.passed
    texts = {verdict.case: verdict.message for verdict in ledger.verdicts}
    # These cases passed without the break, so the break caused the exception.
    stumbled = {case: texts[case] for case in tally.wrong if case in clean.passed and is_mistake(texts[case])}
    if entry.apply is None:  # a fault has no code that could be wrong
        stumbled = {}
    red = {case: outcome for case, outcome in tally.wrong.items() if case in clean.passed}
    caught = {case: outcome for case, outcome in red.items() if case not in stumbled}
    unusable = ""
    if not ran:
        unusable = "none of its cases ran with it: see the output of its run"
    elif entry.apply is None and not tally.struck and not caught:
        unusable = "the fault never occurred"
    log(
        f"{entry.name}: {unusable or (f'caught by {len(caught)} of {len(ran)}' if caught else f'MISSED by {len(ran)}')}"
    )
    return BreakRow(entry.name, entry.breaks, entry.device, caught, ran, unusable, stumbled)
