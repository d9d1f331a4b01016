"""The cases among pytest's items, the files that need not be imported for them, and the files that cannot be."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path, PurePath

import pytest

from harness import marks
from harness.collection.scope import CaseScope
from harness.core.text import single_line, truncate_middle
from harness.gating.policy import Policy, selects_marked
from harness.gating.requirements import RANKS
from harness.scheduling.order import Reach, Selection

#: The id with which a case was collected. xdist's ``loadgroup`` changes the node id later, and only in workers.
CASE_ID = pytest.StashKey[str]()


def is_case(item: pytest.Item) -> bool:
    return CASE_ID in item.stash


def select_cases(config: pytest.Config, items: list[pytest.Item], selection: Selection) -> list[str]:
    """Keep the cases that this session runs, in the order of the run. Other tests keep their positions.

    Return the ids of all selected cases, of all shards, in collection order.
    """
    cases = [item for item in items if is_case(item)]
    ids = [case.stash[CASE_ID] for case in cases]
    chosen = selection.choose(ids, _left_out(config.args, cases, selection.policy), _apart(cases))
    kept = [cases[position] for position in chosen.here]
    keep = {id(case) for case in kept}
    dropped = [case for case in cases if id(case) not in keep]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    following = iter(kept)
    left = [item for item in items if not is_case(item) or id(item) in keep]
    items[:] = [next(following) if is_case(item) else item for item in left]
    return [ids[position] for position in chosen.selected]


def _left_out(arguments: Sequence[str], cases: Sequence[pytest.Item], policy: Policy) -> frozenset[int]:
    """Return the positions of the cases that their marks leave out. Raise pytest.UsageError for an unknown operator."""
    named = [
        (PurePath(path).name, name) for path, mark, name in (argument.partition("::") for argument in arguments) if mark
    ]
    all_operators: set[str] = set()
    left_out = set()
    for position, case in enumerate(cases):
        extended = marks.nearest_mark(case, "extended") is not None
        about = marks.marks_of(case, "operator") if policy.operators else ()
        operators = [name for mark in about for name in mark.args]
        all_operators.update(operators)
        if (extended or policy.operators) and not selects_marked(
            policy, extended=extended, operators=operators, named=any(_names(argument, case) for argument in named)
        ):
            left_out.add(position)
    for name in policy.operators or ():
        if name not in all_operators:
            near = difflib.get_close_matches(name, all_operators, 3)
            hint = f"did you mean {', '.join(near)}?" if near else "no case tests this operator"
            raise pytest.UsageError(f"--operators={name!r}: expected an operator that a case of this run tests: {hint}")
    return frozenset(left_out)


def _apart(cases: Sequence[pytest.Item]) -> frozenset[int]:
    return frozenset(position for position, case in enumerate(cases) if is_apart(case))


def is_apart(case: pytest.Item) -> bool:
    """Return whether a case has several ranks, or requires its own process."""
    if marks.nearest_mark(case, "own_process"):
        return True
    return any(RANKS in mark.kwargs for mark in marks.marks_of(case, "requires"))


def _names(argument: tuple[str, str], case: pytest.Item) -> bool:
    """Return whether an argument, given as file name and rest of an id, names a case or its function."""
    file, wanted = argument
    name = case.stash[CASE_ID].partition("::")[2]
    return file == case.path.name and (name == wanted or name.startswith((f"{wanted}[", f"{wanted}::")))


class NarrowCollection:
    """A plugin of every process that collects for a run. Files that the user has named are always read."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._unread: dict[str, None] = {}

    @property
    def unread(self) -> list[str]:
        """The beginnings of the ids in skipped folders and files.

        For example ``suites/amp/`` and ``suites/rng/test_seeds.py::``.
        """
        return sorted(self._unread)

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        if self._reach.is_everything or not CaseScope.of(config).has(collection_path):
            return None
        try:
            path = collection_path.relative_to(config.rootpath).as_posix()
        except ValueError:
            return None
        if collection_path.suffix == ".py":
            reached, start = self._reach.has_file(path), f"{path}::"
        elif collection_path.is_dir():
            reached, start = self._reach.has_folder(path), f"{path}/"
        else:
            return None
        if reached:
            return None
        self._unread[start] = None
        return True


#: Maximum characters of the text of a finding.
_MOST_TEXT = 1 << 16


def collection_error(report: pytest.CollectReport) -> str:
    """Return the text of a finding on a collector that failed: its file and the error on one line, then all of it."""
    text = report.longreprtext
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    cause = single_line(errors[-1] if errors else text)
    what = f"{report.nodeid} could not be collected: " if report.nodeid else ""
    return truncate_middle(f"{what}{cause}\n{text}", _MOST_TEXT)


def internal_error(text: str) -> str:
    """Return the text of a finding on an exception that ended pytest's session, given pytest's own text."""
    cause = single_line(text.rstrip().rpartition("\n")[2])
    return truncate_middle(f"pytest ended with an internal error: {cause}\n{text}", _MOST_TEXT)


def skip_reason(report: pytest.CollectReport) -> str:
    """Return the reason of a file or class that skipped itself, on one line."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return single_line(text.removeprefix("Skipped: ")) or "no reason"
