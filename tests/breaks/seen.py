"""The test functions that a break turned red, each with one such break, in ``seen.txt`` beside this file.

A case that was never red may be unable to fail. `python -m tests.breaks search` finds breaks, `python -m tests.breaks
seen` adds what other runs noticed. A line has the id of a function and the name of a break. ``unseen.txt`` has the
functions without a break, each with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from harness.core.outcome import Outcome
from harness.core.text import format_count, single_line
from harness.journal.verdicts import Verdict
from tests.breaks.breaks import BreakError
from tests.breaks.table import RECORD

FILE = Path(__file__).with_name("seen.txt")
REASONS = Path(__file__).with_name("unseen.txt")
#: The page with the table, and the first line of that.
PAGE = Path(__file__).parents[2] / "docs" / "mutation.md"
_BEGIN = "| suite | functions | seen red | not runnable here | open |"
#: The beginning of a reason that a run without a break gives, of one that a search gives, and the break of a function
#: that torch itself turns red.
GATED, OPEN, ITSELF = "not run: ", "open: ", "torch itself"

_PATH = re.compile(r" /\S+")


def function_of(case: str) -> str:
    """Return the id of the function of a case."""
    return case.partition("[")[0]


def read_table(path: Path) -> dict[str, str]:
    """Return the break, or the reason, by function. Raise BreakError if a line is wrong."""
    table = {}
    for number, line in enumerate(path.read_text(encoding="ascii").splitlines(), 1):
        function, _, text = line.partition(" ")
        if not text or "::" not in function:
            raise BreakError(
                f"{path}:{number}: {line!r}: expected the id of a function, and the name of a break or a reason"
            )
        table[function] = text
    return table


def noticed(results: Path) -> Iterator[tuple[str, str]]:
    """Yield function and break from the record in a folder of results. Raise BreakError if there is none."""
    try:
        rows = json.loads((results / RECORD).read_text(encoding="utf-8"))["breaks"]
        for row in rows:
            for case in row["noticed_by"]:
                yield function_of(case), row["name"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BreakError(f"{results / RECORD}: expected the record of a run of breaks: {error!r}") from error


def red_by_torch(verdicts: Iterable[Verdict]) -> Iterator[tuple[str, str]]:
    """Yield the functions whose cases are all expected to fail, and failed: a bug of torch is a break too."""
    outcomes: dict[str, set[Outcome]] = {}
    for verdict in verdicts:
        outcomes.setdefault(function_of(verdict.case), set()).add(verdict.outcome)
    for function, found in outcomes.items():
        if Outcome.WAIVED in found and Outcome.PASSED not in found:
            yield function, ITSELF


def reasons_of_gates(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """Return the functions of which no case ran, each with the reason of a gate or skip; the last one that there is."""
    ran, reasons = set(), dict[str, str]()
    for verdict in verdicts:
        function = function_of(verdict.case)
        if verdict.outcome in (Outcome.GATED, Outcome.SKIPPED):
            text = single_line(verdict.message).removeprefix("Skipped: ").encode("ascii", "replace").decode()
            reasons[function] = f"{GATED}{_PATH.sub(' ...', text)}"  # a folder of the run says nothing elsewhere
        else:
            ran.add(function)
    return {function: reason for function, reason in reasons.items() if function not in ran}


def merged(known: Mapping[str, str], found: Iterable[tuple[str, str]], functions: Iterable[str]) -> dict[str, str]:
    """Return a table with what was found, for the functions that exist. A function keeps its text."""
    whole = dict(found) | dict(known)
    return {function: whole[function] for function in sorted(set(functions)) if function in whole}


def table_text(table: Mapping[str, str]) -> str:
    """Return the content of a file."""
    return "".join(f"{function} {text}\n" for function, text in table.items())


def by_suite(seen: Collection[str], reasons: Mapping[str, str], functions: Iterable[str]) -> dict[str, list[int]]:
    """Return by suite the numbers of functions: all, seen red, those that cannot run here, and the others."""
    suites: dict[str, list[int]] = {}
    for function in sorted(set(functions)):
        row = suites.setdefault(function.split("/")[1], [0, 0, 0, 0])
        row[0] += 1
        row[1 if function in seen else 2 if reasons.get(function, "").startswith(GATED) else 3] += 1
    return suites


def seen_page(seen: Mapping[str, str], reasons: Mapping[str, str], functions: Collection[str]) -> str:
    """Return by suite how many functions were seen red, and below it those that never were, with the reason."""
    suites = by_suite(seen, reasons, functions)
    lines = [f"{suite:20} {row[1]:5} of {row[0]:5}" for suite, row in suites.items()]
    never = [function for function in sorted(set(functions)) if function not in seen]
    total = f"{sum(row[1] for row in suites.values())} of {format_count(len(set(functions)), 'function')}"
    lines.append(f"{total} were seen red")
    return "\n".join([*lines, *(f"never: {each} {reasons.get(each, '')}".rstrip() for each in never)]) + "\n"


def page_table(seen: Collection[str], reasons: Mapping[str, str], functions: Iterable[str]) -> str:
    """Return the table of `PAGE`."""
    suites = by_suite(seen, reasons, functions)
    total = [sum(column) for column in zip(*suites.values(), strict=True)]
    rows = [(f"`{suite}`", row) for suite, row in suites.items()] + [("total", total)]
    lines = [f"| {name} | {' | '.join(f'{number:,}' for number in row)} |" for name, row in rows]
    return "\n".join([_BEGIN, "| --- | --- | --- | --- | --- |", *lines]) + "\n"


def with_table(page: str, table: str) -> str:
    """Return the page with this table in the place of the one that it has. Raise BreakError if it has none."""
    before, found, after = page.partition(_BEGIN)
    if not found:
        raise BreakError(f"{PAGE}: expected a table that begins with {_BEGIN!r}")
    rows = after.split("\n")
    end = next((place for place, row in enumerate(rows) if place and not row.startswith("|")), len(rows))
    return before + table + "\n".join(rows[end:])
