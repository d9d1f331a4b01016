"""One run of several shards: the proof that they belong together, and the contents of the merged run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.caseid import Shard, digest_of_ids
from harness.core.outcome import Outcome
from harness.journal import merge
from harness.journal.events import End, Finish, MergedShard, RunStarted, Waiver
from harness.journal.ledger import Ledger
from harness.journal.merge import MergeError, Part
from harness.journal.reader import JournalContents
from tests.reporting import build

IDS = [f"suites/a/test_a.py::test_a[{number}]" for number in range(12)]
IDENTITY = {"suite files": f"sha256:{'1' * 64}", "torch": "2.12.0", "driver": "550.1"}


def share(index: int, count: int = 3, ids: list[str] = IDS) -> list[str]:
    return [case for case in ids if Shard(index, count).has(case)]


def shard(
    index: int,
    *more: build.Line,
    count: int = 3,
    name: str = "",
    ids: list[str] | None = None,
    selected: list[str] = IDS,
    outcome: Outcome = Outcome.PASSED,
    ended: int | None = 0,
    identity: dict[str, str] = IDENTITY,
    **changes: Any,
) -> Part:
    """Return a shard in which each case has `outcome`; `more` lines precede its end."""
    own = share(index, count, selected) if ids is None else ids
    run_id = changes.pop("run_id", f"run{index}of{count}")
    lines = [
        build.run(shard=f"{index}/{count}", identity=identity, run_id=run_id, **changes),
        build.collected(*own, selection=digest_of_ids(sorted(selected)), selected=selected),
        *(build.finish(case, outcome) for case in own),
        *more,
        *([] if ended is None else [build.end(exit_status=ended)]),
    ]
    return part(name or f"r{index}", *lines)


def part(name: str, *lines: build.Line) -> Part:
    return merge.part_of(name, JournalContents(Path(name), tuple(build.events(*lines))))


def together(*parts: Part) -> Ledger:
    assert merge.merge_problems(parts) == []
    return Ledger.from_lines(merge.merged_events(parts, run_id="m", argv=["harness"], now=1.8e9))


def test_all_shards_of_a_run_are_one_run() -> None:
    ledger = together(shard(2), shard(1), shard(3, outcome=Outcome.FAILED, ended=1))
    assert [verdict.case for verdict in ledger.verdicts] == IDS
    assert ledger.counts[Outcome.FAILED] == len(share(3))
    assert (ledger.findings, ledger.run_exit_status()) == ((), 1)


OTHER = {**IDENTITY, "torch": "2.13.0"}
TREE = {**IDENTITY, "suite files": f"sha256:{'2' * 64}"}
ELSE = [*IDS, "suites/b/test_b.py::test_b"]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([shard(1), shard(3)], [f"shard 2/3 is missing, with {len(share(2))} cases (suites/a"]),
        ([shard(1)], ["shard 2/3 is missing", "shard 3/3 is missing"]),
        ([shard(1), shard(1), shard(2), shard(3)], ["'r1' and 'r1' are the same run, run1of3: give each shard once"]),
        (
            [shard(1), shard(1, name="x", run_id="other"), shard(2), shard(3)],
            ["shard 1/3 is given twice, in 'r1' and 'x'"],
        ),
        ([shard(1), shard(2, count=4)], ["shard 2/4 ('r2') is one of 4 shards, but shard 1/3 ('r1') is one of 3"]),
        (
            [shard(1, identity=OTHER), shard(2), shard(3)],
            ["shard 1/3 ('r1') is not like the others: torch is '2.13.0' here and '2.12.0' in most others"],
        ),
        ([shard(1), shard(2), shard(3, identity=TREE)], ["shard 3/3 ('r3') is not like the others: suite files is"]),
        ([shard(1), shard(2, seed=8), shard(3)], ["shard 2/3 ('r2') is not like the others: --seed is '8'"]),
        (
            [shard(1), shard(2, settings={"repeat": 3}), shard(3)],
            ["shard 2/3 ('r2') is not like the others: --repeat is '3' here and not set in most others"],
        ),
        (
            [shard(1), shard(2), shard(3, selected=ELSE)],
            ["shard 3/3 ('r3') selected other cases than shard 1/3 ('r1'): 1 case (suites/b/test_b.py::test_b) more"],
        ),
        (
            [shard(1), shard(2, ids=share(2)[1:]), shard(3)],
            [f"shard 2/3 ('r2') lacks some of its cases: 1 case ({share(2)[0]}) missing"],
        ),
        (
            [shard(1), shard(2), shard(3, ids=[*share(3), share(1)[0]])],
            [f"several shards have the same cases: 1 case ({share(1)[0]})"],
        ),
        (
            [shard(1), part("r2", build.run(run_id="x", shard="2/3", identity=IDENTITY)), shard(3)],
            ["shard 2/3 ('r2') has no list of its cases: it ended before they were collected"],
        ),
    ],
)
def test_what_is_not_one_run(parts: list[Part], words: list[str]) -> None:
    found = merge.merge_problems(parts)
    assert [text[: len(start)] for text, start in zip(found, words, strict=True)] == words, found


def test_a_resumed_shard_that_ran_something_else_in_between_is_named() -> None:
    resumed = build.run(run_id="run2of3", shard="2/3", identity=OTHER)
    (problem,) = merge.merge_problems([shard(1), shard(2, resumed), shard(3)])
    assert problem.startswith("shard 2/3 ('r2') is not like the others: torch is '2.13.0'")


def test_a_run_of_all_cases_is_no_shard() -> None:
    with pytest.raises(MergeError, match="'x' is not a shard: its run had all cases; give runs that were started with"):
        part("x", build.run(), build.collected(*IDS))


@given(st.lists(st.text(min_size=1).map(lambda text: f"a.py::{text}"), unique=True), st.integers(1, 6), st.data())
def test_shards_are_one_run_exactly_if_all_are_there(ids: list[str], count: int, data: st.DataObject) -> None:
    parts = [shard(index, count=count, selected=ids) for index in range(1, count + 1)]
    given_ = data.draw(st.lists(st.sampled_from(parts), min_size=1))
    whole = sorted(part.shard.index for part in given_) == [*range(1, count + 1)]
    assert (merge.merge_problems(given_) == []) is whole
    if whole:
        assert [verdict.case for verdict in together(*given_).verdicts] == ids


def test_what_only_all_cases_together_can_satisfy_is_checked_in_the_merged_run() -> None:
    listed = build.must_pass(*IDS)
    parts = [shard(index, listed, minimum_cases=12) for index in (1, 2, 3)]
    for each in parts:
        alone = Ledger.from_lines(each.events)
        assert (alone.lists, alone.findings, alone.run_exit_status()) == ((), (), 0)
    ledger = together(*parts)
    assert [result.missed for result in ledger.lists] == [()]
    assert ledger.run_exit_status() == 0
    few = together(*(shard(index, listed, minimum_cases=13) for index in (1, 2, 3)))
    assert [finding.kind for finding in few.findings] == ["too_few_cases"]
    red = together(*parts[:2], shard(3, listed, minimum_cases=12, outcome=Outcome.FAILED, ended=1))
    assert [finding.kind for finding in red.findings] == ["must_pass", "too_few_cases"][:1]


def test_the_waivers_of_the_shards_are_in_the_merged_run_once() -> None:
    parts = [shard(index, build.waiver("a.py::*")) for index in (1, 2, 3)]
    events = merge.merged_events(parts, run_id="m", argv=["harness"], now=1.8e9)
    assert [event.case for event in events if isinstance(event, Waiver)] == ["a.py::*"]


@pytest.mark.parametrize(
    ("statuses", "status"), [([0, 5, 0], 0), ([0, 1, 0], 1), ([2, 1, 0], 2), ([0, 3, 2], 3), ([0, None, 0], 1)]
)
def test_the_worst_end_of_a_shard_is_the_end_of_the_merged_run(statuses: list[int | None], status: int) -> None:
    ledger = together(*(shard(index, ended=end) for index, end in zip((1, 2, 3), statuses, strict=True)))
    assert ledger.run_exit_status() == status
    assert (ledger.end is None) is (None in statuses)


def test_names_of_workers_stay_different_and_a_finding_of_all_is_there_once() -> None:
    expired = build.finding("a waiver has expired", kind="waiver_expired")
    own = build.finding("GPU 2 is sick")
    parts = [shard(1, expired, build.executor()), shard(2, expired, own, build.executor()), shard(3, expired)]
    events = merge.merged_events(parts, run_id="m", argv=["harness"], now=1.8e9)
    ledger = Ledger.from_lines(events)
    assert [finding.message for finding in ledger.findings] == ["a waiver has expired", "GPU 2 is sick"]
    executors = {event.executor for event in events if isinstance(event, Finish)}
    assert executors == {"shard1-gw0-1", "shard2-gw0-1", "shard3-gw0-1"}
    assert ledger.cost.restarts == 0


def test_findings_about_processes_of_a_shard_are_not_taken_for_one() -> None:
    """The first worker of each shard has the same name, and two that died are two workers."""
    died = build.finding("worker gw0 died", kind="worker")
    ledger = together(shard(1, died), shard(2, died), shard(3))
    assert [each.message for each in ledger.findings] == ["shard 1/3: worker gw0 died", "shard 2/3: worker gw0 died"]


def test_names_of_shards_are_kept() -> None:
    events = merge.merged_events([shard(1), shard(2), shard(3)], run_id="m", argv=["harness"], now=1.8e9)
    assert [line.shard for line in events if isinstance(line, MergedShard)] == ["1/3", "2/3", "3/3"]


def test_what_is_written_is_a_journal_that_says_the_same(tmp_path: Path) -> None:
    parts = [shard(index) for index in (1, 2, 3)]
    events = merge.merged_events(parts, run_id="m", argv=["harness"], now=1.8e9)
    environments = {"1/3": {"schema": 1, "devices": [{"uuid": "a"}]}, "2/3": {"schema": 1, "devices": [{"uuid": "b"}]}}
    contents = merge.write_merged_run(tmp_path / "out", events, environments)
    assert contents.events == tuple(events)
    assert not contents.damaged
    assert isinstance(contents.events[0], RunStarted)
    assert isinstance(contents.events[-1], End)
    assert '"uuid": "b"' in (tmp_path / "out" / "environment.json").read_text()
    with pytest.raises(MergeError, match="already contains a run: name another folder"):
        merge.write_merged_run(tmp_path / "out", events, {})


def test_the_waivers_of_the_run_are_in_the_merged_run_once() -> None:
    waiver = build.waiver("a.py::*")
    events = merge.merged_events(
        [shard(index, waiver) for index in (1, 2, 3)], run_id="m", argv=["x"], now=1_760_000_100.0
    )
    assert [event.event for event in events].count("waiver") == 1
