"""The results of a run on disk equal those in memory, for any journal, and their memory use is constant."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.core.outcome import Outcome
from harness.journal import journal, reader
from harness.journal.journal import JournalError
from harness.journal.ledger import Ledger, Summary
from harness.journal.stored_run import StoredRun
from tests.journal import journals
from tests.reporting import build
from tests.reporting.build import Line

A, B, C = "suites/a/test_a.py::a", "suites/a/test_a.py::b", "suites/b/test_b.py::c[é\udc80]"


def same(run_dir: Path) -> Ledger:
    """Return the results in memory, after checking that those on disk are equal, queried in either order."""
    ledger = Ledger.from_journal(reader.read_journal(run_dir / journal.FILE_NAME))
    expected = [(verdict, levels) for verdict, levels in ledger.cases()]
    with StoredRun.of(run_dir) as stored:
        assert list(stored.cases()) == expected
        assert summary_of(stored.summary) == summary_of(ledger)
        assert list(stored.cases()) == expected
        assert {*stored.ids()} >= {*ledger.ids()}
        assert (stored.runs, stored.shards) == (ledger.runs, ledger.shards)
    with StoredRun.of(run_dir) as stored:
        assert summary_of(stored.summary) == summary_of(ledger)
    return ledger


def summary_of(summary: Summary) -> list[object]:
    return [getattr(summary, name) for name in Summary.__dataclass_fields__]


def test_a_run_with_everything(tmp_path: Path) -> None:
    ledger = same(journals.write(tmp_path, journals.lines()))
    assert len(ledger.verdicts) == 6
    assert ledger.exit_status() == 1


def test_torn_doubled_and_foreign_lines_are_reported_and_are_not_fatal(tmp_path: Path) -> None:
    ledger = same(journals.write_bytes(tmp_path, b"".join(journals.odd())))
    assert (
        ledger.read_problems.damaged_lines,
        ledger.read_problems.unknown_lines,
        ledger.read_problems.doubled_lines,
    ) == (3, 1, 1)
    assert [finding.kind for finding in ledger.findings] == ["device_lost", "damaged_journal", "must_pass"]
    assert ledger.read_problems.remarks == (
        "the journal has 1 line of an unknown kind, which a newer harness may read: line 19 'party'",
        "the journal has 1 duplicate line, counted once",
    )
    assert ledger.end is not None
    assert ledger.end.duration == 9.0


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([build.collected(A, A, B)], id="the same id twice"),
        pytest.param([build.collected(A, B), build.collected(A, B, worker="gw1")], id="two workers"),
        pytest.param([build.collected(A, B), build.collected(B, A, worker="gw1")], id="two workers, two lists"),
        pytest.param([{**build.collected(A, B), "ids": []}], id="no ids"),
        pytest.param([{**build.collected(A, B), "ids": [A]}], id="fewer ids than counted"),
        pytest.param([build.collected()], id="nothing"),
        pytest.param([build.collected(A), build.finish(B), build.start(C)], id="cases that nobody collected"),
        pytest.param([build.start(B), build.finish(A), build.collected(A, B, C)], id="collected afterwards"),
        pytest.param(
            [build.collected(A, deselected=[B], selected=[C, A], unread=["suites/b/"])], id="deselected and selected"
        ),
        pytest.param([build.collected(A), build.start(A), build.reopened(A), build.start(B)], id="reopened"),
        pytest.param([build.collected(A), build.finish(A, Outcome.LOST), build.reopened(A)], id="lost, reopened"),
        pytest.param([build.collected(A), build.reopened(B), build.levels(C)], id="no attempt"),
        pytest.param([build.collected(A), build.start(A), build.executor(state="ended", exit_status=-9)], id="died"),
        pytest.param([build.collected(A), build.stopped(), build.run(part=2, forced=["torch"])], id="two parts"),
        pytest.param([build.collected(A), build.must_pass(A, B), build.run(minimum_cases=5)], id="shortfalls"),
        pytest.param([build.collected(C, "\n\t\"'\\"), build.finish(C)], id="ids with escapes"),
        pytest.param(
            [build.collected(A), *[build.levels(A, n, a=n) for n in range(1, 5)], build.start(A)], id="levels"
        ),
    ],
)
def test_every_kind_of_line(lines: list[Line], tmp_path: Path) -> None:
    same(journals.write(tmp_path, [build.run(), *lines]))


USUAL = journals.encoded(journals.lines())
COLLECTED = next(line for line in USUAL if b'"collected"' in line)


@pytest.mark.parametrize(
    "line",
    [
        COLLECTED.replace(b'"gw0"', b'"gw0", "pid" : 7').replace(b'"ids":', b'"ids" : '),
        COLLECTED.replace(b'"ids":[', b'"ids":[ '),
        COLLECTED.replace(b'"ids":[', b'"ids":["",'),
        COLLECTED.replace(b'"ids":[', b'"ids":[7,'),
        COLLECTED.replace(b'"ids":[', b'"ids":["\\q",'),
        COLLECTED.replace(b'"ids":[', b'"ids":["\xff",'),
        COLLECTED.replace(b'"ids":[', b'"ids":["\x01",'),
        COLLECTED.replace(b'"ids":[', b'"ids":["a"],"ids":['),
        COLLECTED.replace(b'"ids":', b'"deselected":["\\q"],"ids":'),
        COLLECTED.replace(b'"ids":', b'"deselected":[""],"ids":'),
        COLLECTED.replace(b'"ids":', b'"more":[],"ids":'),
        COLLECTED.replace(b'"count":6', b'"count":"6"'),
        COLLECTED[:-30] + b"\n",
        COLLECTED[:-3] + b"\n",
        COLLECTED[:-2] + b",}\n",
        COLLECTED[:-1] + b" \n",
    ],
)
def test_a_collected_line_of_any_form(line: bytes, tmp_path: Path) -> None:
    same(journals.write_bytes(tmp_path, b"".join([*USUAL[:2], line, *USUAL[3:]])))


@given(journals.hostile(), st.randoms(use_true_random=False), st.lists(st.binary(max_size=30), max_size=3))
@example([build.collected("\udc80\ud83d\x00::[", "a\nb::\t\r")], random.Random(1), [])
def test_a_journal_of_anything(lines: list[Line], rng: random.Random, foreign: list[bytes]) -> None:
    data = journals.encoded([build.run(), *lines])
    for more in foreign:
        data.insert(rng.randint(1, len(data)), more + b"\n")
    torn = rng.randint(1, len(data)) if rng.random() < 0.5 else len(data)
    data.insert(torn, rng.choice(data)[: rng.randint(0, 60)] + (b"\n" if torn < len(data) else b""))
    with tempfile.TemporaryDirectory() as folder:
        run_dir = journals.write_bytes(Path(folder), b"".join(data))
        try:
            reader.read_run_journal(run_dir / journal.FILE_NAME)
        except JournalError as error:
            with pytest.raises(JournalError) as raised:
                StoredRun.of(run_dir)
            assert str(raised.value) == str(error)  # noqa: PT017
        else:
            same(run_dir)


def test_lines_that_are_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    ids = [f"suites/a/test_a.py::test_{number}_{'x' * 200}" for number in range(12_000)]
    lines = [build.run(), build.collected(*ids), build.finish(ids[-1], Outcome.FAILED, stdout="y" * 3_000_000)]
    run_dir = journals.write(tmp_path, lines)
    with (run_dir / journal.FILE_NAME).open("ab") as file:
        file.write(b'{"event":"finish","t":1.0,' + b" " * 2_000_000)
    ledger = same(run_dir)
    assert ledger.counts == {Outcome.NOT_RUN: 11_999, Outcome.FAILED: 1}
    assert ledger.read_problems.damaged_lines == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "there is no journal at"),
        (b"", "has no line of kind 'run'"),
        (b"<html>", "is not a journal: it begins with"),
        (json.dumps(build.run(schema=99)).encode().replace(b'", "', b'","').replace(b'": "', b'":"'), "has schema 99"),
        (b'{"event":"end","t":1.0,"exit_status":0,"duration":1.0}\n', "has no line of kind 'run'"),
    ],
)
def test_what_is_no_journal_of_a_run_is_refused(data: bytes | None, message: str, tmp_path: Path) -> None:
    if data is not None:
        journals.write_bytes(tmp_path, data)
    with pytest.raises(JournalError, match=message):
        StoredRun.of(tmp_path)


_MEASURE = """
import resource, sys
from pathlib import Path
from harness.reporting import junit
junit.write_junit(Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
# A process starts with the peak of its parent, which is small for a shell.
_FROM_SHELL = ["sh", "-c", '"$@"; exit $?', "sh"]


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_number_of_cases(tmp_path: Path) -> None:
    peaks = []
    for number in (2_000, 40_000):
        ids = [f"suites/suite{n % 9}/test_file.py::test_case_{n}_of_a_name_of_some_length[cuda]" for n in range(number)]
        events = [build.run(), build.collected(*ids)]
        for case in ids:
            events += [build.start(case), build.finish(case)]
        run_dir = journals.write_bytes(tmp_path / str(number), b"".join(journals.encoded(events)))
        done = subprocess.run([*_FROM_SHELL, sys.executable, "-c", _MEASURE, run_dir], capture_output=True, check=True)
        peaks.append(int(done.stdout))
    # In memory, 38,000 more cases need 100 MiB. The database may keep 16 MiB; the one line of all ids has 3.
    assert peaks[1] - peaks[0] < 40, peaks
