"""Journals of runs from before cases were renamed."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from harness.gating.renamed import Renamed
from harness.journal.events import Collected, Finding
from harness.journal.journal import JournalContents
from harness.journal.ledger import Ledger
from harness.reporting.new_names import by_new_names
from tests.reporting import build

OLD, NEW, OTHER = "s/test_a.py::test_old", "s/test_a.py::test_new", "s/test_a.py::test_other[1]"
RENAMED = Renamed({OLD: NEW})


def _contents(*cases: str) -> JournalContents:
    lines = [line for case in cases for line in (build.start(case), build.finish(case, Outcome.FAILED))]
    events = build.events(build.run(), build.collected(*cases), *lines, build.end())
    return JournalContents(Path("run/journal.ndjson"), tuple(events))


def test_every_event_names_the_case_as_it_is_called_now() -> None:
    found = by_new_names(_contents(f"{OLD}[a b]", OTHER), RENAMED)

    assert found.was == {f"{NEW}[a b]": f"{OLD}[a b]"}
    assert "test_old" not in repr(found.contents.events)
    assert [verdict.case for verdict in Ledger.from_journal(found.contents).red] == [f"{NEW}[a b]", OTHER]
    (collected,) = [event for event in found.contents.events if isinstance(event, Collected)]
    assert collected.ids == (f"{NEW}[a b]", OTHER)


@pytest.mark.parametrize(
    ("cases", "renamed"),
    [((OLD, OTHER), Renamed()), ((NEW, OTHER), RENAMED), ((OLD, NEW), RENAMED)],
    ids=["nothing renamed", "new names already", "both names, so that neither is followed"],
)
def test_a_journal_that_stays_as_it_is(cases: tuple[str, ...], renamed: Renamed) -> None:
    contents = _contents(*cases)
    found = by_new_names(contents, renamed)

    assert found.contents is contents
    assert found.was == {}


def test_a_finding_without_cases_stays() -> None:
    events = build.events(build.run(), build.start(OLD), build.executor(cases=1), build.finding("told to stop"))
    found = by_new_names(JournalContents(Path("run/journal.ndjson"), tuple(events)), RENAMED)

    assert [event.cases for event in found.contents.events if isinstance(event, Finding)] == [()]
