"""Notifications about a run: new failures, returned ones, reminders; never the same failure again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcome import Outcome
from harness.fleet.answers import Answers
from harness.fleet.notify import (
    Bulletin,
    Past,
    Rules,
    Silence,
    Why,
    bulletin,
    by_channel,
    idle_silences,
    why_reported,
    without_route,
)
from tests.fleet.history import nights
from tests.fleet.matrix.runs import CASES

TODAY = date(2030, 1, 1)
ROUTES = [{"to": ["out"]}]


def rules(**changes: Any) -> Rules:
    return Rules.model_validate(
        {"channels": {"out": {"kind": "stdout"}, "more": {"kind": "stdout"}}, "routes": ROUTES, **changes},
        strict=False,
    )


def day(number: int) -> date:
    return date(2026, 3, number)


def past(last: int, since: int) -> Past:
    """Return a group whose last run ended on the morning after its night."""
    return Past(day(last), day(since), day(last + 1))


@pytest.mark.parametrize(
    ("before", "previous", "why"),
    [
        (None, None, Why.NEW),
        (None, 19, Why.NEW),
        (past(19, 19), 19, None),  # reported in the night before
        (past(19, 13), 19, Why.REMINDER),  # the seventh night
        (past(19, 12), 19, None),  # the eighth
        (past(18, 12), 18, Why.REMINDER),  # the seventh night had no run
        (past(17, 17), 19, None),  # gone for one run: it is intermittent
        (past(12, 10), 19, Why.AGAIN),
        (past(13, 10), 19, None),
    ],
)
def test_a_group_is_reported_once_and_then_as_a_reminder(
    before: Past | None, previous: int | None, why: Why | None
) -> None:
    found = why_reported(before, day(20), None if previous is None else day(previous), rules())
    assert found is why


def test_without_reminders_a_known_group_is_never_reported() -> None:
    assert why_reported(past(19, 1), day(20), day(19), rules(remind=0)) is None


@pytest.mark.parametrize(
    ("until", "why"),
    [
        (20, Why.UNSILENCED),  # the last run ended on this day, and no one was notified
        (21, Why.UNSILENCED),
        (19, None),  # the last run ended after it, and was reported
    ],
)
def test_what_a_silence_has_covered_is_reported_after_its_end(until: int, why: Why | None) -> None:
    silence = Silence(until=day(until), reason="known", cases="*")
    assert why_reported(past(19, 1), day(25), day(19), rules(remind=0), [silence]) is why
    assert why_reported(
        past(17, 1), day(25), day(19), rules(remind=0), [Silence(until=day(18), reason="known", cases="*")]
    ) is (Why.UNSILENCED), "it is back, and was known only to the silence"


def reported(tmp_path: Path, outcomes: Sequence[Mapping[str, Outcome]], number: int, **changes: Any) -> Bulletin:
    """Return the notification about a night's run on one machine."""
    made = [
        nights.night(tmp_path, place, bad, messages={case: f"wrong {case[-3:]}" for case in bad})
        for place, bad in enumerate(outcomes)
    ]
    with nights.history(tmp_path, made).reading() as database:
        answers = Answers(database)
        return bulletin(answers, answers.run_by_id(nights.run_id(number)), rules(**changes), TODAY)


RED = {CASES[0]: Outcome.FAILED}
OTHER = {CASES[0]: Outcome.FAILED, CASES[1]: Outcome.FAILED}


def test_a_red_case_is_reported_in_its_first_night_only(tmp_path: Path) -> None:
    outcomes = [{}, RED, RED, OTHER]
    first, second, third = (reported(tmp_path / str(number), outcomes, number) for number in (1, 2, 3))
    assert [(each.why, each.cases) for each in first.topics] == [(Why.NEW, (CASES[0],))]
    assert first.before == nights.run_id(0)
    assert (second.topics, second.known) == ((), 1)
    assert [each.cases for each in third.topics] == [(CASES[1],)]
    assert third.known == 1


def test_a_reminder_names_the_night_in_which_it_began(tmp_path: Path) -> None:
    found = reported(tmp_path, [{}, RED, RED, RED], 3, remind=2)
    (topic,) = found.topics
    assert (topic.why, topic.since) == (Why.REMINDER, date(2025, 10, 10))


def test_a_silenced_group_is_counted_only(tmp_path: Path) -> None:
    silence = {"cases": CASES[0], "until": "2030-01-01", "reason": "known"}
    found = reported(tmp_path, [{}, OTHER], 1, silences=[silence])
    assert [each.cases for each in found.topics] == [(CASES[1],)]
    assert found.silenced == 1


def test_a_silence_holds_on_its_last_day_and_not_after(tmp_path: Path) -> None:
    silence = {"cases": CASES[0], "until": "2029-12-31", "reason": "known"}
    assert len(reported(tmp_path, [{}, RED], 1, silences=[silence]).topics) == 1
    assert list(idle_silences(rules(silences=[silence]), TODAY)) == [
        f"the silence of {CASES[0]!r} ended on 2029-12-31 (known): remove it"
    ]


def test_a_group_that_is_red_after_its_silence_is_reported_once(tmp_path: Path) -> None:
    # The runs end at 18:00 on 9, 10, 11 and 12 October 2025.
    changes = {"silences": [{"cases": CASES[0], "until": "2025-10-10", "reason": "known"}], "remind": 0}
    outcomes = [{}, RED, RED, RED]
    second, third = (reported(tmp_path / str(number), outcomes, number, **changes) for number in (2, 3))
    assert [(each.why, each.since) for each in second.topics] == [(Why.UNSILENCED, date(2025, 10, 10))]
    assert (third.topics, third.known) == ((), 1)


def test_what_is_fixed_is_reported_with_what_is_new(tmp_path: Path) -> None:
    found = reported(tmp_path, [RED, {}], 1)
    assert (found.topics, found.fixed) == ((), (CASES[0],))


def test_a_run_with_nothing_to_tell_reaches_no_channel(tmp_path: Path) -> None:
    assert list(by_channel(reported(tmp_path, [RED, RED], 1), rules())) == []


def test_each_channel_hears_of_its_cases(tmp_path: Path) -> None:
    routes = [{"to": ["out"]}, {"to": ["more"], "cases": CASES[1]}]
    chosen = rules(routes=routes)
    found = reported(tmp_path, [{}, OTHER], 1, routes=routes)
    routed = {name: {topic.cases for topic in each.topics} for name, each in by_channel(found, chosen)}
    assert routed == {"out": {(CASES[0],), (CASES[1],)}, "more": {(CASES[1],)}}


def test_what_no_route_covers_is_unheard(tmp_path: Path) -> None:
    routes = [{"to": ["out"], "cases": CASES[1]}]
    found = reported(tmp_path, [{}, OTHER], 1, routes=routes)
    assert [topic.cases for topic in without_route(found, rules(routes=routes))] == [(CASES[0],)]


def test_the_owner_of_a_case_is_named(tmp_path: Path) -> None:
    found = reported(tmp_path, [{}, RED], 1, owners=[{"cases": "suites/a/*", "owner": "team a"}])
    assert found.topics[0].owner == "team a"
