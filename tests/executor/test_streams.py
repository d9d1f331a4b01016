"""Standard streams that write immediately, and that drop output on a full disk without blaming the writer."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from harness.executor.streams import UnbufferedFile, raise_if_disk_full


def test_all_is_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with io.TextIOWrapper(UnbufferedFile(path, "w"), encoding="utf-8", write_through=True) as stream:
        assert stream.write("x" * 100_000 + "\n") == 100_001
        assert path.stat().st_size == 100_001
        raise_if_disk_full([stream, None, io.StringIO()])


def test_a_full_disk_fails_the_check_and_no_print() -> None:
    stream = io.TextIOWrapper(UnbufferedFile("/dev/full", "w"), encoding="utf-8", write_through=True)
    print("some text", file=stream)
    stream.flush()
    with pytest.raises(OSError, match="No space left on device"):
        raise_if_disk_full([stream])
    stream.close()


def test_a_stream_that_a_case_closed_is_an_error_for_print(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    stream = UnbufferedFile(descriptor, "w", closefd=False)
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        stream.write(b"x")
