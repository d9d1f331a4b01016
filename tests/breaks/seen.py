"""The test functions that a break turned red, each with one such break, in ``seen.txt`` beside this file.

A case that was never red may be unable to fail. ``python -m tests.breaks seen RESULTS...`` adds what runs of breaks and
of faults noticed. A line has the id of a function and the name of a break.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from harness.core.text import format_count
from tests.breaks.breaks import BreakError
from tests.breaks.table import RECORD

FILE = Path(__file__).with_name("seen.txt")


def function_of(case: str) -> str:
    """Return the id of the function of a case."""
    return case.partition("[")[0]


def read_seen(path: Path) -> dict[str, str]:
    """Return the break by function. Raise BreakError if a line is wrong."""
    seen = {}
    for number, line in enumerate(path.read_text(encoding="ascii").splitlines(), 1):
        function, _, name = line.partition(" ")
        if not name or "::" not in function:
            raise BreakError(f"{path}:{number}: {line!r}: expected the id of a function and the name of a break")
        seen[function] = name
    return seen


def noticed(results: Path) -> Iterator[tuple[str, str]]:
    """Yield function and break from the record in a folder of results. Raise BreakError if there is none."""
    try:
        rows = json.loads((results / RECORD).read_text(encoding="utf-8"))["breaks"]
        for row in rows:
            for case in row["noticed_by"]:
                yield function_of(case), row["name"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BreakError(f"{results / RECORD}: expected the record of a run of breaks: {error!r}") from error


def merged(seen: Mapping[str, str], found: Iterable[tuple[str, str]], functions: Iterable[str]) -> dict[str, str]:
    """Return the table with what was found, for the functions that exist. A function keeps its break."""
    whole = dict(found) | dict(seen)
    return {function: whole[function] for function in sorted(set(functions)) if function in whole}


def seen_text(seen: Mapping[str, str]) -> str:
    """Return the content of the file."""
    return "".join(f"{function} {name}\n" for function, name in seen.items())


def seen_page(seen: Mapping[str, str], functions: Iterable[str]) -> str:
    """Return by suite how many functions were seen red, and below it those that never were."""
    listed = sorted(set(functions))
    suites: dict[str, list[str]] = {}
    for function in listed:
        suites.setdefault("/".join(function.split("/")[:2]), []).append(function)
    lines = [
        f"{suite:28} {sum(each in seen for each in members):5} of {len(members):5}" for suite, members in suites.items()
    ]
    never = [function for function in listed if function not in seen]
    total = f"{len(listed) - len(never)} of {format_count(len(listed), 'function')} were seen red by a break"
    return "\n".join([*lines, total, *(f"never: {function}" for function in never)]) + "\n"
