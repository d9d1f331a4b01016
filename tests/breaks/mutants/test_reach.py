"""The cases selected for a mutant, with plain values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.breaks.mutants.mutant import Mutant
from tests.breaks.mutants.reach import Recording, RecordingError, in_order, nearest, read_recording, sampled


def mutant(first: int = 1, last: int = 1, new: str = "2") -> Mutant:
    return Mutant("p/m.py", "f", first, last, "constant changed", 0, 1, "1", new)


def record(case: str, *lines: int, seconds: float = 1.0) -> dict[str, object]:
    return {"case": case, "seconds": seconds, "lines": {"p/m.py": lines}, "arguments": {"p/m.py:f": {"a": ["1"]}}}


def recording(*records: dict[str, object]) -> Recording:
    found = Recording()
    for each in records:
        found.add(each, None)
    return found


def test_a_case_reaches_a_mutant_if_it_runs_one_of_its_lines() -> None:
    found = recording(record("a", 1, 2), record("b", 3), record("c", 9))
    assert found.reaching(mutant(2, 4)) == ["a", "b"]
    assert found.reaching(mutant(5, 8)) == []


def test_a_case_that_runs_what_follows_and_few_others_do_comes_first() -> None:
    found = recording(record("a", 1), record("b", 1, 3), record("c", 1, 2, 3), record("d", 1, 9))
    assert found.reaching(mutant()) == ["c", "b", "a", "d"]


def test_the_nearest_case_runs_the_least_of_the_file() -> None:
    assert nearest(mutant(), recording(record("wide", 1, 2, 3), record("narrow", 1))) == ["narrow", "wide"]


def test_callers_and_arguments_of_a_function() -> None:
    found = recording(record("a", 1), record("b", 1))
    assert found.callers == {"p/m.py:f": ["a", "b"]}
    assert found.arguments == {"p/m.py:f": {"a": {"1"}}}


@pytest.mark.parametrize(
    ("first", "limit", "expected"),
    [
        ((), 100.0, ["t[2]", "u", "t[1]"]),  # of each function the cheapest case, then the others
        (("u",), 100.0, ["u", "t[2]", "t[1]"]),
        (("other",), 100.0, ["t[2]", "u", "t[1]"]),
        ((), 2.5, ["t[2]"]),
        ((), 4.0, ["t[2]", "u"]),
        ((), 0.1, ["t[2]"]),  # at least one
        (("t[1]",), 2.5, ["t[2]"]),  # a case that exceeds the limit by itself leaves the time to others
        (("t[1]",), 0.1, ["t[2]"]),
    ],
)
def test_the_order_of_cases(first: tuple[str, ...], limit: float, expected: list[str]) -> None:
    assert in_order(["t[1]", "t[2]", "u"], {"t[1]": 3.0, "t[2]": 1.0, "u": 2.0}, first, limit) == expected


def test_a_share_depends_on_seed_and_name_only() -> None:
    many = [mutant(new=str(number)) for number in range(1000)]
    some = sampled(many, 0.1, 7)
    assert 60 < len(some) < 140
    assert sampled(reversed(many), 0.1, 7) == some[::-1]
    assert sampled(many, 0.1, 8) != some
    assert sampled(many, 1.0, 7) == many


def test_a_recording_leaves_out_red_cases_and_half_written_lines(tmp_path: Path) -> None:
    (tmp_path / "1.ndjson").write_text(json.dumps(record("a", 1)) + "\n" + json.dumps(record("b", 1)) + '\n{"ca')
    assert read_recording([tmp_path], frozenset({"a"})).seconds == {"a": 1.0}
    (tmp_path / "1.ndjson").write_text("no JSON\n")
    with pytest.raises(RecordingError, match=r"1\.ndjson:1: this is no record of a case"):
        read_recording([tmp_path])


def test_what_a_fork_of_a_case_ran_is_its_own(tmp_path: Path) -> None:
    """A fork's file may come first; a fork of a case that is not kept does not count."""
    fork = {**record("a", 2, 3), "seconds": None}
    (tmp_path / "1.ndjson").write_text(f"{json.dumps(fork)}\n{json.dumps({**fork, 'case': 'b'})}\n")
    (tmp_path / "2.ndjson").write_text(f"{json.dumps(record('a', 1, 2))}\n{json.dumps(record('b', 1))}\n")
    found = read_recording([tmp_path], frozenset({"a"}))
    assert found.seconds == {"a": 1.0}
    assert found.lines == {"p/m.py": {1: ["a"], 2: ["a"], 3: ["a"]}}
    assert found.callers == {"p/m.py:f": ["a"]}


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"run 'python -m tests\.breaks record' first"):
        read_recording([tmp_path])
