"""A journal of any size, line by line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.journal import journal, reader
from harness.journal.journal import Journal, JournalError
from tests.reporting import build


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / journal.FILE_NAME


def test_a_stream_has_what_a_reader_of_the_whole_file_has(path: Path) -> None:
    with Journal(path) as journal_:
        journal_.append(*build.events(build.run(), build.start("a")))
        with path.open("ab") as file:
            file.write(b'{"event":"foreign"}\n')
        journal_.append(build.event(build.finish("a", message="x" * 2000)))
    with path.open("ab") as file:
        file.write(b'{"event":"finish","t":1\n\n{"event":"end"')
    whole = reader.read_journal(path)
    streamed = [found for _, found in reader.stream_journal(path)]
    assert [each for each in streamed if isinstance(each, reader.Damaged)] == list(whole.damaged)
    assert [each for each in streamed if isinstance(each, reader.Unknown)] == list(whole.unknown)
    assert [each for each in streamed if not isinstance(each, reader.Damaged | reader.Unknown)] == list(whole.events)
    assert [each for _, each in reader.stream_journal(path, 1000)][3] == reader.Damaged(
        4, "the line is longer than 0 MiB"
    )


def test_a_stream_of_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    for data in (b"<html>\n", b'{"t":1}\n'):
        (tmp_path / "other").write_bytes(data)
        with pytest.raises(JournalError, match="is not a journal"):
            list(reader.stream_journal(tmp_path / "other"))
    with pytest.raises(JournalError, match="there is no journal"):
        list(reader.stream_journal(tmp_path / "none"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(JournalError, match="not a regular file"):
        list(reader.stream_journal(tmp_path / "pipe"))
