"""A comparison of runs as text for a terminal, as Markdown for a forge, and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from harness.reporting.comparison import Change, Comparison, Fact
from harness.text import clean, counted

#: The version of the JSON document.
SCHEMA = 1
#: The most cases of one list in Markdown: forges cut long texts off.
_MOST_ROWS = 100
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~&@])")


def text(comparison: Comparison) -> str:
    """One line for each case, the most urgent first; at the end the counts."""
    return "\n".join(_lines(comparison)) + "\n"


def as_json(comparison: Comparison) -> str:
    """All lists as JSON, with one list for each key."""
    values: dict[str, Any] = {"schema": SCHEMA, **asdict(comparison)}
    return json.dumps(values, indent=2, ensure_ascii=True) + "\n"


def markdown(comparison: Comparison) -> str:
    """Tables for a job summary of a forge. All texts of the runs are escaped."""
    parts = [f"## {counted(len(comparison.regressions), 'regression')}", _escaped(_headline(comparison))]
    if comparison.facts:
        rows = "\n".join(
            f"| {_escaped(f.name)} | {_escaped(_old(f))} | {_escaped(_new(f))} |" for f in comparison.facts
        )
        parts.append(f"### Machine and software\n\n| | baseline | new |\n| --- | --- | --- |\n{rows}")
    parts += [f"- {_escaped(note)}" for note in comparison.notes]
    for heading, changes in comparison.lists.items():
        if changes:
            rows = "\n".join(f"| {_escaped(each.case)} | {_escaped(each.text)} |" for each in changes[:_MOST_ROWS])
            more = len(changes) - _MOST_ROWS
            rows += f"\n| … and {counted(more, 'more case')} | |" if more > 0 else ""
            title = f"{heading[0].upper()}{heading[1:]} ({len(changes)})"
            parts.append(f"### {title}\n\n| case | what |\n| --- | --- |\n{rows}")
    return "\n\n".join(parts) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield _headline(comparison)
    for note in comparison.notes:
        yield f"NOTE {note}"
    for fact in comparison.facts:
        yield f"{fact.name}: {_old(fact)} -> {_new(fact)}"
    for heading, changes in comparison.lists.items():
        for each in changes:
            yield from _case(_WORDS[heading], each)
    counts = [f"{len(changes)} {heading}" for heading, changes in comparison.lists.items()]
    yield f"{', '.join(counts)}; {counted(comparison.same, 'case')} as before"


def _case(word: str, change: Change) -> Iterator[str]:
    yield f"{word} {clean(change.case)} - {change.text}"
    if change.reproduce and word in ("REGRESSION", "FLAKE"):
        yield f"    {clean(change.reproduce)}"


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
    return _SPECIAL.sub(r"\\\1", " ".join(clean(of).split()))
