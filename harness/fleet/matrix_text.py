"""A matrix as text for a terminal. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from harness.core.text import format_count, list_first
from harness.fleet import wording
from harness.fleet.classing import Factor
from harness.fleet.matrix_model import Difference, Finding, Group, Hole, Matrix
from harness.reporting.page import inert

#: Maximum lines of one printed list. The page and the JSON have all of them.
MOST_LINES = 20
MOST_NAMES = 3
MOST_FINDINGS = 50


def matrix_text(matrix: Matrix) -> str:
    """Return a short report: red results with causes, unknown results, doubts."""
    return "".join(f"{_indent(line)}{inert.inert_line(line)}\n" for line in _lines(matrix))


def headline_text(matrix: Matrix) -> str:
    """Return for example ``200 runs on 40 machines: 12 of 6000 cases are red or flaky somewhere``."""
    where = f"{format_count(len(matrix.runs), 'run')} on {format_count(len(matrix.machines), 'machine')}"
    total, bad = format_count(len(matrix.cases), "case"), matrix.failures
    findings = f"; {findings_text(matrix)}" if matrix.findings else ""
    if not bad:
        return f"{where}: none of {total} is red{findings}"
    return f"{where}: {bad} of {total} {'is' if bad == 1 else 'are'} red or flaky somewhere{findings}"


def findings_text(matrix: Matrix) -> str:
    """Return for example ``2 findings make 3 runs red``."""
    runs = len({run for finding in matrix.findings for run in finding.runs})
    word = "makes" if len(matrix.findings) == 1 else "make"
    return f"{format_count(len(matrix.findings), 'finding')} {word} {format_count(runs, 'run')} red"


def classes_text(matrix: Matrix) -> str:
    """Return the number of cases of each class: ``3 everywhere, 9 one driver``; empty without any."""
    kinds = Counter(case.failure.kind for case in matrix.cases if case.failure is not None)
    return ", ".join(f"{kinds[kind]} {title}" for kind, title in wording.TITLES.items() if kinds[kind])


def title_of(group: Group) -> str:
    """Return the subject of a group, and since when if known: ``option --inject=x, since RUN (DATE)``."""
    title = wording.title_text(group.kind, group.causes, together=group.together)
    alone = [explanation[0] for explanation in group.also if len(explanation) == 1] if group.causes else []
    return ", ".join([title, *(f"since {cause.value}" for cause in alone if cause.factor is Factor.SINCE)])


def apart_of(group: Group) -> str:
    """Return the causes that cannot be distinguished from those of a group; empty without any."""
    return wording.apart_text(group.also, maybe_flake=group.maybe_flake)


def _lines(matrix: Matrix) -> Iterator[str]:
    listed = classes_text(matrix)
    yield headline_text(matrix) + (f" ({listed})" if listed else "")
    for group in matrix.groups[:MOST_LINES]:
        yield from _group(matrix, group)
    yield from _more(len(matrix.groups), "class", "classes")
    for finding in matrix.findings[:MOST_FINDINGS]:
        yield from _finding(matrix, finding)
    yield from _more(len(matrix.findings), "finding", "findings", MOST_FINDINGS)
    holes = sum(hole.cells for hole in matrix.holes)
    if holes:
        size = len(matrix.cases) * len(matrix.machines)
        yield f"holes: {holes} of {size} cells {'has' if holes == 1 else 'have'} no result"
    for hole in matrix.holes[:MOST_LINES]:
        yield f"  {hole_text(hole)}"
    yield from _more(len(matrix.holes), "reason", "reasons")
    for difference in matrix.differences[:MOST_LINES]:
        yield f"differs: {difference_text(difference)}"
    yield from _more(len(matrix.differences), "fact", "facts")
    doubts = [f"{run.name}: {note}" for run in matrix.runs for note in run.notes] + list(matrix.notes)
    for doubt in doubts[:MOST_LINES]:
        yield f"note: {doubt}"
    yield from _more(len(doubts), "note", "notes")


def _group(matrix: Matrix, group: Group) -> Iterator[str]:
    yield f"{wording.TITLES[group.kind].upper()} ({group.sure}): {title_of(group)} - {group.text}"
    names = [inert.inert_line(matrix.cases[place].case, 200) for place in group.cases[:MOST_NAMES]]
    yield f"  {', '.join(names)}{', …' if len(group.cases) > MOST_NAMES else ''}"
    apart = apart_of(group)
    if apart:
        yield f"  cannot be distinguished from: {apart}"
    yield f"  next: {group.next}"


def _finding(matrix: Matrix, finding: Finding) -> Iterator[str]:
    where = f"in {format_count(len(finding.runs), 'run')} on {format_count(len(finding.machines), 'machine')}"
    yield f"FINDING {finding.kind}: {where} - {finding.message}"
    names = [inert.inert_line(matrix.runs[place].name, 200) for place in finding.runs[:MOST_NAMES]]
    yield f"  {', '.join(names)}{', …' if len(finding.runs) > MOST_NAMES else ''}"
    if finding.concerned:
        yield f"  {format_count(finding.concerned, 'case')}: {list_first(finding.cases[:MOST_NAMES])}"
    if finding.reproduce:
        yield f"  reproduce: {finding.reproduce}"


def hole_text(hole: Hole) -> str:
    """Return for example ``gated, memory: wanted >=40GiB (found 22.0GiB): 400 cells, 200 cases on 2 machines``."""
    values = f" (found {', '.join(hole.found)})" if hole.found else ""
    reason = f", {hole.reason}" if hole.reason else ""
    where = f"{format_count(len(hole.cases), 'case')} on {format_count(len(hole.machines), 'machine')}"
    return f"{hole.kind.value.replace('_', ' ')}{reason}{values}: {format_count(hole.cells, 'cell')}, {where}"


def difference_text(difference: Difference) -> str:
    """Return for example ``suite files: sha256:5e5e5e5e5e5e in 195 runs, sha256:0d0d0d0d0d0d in 5 runs``."""
    values = [f"{value_text(value.value)} in {format_count(value.runs, 'run')}" for value in difference.values]
    return f"{difference.name}: {', '.join(values[:5])}{', …' if len(values) > 5 else ''}"


def value_text(value: str) -> str:
    """Return the value, with hashes shortened to an unambiguous beginning."""
    return value[:19] if value.startswith("sha256:") else value or "not recorded"


def _indent(line: str) -> str:
    return "  " if line.startswith("  ") else ""


def _more(number: int, noun: str, plural: str, shown: int = MOST_LINES) -> Iterator[str]:
    if number > shown:
        yield f"  and {format_count(number - shown, f'more {noun}', f'more {plural}')}: see the page or the JSON"
