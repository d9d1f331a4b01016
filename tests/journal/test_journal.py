"""Appended lines are never lost, whatever process is killed, and the remaining file is always readable."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.caseid import digest_of_ids
from harness.journal import journal, reader
from harness.journal.events import SCHEMA, Collected, End, Event, Finding, Start
from harness.journal.journal import Journal, JournalError, JournalWriteError, decode_line, encode_line
from tests.reporting import build

# Appends a finding for each line of stdin, numbered from 0, with texts from tiny to large; confirms each on stdout.
WRITER = """
import random, sys
from pathlib import Path
from harness.journal.events import Finding
from harness.journal.journal import Journal

path, name, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
draw = random.Random(seed)
with Journal(path) as journal:
    for number, _ in enumerate(sys.stdin):
        size = draw.choice([0, 10, 5000, 200_000])
        journal.append(Finding(t=1.0, kind=name, message=f"{number} " + "x" * size))
        print(number, flush=True)
"""

# Takes the lock, passes the open file to a child that stays, and dies as if the out-of-memory killer had killed it.
DIES_WITH_THE_LOCK = """
import fcntl, os, signal, sys
from pathlib import Path
from harness.journal.journal import Journal

journal = Journal(Path(sys.argv[1]))
fcntl.lockf(journal._fd, fcntl.LOCK_EX)
os.write(journal._fd, b'{"event":"finding","kind":"to')
if os.fork() == 0:
    sys.stdin.read()  # until the test closes the pipe
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""

