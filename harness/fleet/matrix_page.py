"""A matrix as text, and as a page: one HTML file that loads no other file and runs only its own script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from harness.core.outcome import Outcome
from harness.core.text import format_count
from harness.fleet import wording
from harness.fleet.classing import CauseClass, Factor
from harness.fleet.matrix_model import Difference, Failure, Group, Hole, HoleKind, Matrix
from harness.fleet.texts import PACKAGE, render_page, render_text
from harness.reporting.page import data, document, inert
from harness.reporting.page.cases import name_of

#: Maximum entries of one list in the page. The JSON has all of them.
LISTED = 20
MOST_GROUPS = 100
MOST_HOLES = 200
MOST_NOTES = 100
MOST_RUNS = 1000
MOST_FINDINGS = 200
#: Maximum names of a list in the text.
MOST_NAMES = 3


def matrix_text(matrix: Matrix) -> str:
    """Return a short report: red results with causes, unknown results, doubts."""
    classes = ", ".join(f"{number} {title}" for _, title, number in _classes(matrix))
    return render_text(
        "matrix.txt",
        headline=headline_text(matrix) + (f" ({classes})" if classes else ""),
        cases_of=lambda group: _names([matrix.cases[place].case for place in group.cases]),
        runs_of=lambda finding: _names([matrix.runs[place].name for place in finding.runs]),
        holes=sum(hole.cells for hole in matrix.holes),
        differences=[*map(difference_text, matrix.differences)],
        **_common(matrix),
    )


def render_matrix(matrix: Matrix) -> bytes:
    """Return the page in UTF-8; equal matrices give equal bytes."""
    styles = [document.asset(document.PACKAGE, "page.css"), document.asset(PACKAGE, "matrix.css")]
    scripts = [document.asset(document.PACKAGE, "shared.js"), document.asset(PACKAGE, "matrix.js")]
    return render_page(
        "matrix.html",
        tone="red" if any(run.red for run in matrix.runs) else "green",
        word=_word(matrix),
        sentence=headline_text(matrix),
        classes=_classes(matrix),
        facts={"Kinds of device": "device", "Drivers": "driver", "torch": "torch"},
        levels=list(dict.fromkeys(level.level for run in matrix.runs for level in run.levels)),
        stating=[(run, {level.level: level for level in run.levels}) for run in matrix.runs if run.levels],
        policy=Markup(document.content_policy(styles, scripts)),
        styles=[Markup(style) for style in styles],
        scripts=[Markup(script) for script in scripts],
        data=Markup(data.encode_for_script(_data(matrix)).decode("ascii")),
        listed=LISTED,
        most_groups=MOST_GROUPS,
        most_holes=MOST_HOLES,
        most_notes=MOST_NOTES,
        most_runs=MOST_RUNS,
        most_findings=MOST_FINDINGS,
        value_text=value_text,
        link=lambda name, value: Markup(f"#{name}={value}"),
        **_common(matrix),
    )


def _common(matrix: Matrix) -> dict[str, Any]:
    """Return what the page and the text have in common."""
    return {
        "matrix": matrix,
        "titles": wording.TITLES,
        "title_of": title_of,
        "apart_of": apart_of,
        "hole_text": hole_text,
        "doubts": [f"{run.name}: {note}" for run in matrix.runs for note in run.notes] + list(matrix.notes),
    }


def _classes(matrix: Matrix) -> list[tuple[CauseClass, str, int]]:
    """Return each class that a failure has, with its title and the number of failures."""
    kinds = Counter(case.failure.kind for case in matrix.cases if case.failure is not None)
    return [(kind, title, kinds[kind]) for kind, title in wording.TITLES.items() if kinds[kind]]


# ---- texts ----


def _names(texts: Sequence[str]) -> str:
    """Return the first texts."""
    named = ", ".join(inert.inert_line(text, 200) for text in texts[:MOST_NAMES])
    return f"{named}, …" if len(texts) > MOST_NAMES else named


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


def title_of(group: Group) -> str:
    """Return the subject of a group, and since when if known: ``option --inject=x, since RUN (DATE)``."""
    title = wording.title_text(group.kind, group.causes, together=group.together)
    alone = [explanation[0] for explanation in group.also if len(explanation) == 1] if group.causes else []
    return ", ".join([title, *(f"since {cause.value}" for cause in alone if cause.factor is Factor.SINCE)])


def apart_of(group: Group) -> str:
    """Return the causes that cannot be distinguished from those of a group; empty without any."""
    return wording.apart_text(group.also, maybe_flake=group.maybe_flake)


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


# ---- the page ----


def _word(matrix: Matrix) -> str:
    if matrix.failures:
        return f"{format_count(matrix.failures, 'case')} red somewhere"
    if matrix.findings:
        return format_count(len(matrix.findings), "finding")
    return "Red runs" if any(run.red for run in matrix.runs) else "Green"


def _data(matrix: Matrix) -> dict[str, Any]:
    """Return the data for the script: as in the JSON, but each file, suite and row of cells once, by number."""
    files: dict[str, int] = {}
    suites: dict[str, int] = {}
    patterns: dict[tuple[int, ...], int] = {}
    group_of = {case: number for number, group in enumerate(matrix.groups) for case in group.cases}
    rows = []
    for place, case in enumerate(matrix.cases):
        file, separator, rest = name_of(case.case).partition("::")
        file_number = files.setdefault(file + separator, len(files))
        suite = suites.setdefault(inert.inert_line(case.suite, 200), len(suites))
        failure = None if case.failure is None else _failure(case.failure, group_of[place])
        rows.append([file_number, rest, suite, patterns.setdefault(case.cells, len(patterns)), failure])
    machines = [(machine.host, machine.device, machine.driver, machine.torch) for machine in matrix.machines]
    return {
        "hidden": inert.HIDDEN_IN_SCRIPT,
        "red": [outcome for outcome in Outcome if outcome.is_red],
        "flaky": Outcome.FLAKY,
        "none": [kind for kind in HoleKind if kind.value in set(Outcome)],
        "machines": [
            [*(inert.inert_line(text, 200) for text in texts), machine.runs]
            for texts, machine in zip(machines, matrix.machines, strict=True)
        ],
        "holes": [[hole.kind, inert.inert_line(hole.reason)] for hole in matrix.holes],
        "cells": [cell.model_dump() for cell in matrix.cells],
        "files": [*files],
        "suites": [*suites],
        "patterns": [*patterns],
        "cases": rows,
        "kinds": {kind.value: title for kind, title in wording.TITLES.items()},
        "groups": [inert.inert_line(_group_name(group), 120) for group in matrix.groups],
    }


def _group_name(group: Group) -> str:
    return f"{wording.TITLES[group.kind]}{': ' + title_of(group) if group.causes else ''} ({len(group.cases)})"


def _failure(failure: Failure, group: int) -> dict[str, Any]:
    also = wording.apart_text(failure.also, maybe_flake=failure.maybe_flake)
    texts = {"text": failure.text, "also": also, "next": failure.next}
    return {
        "kind": failure.kind,
        "sure": failure.sure,
        "group": group,
        **{name: inert.inert_line(text) for name, text in texts.items()},
        "messages": [[inert.inert_line(message.text), message.runs] for message in failure.messages],
        "reproduce": inert.inert_text(failure.reproduce),
    }
