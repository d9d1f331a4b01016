"""One matrix of many runs. `Fleet` takes one run at a time and keeps only a summary of each."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.core.caseid import suite_of
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_NOTHING_RAN, EXIT_OK, EXIT_RED, Outcome
from harness.core.text import escape_invalid_xml, format_count
from harness.fleet import matrix_model as model
from harness.fleet import wording
from harness.fleet.classing import CauseClass, Classing, Explanation, ResultPlace, Sure, Tally, classify, together
from harness.fleet.column import ABSENT, MOST_CASES, CaseResult, Column, differing
from harness.fleet.matrix_model import HoleKind, Matrix
from harness.journal.events import Finding
from harness.journal.identity import SUITE_FILES, without_numbers

#: Maximum number of different messages of a case, and of missing requirements of gated cases.
MOST_MESSAGES = 3
MOST_FOUND = 5
_ORDER = {kind: place for place, kind in enumerate(HoleKind)}
_SURES = (Sure.ONE, Sure.WEAK, Sure.STRONG)
#: The fact with the version of the harness.
HARNESS = "harness"
#: For each case and run, the number of its result.
_Row = tuple[int, ...]
#: For each place, by its number, how often a case was red, flaky and green there.
_Counts = tuple[tuple[int, int, int, int], ...]


class NothingReadError(HarnessError):
    """None of the runs can be read."""


@dataclass(slots=True)
class _Messages:
    """The messages of a red or flaky case in all runs."""

    messages: dict[str, int] = field(default_factory=dict)
    reproduce: str = ""


class Fleet:
    """The runs added to this matrix. `notes`: sentences about runs that were left out before."""

    def __init__(self, notes: Iterable[str] = ()) -> None:
        self._runs: list[Column] = []
        #: By case, for each run the number of its result; 0, which the ends of rows lack, for a case that it lacks.
        self._rows: dict[str, array[int]] = {}
        self._results = {result: number for number, result in enumerate(ABSENT.values())}
        self._prints: dict[tuple[object, ...], str] = {}
        self._messages: dict[str, _Messages] = {}
        self._notes = list(notes)

    def add(self, summary: Column | str) -> None:
        """Add a run. A sentence about one that cannot be read is a note, and so is a copy of an earlier one."""
        if isinstance(summary, str):
            self._notes.append(summary)
            return
        name = summary.shown.name
        first = self._prints.setdefault(summary.print, name)
        if first != name:
            self._notes.append(f"{name} was left out: it is a copy of {first}")
            return
        number_of = {
            id(result): self._results.setdefault(result, len(self._results)) for result in summary.results.values()
        }
        for case, result in summary.results.items():
            row = self._rows.setdefault(case, array("I"))
            row.extend([0] * (len(self._runs) + 1 - len(row)))
            row[len(self._runs)] = number_of[id(result)]
        for case, trouble in summary.troubles.items():
            kept = self._messages.setdefault(case, _Messages())
            if trouble.message in kept.messages or len(kept.messages) < MOST_MESSAGES:
                kept.messages[trouble.message] = kept.messages.get(trouble.message, 0) + 1
            kept.reproduce = kept.reproduce or trouble.reproduce
        self._runs.append(replace(summary, results={}, troubles={}))

    def matrix(self) -> Matrix:
        """Return the matrix of all runs. Raise NothingReadError without a run."""
        merged = {part: run.shown.name for run in self._runs for part in run.parts}
        kept = []
        for place, run in enumerate(self._runs):
            if whole := merged.get(run.shown.run_id):
                self._notes.append(f"{run.shown.name} was left out: it is a shard of the merged run {whole}")
            else:
                kept.append(place)
        if not kept:
            raise NothingReadError(f"no run can be read: {'; '.join(self._notes[:3])}; give other folders")
        kept.sort(key=lambda place: _order(self._runs[place]))
        runs = [self._runs[place] for place in kept]
        cases = sorted(self._rows, key=lambda case: (suite_of(case), case))
        table = [tuple(self._number(case, place) for place in kept) for case in cases]
        notes = [*self._notes, *_twins(runs)]
        return _Maker(runs, cases, table, list(self._results), self._messages, notes).made()

    def _number(self, case: str, run: int) -> int:
        """Return the number of the result of a case in a run, which may not have read cases of other runs."""
        row, unread = self._rows[case], self._runs[run].unread
        number = row[run] if run < len(row) else 0
        return self._results[ABSENT[HoleKind.DESELECTED]] if not number and case.startswith(unread) else number


def _order(run: Column) -> tuple[object, ...]:
    return run.machine.order, run.shown.begun, run.shown.name


def _twins(runs: Sequence[Column]) -> Iterable[str]:
    by_start: dict[tuple[object, ...], list[str]] = {}
    for run in runs:
        by_start.setdefault(run.print[:4], []).append(run.shown.name)
    for first, *others in by_start.values():
        for other in others:
            yield f"{other} began as {first} did, but its journal differs, so it may be an older copy: both count"


class _Maker:
    """Makes the matrix of runs and cases in their order. `table`: by case, for each run the number of its result."""

    def __init__(
        self,
        runs: Sequence[Column],
        cases: Sequence[str],
        table: Sequence[_Row],
        results: Sequence[CaseResult],
        messages: Mapping[str, _Messages],
        notes: Sequence[str],
    ) -> None:
        self._runs, self._cases, self._table, self._results = runs, cases, table, results
        self._messages = messages
        self._notes = notes
        self._machines = list(dict.fromkeys(run.machine for run in runs))
        self._machine_of = [self._machines.index(run.machine) for run in runs]
        self._conditions = differing([run.conditions for run in runs])
        begun = sorted({run.shown.begun for run in runs})
        self._ranks = [begun.index(run.shown.begun) for run in runs]
        #: The part of a tally that a result counts in: red, flaky or green; None if it is no observation.
        self._kinds = [None if each.hole else 0 if each.is_red else 1 if each.is_bad else 2 for each in results]
        self._places: list[ResultPlace] = []
        self._place_numbers: dict[ResultPlace, int] = {}
        self._place_of: dict[tuple[int, int], int] = {}
        self._cell_of: dict[_Row, int] = {}
        self._cells: dict[tuple[tuple[tuple[Outcome, int], ...], tuple[HoleKind, str] | None], int] = {}
        self._holes: dict[tuple[HoleKind, str], _Hole] = {}

    def made(self) -> Matrix:
        rows = self._cell_rows()
        failures = self._failures()
        cases = tuple(
            model.MatrixCase(
                case=escape_invalid_xml(case),
                suite=escape_invalid_xml(suite_of(case)),
                cells=row,
                failure=failures.get(place),
            )
            for place, (case, row) in enumerate(zip(self._cases, rows, strict=True))
        )
        findings, of_run = listed_findings([run.findings for run in self._runs], self._machine_of)
        holes = sorted(self._holes.items(), key=lambda item: (-item[1].cells, _ORDER[item[0][0]], item[0][1]))
        number = {key: place for place, (key, _) in enumerate(holes)}
        cells = tuple(
            model.Cell(outcomes=dict(outcomes), hole=None if hole is None else number[hole])
            for outcomes, hole in self._cells
        )
        return Matrix(
            schema=model.SCHEMA,
            runs=tuple(
                run.shown.model_copy(update={"machine": machine, "findings": numbers})
                for run, machine, numbers in zip(self._runs, self._machine_of, of_run, strict=True)
            ),
            machines=self._machine_list(cells, rows),
            cells=cells,
            cases=cases,
            groups=tuple(self._groups(cases, cells)),
            holes=tuple(hole.made(*key) for key, hole in holes),
            findings=findings,
            differences=tuple(self._differences()),
            notes=tuple(map(escape_invalid_xml, self._notes)),
        )

    # ---- cells ----

    def _cell_rows(self) -> list[_Row]:
        """Return for each case the cells of all machines, and fill the holes."""
        runs_of: list[list[int]] = [[] for _ in self._machines]
        for run, machine in enumerate(self._machine_of):
            runs_of[machine].append(run)
        rows = [tuple(self._cell(tuple(row[run] for run in runs)) for runs in runs_of) for row in self._table]
        hole_of = [None if hole is None else self._holes[hole] for _, hole in self._cells]
        for place, cells in enumerate(rows):
            for machine, cell in enumerate(cells):
                if (hole := hole_of[cell]) is not None:
                    hole.add(place, machine)
        return rows

    def _cell(self, numbers: _Row) -> int:
        """Return the number of the cell with these results."""
        if numbers in self._cell_of:
            return self._cell_of[numbers]
        results = [self._results[number] for number in numbers]
        ran = Counter(result.outcome for result in results if result.outcome is not None)
        outcomes = tuple(sorted(ran.items(), key=lambda item: item[0].severity))
        holes = [(kind, result.reason) for result in results if (kind := result.hole) is not None]
        worst = min(holes, key=lambda hole: _ORDER[hole[0]]) if len(holes) == len(results) else None
        if worst is not None:
            kept = self._holes.setdefault(worst, _Hole())
            if worst[0] is HoleKind.GATED:
                kept.find(result.found for result in results)
        return self._cell_of.setdefault(numbers, self._cells.setdefault((outcomes, worst), len(self._cells)))

    # ---- failures ----

    def _failures(self) -> dict[int, model.Failure]:
        """Return the failures by case."""
        bad = {number for number, result in enumerate(self._results) if result.is_bad}
        red = [(place, self._counts(row)) for place, row in enumerate(self._table) if not bad.isdisjoint(row)]
        classings: dict[_Counts, Classing | None] = {}
        alone: dict[int, Classing] = {}
        for place, counts in red:
            if counts not in classings:
                classings[counts] = classify({self._places[at]: Tally(*tally) for at, *tally in counts}, len(red))
            if (classing := classings[counts]) is not None:
                alone[place] = classing
        return {
            place: _failure(classing, self._messages.get(self._cases[place], _Messages()))
            for place, classing in together(alone).items()
        }

    def _counts(self, row: _Row) -> _Counts:
        """Return the observations of a case."""
        counts: dict[int, list[int]] = {}
        for run, number in enumerate(row):
            if (kind := self._kinds[number]) is not None:
                counts.setdefault(self._place(run, number), [0, 0, 0])[kind] += 1
        return tuple((place, red, flaky, green) for place, (red, flaky, green) in sorted(counts.items()))

    def _place(self, run: int, number: int) -> int:
        """Return the number of the place of a result in a run."""
        if (run, number) not in self._place_of:
            column = self._runs[run]
            place = replace(
                column.place(self._results[number].devices),
                conditions=self._conditions[run],
                rank=self._ranks[run],
                run=column.text,
            )
            if place not in self._place_numbers:
                self._place_numbers[place] = len(self._places)
                self._places.append(place)
            self._place_of[run, number] = self._place_numbers[place]
        return self._place_of[run, number]

    def _groups(self, cases: Sequence[model.MatrixCase], cells: Sequence[model.Cell]) -> Iterable[model.Group]:
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, case in enumerate(cases):
            if (failure := case.failure) is not None:
                bad = tuple(run for run, number in enumerate(self._table[place]) if self._results[number].is_bad)
                groups.setdefault(_fault(failure, bad), []).append(place)
        order = {kind: place for place, kind in enumerate(wording.TITLES)}
        made = [self._group(cases, cells, places) for places in groups.values()]
        return sorted(made, key=lambda group: (order[group.kind], -len(group.cases), group.cases))

    def _group(
        self, cases: Sequence[model.MatrixCase], cells: Sequence[model.Cell], places: Sequence[int]
    ) -> model.Group:
        failures = [failure for place in places if (failure := cases[place].failure) is not None]
        first = failures[0]
        bad = [any(CaseResult(outcome).is_bad for outcome in cell.outcomes) for cell in cells]
        machines = {number for place in places for number, cell in enumerate(cases[place].cells) if bad[cell]}
        surest = max(failures, key=lambda failure: _SURES.index(failure.sure))
        also = tuple(
            explanation for explanation in first.also if all(explanation in failure.also for failure in failures)
        )
        maybe_flake = all(failure.maybe_flake for failure in failures)
        hosts = [self._machines[machine].host for machine in sorted(machines)]
        named = surest.text if len(failures) == 1 else _group_text(first, len(failures), hosts)
        return model.Group(
            kind=first.kind,
            causes=first.causes,
            together=first.together,
            sure=surest.sure,
            also=also,
            maybe_flake=maybe_flake,
            cases=tuple(places),
            machines=tuple(sorted(machines)),
            text=named,
            next=surest.next,
        )

    # ---- runs, their findings, and machines ----

    def _machine_list(self, cells: Sequence[model.Cell], rows: Sequence[Sequence[int]]) -> tuple[model.Machine, ...]:
        fail_on_flaky = any(run.fail_on_flaky for run in self._runs)
        counts = [[CaseResult(outcome) for outcome in cell.outcomes] for cell in cells]
        red = [any(result.is_red or (fail_on_flaky and result.is_bad) for result in results) for results in counts]
        made = []
        for number, key in enumerate(self._machines):
            column = Counter(row[number] for row in rows)
            own = [run for run, machine in zip(self._runs, self._machine_of, strict=True) if machine == number]
            uuids = dict.fromkeys(escape_invalid_xml(device.uuid) for summary in own for device in summary.devices)
            made.append(
                model.Machine(
                    host=key.host,
                    device=key.device,
                    driver=key.driver,
                    torch=key.torch,
                    uuids=tuple(sorted(uuids)),
                    runs=len(own),
                    red=sum(times for cell, times in column.items() if red[cell]),
                    holes=sum(times for cell, times in column.items() if cells[cell].hole is not None),
                )
            )
        return tuple(made)

    def _differences(self) -> Iterable[model.Difference]:
        facts = [run.facts for run in self._runs]
        names = dict.fromkeys([SUITE_FILES, HARNESS, *sorted({name for fact in facts for name in fact})])
        for name in names:
            values: dict[str, list[int]] = {}
            for run, of_run in enumerate(facts):
                values.setdefault(escape_invalid_xml(of_run.get(name, "")), []).append(run)
            if len(values) > 1:
                yield model.Difference(
                    name=escape_invalid_xml(name),
                    values=tuple(
                        model.Value(
                            value=value, runs=len(runs), machines=tuple(sorted({self._machine_of[run] for run in runs}))
                        )
                        for value, runs in sorted(values.items(), key=lambda item: (-len(item[1]), item[0]))
                    ),
                )


@dataclass(slots=True)
class _Hole:
    """The cells without a result for one reason."""

    cases: dict[int, None] = field(default_factory=dict)
    machines: dict[int, None] = field(default_factory=dict)
    found: dict[str, None] = field(default_factory=dict)
    cells: int = 0

    def add(self, case: int, machine: int) -> None:
        self.cases[case] = None
        self.machines[machine] = None
        self.cells += 1

    def find(self, values: Iterable[str]) -> None:
        for value in values:
            if value and len(self.found) < MOST_FOUND:
                self.found[escape_invalid_xml(value)] = None

    def made(self, kind: HoleKind, reason: str) -> model.Hole:
        return model.Hole(
            kind=kind,
            reason=escape_invalid_xml(reason),
            found=tuple(sorted(self.found)),
            cases=tuple(sorted(self.cases)),
            machines=tuple(sorted(self.machines)),
            cells=self.cells,
        )


def listed_findings(
    of_runs: Sequence[Sequence[tuple[Finding, int]]], machine_of: Sequence[int]
) -> tuple[tuple[model.Finding, ...], list[tuple[int, ...]]]:
    """Return the findings, the most frequent first, and for each run the positions of its findings in that list.

    `of_runs`: the findings of each run, each with the number of its cases. `machine_of`: the number of each run's
    machine.
    """
    groups: dict[tuple[str, str], list[tuple[int, Finding, int]]] = {}
    for run, findings in enumerate(of_runs):
        for finding, concerned in findings:
            groups.setdefault((finding.kind, without_numbers(finding.message)), []).append((run, finding, concerned))
    made = [_listed_finding(group, machine_of) for group in groups.values()]
    made.sort(key=lambda finding: (-len(finding.runs), finding.kind, finding.message))
    of_run = [
        tuple(number for number, finding in enumerate(made) if run in finding.runs) for run in range(len(of_runs))
    ]
    return tuple(made), of_run


def _listed_finding(group: Sequence[tuple[int, Finding, int]], machine_of: Sequence[int]) -> model.Finding:
    runs = tuple(dict.fromkeys(run for run, _, _ in group))
    cases = dict.fromkeys(escape_invalid_xml(case) for _, finding, _ in group for case in finding.cases)
    _, first, _ = group[0]
    return model.Finding(
        kind=first.kind,
        message=first.message,
        runs=runs,
        machines=tuple(sorted({machine_of[run] for run in runs})),
        cases=tuple(cases)[:MOST_CASES],
        concerned=max(concerned for _, _, concerned in group),
        reproduce=next((finding.reproduce for _, finding, _ in group if finding.reproduce), ""),
    )


def exit_status(matrix: Matrix) -> int:
    """Return 0 if nothing is red, 1 if a run is red, 5 if no case ran."""
    if any(run.red for run in matrix.runs):
        return EXIT_RED
    ran = any(outcome.ran for cell in matrix.cells for outcome in cell.outcomes)
    return EXIT_OK if ran else EXIT_NOTHING_RAN


def _fault(failure: model.Failure, bad_runs: tuple[int, ...]) -> tuple[object, ...]:
    """Return the common key of failures of one fault: the class with its causes, or the runs in which they were bad.

    A case that is red everywhere it ran may be gated in some runs, so its runs explain nothing.
    """
    apart = () if failure.causes or failure.kind is CauseClass.EVERYWHERE else bad_runs
    return failure.kind, failure.causes, failure.together, apart


def _failure(classing: Classing, messages: _Messages) -> model.Failure:
    return model.Failure(
        kind=classing.kind,
        sure=classing.sure,
        chance=classing.chance,
        causes=_causes(classing.causes),
        together=classing.together,
        also=tuple(map(_causes, classing.also)),
        maybe_flake=classing.maybe_flake,
        always=classing.always,
        red=classing.total.red,
        flaky=classing.total.flaky,
        ran=classing.total.all,
        text=escape_invalid_xml(wording.classing_text(classing)),
        next=escape_invalid_xml(wording.advice_text(classing)),
        messages=tuple(
            model.Message(text=escape_invalid_xml(text), runs=runs) for text, runs in messages.messages.items()
        ),
        reproduce=escape_invalid_xml(messages.reproduce),
    )


def _causes(causes: Explanation) -> tuple[model.Cause, ...]:
    return tuple(model.Cause(factor=cause.factor, value=cause.value) for cause in causes)


def _group_text(first: model.Failure, cases: int, hosts: Sequence[str]) -> str:
    where = f"on {hosts[0]}" if len(hosts) == 1 else f"on {format_count(len(hosts), 'machine')}"
    if first.kind is CauseClass.EVERYWHERE:
        return f"{format_count(cases, 'case')}, red wherever they ran, {where}."
    if first.kind is CauseClass.FLAKE:
        return f"{format_count(cases, 'case')}, red or flaky {where}, which also passed them."
    if first.kind is CauseClass.MIXED and not first.causes:
        return f"{format_count(cases, 'case')}, red {where}; neither one cause nor two together explain them."
    return f"{format_count(cases, 'case')}, red {where} and in no run without this cause."
