"""The findings of many runs, each once. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.core.text import escape_invalid_xml
from harness.fleet import matrix_model as model
from harness.fleet.reading import MOST_CASES, RunFinding
from harness.journal.finding_kinds import without_numbers


def listed_findings(
    of_runs: Sequence[Sequence[RunFinding]], machine_of: Sequence[int]
) -> tuple[tuple[model.Finding, ...], list[tuple[int, ...]]]:
    """Return the findings, the most frequent first, and for each run the positions of its findings in that list.

    `of_runs`: the findings of each run. `machine_of`: the number of each run's machine.
    """
    groups: dict[tuple[str, str], _Group] = {}
    for run, findings in enumerate(of_runs):
        for finding in findings:
            groups.setdefault((finding.kind, without_numbers(finding.message)), _Group()).add(run, finding)
    order = sorted(groups.values(), key=lambda group: (-len(group.runs), group.first.kind, group.first.message))
    of_run: list[list[int]] = [[] for _ in of_runs]
    for number, group in enumerate(order):
        for run in group.runs:
            of_run[run].append(number)
    return tuple(group.made(machine_of) for group in order), list(map(tuple, of_run))


@dataclass(slots=True)
class _Group:
    """One finding of several runs."""

    every: list[RunFinding] = field(default_factory=list)
    runs: dict[int, None] = field(default_factory=dict)

    @property
    def first(self) -> RunFinding:
        return self.every[0]

    def add(self, run: int, finding: RunFinding) -> None:
        self.every.append(finding)
        self.runs[run] = None

    def made(self, machine_of: Sequence[int]) -> model.Finding:
        cases = dict.fromkeys(escape_invalid_xml(case) for finding in self.every for case in finding.cases)
        return model.Finding(
            kind=self.first.kind,
            message=self.first.message,
            runs=tuple(self.runs),
            machines=tuple(sorted({machine_of[run] for run in self.runs})),
            cases=tuple(cases)[:MOST_CASES],
            concerned=max(finding.concerned for finding in self.every),
            reproduce=next((finding.reproduce for finding in self.every if finding.reproduce), ""),
        )
