"""The table of cases that notice breaks of torch. Pure: takes plain values, returns text and JSON.

A case catches a break if it passed without the break and is red with it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.core.text import format_count, list_first

_SHOWN = 3  # cases named in a line of the table; the JSON record has all of them


@dataclass(frozen=True, slots=True)
class BreakRow:
    """The result of one break. `caught_by`: by case, its outcome. `ran`: the cases that could have caught it.

    `stumbled`: by case, the exception that the break itself raised there, for example a TypeError. This is not a catch.
    `unusable`: why the break was not tried; otherwise empty.
    """

    name: str
    breaks: str
    device: str
    caught_by: Mapping[str, str] = field(default_factory=dict)
    ran: frozenset[str] = frozenset()
    unusable: str = ""
    stumbled: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """All selected breaks. `wrong`: cases that were red without a break, with their outcomes."""

    rows: tuple[BreakRow, ...]
    wrong: Mapping[str, str] = field(default_factory=dict)

    @property
    def tried(self) -> tuple[BreakRow, ...]:
        return tuple(row for row in self.rows if not row.unusable)

    @property
    def missed(self) -> tuple[str, ...]:
        """The breaks that no case caught."""
        return tuple(row.name for row in self.tried if not row.caught_by)

    @property
    def unusable(self) -> Mapping[str, str]:
        return {row.name: row.unusable for row in self.rows if row.unusable}

    @property
    def caught_alone(self) -> Mapping[str, str]:
        """The breaks that a single case caught, with this case."""
        return {row.name: next(iter(row.caught_by)) for row in self.tried if len(row.caught_by) == 1}

    @property
    def blind(self) -> tuple[str, ...]:
        """The cases that could have caught breaks but caught none."""
        ran = {case for row in self.tried for case in row.ran}
        return tuple(sorted(ran - {case for row in self.tried for case in row.caught_by}))

    @property
    def green(self) -> bool:
        """Whether every break was tried and caught, and no case was red without one."""
        return not (self.wrong or self.missed or self.unusable)


def mutation_text(table: Table) -> str:
    """Return the table as text, followed by its summary."""
    cells = [("break", "device", "caught by", "")]
    cells += [(row.name, row.device, _count(row), _named(row)) for row in table.rows]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    lines = [
        f"{name:{widths[0]}}  {device:{widths[1]}}  {count:>{widths[2]}}  {names}".rstrip()
        for name, device, count, names in cells
    ]
    tried, ran = table.tried, {case for row in table.tried for case in row.ran}
    share = f" ({(len(tried) - len(table.missed)) / len(tried):.0%})" if tried else ""
    lines += ["", f"{len(tried) - len(table.missed)} of {format_count(len(tried), 'break')} caught{share}"]
    lines += [f"missed: {', '.join(table.missed)}"] if table.missed else []
    lines += [f"not tried: {', '.join(table.unusable)}"] if table.unusable else []
    keepers = Counter(table.caught_alone.values())
    if keepers:
        alone = format_count(len(table.caught_alone), "break")
        lines.append(f"caught by one case alone: {alone}, by {format_count(len(keepers), 'case')} in all")
    lines.append(f"{len(ran) - len(table.blind)} of {format_count(len(ran), 'case')} caught something")
    suites = Counter(case.partition("::")[0] for case in table.blind)
    lines += [
        f"    caught nothing: {format_count(number, 'case')} of {file}" for file, number in sorted(suites.items())
    ]
    lines += [f"red without a break: {outcome} {case}" for case, outcome in table.wrong.items()]
    return "\n".join(lines) + "\n"


def mutation_json(table: Table) -> str:
    """Return the whole table as JSON."""
    values = {
        "breaks": [
            {
                "name": row.name,
                "breaks": row.breaks,
                "device": row.device,
                "caught_by": dict(row.caught_by),
                "ran": len(row.ran),
                "unusable": row.unusable,
                "stumbled": dict(row.stumbled),
            }
            for row in table.rows
        ],
        "missed": list(table.missed),
        "caught_alone": dict(table.caught_alone),
        "caught_nothing": list(table.blind),
        "red_without_a_break": dict(table.wrong),
    }
    return json.dumps(values, indent=2) + "\n"


def _count(row: BreakRow) -> str:
    return "not tried" if row.unusable else str(len(row.caught_by)) if row.caught_by else "MISSED"


def _named(row: BreakRow) -> str:
    if row.unusable:
        return row.unusable
    if not row.caught_by:
        stumbled = f"; {len(row.stumbled)} failed because of the break itself" if row.stumbled else ""
        return f"{row.breaks} ({format_count(len(row.ran), 'case')} ran{stumbled})"
    return list_first([f"{case.rpartition('/')[2]} ({outcome})" for case, outcome in row.caught_by.items()], _SHOWN)
