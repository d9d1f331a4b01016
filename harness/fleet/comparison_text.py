"""A comparison of runs as text for a terminal, as Markdown for a forge, and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from harness.core.text import format_count, inert_line, list_first, single_line
from harness.fleet.comparison import Change, Comparison, Fact, FindingChange

#: The version of the JSON document.
SCHEMA = 1
#: Maximum entries of one list in Markdown: forges cut long texts off.
_MOST_ROWS = 100
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~&@])")


def comparison_text(comparison: Comparison) -> str:
    """Return one line per case, the most urgent first, and the counts at the end."""
    return "".join(f"{inert_line(line)}\n" for line in _lines(comparison))


def comparison_json(comparison: Comparison) -> str:
    """Return all lists as JSON, one list per key."""
    values: dict[str, Any] = {"schema": SCHEMA, **asdict(comparison)}
    return json.dumps(values, indent=2, ensure_ascii=True) + "\n"


def comparison_markdown(comparison: Comparison) -> str:
    """Return tables for a job summary of a forge. All texts of the runs are escaped."""
    parts = [f"## {_title(comparison)}", _escaped(_headline(comparison))]
    if comparison.facts:
        facts = [(fact.name, _old(fact), _new(fact)) for fact in comparison.facts]
        parts.append(_section("Machine and software", ("", "baseline", "new"), facts))
    parts += [f"- {_escaped(note)}" for note in (*comparison.notes, *_unexplained(comparison))]
    for heading, findings in comparison.findings.items():
        rows = [(finding.kind, _finding_text(finding), finding.text) for finding in findings]
        parts += _counted_section(heading, ("finding", "what", "where"), rows, "more finding")
    figures = [(figure.name, figure.old, figure.new, figure.text) for figure in comparison.figures]
    parts += _counted_section("figures of speed", ("", "baseline", "new", ""), figures, "more figure")
    for heading, changes in comparison.lists.items():
        listed = [(change.case, change.text) for change in changes]
        parts += _counted_section(heading, ("case", "what"), listed, "more case")
    return "\n\n".join(parts) + "\n"


def _counted_section(heading: str, head: Sequence[str], rows: Sequence[Sequence[str]], more: str) -> list[str]:
    """Return a table whose title has the number of rows, of which the first are listed; nothing without rows."""
    title = f"{heading[0].upper()}{heading[1:]} ({len(rows)})"
    left = len(rows) - _MOST_ROWS
    last = f"… and {format_count(left, more)}" if left > 0 else ""
    return [_section(title, head, rows[:_MOST_ROWS], last)] if rows else []


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], last: str = "") -> str:
    cells = [head, ["---"] * len(head), *(tuple(map(_escaped, row)) for row in rows)]
    cells += [[last] + [""] * (len(head) - 1)] if last else []
    lines = ("|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in cells)
    return "\n".join([f"### {title}", "", *lines])


def _lines(comparison: Comparison) -> Iterator[str]:
    yield _headline(comparison)
    for note in comparison.notes:
        yield f"NOTE {note}"
    for fact in comparison.facts:
        yield f"{fact.name}: {_old(fact)} -> {_new(fact)}"
    for text in _unexplained(comparison):
        yield f"REGRESSION {text}"
    for heading, findings in comparison.findings.items():
        for finding in findings:
            yield from _finding(_FINDING_WORDS[heading], finding)
    for figure in comparison.figures:
        yield (f"FIGURE {figure.name}: {figure.old} -> {figure.new} ({figure.text}) - {figure.case}")
    for heading, changes in comparison.lists.items():
        for change in changes:
            yield from _case(_WORDS[heading], change)
    counts = [f"{len(changes)} {heading}" for heading, changes in comparison.lists.items()]
    counts += [f"{len(listed)} {heading}" for heading, listed in comparison.findings.items() if listed]
    yield f"{', '.join(counts)}; {format_count(comparison.same, 'case')} as before"


def _title(comparison: Comparison) -> str:
    regressions = format_count(len(comparison.regressions), "regression")
    new = len(comparison.new_findings)
    return f"{regressions}, {format_count(new, 'new finding')}" if new else regressions


def _unexplained(comparison: Comparison) -> list[str]:
    return [comparison.unexplained] if comparison.unexplained else []


def _finding(word: str, finding: FindingChange) -> Iterator[str]:
    yield f"{word} {finding.kind}: {_finding_text(finding)} - {finding.text}"
    if finding.reproduce and word == _FINDING_WORDS["new findings"]:
        yield f"    {finding.reproduce}"


def _finding_text(finding: FindingChange) -> str:
    cases = f" [{format_count(len(finding.cases), 'case')}: {list_first(finding.cases)}]" if finding.cases else ""
    return f"{single_line(finding.message)}{cases}"


def _case(word: str, change: Change) -> Iterator[str]:
    yield f"{word} {change.case} - {change.text}"
    if change.reproduce and word in ("REGRESSION", "FLAKE"):
        yield f"    {change.reproduce}"


_FINDING_WORDS = {
    "new findings": "NEW FINDING",
    "findings as before": "STILL FINDING",
    "findings gone": "FINDING GONE",
}
_WORDS = {
    "regressions": "REGRESSION",
    "without a verdict": "NO VERDICT",
    "new flakes": "FLAKE",
    "newly gated": "GATED",
    "missing": "MISSING",
    "slower": "SLOWER",
    "still red": "STILL RED",
    "fixes": "FIXED",
    "new cases": "NEW",
}


def _headline(comparison: Comparison) -> str:
    if len(comparison.baseline) == 1:
        return f"{comparison.new} compared with {comparison.baseline[0]}"
    return f"{comparison.new} compared with {len(comparison.baseline)} runs, the last {comparison.baseline[-1]}"


def _old(fact: Fact) -> str:
    return ", ".join(fact.old) or "not known"


def _new(fact: Fact) -> str:
    return "not known" if fact.new is None else fact.new


def _escaped(of: str) -> str:
    return _SPECIAL.sub(r"\\\1", inert_line(" ".join(of.split())))
