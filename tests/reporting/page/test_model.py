"""The contents of a page, computed from the journal and environment.json alone."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.outcome import Outcome
from harness.reporting.junit_case import MOST_TEXT
from harness.reporting.page import cases, inert, model
from harness.reporting.page.cases import Axis
from tests.reporting import build
from tests.reporting.page import runs

A, B = "suites/a/test_a.py::test_a", "suites/a/test_a.py::test_b"


def ran(*lines: build.Line, **facts: Any) -> list[build.Line]:
    return [build.run(**facts), build.collected(A, B), *lines]


@pytest.mark.parametrize(
    ("lines", "tone", "word", "text"),
    [
        (runs.green(), "green", "Green", "3 cases, none of them red."),
        (
            ran(build.start(A), build.finish(A, Outcome.FAILED), build.end(exit_status=1)),
            "red",
            "Red",
            "2 of 2 cases are red; exit status 1.",
        ),
        (
            ran(build.finish(A), build.finish(B), build.finding("x"), build.end(exit_status=1)),
            "red",
            "Red",
            "2 cases, none of them red; 1 finding; exit status 1.",
        ),
        (
            ran(build.finish(A), build.finish(B)),
            "red",
            "Not finished",
            "The run was cut off, so it counts as red: 2 cases, none of them red.",
        ),
        (
            ran(build.finish(A), build.stopped(), build.end(exit_status=2)),
            "red",
            "Interrupted",
            "1 of 2 cases is red; stopped by SIGTERM; exit status 2.",
        ),
        (
            [build.run(), build.collected(A), build.finish(A, Outcome.GATED), build.end(exit_status=5)],
            "empty",
            "Nothing ran",
            "No case has a verdict: 1 case, none of them red.",
        ),
        (
            ran(build.finish(A), build.finish(B), build.end(exit_status=1)),
            "red",
            "Red",
            "2 cases, none of them red; exit status 1. "
            "Pytest ended with this status for another reason: see its output.",
        ),
    ],
)
def test_the_headline(lines: list[build.Line], tone: str, word: str, text: str) -> None:
    assert runs.page_of(*lines).headline == model.Headline(tone, word, text)


def test_the_most_severe_case_comes_first_and_flaky_last() -> None:
    page = runs.page_of(*runs.every_outcome())
    assert [case.outcome for case in page.bad] == [
        outcome for outcome in reversed(Outcome) if outcome.is_red or outcome is Outcome.FLAKY
    ][: len(page.bad)]
    assert [(group.message, len(group.cases)) for group in page.not_run] == [
        ("the run ended, and the journal has no start of this case", 1)
    ]
    assert page.red == len(page.bad)  # without flaky, with not_run


def test_an_attempt_has_all_that_is_known_of_it() -> None:
    page = runs.page_of(*runs.every_outcome())
    crashed = page.bad[0]
    (attempt,) = crashed.attempts
    assert (crashed.reproduce, attempt.devices, attempt.files) == (
        f"pytest {crashed.name} --seed=7",
        ("GPU-b",),
        "files/gw0-1",
    )
    assert [(text.title, text.body) for text in attempt.texts] == [
        ("Stack", "stack of crashed"),
        ("Standard output", "output of crashed"),
        ("Standard error", "red words"),
    ]
    (flaky,) = (case for case in page.cases if case.outcome is Outcome.FLAKY)
    assert [(each.outcome, each.context) for each in flaky.attempts] == [
        (Outcome.CRASHED, "after other cases"),
        (Outcome.PASSED, "alone"),
    ]


def test_an_attempt_without_an_end_lasts_until_its_executor_ended() -> None:
    page = runs.page_of(
        build.run(), build.collected(A), build.start(A), build.executor(state="ended", t=1_760_000_004.0), build.end()
    )
    (attempt,) = page.cases[0].attempts
    assert (attempt.outcome, attempt.start, attempt.duration) == (Outcome.LOST, 1.75, 2.0)


def test_long_texts_are_cut_and_the_page_says_so() -> None:
    page = runs.page_of(*ran(build.finish(A, Outcome.FAILED, stdout="x" * 100_000), build.finish(B, stdout="y" * 9000)))
    red, good = (case.attempts[0].texts[0] for case in page.cases)
    assert red.cut == 100_000 - MOST_TEXT
    assert "[... 67232 of 100000 characters cut ...]" in red.body
    assert good.cut == 9000 - MOST_TEXT // 8


def test_torn_and_doubled_lines_are_reported(tmp_path: Any) -> None:
    lines = runs.green()
    path = runs.write(tmp_path, *lines[:-1], lines[2], lines[3], {"event": "news", "t": 1.0}, lines[-1], tail=b'{"eve')
    text = path.read_text()
    assert "of the journal cannot be read and was ignored" in text
    assert "2 duplicate lines in the journal, counted once." in text
    assert "has the unknown kind &#34;news&#34;" in text
    assert "damaged_journal" in text


@pytest.mark.parametrize(
    ("environment", "text"),
    [(None, "there is no environment.json"), ([], "environment.json is not the environment file of a run")],
)
def test_a_run_without_its_environment(tmp_path: Any, environment: Any, text: str) -> None:
    assert (
        f"The environment is not known: {text}."
        in runs.write(tmp_path, *runs.green(), environment=environment).read_text()
    )


def test_no_time_passes_between_the_parts_of_a_resumed_run() -> None:
    axis = Axis.from_events(
        build.events(build.run(t=100.0), build.start(A, t=110.0), build.run(t=9000.0, part=2), build.end(t=9005.0))
    )
    assert (axis.offsets, axis.span) == ((0.0, 10.0), 15.0)
    assert [axis.of(moment) for moment in (50.0, 105.0, 5000.0, 9001.0, 9999.0)] == [0.0, 5.0, 10.0, 11.0, 15.0]


def test_the_use_of_a_device() -> None:
    page = runs.page_of(
        build.run(t=1000.0, devices=["GPU-a", "GPU-b"]),
        build.collected(A, B),
        build.executor(t=1001.0, devices=["GPU-a"]),
        build.start(A, t=1002.0, devices=["GPU-a"]),
        build.finish(A, t=1004.0, duration=2.0, devices=["GPU-a"]),
        build.executor(state="ended", t=1005.0, devices=["GPU-a"], exit_status=-9),
        build.executor("gw0-2", t=1006.0, devices=["GPU-a"]),
        build.start(B, t=1008.0, devices=["GPU-a"], executor="gw0-2"),
        build.finish(B, t=1010.0, duration=2.0, devices=["GPU-a"], executor="gw0-2"),
        build.device("sick", device="GPU-b", t=1003.0, message="it hangs"),
        build.end(t=1010.0),
    )
    used, idle = page.uses
    assert (used.name, used.attempts, used.busy, used.share) == ("0: H200", 2, 4.0, 0.4)
    assert (used.gap, used.gap_at, used.executors, used.restarts) == (4.0, 4.0, 2, 1)
    assert (idle.attempts, [(mark.at, mark.state, mark.text) for mark in idle.health]) == (
        0,
        [(3.0, "sick", "it hangs")],
    )
    assert [life.restart for life in page.lives] == [False, True]
    assert page.lives[0].text == "ended with SIGKILL"


def test_gated_cases_are_grouped_by_what_is_missing() -> None:
    def gate(case: str, found: str) -> build.Line:
        return build.finish(case, Outcome.GATED, gate={"capability": "memory", "wanted": ">=12GiB", "found": found})

    (group,) = runs.page_of(*ran(gate(A, "8GiB"), gate(B, "4GiB"), build.end())).gates
    assert (group.capability, group.count) == ("memory", 2)
    assert [(wanted, found, len(cases)) for wanted, found, cases in group.reasons] == [
        (">=12GiB", "8GiB", 1),
        (">=12GiB", "4GiB", 1),
    ]


@pytest.mark.parametrize(
    ("expires", "days", "tone"),
    [
        ("2025-10-08", "expired 1 day before the run", "over"),
        ("2025-10-09", "last day", "soon"),
        ("2025-10-10", "1 day left", "soon"),
        ("2025-10-23", "14 days left", "soon"),
        ("2025-10-24", "15 days left", ""),
        ("2025-99-99", "no last day", ""),
    ],
)
def test_waivers_have_days_left_from_the_day_of_the_run(expires: str, days: str, tone: str) -> None:
    waived = build.finish(A, Outcome.FAILED, ruling=build.ruling(Outcome.WAIVED))
    page = runs.page_of(build.run(), build.waiver("*", expires=expires), build.collected(A), waived, build.end())
    (row,) = page.waivers
    assert (row.days, row.tone, row.link) == (days, tone, "https://example.org/1")
    assert [case.name for case in row.cases] == [A]


def test_a_link_that_is_none_is_not_linked() -> None:
    page = runs.page_of(build.run(), build.waiver("*", link="javascript:alert(1)"), build.collected(A), build.end())
    assert page.waivers[0].link == ""


def test_what_waives_cases_without_a_waiver_file_is_listed() -> None:
    marked = build.finish(B, Outcome.WAIVED)
    own = build.finish(A, Outcome.LEAKED, ruling={**build.ruling(Outcome.WAIVED), "source": "test_a.py:9"})
    assert [(row.source, len(row.cases)) for row in runs.page_of(*ran(own, marked)).waivers] == [
        ("test_a.py:9", 1),
        ("xfail marks", 1),
    ]


def test_durations() -> None:
    found = runs.page_of(*ran(build.finish(A, duration=0.002), build.finish(B, duration=2.0), build.end())).durations
    assert ([case.name for case in found.slowest], found.total, found.median) == ([B, A], 2.002, 1.001)
    assert found.bins[0] == (0.001, 0.003, 1)
    assert found.bins[-1] == (1.0, 3.0, 1)
    assert found.suites == (("a", 2, 2.002),)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (0.0012, "1.2 ms"), (0.5, "500 ms"), (0.9999, "1.0 s"), (59.96, "1 min 0 s"), (3661, "1 h 1 min")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert model.duration_text(seconds) == text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;https://example.org\x1b\\a link\x1b]8;;\x07", "a link"),
        ("\x1b]0;a title without an end\nnext", "\x1b]0;a title without an end\nnext"),  # text after it is not hidden
        ("\x9b31mred", "red"),
        ("10%\r20%\r\ndone", "10%\n20%\ndone"),
        ("\x1b(Bplain", "plain"),
    ],
)
def test_terminal_escapes_are_left_out(text: str, plain: str) -> None:
    assert inert.inert_text(text) == plain


def test_what_does_not_show_becomes_a_badge() -> None:
    assert inert.inert_markup("a\u202eb<\x00\ud800") == (
        'a<span class="hidden-char">U+202E</span>b&lt;<span class="hidden-char">U+0000</span>'
        '<span class="hidden-char">U+D800</span>'
    )


@pytest.mark.parametrize(
    ("costs", "budget", "limit"),
    [
        ([], 0, 64),
        ([100] * 10, 640, 64),
        ([100] * 10, 639, 32),
        ([5] * 10, 50, 64),
        ([1000, 5, 5], 20, 8),
        ([1] * 10, 9, 0),
    ],
)
def test_fitting_limit(costs: list[int], budget: int, limit: int) -> None:
    assert cases.fitting_limit(costs, budget, most=64) == limit


def test_bytes_are_shown_for_people() -> None:
    known = {
        **runs.ENVIRONMENT,
        "memory": 25276063744,
        "cpus": 8,
        "devices": [{"uuid": "GPU-1", "memory": 85899345920}],
    }
    shown = dict(row for facts in runs.page_of(*runs.green(), environment=known).environment for row in facts.rows)
    assert shown["memory"] == "23.5GiB"
    assert shown["0.memory"] == "80.0GiB"
    assert shown["cpus"] == "8"
