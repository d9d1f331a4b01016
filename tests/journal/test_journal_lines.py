"""Lines are read as they were appended, whatever values a case has put into them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.outcome import Outcome
from harness.journal import reader
from harness.journal.events import Finish
from harness.journal.journal import Journal, JournalError

FINISH = Finish(
    t=1.7e9,
    case="test_a.py::test_b",
    attempt=1,
    worker="main",
    executor="main-e1",
    devices=("cpu",),
    seed=1,
    outcome=Outcome.PASSED,
    final=True,
    duration=0.5,
    phases={"setup": 0.1, "call": 0.3, "teardown": 0.1},
    notes=("a note",),
)


def _written(path: Path, name: str, value: Any) -> Any:
    """Return what a reader makes of the line in which a case has caused this value."""
    with Journal(path) as open_journal:
        open_journal.append(msgspec.structs.replace(FINISH, **{name: value}))
    contents = reader.read_journal(path)
    assert not contents.damaged
    return contents.events[-1]


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
        ("keeps", None),
    ],
)
def test_the_verdict_is_kept_without_the_value(tmp_path: Path, name: str, value: object) -> None:
    event = _written(tmp_path / "journal.ndjson", name, value)
    assert isinstance(event, Finish)
    assert (event.case, event.outcome) == (FINISH.case, Outcome.PASSED)
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
    event = _written(path, name, odd)
    assert (event.case, event.outcome) == (FINISH.case, Outcome.PASSED)


def test_a_line_that_is_none_is_an_error_of_the_harness(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.ndjson") as open_journal, pytest.raises(JournalError):
        open_journal.append(msgspec.structs.replace(FINISH, case=""))
