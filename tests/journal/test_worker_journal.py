"""The journal of one worker: its activities between attempts, and a file that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.journal.events import Event, Finding
from harness.journal.journal import Journal, JournalWriteError, WorkerJournal
from tests.reporting import build
from tests.supervisor.fakes import FakeJournal


def test_activities_begin_are_renamed_and_end() -> None:
    journal = FakeJournal("gw1")
    with journal.doing("looking"):
        journal.rename_activity("looking: trial 1")
        with journal.doing("waiting"):
            pass
        journal.rename_activity("looking: trial 2")
    outer, inner = (journal.lines[place]["since"] for place in (0, 2))
    assert outer < inner
    reported = [(line["worker"], line["what"], line.get("since")) for line in journal.lines]
    assert reported == [
        ("gw1", "looking", outer),
        ("gw1", "looking: trial 1", outer),
        ("gw1", "waiting", inner),
        ("gw1", "looking: trial 1", outer),
        ("gw1", "looking: trial 2", outer),
        ("gw1", "", None),
    ]
    assert len(build.events(*journal.lines)) == 6


def test_an_activity_that_fails_is_over() -> None:
    journal = FakeJournal()
    with pytest.raises(ZeroDivisionError), journal.doing("dividing"):
        raise ZeroDivisionError
    assert [line["what"] for line in journal.lines] == ["dividing", ""]


class FullDisk(Journal):
    """A journal that can be written `left` more times."""

    left = 1

    def append(self, *events: Event) -> None:
        self.left -= 1
        if self.left < 0:
            raise JournalWriteError("cannot append to the journal")
        super().append(*events)


@pytest.fixture
def full_disk(tmp_path: Path) -> FullDisk:
    return FullDisk(tmp_path / "journal.ndjson")


def finding(text: str) -> Finding:
    return Finding(t=1.0, kind="zygote", message=text)


def test_after_the_first_failed_write_nothing_is_appended(full_disk: FullDisk) -> None:
    journal = WorkerJournal(full_disk, "gw0")
    journal.record(finding("first"))
    with pytest.raises(JournalWriteError):
        journal.record(finding("second"))
    assert journal.failure == "cannot append to the journal"
    full_disk.left = 9
    journal.record(finding("third"))
    assert full_disk.path.read_text().count("\n") == 1
    full_disk.close()


def test_a_failed_write_can_be_noted_without_an_exception(full_disk: FullDisk) -> None:
    journal = WorkerJournal(full_disk, "gw0")
    full_disk.left = 0
    with journal.noting_failures():
        journal.add_finding("zygote", "it is gone")
    assert journal.failure == "cannot append to the journal"
    full_disk.close()


def test_a_worker_that_closes_gets_no_exception(full_disk: FullDisk) -> None:
    journal = WorkerJournal(full_disk, "gw0")
    full_disk.left = 0
    journal.begin_to_close()
    journal.add_finding("zygote", "it is gone")
    assert journal.failure == "cannot append to the journal"
    full_disk.close()
