"""Lines are read as they were appended, whatever values a case has put into them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.outcome import Outcome
from harness.journal import line_check, reader
from harness.journal.events import EVENT, Finish
from harness.journal.journal import Journal, JournalError

FINISH: dict[str, Any] = {
    "event": "finish",
    "case": "test_a.py::test_b",
    "attempt": 1,
    "alone": False,
    "worker": "main",
    "executor": "main-e1",
    "devices": ["cpu"],
    "seed": 1,
    "outcome": "passed",
    "final": True,
    "duration": 0.5,
    "phases": {"setup": 0.1, "call": 0.3, "teardown": 0.1},
    "notes": ["a note"],
}


def _written(path: Path, event: dict[str, Any]) -> Any:
    with Journal(path) as open_journal:
        open_journal.append(event)
    contents = reader.read_journal(path)
    assert not contents.damaged
    return contents.events[-1]


def test_what_our_code_writes_needs_no_model() -> None:
    assert line_check.is_plain_event({"t": 1.7e9, **FINISH})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("duration", -1.3e9),
        ("duration", float("nan")),
        ("duration", "long"),
        ("phases", {"call": -1.0}),
        ("phases", {"call": float("inf")}),
        ("log", 5),
        ("struck", {"fault": 0.5}),
        ("stdout", ["text"]),
        ("unknown", object()),
    ],
)
def test_the_verdict_is_kept_without_the_value(tmp_path: Path, name: str, value: object) -> None:
    event = _written(tmp_path / "journal.ndjson", {**FINISH, name: value})
    assert isinstance(event, Finish)
    assert (event.case, event.outcome) == (FINISH["case"], Outcome.PASSED)
    assert event.notes == ("a note", f"not recorded, because their values are invalid in a journal: {name}")


_FIELDS = st.sampled_from(["duration", "phases", "stdout", "log", "notes", "struck", "keeps", "message"])
_ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=5,
)


@given(name=_FIELDS, odd=_ODD)
def test_no_value_of_a_case_costs_its_verdict(tmp_path_factory: pytest.TempPathFactory, name: str, odd: object) -> None:
    path = tmp_path_factory.getbasetemp() / "line-check.ndjson"
    path.unlink(missing_ok=True)
    event = _written(path, {**FINISH, name: odd})
    assert (event.case, event.outcome) == (FINISH["case"], Outcome.PASSED)


@given(name=_FIELDS, odd=_ODD)
def test_what_is_plain_is_taken_by_the_models(name: str, odd: object) -> None:
    line = {"t": 1.0, **FINISH, name: odd}
    if line_check.is_plain_event(line):
        EVENT.validate_json(json.dumps(line))


def test_a_line_that_is_none_is_an_error_of_the_harness(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.ndjson") as open_journal, pytest.raises(JournalError):
        open_journal.append({**FINISH, "case": ""})
