"""Who noticed: the result of each break, and their table. Pure: takes plain values, returns text and JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from harness.core.text import format_count, list_first

#: The files of the table in the folder of the results.
TEXT, RECORD = "breaks.txt", "breaks.json"
_SHOWN = 3  # cases named in a line of the table; the JSON record has all of them

#: `stumbled`: cases were red, but none by a check of its own. `unusable`: the break was not tried.
Verdict = Literal["noticed", "missed", "stumbled", "unusable"]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one break. `noticed_by`: by case, its outcome. `ran`: the cases that could have noticed it.

    - `unusable`: why the break was not tried; otherwise empty.
    - `stumbled`: by case, its exception, if its own check did not see the break: the break itself raised, for example a
      TypeError, or with a fault a call in a helper.
    - `struck`: how often an injected fault occurred.
    - `not_counted`: the cases that were red although the fault did not occur in them, and that passed alone.
    """

    name: str
    breaks: str
    device: str
    noticed_by: Mapping[str, str] = field(default_factory=dict)
    ran: frozenset[str] = frozenset()
    unusable: str = ""
    stumbled: Mapping[str, str] = field(default_factory=dict)
    struck: int = 0
    not_counted: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        if self.unusable:
            return "unusable"
        if self.noticed_by:
            return "noticed"
        return "stumbled" if self.stumbled else "missed"


@dataclass(frozen=True, slots=True)
class Table:
    """All selected breaks. Without a break, `passed` cases passed, and `wrong` has the outcomes of red cases.

    `not_run`: the breaks that have not run yet.
    """

    rows: tuple[Result, ...]
    passed: int = 0
    wrong: Mapping[str, str] = field(default_factory=dict)
    not_run: tuple[str, ...] = ()

    @property
    def tried(self) -> tuple[Result, ...]:
        return tuple(row for row in self.rows if not row.unusable)

    @property
    def missed(self) -> tuple[str, ...]:
        """The breaks that no case noticed."""
        return tuple(row.name for row in self.tried if not row.noticed_by)

    @property
    def unusable(self) -> Mapping[str, str]:
        return {row.name: row.unusable for row in self.rows if row.unusable}

    @property
    def noticed_alone(self) -> Mapping[str, str]:
        """The breaks that a single case noticed, with this case."""
        return {row.name: next(iter(row.noticed_by)) for row in self.tried if len(row.noticed_by) == 1}

    @property
    def blind(self) -> tuple[str, ...]:
        """The cases that could have noticed breaks but noticed none."""
        ran = {case for row in self.tried for case in row.ran}
        return tuple(sorted(ran - {case for row in self.tried for case in row.noticed_by}))

    @property
    def green(self) -> bool:
        """Whether every break was tried and noticed, and no case was red without one."""
        return not (self.wrong or self.missed or self.unusable or self.not_run)


def table_text(table: Table) -> str:
    """Return the table as text, followed by its summary."""
    cells = [("break", "device", "noticed by", "")]
    cells += [(row.name, row.device, _count(row), _named(row)) for row in table.rows]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    lines = [
        f"{name:{widths[0]}}  {device:{widths[1]}}  {count:>{widths[2]}}  {names}".rstrip()
        for name, device, count, names in cells
    ]
    tried, ran = table.tried, {case for row in table.tried for case in row.ran}
    noticed = len(tried) - len(table.missed)
    share = f" ({noticed / len(tried):.0%})" if tried else ""
    lines += ["", f"{noticed} of {format_count(len(tried), 'break')} noticed{share}"]
    lines += [f"missed: {', '.join(table.missed)}"] if table.missed else []
    lines += [f"not tried: {', '.join(table.unusable)}"] if table.unusable else []
    lines += [f"not run: {', '.join(table.not_run)}"] if table.not_run else []
    keepers = Counter(table.noticed_alone.values())
    if keepers:
        alone = format_count(len(table.noticed_alone), "break")
        lines.append(f"noticed by one case alone: {alone}, by {format_count(len(keepers), 'case')} in all")
    lines.append(f"{len(ran) - len(table.blind)} of {format_count(len(ran), 'case')} noticed something")
    suites = Counter(case.partition("::")[0] for case in table.blind)
    lines += [
        f"    noticed nothing: {format_count(number, 'case')} of {file}" for file, number in sorted(suites.items())
    ]
    for row in table.rows:
        lines += _left_out(row, "in which it did not occur, green alone", row.not_counted)
        lines += _left_out(row, "in which no check failed, but a call", [*row.stumbled])
    lines.append(f"without a break: {format_count(table.passed, 'case')} passed, {len(table.wrong)} red")
    lines += [f"    {outcome} {case}" for case, outcome in table.wrong.items()]
    return "\n".join(lines) + "\n"


def table_json(table: Table) -> str:
    """Return the whole table as JSON."""
    values = {
        "breaks": [{**asdict(row), "ran": len(row.ran)} for row in table.rows],
        "missed": list(table.missed),
        "not_run": list(table.not_run),
        "noticed_alone": dict(table.noticed_alone),
        "noticed_nothing": list(table.blind),
        "passed_without_a_break": table.passed,
        "red_without_a_break": dict(table.wrong),
    }
    return json.dumps(values, indent=2) + "\n"


def _count(row: Result) -> str:
    return "not tried" if row.unusable else str(len(row.noticed_by)) if row.noticed_by else "MISSED"


def _named(row: Result) -> str:
    if row.unusable:
        return row.unusable
    if not row.noticed_by:
        stumbled = f"; {len(row.stumbled)} failed without a check" if row.stumbled else ""
        occurred = f"; occurred {row.struck} times" if row.struck else ""
        return f"{row.breaks} ({format_count(len(row.ran), 'case')} ran{occurred}{stumbled})"
    return list_first([f"{case.rpartition('/')[2]} ({outcome})" for case, outcome in row.noticed_by.items()], _SHOWN)


def _left_out(row: Result, why: str, cases: Sequence[str]) -> list[str]:
    named = f"{format_count(len(cases), 'case')} {why}: {list_first(cases, _SHOWN)}"
    return [f"not counted for {row.name}: {named}"] if cases else []
