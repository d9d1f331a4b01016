"""The cases that reach a mutant, and their order. Pure: takes records, returns cases."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import HarnessError
from tests.breaks.mutants.mutant import Mutant


class RecordingError(HarnessError):
    """A recording cannot be read."""


#: A case is near a mutant if it runs one of this many lines after it. At most this many cases are near.
AROUND, NEAR = 4, 12


@dataclass(slots=True)
class Recording:
    """A recording of cases. `seconds`: by case. `lines`: by file and line, the cases.

    `arguments`: by function and parameter, the values; `callers`: by function, the cases that called it.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    arguments: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    callers: dict[str, list[str]] = field(default_factory=dict)

    def add(self, record: Mapping[str, object], keep: frozenset[str] | None) -> None:
        """Add the record of one case, if it is one of those to `keep`."""
        case = str(record["case"])
        if case in self.seconds or (keep is not None and case not in keep):
            return
        self.seconds[case] = float(record["seconds"])  # type: ignore[arg-type]
        self._note(case, record, again=False)

    def add_of_a_fork(self, record: Mapping[str, object]) -> None:
        """Add the record of a fork of one of the cases."""
        case = str(record["case"])
        if case in self.seconds:
            self._note(case, record, again=True)

    def _note(self, case: str, record: Mapping[str, object], *, again: bool) -> None:
        """Add the lines and calls of a case. `again`: the case may have lines and calls already."""
        lines: Mapping[str, Sequence[int]] = record["lines"]  # type: ignore[assignment]
        for path, numbers in lines.items():
            by_line = self.lines.setdefault(path, {})
            for number in numbers:
                _add(by_line.setdefault(number, []), case, again)
        arguments: Mapping[str, Mapping[str, Sequence[str]]] = record["arguments"]  # type: ignore[assignment]
        for name, values in arguments.items():
            _add(self.callers.setdefault(name, []), case, again)
            noted = self.arguments.setdefault(name, {})
            for parameter, shown in values.items():
                noted.setdefault(parameter, set()).update(shown)

    def reaching(self, mutant: Mutant) -> list[str]:
        """Return the cases that run a line of the mutant, the `NEAR` nearest first.

        A case is near if it also runs one of the next lines, such as those that a condition guards, and few others do.
        """
        by_line = self.lines.get(mutant.path, {})
        reached: dict[str, None] = {}
        for line in range(mutant.first, mutant.last + 1):
            reached.update(dict.fromkeys(by_line.get(line, ())))
        rarity = dict.fromkeys(reached, len(reached))
        for line in range(mutant.last + 1, mutant.last + 1 + AROUND):
            cases = by_line.get(line, ())
            for case in cases:
                if case in rarity:
                    rarity[case] = min(rarity[case], len(cases))
        near = sorted(
            (case for case in reached if rarity[case] < len(reached)),
            key=lambda case: (rarity[case], self.seconds[case], case),
        )[:NEAR]
        return [*near, *(case for case in reached if case not in near)]


def _add(cases: list[str], case: str, again: bool) -> None:
    if not again or case not in cases:
        cases.append(case)


def read_recording(folders: Iterable[Path], keep: frozenset[str] | None = None) -> Recording:
    """Read the files of folders. `keep`: only these cases; None for all. Raise RecordingError."""
    recording = Recording()
    of_forks: list[Mapping[str, object]] = []
    for folder in folders:
        for file in sorted(folder.glob("*.ndjson")):
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                try:
                    record = json.loads(line)
                    if record["seconds"] is None:
                        of_forks.append(record)
                    else:
                        recording.add(record, keep)
                except (ValueError, KeyError, TypeError) as error:
                    if number > 1:
                        continue  # a process was killed while it wrote its last line
                    raise RecordingError(f"{file}:{number}: this is no record of a case: {error}") from None
    for record in of_forks:
        recording.add_of_a_fork(record)
    if not recording.seconds:
        raise RecordingError(
            f"{', '.join(map(str, folders))}: no case is recorded: run 'python -m tests.breaks record' first"
        )
    return recording


def in_order(
    cases: Iterable[str], seconds: Mapping[str, float], first: Sequence[str] = (), limit: float = float("inf")
) -> list[str]:
    """Return the cases in the order in which they run.

    `first`: cases that caught other mutants of the function; they run first. The cheapest case of each test function
    follows, then the second of each, and so on, since the parameters of one function check similar things. A case with
    which the total would exceed `limit` seconds is left out. If this holds for all, the list has the cheapest case.
    """
    cases = list(cases)
    reaching = frozenset(cases)
    ahead = [case for case in dict.fromkeys(first) if case in reaching]
    by_function: dict[str, list[str]] = {}
    for case in sorted(reaching.difference(ahead), key=lambda case: (seconds.get(case, 0.0), case)):
        by_function.setdefault(case.partition("[")[0], []).append(case)
    ranked = [
        (place, seconds.get(case, 0.0), case) for group in by_function.values() for place, case in enumerate(group)
    ]
    order: list[str] = []
    total = 0.0
    for case in [*ahead, *(case for _, _, case in sorted(ranked))]:
        if total + seconds.get(case, 0.0) > limit:
            continue
        total += seconds.get(case, 0.0)
        order.append(case)
    return order or sorted(reaching, key=lambda case: (seconds.get(case, 0.0), case))[:1]


def sampled(mutants: Iterable[Mutant], share: float, seed: int) -> list[Mutant]:
    """Return a share of the mutants, chosen by the seed and their names, so that other modules have no influence."""
    import hashlib

    def place(mutant: Mutant) -> float:
        digest = hashlib.sha256(f"{seed}\0{mutant.name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64

    return [mutant for mutant in mutants if place(mutant) < share]


def nearest(mutant: Mutant, recording: Recording) -> list[str]:
    """Return the cases that reach a mutant, first those that run the fewest lines of its file."""
    counts: dict[str, int] = {}
    for cases in recording.lines.get(mutant.path, {}).values():
        for case in cases:
            counts[case] = counts.get(case, 0) + 1
    return sorted(recording.reaching(mutant), key=lambda case: (counts[case], case))
