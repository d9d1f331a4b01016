"""The collected cases that a run takes, of which shard and earlier run, and in which order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.configuration.values import VERDICTS
from harness.core.caseid import Shard
from harness.core.outcome import Outcome
from harness.gating.policy import Policy
from harness.scheduling.order import Chosen, Selection, read_ids, shuffled_positions
from harness.scheduling.resume import EarlierRun
from tests.journal import journals
from tests.reporting import build

IDS = [f"suites/{suite}/test_x.py::test_{number}" for suite in "ab" for number in range(10)]


def test_the_profile_and_an_earlier_run_select_and_the_shard_is_taken_last() -> None:
    policy = Policy(suites=("b",))
    only = frozenset(IDS[5:15])
    found = Selection(policy, 1, Shard(1, 2), only).choose(IDS)
    assert found.selected == tuple(range(10, 15))
    assert found.here == tuple(place for place in range(10, 15) if Shard(1, 2).has(IDS[place]))
    assert Selection.of(policy, 1, "1/2", only).choose(IDS) == found
    assert Selection.of(Policy(), 1, "").choose(IDS) == Chosen(tuple(range(20)), tuple(range(20)))


@given(st.integers(1, 5), st.integers(0, 9))
def test_shards_of_a_shuffled_run_keep_its_order(count: int, seed: int) -> None:
    policy = Policy(shuffle=True)
    whole = shuffled_positions(IDS, seed)
    for index in range(1, count + 1):
        found = Selection(policy, seed, Shard(index, count)).choose(IDS)
        assert found.selected == tuple(range(20))
        assert list(found.here) == [place for place in whole if Shard(index, count).has(IDS[place])]


@given(st.sets(st.integers(0, 19)), st.integers(0, 9))
def test_cases_with_processes_of_their_own_are_last_in_a_random_order(apart: set[int], seed: int) -> None:
    found = Selection(Policy(shuffle=True), seed).choose(IDS, apart=apart)
    whole = shuffled_positions(IDS, seed)
    assert list(found.here) == [*(p for p in whole if p not in apart), *(p for p in whole if p in apart)]
    assert Selection(Policy(), seed).choose(IDS, apart=apart).here == tuple(range(20))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    lines = [
        build.run(fail_on_flaky=True),
        build.collected("p", "f", "c", "n", "k"),
        build.start("p"),
        build.finish("p"),
        build.finish("f", Outcome.FAILED),
        build.finish("c", Outcome.CRASHED),
        *build.broke_and("k", Outcome.CRASHED, Outcome.PASSED),
    ]
    return journals.write(tmp_path, lines)


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ((), ["f", "c", "n", "k"]),
        (("red",), ["f", "c", "n", "k"]),
        (("failed", "crashed"), ["f", "c"]),
        (("not_run",), ["n"]),
        (("flaky",), ["k"]),
        (("passed", "red"), ["p", "f", "c", "n", "k"]),
        (("timeout",), []),
    ],
)
def test_cases_by_their_verdict_in_an_earlier_run(run_dir: Path, words: tuple[str, ...], ids: list[str]) -> None:
    found = EarlierRun.read(run_dir, words)
    assert list(found.ids) == ids
    assert read_ids(str(found.write(run_dir))) == frozenset(ids)
    assert json.loads((run_dir / "only.json").read_text()) == ids


def test_every_verdict_is_a_word() -> None:
    assert {*VERDICTS} == {*(outcome.value for outcome in Outcome), "red"}


def settings(**values: Any) -> dict[str, Any]:
    return {"from": None, "only": (), **values}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"only": ("failed", "lost")}, "--only=failed,lost needs --from=DIR: the run with the verdicts"),
        ({"from": Path("nothing")}, "--from='nothing': there is no journal at "),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(pytest.UsageError, match=words):
        EarlierRun.of(settings(**values), tmp_path)


def test_without_the_option_there_is_no_earlier_run(tmp_path: Path) -> None:
    assert EarlierRun.of(settings(), tmp_path) is None
    assert read_ids("") is None


@pytest.mark.parametrize(
    ("cases", "arguments", "text"),
    [
        (["s/a.py::f", "s/b.py::g"], ["."], ""),
        (["s/a.py::f"], ["."], "--from names a case that this tree does not have: s/b.py::g"),
        (["s/a.py::f"], ["s/a.py"], ""),
        ([], ["s"], "--from names 2 cases that this tree does not have: s/a.py::f, s/b.py::g"),
        ([], [], ""),
    ],
)
def test_a_case_that_is_gone_is_said(cases: list[str], arguments: list[str], text: str) -> None:
    """A renamed case must not look as if it had been run again."""
    assert EarlierRun(("s/a.py::f", "s/b.py::g"), "").gone(cases, arguments) == text
