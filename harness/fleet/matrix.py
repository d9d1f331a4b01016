"""One matrix of many runs: a page of a store. The questions to the store are in `sql/matrix.sql`.

The class of each failure is that of `harness.fleet.classing`; this module finds the places of its results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from harness.core.caseid import suite_of
from harness.core.outcome import EXIT_NOTHING_RAN, EXIT_OK, EXIT_RED, Outcome
from harness.core.text import format_count, natural_key, single_line, truncate_middle
from harness.fleet import matrix_model as model
from harness.fleet import wording
from harness.fleet.classing import (
    CauseClass,
    Classing,
    Factor,
    ResultPlace,
    Sure,
    Tally,
    classify,
    together,
)
from harness.fleet.matrix_model import HoleKind, Matrix
from harness.fleet.reading import RunsRead
from harness.fleet.store import Questions
from harness.journal.identity import SUITE_FILES

#: Maximum number of different messages of a case, their characters, and of missing requirements of gated cases.
MOST_MESSAGES = 3
MOST_OF_MESSAGE = 300
MOST_FOUND = 5
#: Maximum findings of a run, and cases of a finding.
MOST_FINDINGS = 100
MOST_CASES = 20
_SURES = (Sure.ONE, Sure.WEAK, Sure.STRONG)
_KINDS = tuple(HoleKind)
#: The fact with the version of the harness.
HARNESS = "harness"
#: The version of a component that a machine does not have.
NONE = "none"
#: Facts of a run that belong to its machine, and the seed, which may differ between runs.
_MACHINE = frozenset({"torch", "driver", "device", "--seed"})
#: Facts that are already properties of a place, and the seed, which differs in each run.
_ELSEWHERE = _MACHINE | {"devices"}
#: Whether the environment of a run is known. This fact explains nothing.
_READ = (Factor.SETTING, "environment.json")
_SHOWN = 100
_MOST_FACT_VALUES = 20
#: A fact by its factor and name, with its values: an option such as ``--inject`` may have several.
Facts = Mapping[tuple[Factor, str], tuple[str, ...]]


class MachineKey(NamedTuple):
    """What makes runs those of one machine of a matrix."""

    device: str
    driver: str
    torch: str
    host: str

    @property
    def order(self) -> tuple[object, ...]:
        """The sort key: device, driver, torch, host; numbers within them by size."""
        return tuple(map(natural_key, self))


@dataclass(frozen=True, slots=True)
class _Run:
    """A run. `row`: the row of the table of runs. `facts`: those that should be equal in all runs."""

    row: Mapping[str, Any]
    name: str
    machine: MachineKey
    facts: Mapping[str, str]
    conditions: Facts

    @classmethod
    def of(cls, row: Mapping[str, Any], name: str) -> _Run:
        identity = json.loads(row["identity"])
        device = row["model"] if row["uuids"] else "no device"
        return cls(
            row=row,
            name=name,
            machine=MachineKey(device, row["driver"], row["torch"], row["host"]),
            facts={fact: text for fact, text in identity.items() if fact not in _MACHINE},
            conditions=facts_of(identity, json.loads(row["environment"] or "null")),
        )

    @property
    def begun(self) -> float:
        return float(self.row["seconds_since_1970"])

    @property
    def order(self) -> tuple[object, ...]:
        return self.machine.order, self.begun, self.name

    @property
    def text(self) -> str:
        """The name with the time of the start."""
        try:
            return f"{self.name} ({datetime.fromtimestamp(self.begun, UTC):%Y-%m-%d %H:%M} UTC)"
        except (OverflowError, ValueError):
            return self.name

    def shown(self, machine: int, findings: Sequence[int]) -> model.MatrixRun:
        status = self.row["exit_status"]
        return model.MatrixRun(
            name=self.name,
            run_id=self.row["run_id"],
            begun=self.begun,
            machine=machine,
            red=status not in (EXIT_OK, EXIT_NOTHING_RAN),
            exit_status=status,
            findings=tuple(findings),
            notes=tuple(self.row["notes"] or ()),
            levels=tuple(model.StatedLevel(**level) for level in json.loads(self.row["levels"] or "[]")),
        )


def make_matrix(read: RunsRead) -> Matrix:
    """Return the matrix of the runs in a store."""
    return _Maker(read).made()


class _Maker:
    """Makes a matrix. Cases have numbers in the database, and places in the matrix; so do devices and machines."""

    def __init__(self, read: RunsRead) -> None:
        self._questions = Questions(read.database, "matrix")
        self._notes = read.notes
        rows = self._questions.table("runs")
        self._runs = sorted(
            (_Run.of(row, read.names.get(row["run_id"], row["path"])) for row in rows), key=lambda run: run.order
        )
        self._machines = list(dict.fromkeys(run.machine for run in self._runs))
        self._machine_of = [self._machines.index(run.machine) for run in self._runs]
        read.database.execute("CREATE OR REPLACE TEMP TABLE column_of (run INTEGER, machine INTEGER, place INTEGER)")
        numbers = [(run.row["run"], self._machine_of[place], place) for place, run in enumerate(self._runs)]
        read.database.executemany("INSERT INTO column_of VALUES (?, ?, ?)", numbers)
        named = read.database.execute('SELECT "case", id FROM case_name').fetchall()
        self._cases = sorted(((case, id_) for case, id_ in named), key=lambda case: (suite_of(case[1]), case[1]))
        self._place_of_case = {number: place for place, (number, _) in enumerate(self._cases)}

    def made(self) -> Matrix:
        cells, rows, holes = self._cells()
        failures = self._failures()
        cases = tuple(
            model.MatrixCase(case=case, suite=suite_of(case), cells=tuple(row), failure=failures.get(number))
            for (number, case), row in zip(self._cases, rows, strict=True)
        )
        findings = self._findings()
        return Matrix(
            schema=model.SCHEMA,
            runs=tuple(
                run.shown(machine, [number for number, finding in enumerate(findings) if place in finding.runs])
                for place, (run, machine) in enumerate(zip(self._runs, self._machine_of, strict=True))
            ),
            machines=tuple(self._machine_list(cells, rows)),
            cells=cells,
            cases=cases,
            groups=tuple(self._groups(cases, cells)),
            holes=holes,
            findings=findings,
            differences=tuple(self._differences()),
            notes=self._notes,
        )

    # ---- cells ----

    def _cells(self) -> tuple[tuple[model.Cell, ...], list[list[int]], tuple[model.Hole, ...]]:
        """Return the different cells, for each case those of all machines, and the holes."""
        self._questions.ask("make_cells", holes=_KINDS)
        holes: dict[tuple[int, str], model.Hole] = {}
        for hole, reason, found, numbers, machines, cells in self._questions.ask("holes", holes=_KINDS):
            holes[hole, reason] = model.Hole(
                kind=_KINDS[hole - 1],
                reason=reason,
                found=tuple(found[:MOST_FOUND]),
                cases=tuple(sorted(self._place_of_case[number] for number in numbers)),
                machines=tuple(sorted(machines)),
                cells=cells,
            )
        place_of_hole = {key: place for place, key in enumerate(holes)}
        rows = [[0] * len(self._machines) for _ in self._cases]
        made: list[model.Cell] = []
        for counts, hole, reason, numbers, machines in self._questions.ask("cells"):
            for number, machine in zip(numbers, machines, strict=True):
                rows[self._place_of_case[number]][machine] = len(made)
            outcomes = sorted(((Outcome(outcome), times) for outcome, times in counts.items()), key=_severity)
            made.append(model.Cell(outcomes=dict(outcomes), hole=place_of_hole.get((hole, reason))))
        return tuple(made), rows, tuple(holes.values())

    def _machine_list(self, cells: Sequence[model.Cell], rows: Sequence[Sequence[int]]) -> Iterator[model.Machine]:
        fail_on_flaky = any(run.row["fail_on_flaky"] for run in self._runs)
        red = [any(_is_red(each) or (fail_on_flaky and _is_bad(each)) for each in cell.outcomes) for cell in cells]
        for number, key in enumerate(self._machines):
            column = [row[number] for row in rows]
            own = [run for run in self._runs if run.machine == key]
            yield model.Machine(
                host=key.host,
                device=key.device,
                driver=key.driver,
                torch=key.torch,
                uuids=tuple(sorted({uuid for run in own for uuid in run.row["uuids"]})),
                runs=len(own),
                red=sum(red[cell] for cell in column),
                holes=sum(cells[cell].hole is not None for cell in column),
            )

    # ---- failures ----

    def _failures(self) -> dict[int, model.Failure]:
        """Return the failures by the number of the case."""
        differing_ = differing([run.conditions for run in self._runs])
        begins = sorted({run.begun for run in self._runs})
        ranks = [begins.index(run.begun) for run in self._runs]
        devices = {key: row for key, *row in self._questions.ask("devices")}
        numbers: dict[ResultPlace, int] = {}
        places: dict[tuple[int, tuple[str, ...]], int] = {}

        def place_of(run: int, keys: Sequence[str | None]) -> int:
            """Return the number of the place of a result on these devices in a run."""
            used = tuple(key for key in keys if key is not None)
            if (run, used) not in places:
                at, conditions = self._runs[run], differing_[run]
                place = _place(at, [devices[key] for key in used], conditions, ranks[run])
                places[run, used] = numbers.setdefault(place, len(numbers))
            return places[run, used]

        counts: dict[int, dict[int, list[int]]] = {}  # by case and place: red, flaky, green
        for case, run, keys, kind in self._questions.ask("observations", holes=_KINDS):
            counts.setdefault(case, {}).setdefault(place_of(run, keys), [0, 0, 0])[kind] += 1
        by_number = list(numbers)
        classings: dict[tuple[tuple[int, ...], ...], Classing | None] = {}
        alone: dict[int, Classing] = {}
        for case, at_places in sorted(counts.items(), key=lambda item: self._place_of_case[item[0]]):
            key = tuple((place, *tally) for place, tally in sorted(at_places.items()))
            if key not in classings:
                classings[key] = classify({by_number[at]: Tally(*tally) for at, *tally in key}, len(counts))
            if (classing := classings[key]) is not None:
                alone[case] = classing
        messages: dict[int, list[tuple[str, int, str]]] = {}
        for case, text, runs, command in self._questions.ask("messages"):
            messages.setdefault(case, []).append((text, runs, command))
        return {case: _failure(classing, messages.get(case, [])) for case, classing in together(alone).items()}

    def _groups(self, cases: Sequence[model.MatrixCase], cells: Sequence[model.Cell]) -> Iterable[model.Group]:
        bad_runs = dict(self._questions.ask("bad_runs"))
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, case in enumerate(cases):
            if case.failure is not None:
                bad = tuple(bad_runs.get(self._cases[place][0], ()))
                groups.setdefault(_fault(case.failure, bad), []).append(place)
        order = {kind: place for place, kind in enumerate(wording.TITLES)}
        made = [self._group(cases, cells, places) for places in groups.values()]
        return sorted(made, key=lambda group: (order[group.kind], -len(group.cases), group.cases))

    def _group(
        self, cases: Sequence[model.MatrixCase], cells: Sequence[model.Cell], places: Sequence[int]
    ) -> model.Group:
        failures = [failure for place in places if (failure := cases[place].failure) is not None]
        first = failures[0]
        bad = [any(map(_is_bad, cell.outcomes)) for cell in cells]
        machines = sorted({number for place in places for number, cell in enumerate(cases[place].cells) if bad[cell]})
        surest = max(failures, key=lambda failure: _SURES.index(failure.sure))
        hosts = [self._machines[machine].host for machine in machines]
        return model.Group(
            kind=first.kind,
            causes=first.causes,
            together=first.together,
            sure=surest.sure,
            also=tuple(each for each in first.also if all(each in failure.also for failure in failures)),
            maybe_flake=all(failure.maybe_flake for failure in failures),
            cases=tuple(places),
            machines=tuple(machines),
            text=surest.text if len(failures) == 1 else _group_text(first, len(failures), hosts),
            next=surest.next,
        )

    # ---- findings and facts ----

    def _findings(self) -> tuple[model.Finding, ...]:
        return tuple(
            model.Finding(
                kind=kind,
                message=single_line(message, MOST_OF_MESSAGE),
                runs=tuple(runs),
                machines=tuple(sorted({self._machine_of[run] for run in runs})),
                cases=tuple(dict.fromkeys(cases))[:MOST_CASES],
                concerned=concerned,
                reproduce=reproduce or "",
            )
            for kind, message, runs, concerned, cases, reproduce in self._questions.ask("findings", most=MOST_FINDINGS)
        )

    def _differences(self) -> Iterable[model.Difference]:
        facts = [run.facts for run in self._runs]
        for name in dict.fromkeys([SUITE_FILES, HARNESS, *sorted({name for fact in facts for name in fact})]):
            values: dict[str, list[int]] = {}
            for run, of_run in enumerate(facts):
                values.setdefault(of_run.get(name, ""), []).append(run)
            if len(values) > 1:
                most_first = sorted(values.items(), key=lambda item: (-len(item[1]), item[0]))
                yield model.Difference(name=name, values=tuple(self._value(*each) for each in most_first))

    def _value(self, value: str, runs: Sequence[int]) -> model.Value:
        machines = {self._machine_of[run] for run in runs}
        return model.Value(value=value, runs=len(runs), machines=tuple(sorted(machines)))


def _severity(counted: tuple[Outcome, int]) -> int:
    return counted[0].severity


def _is_red(outcome: Outcome) -> bool:
    """Return whether an observation is red: a lost case is a hole."""
    return outcome.is_red and outcome.ran


def _is_bad(outcome: Outcome) -> bool:
    return _is_red(outcome) or outcome is Outcome.FLAKY


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


def _failure(classing: Classing, messages: Sequence[tuple[str, int, str]]) -> model.Failure:
    shown = messages[:MOST_MESSAGES]
    return model.Failure(
        kind=classing.kind,
        sure=classing.sure,
        chance=classing.chance,
        causes=classing.causes,
        together=classing.together,
        also=classing.also,
        maybe_flake=classing.maybe_flake,
        always=classing.always,
        red=classing.total.red,
        flaky=classing.total.flaky,
        ran=classing.total.all,
        text=wording.classing_text(classing),
        next=wording.advice_text(classing),
        messages=tuple(model.Message(text=single_line(text, MOST_OF_MESSAGE), runs=runs) for text, runs, _ in shown),
        reproduce=next((command for *_, command in messages if command), ""),
    )


def _group_text(first: model.Failure, cases: int, hosts: Sequence[str]) -> str:
    where = f"on {hosts[0]}" if len(hosts) == 1 else f"on {format_count(len(hosts), 'machine')}"
    if first.kind is CauseClass.EVERYWHERE:
        return f"{format_count(cases, 'case')}, red wherever they ran, {where}."
    if first.kind is CauseClass.FLAKE:
        return f"{format_count(cases, 'case')}, red or flaky {where}, which also passed them."
    if first.kind is CauseClass.MIXED and not first.causes:
        return f"{format_count(cases, 'case')}, red {where}; neither one cause nor two together explain them."
    return f"{format_count(cases, 'case')}, red {where} and in no run without this cause."


# ---- places, and the facts that distinguish the runs of one machine ----


def _place(
    run: _Run, used: Sequence[Sequence[str]], conditions: frozenset[tuple[Factor, str]], rank: int
) -> ResultPlace:
    """Return the place of a result on these devices: for each, UUID, name, parent, and whether the UUID is unique.

    Without devices, the place has the names of all devices of the run. A machine without a driver has no version that
    could explain anything.
    """
    unique = [text for uuid, _, parent, only in used if only for text in (uuid, parent) if text]
    return ResultPlace(
        host=run.machine.host,
        devices=tuple(sorted({name for _, name, *_ in used})) or tuple(run.machine.device.split(", ")),
        driver="" if run.machine.driver == NONE else run.machine.driver,
        torch="" if run.machine.torch == NONE else run.machine.torch,
        uuids=tuple(dict.fromkeys(unique)),
        conditions=conditions,
        rank=rank,
        run=run.text,
    )


def facts_of(identity: Mapping[str, str], environment: Mapping[str, str] | None) -> Facts:
    """Return the facts of a run. `environment`: those of its environment.json, None without the file."""
    facts: dict[tuple[Factor, str], tuple[str, ...]] = {} if environment is None else {_READ: ("read",)}
    for name, value in {**(environment or {}), **identity}.items():
        if name in _ELSEWHERE:
            continue
        factor = Factor.OPTION if name.startswith("--") else Factor.COMMIT if name == "commit" else Factor.SETTING
        facts[factor, single_line(name, _SHOWN)] = tuple(_values(factor, value))
    return facts


def _values(factor: Factor, value: str) -> Iterator[str]:
    """Yield the values of a fact; none if it is not set."""
    parts = value.split("; ") if factor is Factor.OPTION else [value]
    for part in filter(None, parts[:_MOST_FACT_VALUES]):
        yield part[:19] if part.startswith("sha256:") else " ".join(truncate_middle(part, _SHOWN).split())


def differing(runs: Sequence[Facts]) -> list[frozenset[tuple[Factor, str]]]:
    """Return, for each run, its values that not all runs have: ``--inject=no_wait``, ``without $CUDA_HOME``.

    A fact that a run does not record explains nothing there. Only options, and variables if the environment is known,
    count as absent if they are not recorded.
    """
    names = dict.fromkeys(name for run in runs for name in run if name != _READ)
    values_by_run: list[set[tuple[Factor, str]]] = [set() for _ in runs]
    for factor, name in names:
        every = [run.get((factor, name), ()) for run in runs]
        if len({*every}) == 1:
            continue
        common = set(every[0]).intersection(*every[1:])
        for run, mine, values in zip(runs, values_by_run, every, strict=True):
            mine.update((factor, _words(factor, name, value)) for value in values if value not in common)
            if not values and (factor is Factor.OPTION or (name.startswith("$") and _READ in run)):
                mine.add((factor, f"without {name}"))
    return list(map(frozenset, values_by_run))


def _words(factor: Factor, name: str, value: str) -> str:
    if factor is Factor.COMMIT:
        return value
    if factor is Factor.SETTING and not name.startswith("$"):
        return f"{name} {value}"
    return name if value == "True" else f"{name}={value}"
