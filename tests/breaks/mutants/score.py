"""The table of mutants by module, and the survivors. Pure: takes results, returns text and JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.core.text import format_count
from tests.breaks.mutants.mutant import Mutant
from tests.breaks.mutants.results import MutantResult

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Score:
    """The mutants of a module: `all` of them, those that cases `reached`, and the results of these.

    `missed` does not include those that no case can observe, which are `unobservable`.
    """

    module: str
    all: int = 0
    reached: int = 0
    noticed: int = 0
    missed: int = 0
    stumbled: int = 0
    unusable: int = 0
    unobservable: int = 0

    @property
    def tried(self) -> int:
        """The number of mutants that count: a case could have noticed them."""
        return self.noticed + self.missed


def scores(
    mutants: Iterable[Mutant],
    reached: Iterable[Mutant],
    results: Iterable[MutantResult],
    reason: Callable[[Mutant], str] = lambda _: "",
) -> list[Score]:
    """Return the scores by module, in order. `reason`: why no case can observe a mutant, or an empty text."""
    made, covered = (Counter(mutant.module for mutant in group) for group in (mutants, reached))
    verdicts = Counter(
        (
            result.mutant.module,
            "unobservable" if result.verdict == "missed" and reason(result.mutant) else result.verdict,
        )
        for result in results
    )
    return [
        Score(
            module,
            made[module],
            covered[module],
            verdicts[module, "noticed"],
            verdicts[module, "missed"],
            verdicts[module, "stumbled"],
            verdicts[module, "unusable"],
            verdicts[module, "unobservable"],
        )
        for module in sorted(made)
    ]


def total(rows: Sequence[Score]) -> Score:
    """Return the sums."""
    return Score(
        "total",
        sum(row.all for row in rows),
        sum(row.reached for row in rows),
        sum(row.noticed for row in rows),
        sum(row.missed for row in rows),
        sum(row.stumbled for row in rows),
        sum(row.unusable for row in rows),
        sum(row.unobservable for row in rows),
    )


def scores_text(rows: Sequence[Score]) -> str:
    """Return the table: mutants, share reached, those tried, and share noticed."""
    cells = [("module", "mutants", "reached", "tried", "noticed", "unobservable", "stumbled", "unusable")]
    cells += [
        (
            row.module,
            str(row.all),
            _share(row.reached, row.all),
            str(row.tried),
            _share(row.noticed, row.tried),
            str(row.unobservable),
            str(row.stumbled),
            str(row.unusable),
        )
        for row in [*rows, total(rows)]
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(
            [line[0].ljust(widths[0]), *(word.rjust(width) for word, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in cells
    ]
    return "\n".join(lines) + "\n"


def survivors_text(
    results: Iterable[MutantResult],
    nearest: Mapping[str, Sequence[str]],
    reason: Callable[[Mutant], str] = lambda _: "",
) -> str:
    """Return the survivors by module and function, and those that no case can observe by reason.

    `nearest`: by name of the mutant, the cases nearest to it. `reason`: as in `scores`.
    """
    by_function: dict[tuple[str, str], list[MutantResult]] = {}
    by_reason: Counter[str] = Counter()
    for result in results:
        if result.verdict != "missed":
            continue
        if why := reason(result.mutant):
            by_reason[why] += 1
        else:
            by_function.setdefault((result.mutant.path, result.mutant.function), []).append(result)
    lines = []
    for (path, function), survivors in sorted(by_function.items()):
        lines.append(f"{path} {function}: {format_count(len(survivors), 'survivor')}")
        for survivor in sorted(survivors, key=lambda survivor: (survivor.mutant.first, survivor.mutant.name)):
            words = survivor.mutant.sentence.partition(f"{function}: ")[2]
            cases = ", ".join(case.rpartition("/")[2] for case in nearest.get(survivor.mutant.name, ())[:_SHOWN])
            ran = f"{survivor.ran} of {survivor.reaching} cases ran"
            lines.append(f"    {survivor.mutant.name} line {survivor.mutant.first}: {words} ({ran}; nearest: {cases})")
    if by_reason:
        lines.append(f"{format_count(by_reason.total(), 'survivor')} that no case can observe:")
        lines += [f"    {count} {why}" for why, count in sorted(by_reason.items())]
    return "\n".join(lines) + "\n" if lines else ""


def scores_json(
    rows: Sequence[Score], results: Iterable[MutantResult], reason: Callable[[Mutant], str] = lambda _: ""
) -> str:
    """Return all results as JSON. `reason`: as in `scores`."""
    values = {
        "modules": [
            {
                "module": row.module,
                "mutants": row.all,
                "reached": row.reached,
                "noticed": row.noticed,
                "missed": row.missed,
                "stumbled": row.stumbled,
                "unusable": row.unusable,
                "unobservable": row.unobservable,
            }
            for row in rows
        ],
        "mutants": [
            {
                "name": result.mutant.name,
                "reason": reason(result.mutant) if result.verdict == "missed" else "",
                **result.to_json(),
            }
            for result in results
        ],
    }
    return json.dumps(values, indent=2) + "\n"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
