"""Search a break for each test function that was never seen red, in one warm process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from harness.backends.table import BACKENDS
from harness.core.outcome import Outcome
from harness.journal import journal, reader
from harness.journal.ledger import Ledger
from harness.journal.verdicts import Verdict
from harness.sim.interposer import front
from harness.sim.native import provider
from tests.breaks.breaks import BreakError
from tests.breaks.mutants import campaign
from tests.breaks.search.results import Tried, read_tried
from tests.breaks.seen import function_of


def verdicts_of(runs: Iterable[Path]) -> list[Verdict]:
    """Return the verdicts of run directories. Raise BreakError if one is none."""
    verdicts: list[Verdict] = []
    for run in runs:
        file = run / journal.FILE_NAME
        if not file.exists():
            raise BreakError(f"{str(run)!r} is no run directory: name that of a run of all suites without a break")
        verdicts += Ledger.from_journal(reader.read_journal(file)).verdicts
    return verdicts


def cases_by_function(verdicts: Iterable[Verdict]) -> dict[str, list[tuple[float, str]]]:
    """Return the cases that passed by function, each with its seconds, the fastest first."""
    found: dict[str, list[tuple[float, str]]] = {}
    for verdict in verdicts:
        if verdict.outcome is Outcome.PASSED:
            found.setdefault(function_of(verdict.case), []).append((verdict.duration, verdict.case))
    return {function: sorted(cases) for function, cases in found.items()}


def some_of(cases: Sequence[tuple[float, str]]) -> list[str]:
    """Return the cases of a function that are tried, one after the other: the fastest, one of the middle, the slowest.

    The parameters of a function may differ in what they check.
    """
    return list(dict.fromkeys(cases[place][1] for place in (0, len(cases) // 2, len(cases) - 1)))


def search(
    device: str,
    verdicts: Iterable[Verdict],
    wanted: Collection[str],
    folder: Path,
    *,
    given: Mapping[str, str] | None = None,
    most: int,
    limit: float,
    seconds: float,
) -> list[Tried]:
    """Try breaks for each wanted function of which a case passed. Return what was tried. Raise BreakError.

    - `given`: by function, the only break to try.
    - `most`, `limit`: how many breaks, and seconds, for one function. `seconds`: for all.
    - `folder`: of the results. Functions that have a result there are not tried again.
    """
    passed = cases_by_function(verdicts)
    chosen = sorted((cases, function) for function, cases in passed.items() if function in wanted)
    if not chosen:
        raise BreakError("no case of these functions passed without a break")
    files = {function.partition("::")[0] for _, function in chosen}
    backend = BACKENDS[device]
    provided = provider.provider_of(backend).provide().variables if backend.provider else {}
    results = folder / "tried.ndjson"
    values = {
        "root": str(campaign.package_root(["torch"])),
        "functions": {function: some_of(cases) for cases, function in chosen},
        "seconds": {case: duration for cases in passed.values() for duration, case in cases},
        "most": most,
        "limit": limit,
        "time": seconds,
        "given": {function: [name] for function, name in (given or {}).items()},
        "results": str(results),
        "reached": str(folder / "reached.ndjson"),
    }
    variables = front.interposer_preload(["x"], provided) if device == "simcuda" else {}
    campaign.run_warm("tests.breaks.search.warm", device, [*sorted(files), "--extended"], folder, values, variables)
    return [tried for tried in read_tried(results) if tried.function in wanted]