# Runs out of space in the middle of a line, as on a full disk.
FULL = """
import resource, sys
from pathlib import Path
from harness.journal.events import End, Finding
from harness.journal.journal import Journal, JournalError

resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
journal = Journal(Path(sys.argv[1]))
journal.append(End(t=1.0, exit_status=0, duration=1.0))
try:
    journal.append(Finding(t=1.0, kind="long", message="x" * 20_000))
except JournalError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / journal.FILE_NAME


def write(path: Path, *lines: build.Line) -> None:
    with Journal(path) as writer:
        for line in lines:
            writer.append(build.event(line))


def test_a_full_device() -> None:
    with Journal(Path("/dev/full")) as writer, pytest.raises(JournalWriteError, match="No space left on device"):
        writer.append(build.event(build.end()))


def test_what_is_appended_is_read_in_order(path: Path) -> None:
    lines = [build.run(), build.collected("a"), build.start("a"), build.finish("a"), build.end()]
    write(path, *lines)
    contents = reader.read_journal(path)
    assert list(contents.events) == build.events(*lines)
    assert (contents.damaged, contents.unknown) == ((), ())


def test_an_existing_journal_is_carried_on(path: Path) -> None:
    write(path, build.run())
    write(path, build.end())
    assert [event.event for event in reader.read_journal(path).events] == ["run", "end"]


def test_lines_are_ascii_and_begin_with_the_kind(path: Path) -> None:
    write(path, {"kind": "é😀\udc80\x00", "event": "finding", "t": 2.5, "message": ""})
    line = path.read_bytes()
    assert line.startswith(b'{"event":"finding","t":2.5,')
    assert line.isascii()
    assert line.count(b"\n") == 1
    (event,) = reader.read_journal(path).events
    assert isinstance(event, Finding)
    assert event.kind == "é😀\\udc80\x00"


def test_several_events_are_written_together_or_not_at_all(path: Path) -> None:
    with Journal(path) as writer:
        writer.append(*build.events(build.run(), build.start("a")))
        with pytest.raises(JournalError, match="as JSON"):
            writer.append(build.event(build.finish("a")), Finding(t=-1.0, kind="x", message=""))
    assert [event.event for event in reader.read_journal(path).events] == ["run", "start"]


def test_a_line_that_another_writer_left_torn_swallows_nothing(path: Path) -> None:
    with Journal(path) as writer, path.open("ab", buffering=0) as other:
        writer.append(build.event(build.run()))
        other.write(b'{"event":"start","case":"torn')
        writer.append(*build.events(build.start("whole"), build.end()))
    assert [event.event for event in reader.read_journal(path).events] == ["run", "start", "end"]


@pytest.mark.parametrize(
    "event",
    [
        End(t=1.0, exit_status=0, duration=float("nan")),
        End(t=1.0, exit_status=cast(int, object()), duration=1.0),
        Finding(t=1.0, kind="", message=""),
    ],
    ids=["not a number", "not json", "no kind"],
)
def test_what_readers_would_refuse_is_refused_and_leaves_no_trace(path: Path, event: Event) -> None:
    with Journal(path) as writer, pytest.raises(JournalError, match=r"cannot write event .* as JSON"):
        writer.append(event)
    assert path.read_bytes() == b""


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"cannot open the journal '.*/nowhere/journal\.ndjson' for appending: "):
        Journal(tmp_path / "nowhere" / journal.FILE_NAME)


def test_the_file_is_not_inherited_by_programs(path: Path) -> None:
    with Journal(path) as writer:
        assert not os.get_inheritable(writer._fd)


def test_closing_twice_is_harmless(path: Path) -> None:
    writer = Journal(path)
    writer.close()
    writer.close()
    with pytest.raises(JournalError, match=r"the journal '.*journal\.ndjson' is closed"):
        writer.append(build.event(build.end()))


def test_a_torn_line_swallows_nothing(path: Path) -> None:
    write(path, build.run())
    with path.open("ab") as file:
        file.write(b'{"event":"start","case":"torn')
    write(path, build.start("whole"), build.end())
    contents = reader.read_journal(path)
    assert [event.event for event in contents.events] == ["run", "start", "end"]
    (damaged,) = contents.damaged
    assert damaged.number == 2
    assert damaged.reason == "Input data was truncated"


def test_a_journal_may_end_anywhere(path: Path) -> None:
    lines = [build.run(argv=["é", "\udc80"]), build.collected("a"), build.finish("a"), build.end()]
    write(path, *lines)
    data = path.read_bytes()
    ends = [position for position, byte in enumerate(data) if byte == ord("\n")]
    for size in range(len(data)):
        path.write_bytes(data[:size])
        contents = reader.read_journal(path)
        whole = sum(end <= size for end in ends)
        torn = size not in {0, *ends} and size - 1 not in ends
        assert [event.event for event in contents.events] == [line["event"] for line in lines[:whole]]
        assert len(contents.damaged) == torn


def test_unknown_kinds_are_kept_apart(path: Path) -> None:
    write(path, build.run())
    with path.open("ab") as file:
        file.write(b'{"event":"weather","sky":"grey"}\n')
    write(path, build.end())
    contents = reader.read_journal(path)
    assert [event.event for event in contents.events] == ["run", "end"]
    assert [(line.number, line.kind) for line in contents.unknown] == [(2, "weather")]
    assert contents.damaged == ()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"not json", "JSON is malformed: invalid character"),
        (b"[1]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `event`"),
        (b'{"event":"end","t":1,"exit_status":0,"duration":"long"}', r"Expected `float`, got `str` - at `\$.duration`"),
        (b'{"event":"end","t":NaN,"exit_status":0,"duration":-1,"x":1}', "JSON is malformed"),
        (b'{"event":"end","t":1,"exit_status":0,"duration":1,"\xff":1}', "Invalid UTF-8"),
        (b'"\\ud800', "truncated"),
        (b"[" * 100_000 + b'"\\udc80"', "Expected `object`, got `array`"),
        (b"\0" * 4096, "JSON is malformed"),
    ],
    ids=["words", "array", "empty", "type", "several", "bytes", "torn surrogate", "deep", "zeros"],
)
def test_bad_lines_are_counted_with_reason(path: Path, line: bytes, reason: str) -> None:
    write(path, build.run())
    with path.open("ab") as file:
        file.write(line + b"\n\n")
    write(path, build.end())
    contents = reader.read_journal(path)
    assert [event.event for event in contents.events] == ["run", "end"]
    (damaged,) = contents.damaged
    assert damaged.number == 2
    assert re.search(reason, damaged.reason)
    assert "\n" not in damaged.reason


@given(st.lists(st.one_of(st.binary(), st.just(b'{"event":"end","t":1,"exit_status":0,"duration":1}\n'))))
def test_no_bytes_upset_the_reader(chunks: list[bytes]) -> None:
    data = b"".join(chunks)
    contents = reader.parse_journal(Path("x"), data)
    lines = [line for line in data.split(b"\n") if line]
    assert len(contents.events) + len(contents.damaged) + len(contents.unknown) == len(lines)


def test_a_newer_journal_is_refused_also_when_its_run_line_reads_differently(path: Path) -> None:
    newer = SCHEMA + 1
    for line in (build.run(schema=newer), build.run(schema=newer, sort="new")):
        path.write_text(json.dumps(line, separators=(",", ":")) + "\n")
        with pytest.raises(
            JournalError,
            match=rf"journal\.ndjson' has schema {newer} in line 1; this harness reads schemas up to {SCHEMA}: ",
        ):
            reader.read_journal(path)


@pytest.mark.parametrize("data", [b"<testsuites/>", b"\n", b'{"run":1}\n', b"\0\0"])
def test_another_file_is_not_taken_for_a_journal(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(JournalError, match=r"journal\.ndjson' is not a journal: it begins with b'"):
        reader.read_journal(path)


def test_missing_and_unreadable_files_are_named(tmp_path: Path, path: Path) -> None:
    with pytest.raises(JournalError, match=r"there is no journal at '.*journal\.ndjson': give the run directory"):
        reader.read_journal(path)
    with pytest.raises(JournalError, match="is not a regular file"):
        reader.read_journal(tmp_path)
    os.mkfifo(path)
    with pytest.raises(JournalError, match="is not a regular file"):  # it does not wait for a writer either
        reader.read_journal(path)
    with pytest.raises(JournalError, match=r"cannot read the journal '.*': .*Not a directory"):
        reader.read_journal(Path(__file__) / journal.FILE_NAME)


def test_the_digest_tells_lists_apart_and_is_the_same_before_and_after_the_journal(path: Path) -> None:
    assert digest_of_ids([]) == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest_of_ids(["a", "b"]) != digest_of_ids(["b", "a"])
    ids = ["a::é", "a::\udc80", "a::\x00"]
    write(path, build.collected(*ids))
    (event,) = reader.read_journal(path).events
    assert isinstance(event, Collected)
    assert event.ids == ("a::é", "a::\\udc80", "a::\x00")
    assert digest_of_ids(event.ids) == event.hash == digest_of_ids(ids)


def test_writers_killed_at_any_moment_lose_nothing_that_was_appended(path: Path) -> None:
    draw = random.Random(20260101)
    acknowledged: dict[str, int] = {}
    for round_ in range(6):
        writers = {
            f"{round_}-{number}": _writer(path, f"{round_}-{number}", draw.randrange(10**6)) for number in range(3)
        }
        for writer in writers.values():
            assert writer.stdin is not None
            writer.stdin.write("more\n" * 60)
            writer.stdin.flush()
        for name, writer in writers.items():
            assert writer.stdout is not None
            for _ in range(draw.randrange(1, 55)):
                acknowledged[name] = int(writer.stdout.readline())
            writer.kill()  # with some of its 60 lines, perhaps one half written, still to come
            for line in writer.stdout:
                if line.endswith("\n"):
                    acknowledged[name] = int(line)
            writer.communicate(timeout=60)
            assert writer.returncode == -signal.SIGKILL
    write(path, build.end())

    contents = reader.read_journal(path)
    seen: dict[str, list[int]] = {}
    for event in contents.events[:-1]:
        assert isinstance(event, Finding)
        seen.setdefault(event.kind, []).append(int(event.message.split()[0]))
    assert isinstance(contents.events[-1], End)
    for name, last in acknowledged.items():
        assert seen[name] == list(range(len(seen[name]))), "in order, none twice, none missing"
        assert len(seen[name]) in (last + 1, last + 2), "one more may be whole and not yet acknowledged"
    assert len(contents.damaged) <= len(acknowledged)


def _writer(path: Path, name: str, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(seed)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_lock_of_a_killed_writer_dies_with_it(path: Path) -> None:
    dying = subprocess.Popen([sys.executable, "-c", DIES_WITH_THE_LOCK, str(path)], stdin=subprocess.PIPE)
    assert dying.wait(timeout=60) == -signal.SIGKILL
    try:
        # In its own process with a deadline: if the lock were still held, this would wait forever.
        code = f"from tests.journal.test_journal import *; write(Path({str(path)!r}), build.end())"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    finally:
        assert dying.stdin is not None
        dying.stdin.close()
    contents = reader.read_journal(path)
    assert [event.event for event in contents.events] == ["end"]
    assert [line.number for line in contents.damaged] == [1]


def test_a_full_disk_is_reported_and_the_rest_stays_readable(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert f"cannot append to the journal {str(path)!r}" in done.stderr
    assert path.read_bytes().count(b"\n") == 1, "the first write was a short one, and is taken back"
    write(path, build.start("a"))
    contents = reader.read_journal(path)
    assert [type(event) for event in contents.events] == [End, Start]
    assert not contents.damaged


def test_threads_share_a_journal(path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with Journal(path) as writer, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: writer.append(build.event(build.start(f"case {n}"))), range(500)))
    cases = [json.loads(line)["case"] for line in path.read_bytes().splitlines()]
    assert sorted(cases) == sorted(f"case {n}" for n in range(500))


def test_lines_are_read_as_they_are_written() -> None:
    for event in build.events(build.run(), build.finish("a"), build.executor()):
        assert decode_line(encode_line(event)) == event
