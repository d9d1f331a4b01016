"""For any contents of an archive's files, the result is a refusal or a one-sentence error, never a traceback."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.tools.evidence import verify
from tests.reporting import build
from tests.tools.evidence.forge import ENVIRONMENT, JOURNAL, JUNIT, Forger, environment, journal_bytes, lines, zipped
from tests.tools.evidence.test_tampering import is_refused

HONEST = Forger.of().members
TEXTS = st.text(st.characters(), max_size=10)  # includes lone surrogates
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ROWS = st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(("uuid", "kind", "name", "compute_capability"), JSON)))


def answer(factory: pytest.TempPathFactory, name: str, data: bytes) -> bool:
    forger = Forger(dict(HONEST))
    forger.file(name, data, seal=True)
    return is_refused(zipped(forger.members), factory.mktemp("archive"))


@given(st.dictionaries(st.sampled_from(sorted(environment())), JSON | ROWS, min_size=1, max_size=3))
@settings(max_examples=150)
def test_any_environment(tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    answer(tmp_path_factory, ENVIRONMENT, json.dumps({**environment(), **changes}).encode())


@given(st.integers(0, len(lines()) - 1), st.data())
@settings(max_examples=150)
def test_any_value_in_a_line_of_the_journal(
    tmp_path_factory: pytest.TempPathFactory, position: int, data: st.DataObject
) -> None:
    events = lines()
    name = data.draw(st.sampled_from(sorted(events[position])))
    old = events[position][name]
    events[position][name] = data.draw(JSON | st.from_type(type(old)))
    answer(tmp_path_factory, JOURNAL, journal_bytes(events))


@given(st.binary(max_size=200), st.sampled_from([JUNIT, JOURNAL, ENVIRONMENT, "manifest.json", "waivers.json"]))
@settings(max_examples=100)
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str) -> None:
    forger = Forger(dict(HONEST))
    forger.file(name, data, seal=name != "manifest.json")
    assert is_refused(zipped(forger.members), tmp_path_factory.mktemp("archive"))


@pytest.mark.parametrize(
    ("name", "added", "said"),
    [
        (JUNIT, b"<a/>", "bytes, and the report of the journal has"),
        (JOURNAL, b"{}\n", "has more than 1000 lines that are no events"),
        (JOURNAL, b'{"event":"x","t":1}\n', "has more than 1000 lines that are no events"),
        (JOURNAL, journal_bytes([build.finding("worker")]), "has more than 10000 findings and other lines"),
        (ENVIRONMENT, b"[],", "environment.json"),
    ],
)
def test_many_small_elements_are_refused_before_they_fill_the_memory(
    tmp_path: Path, name: str, added: bytes, said: str
) -> None:
    """Each is a few bytes in the archive, and an object of a hundred bytes or more if it is parsed."""
    forger = Forger(dict(HONEST))
    many = added * ((6 << 20) // len(added))
    whole = {
        JUNIT: forger.members[JUNIT].replace(b"</testsuites>", many + b"</testsuites>"),
        JOURNAL: forger.members[JOURNAL] + many,
        ENVIRONMENT: b'{"a":[' + many + b"0]}",
    }
    forger.file(name, whole[name], seal=True)
    path = tmp_path / "evidence.zip"
    path.write_bytes(zipped(forger.members))
    tracemalloc.start()
    try:
        with path.open("rb") as file:
            problems = verify.verify_archive(file, path, verify.Demands()).problems
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert any(said in problem for problem in problems), problems
    assert most < 40 << 20


def test_of_many_problems_the_first_are_named(tmp_path: Path) -> None:
    events = lines()
    again = next(line for line in events if line["event"] == "start")
    forger = Forger(dict(HONEST))
    forger.file(JOURNAL, journal_bytes([*events, *[again] * 3000]), seal=True)
    path = tmp_path / "evidence.zip"
    path.write_bytes(zipped(forger.members))
    with path.open("rb") as file:
        problems = verify.verify_archive(file, path, verify.Demands()).problems
    assert 900 < len(problems) <= 1001  # the same sentence counts once
    assert problems[-1] == "there are more problems; 1000 are named"


def test_a_shard_of_a_million(tmp_path_factory: pytest.TempPathFactory) -> None:
    events = lines()
    events.insert(1, build.shard(shard="1/999999"))
    assert answer(tmp_path_factory, JOURNAL, journal_bytes(events))


@pytest.mark.parametrize("name", ["../../etc/passwd", "a\x00b", ""])
def test_a_list_with_a_name_that_leads_out(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    events = lines()
    events[1]["name"] = name
    assert answer(tmp_path_factory, JOURNAL, journal_bytes(events))
