"""One matrix of many runs. `Fleet` takes one run at a time and keeps only a summary of each."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter

from harness.core.caseid import suite_of
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_NOTHING_RAN, EXIT_OK, EXIT_RED, Outcome
from harness.core.text import escape_invalid_xml, format_count
from harness.fleet import matrix_model as model
from harness.fleet import wording
from harness.fleet.classing import (
    CauseClass,
    Classing,
    Explanation,
    ResultPlace,
    Sure,
    Tally,
    classify,
    together,
)
from harness.fleet.column import MOST_CASES, CaseResult, Column, UnreadableRun
from harness.fleet.conditions import differing
from harness.fleet.matrix_model import HoleKind, Matrix
from harness.journal.events import Finding
from harness.journal.identity import SUITE_FILES, without_numbers

#: Maximum number of different messages of a case, and of missing requirements of gated cases.
MOST_MESSAGES = 3
MOST_FOUND = 5

_HOLES = {
    Outcome.WAIVED: HoleKind.WAIVED,
    Outcome.LOST: HoleKind.LOST,
    Outcome.NOT_RUN: HoleKind.NOT_RUN,
    Outcome.GATED: HoleKind.GATED,
    Outcome.SKIPPED: HoleKind.SKIPPED,
}
_ORDER = {kind: place for place, kind in enumerate(HoleKind)}
_ABSENT = {
    HoleKind.NOT_COLLECTED: "the runs of these machines have no such case",
    HoleKind.DESELECTED: "excluded by the options of the run",
    HoleKind.OTHER_SHARD: "it is in another shard of the run, which is missing here",
}
#: The fact with the version of the harness.
HARNESS = "harness"
#: Numbers of the results of cases in runs. These come first, so that 0 means that a run does not have the case.
_FIRST = (HoleKind.NOT_COLLECTED, HoleKind.DESELECTED, HoleKind.OTHER_SHARD)
#: The number after the categories of a tally.
_SILENT = 3
_SURES = (Sure.ONE, Sure.WEAK, Sure.STRONG)


#: For each place, by its number, how often a case was red, flaky and green there.
_Counts = tuple[tuple[int, int, int, int], ...]


class NothingReadError(HarnessError):
    """None of the runs can be read."""


@dataclass(slots=True)
class _Run:
    """A run of the fleet. `column`: by case, the number of its result in the run."""

    summary: Column
    column: array[int]


@dataclass(slots=True)
class _Messages:
    """The messages of a red or flaky case in all runs."""

    messages: dict[str, int] = field(default_factory=dict)
    reproduce: str = ""


class Fleet:
    """The runs added to this matrix. `notes`: sentences about runs that were left out before."""

    def __init__(self, notes: Iterable[str] = ()) -> None:
        self._cases: dict[str, int] = {}
        self._results: dict[CaseResult | HoleKind, int] = {kind: number for number, kind in enumerate(_FIRST)}
        self._runs: list[_Run] = []
        self._prints: dict[tuple[object, ...], str] = {}
        self._troubles: dict[int, _Messages] = {}
        self._notes = list(notes)

    def add(self, summary: Column | UnreadableRun) -> None:
        """Add a run. A run that cannot be read, or is a copy of an earlier one, becomes a note."""
        if isinstance(summary, UnreadableRun):
            self._notes.append(f"{summary.name} was left out: {summary.reason}")
            return
        first = self._prints.setdefault(summary.print, summary.name)
        if first != summary.name:
            self._notes.append(f"{summary.name} was left out: it is a copy of {first}")
            return
        numbers = [self._results.setdefault(each, len(self._results)) for each in summary.results]
        places = [self._cases.setdefault(case, len(self._cases)) for case in summary.ids]
        absent = [
            *((case, HoleKind.DESELECTED) for case in summary.deselected),
            *((case, HoleKind.OTHER_SHARD) for case in summary.elsewhere),
        ]
        holes = [(self._cases.setdefault(case, len(self._cases)), self._results[kind]) for case, kind in absent]
        column = array("I", bytes(4 * len(self._cases)))
        for place, number in holes:
            column[place] = number
        for place, said in zip(places, summary.result_numbers, strict=True):
            column[place] = numbers[said]
        for index, trouble in summary.troubles.items():
            kept = self._troubles.setdefault(places[index], _Messages())
            if trouble.message in kept.messages or len(kept.messages) < MOST_MESSAGES:
                kept.messages[trouble.message] = kept.messages.get(trouble.message, 0) + 1
            kept.reproduce = kept.reproduce or trouble.reproduce
        self._runs.append(_Run(_without_cases(summary), column))

    def matrix(self) -> Matrix:
        """Return the matrix of all runs. Raise NothingReadError without a run."""
        self._leave_out_parts()
        self._enter_unread()
        if not self._runs:
            raise NothingReadError(f"no run can be read: {'; '.join(self._notes[:3])}; give other folders")
        return _Maker(
            self._runs, self._cases, list(self._results), self._troubles, [*self._notes, *self._twins()]
        ).made()

    def _enter_unread(self) -> None:
        """Mark cases that only other runs have read as deselected in runs that would have left them out."""
        for run in self._runs:
            if unread := run.summary.unread:
                run.column.extend([0] * (len(self._cases) - len(run.column)))
                for case, place in self._cases.items():
                    if not run.column[place] and case.startswith(unread):
                        run.column[place] = self._results[HoleKind.DESELECTED]

    def _leave_out_parts(self) -> None:
        """Leave out the shards of a merged run, which contains them."""
        merged = {part: run.summary.name for run in self._runs for part in run.summary.parts}
        for run in self._runs:
            if whole := merged.get(run.summary.run_id):
                self._notes.append(f"{run.summary.name} was left out: it is a shard of the merged run {whole}")
        self._runs = [run for run in self._runs if run.summary.run_id not in merged]

    def _twins(self) -> Iterable[str]:
        by_start: dict[tuple[object, ...], list[str]] = {}
        for run in self._runs:
            by_start.setdefault(run.summary.print[:4], []).append(run.summary.name)
        for first, *others in by_start.values():
            for other in others:
                yield f"{other} began as {first} did, but its journal differs, so it may be an older copy: both count"


def _without_cases(summary: Column) -> Column:
    return replace(summary, ids=(), result_numbers=array("I"), results=(), troubles={}, deselected=(), elsewhere=())


class _Maker:
    """Makes the matrix."""

    def __init__(
        self,
        runs: Sequence[_Run],
        cases: Mapping[str, int],
        results: Sequence[CaseResult | HoleKind],
        troubles: Mapping[int, _Messages],
        notes: Sequence[str],
    ) -> None:
        self._runs = sorted(runs, key=lambda run: (run.summary.machine.order, run.summary.begun, run.summary.name))
        self._results = results
        self._troubles = troubles
        self._notes = notes
        keys = dict.fromkeys(run.summary.machine for run in self._runs)
        self._machines = list(keys)
        self._machine_of = [self._machines.index(run.summary.machine) for run in self._runs]
        self._cases = sorted(cases.items(), key=lambda item: (suite_of(item[0]), item[0]))
        self._table: Sequence[Sequence[int]] = ()
        self._kinds = [_kind(result) for result in results]
        self._conditions = differing([run.summary.conditions for run in self._runs])
        begun = sorted({run.summary.begun for run in self._runs})
        self._ranks = [begun.index(run.summary.begun) for run in self._runs]
        self._places: list[ResultPlace] = []
        self._place_numbers: dict[ResultPlace, int] = {}
        self._place_of: dict[tuple[int, int], int] = {}
        self._cells: dict[tuple[tuple[tuple[Outcome, int], ...], tuple[HoleKind, str] | None], int] = {}
        self._holes: dict[tuple[HoleKind, str], _Hole] = {}

    def made(self) -> Matrix:
        rows = self._table = self._rows()
        cells = self._cells_of(rows)
        failures = self._failures(rows)
        cases = tuple(
            model.MatrixCase(
                case=escape_invalid_xml(case),
                suite=escape_invalid_xml(suite_of(case)),
                cells=row,
                failure=failures.get(place),
            )
            for place, ((case, _), row) in enumerate(zip(self._cases, cells, strict=True))
        )
        findings, of_run = listed_findings([run.summary.findings for run in self._runs], self._machine_of)
        holes = sorted(self._holes.items(), key=lambda item: (-item[1].cells, _ORDER[item[0][0]], item[0][1]))
        number = {key: place for place, (key, _) in enumerate(holes)}
        listed = tuple(
            model.Cell(outcomes=dict(outcomes), hole=None if hole is None else number[hole])
            for outcomes, hole in self._cells
        )
        return Matrix(
            schema=model.SCHEMA,
            runs=tuple(self._run(place, of_run[place]) for place in range(len(self._runs))),
            machines=self._machine_list(listed, cells),
            cells=listed,
            cases=cases,
            groups=tuple(self._groups(cases, listed)),
            holes=tuple(hole.made(*key) for key, hole in holes),
            findings=findings,
            differences=tuple(self._differences()),
            notes=tuple(map(escape_invalid_xml, self._notes)),
        )

    def _rows(self) -> list[tuple[int, ...]]:
        """Return the result of each run for each case, in the order of the matrix."""
        whole = max(len(run.column) for run in self._runs)
        columns = [[*run.column, *(whole - len(run.column)) * [0]] for run in self._runs]
        rows = list(zip(*columns, strict=True))
        return [rows[place] if place < whole else (0,) * len(self._runs) for _, place in self._cases]

    # ---- cells ----

    def _cells_of(self, rows: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return the cells of all machines for each case."""
        columns = [self._column(machine, rows) for machine in range(len(self._machines))]
        return list(zip(*columns, strict=True)) if rows else []

    def _column(self, machine: int, rows: Sequence[tuple[int, ...]]) -> list[int]:
        runs = [place for place, own in enumerate(self._machine_of) if own == machine]
        pick: Callable[[tuple[int, ...]], object] = itemgetter(*runs)
        made: dict[object, tuple[int, _Hole | None]] = {}
        column = []
        for place, row in enumerate(rows):
            key = pick(row)
            cell = made.get(key)
            if cell is None:
                cell = made[key] = self._cell([row[run] for run in runs])
            if cell[1] is not None:
                cell[1].add(place, machine)
            column.append(cell[0])
        return column

    def _cell(self, numbers: Iterable[int]) -> tuple[int, _Hole | None]:
        """Return the number of the cell, and the hole that it is part of."""
        results = [self._results[number] for number in numbers]
        ran = [result.outcome for result in results if isinstance(result, CaseResult)]
        outcomes = tuple(sorted(Counter(ran).items(), key=lambda item: item[0].severity))
        hole = None
        if all(isinstance(result, HoleKind) or result.outcome in _HOLES for result in results):
            worst = min(results, key=lambda result: _ORDER[_hole_kind(result)])
            hole = (_hole_kind(worst), _ABSENT[worst] if isinstance(worst, HoleKind) else worst.reason)
            kept = self._holes.setdefault(hole, _Hole())
            if hole[0] is HoleKind.GATED:
                kept.find(result.found for result in results if isinstance(result, CaseResult))
        return self._cells.setdefault((outcomes, hole), len(self._cells)), None if hole is None else self._holes[hole]

    # ---- failures ----

    def _failures(self, rows: Sequence[tuple[int, ...]]) -> dict[int, model.Failure]:
        """Return the failures by case."""
        bad = {
            number
            for number, result in enumerate(self._results)
            if isinstance(result, CaseResult) and _is_bad(result.outcome)
        }
        red = [(place, self._counts(row)) for place, row in enumerate(rows) if not bad.isdisjoint(row)]
        classings: dict[_Counts, Classing | None] = {}
        alone: dict[int, Classing] = {}
        for place, counts in red:
            if counts not in classings:
                classings[counts] = classify({self._places[at]: Tally(*tally) for at, *tally in counts}, len(red))
            if (classing := classings[counts]) is not None:
                alone[place] = classing
        return {
            place: self._failure(classing, self._troubles.get(self._cases[place][1], _Messages()))
            for place, classing in together(alone).items()
        }

    def _counts(self, row: tuple[int, ...]) -> _Counts:
        """Return the observations of a case."""
        counts: dict[int, list[int]] = {}
        for run, number in enumerate(row):
            kind = self._kinds[number]
            if kind < _SILENT:
                counts.setdefault(self._place(run, number), [0, 0, 0])[kind] += 1
        return tuple((place, red, flaky, green) for place, (red, flaky, green) in sorted(counts.items()))

    def _place(self, run: int, number: int) -> int:
        """Return the number of the place of a result in a run."""
        place_number = self._place_of.get((run, number))
        if place_number is None:
            result = self._results[number]
            summary = self._runs[run].summary
            place = replace(
                summary.place(() if isinstance(result, HoleKind) else result.devices),
                conditions=self._conditions[run],
                rank=self._ranks[run],
                run=summary.text,
            )
            place_number = self._place_of[run, number] = self._place_numbers.setdefault(place, len(self._places))
            if place_number == len(self._places):
                self._places.append(place)
        return place_number

    def _failure(self, classing: Classing, messages: _Messages) -> model.Failure:
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

    def _groups(self, cases: Sequence[model.MatrixCase], cells: Sequence[model.Cell]) -> Iterable[model.Group]:
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, case in enumerate(cases):
            if (failure := case.failure) is not None:
                groups.setdefault(_fault(failure, self._bad_runs(place)), []).append(place)
        order = {kind: place for place, kind in enumerate(wording.TITLES)}
        made = [self._group(cases, cells, places) for places in groups.values()]
        return sorted(made, key=lambda group: (order[group.kind], -len(group.cases), group.cases))

    def _bad_runs(self, place: int) -> tuple[int, ...]:
        """Return the runs in which a case was red or flaky."""
        return tuple(run for run, number in enumerate(self._table[place]) if 0 <= self._kinds[number] < 2)

    def _group(
        self, cases: Sequence[model.MatrixCase], cells: Sequence[model.Cell], places: Sequence[int]
    ) -> model.Group:
        failures = [failure for place in places if (failure := cases[place].failure) is not None]
        first = failures[0]
        bad = [any(_is_bad(outcome) for outcome in cell.outcomes) for cell in cells]
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

    def _run(self, place: int, findings: tuple[int, ...]) -> model.MatrixRun:
        summary = self._runs[place].summary
        return model.MatrixRun(
            name=summary.name,
            run_id=escape_invalid_xml(summary.run_id),
            begun=summary.begun,
            machine=self._machine_of[place],
            red=summary.red,
            exit_status=summary.exit_status,
            findings=findings,
            notes=tuple(map(escape_invalid_xml, summary.notes)),
            levels=tuple(model.StatedLevel(**asdict(level)) for level in summary.levels),
        )

    def _machine_list(self, cells: Sequence[model.Cell], rows: Sequence[Sequence[int]]) -> tuple[model.Machine, ...]:
        fail_on_flaky = any(run.summary.fail_on_flaky for run in self._runs)
        red = [any(_is_bad(o) and (o.is_red or fail_on_flaky) for o in cell.outcomes) for cell in cells]
        made = []
        for number, key in enumerate(self._machines):
            column = Counter(row[number] for row in rows)
            own = [run.summary for run, machine in zip(self._runs, self._machine_of, strict=True) if machine == number]
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
        facts = [run.summary.facts for run in self._runs]
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


def _is_bad(outcome: Outcome) -> bool:
    return outcome is Outcome.FLAKY or (outcome.is_red and outcome not in _HOLES)


def _kind(result: CaseResult | HoleKind) -> int:
    """Return the category in a tally: red, flaky, green, or `_SILENT` if it is not an observation."""
    if isinstance(result, HoleKind) or result.outcome in _HOLES:
        return _SILENT
    return 0 if result.outcome.is_red else 1 if result.outcome is Outcome.FLAKY else 2


def _hole_kind(result: CaseResult | HoleKind) -> HoleKind:
    return result if isinstance(result, HoleKind) else _HOLES[result.outcome]


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
