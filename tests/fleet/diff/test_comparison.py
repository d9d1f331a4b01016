"""Changes between runs, as tables; and each format of the output."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.outcome import Outcome
from harness.fleet.comparison import (
    CaseRecord,
    Comparison,
    Fact,
    RunRecord,
    compare_runs,
    comparison_json,
    comparison_markdown,
    comparison_text,
    is_slower,
)
from harness.journal.events import Finding
from harness.journal.identity import is_same_finding, without_numbers

A = "suites/a/test_a.py::a"
P, F, G, S, K, N, L = (
    Outcome.PASSED,
    Outcome.FAILED,
    Outcome.GATED,
    Outcome.SKIPPED,
    Outcome.FLAKY,
    Outcome.NOT_RUN,
    Outcome.LEAKED,
)
_MISSING = None


def finding(kind: str, message: str, cases: tuple[str, ...] = (), reproduce: str | None = None) -> Finding:
    return Finding(t=1.0, kind=kind, message=message, cases=cases, reproduce=reproduce)


def runs(*outcomes: Outcome | None) -> list[RunRecord]:
    """Return a run for each outcome of one case; None means that the run lacks the case."""
    return [
        RunRecord(f"run{number}", {} if outcome is None else {A: CaseRecord(outcome, "why" if outcome.is_red else "")})
        for number, outcome in enumerate(outcomes)
    ]


def change(*outcomes: Outcome | None) -> tuple[str, str] | None:
    """Return the case's list and its text; None if it is in no list. The last outcome is the new run's."""
    *baseline, new = runs(*outcomes)
    found = compare_runs(baseline, new)
    entries = [(name, each.text) for name, _, changes in found.lists for each in changes]
    assert len(entries) + found.same == 1
    return entries[0] if entries else None


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((P, P), None),
        ((P, F), ("regressions", "was passed, now failed: why")),
        ((P, N), ("without a verdict", "was passed, now not_run: why")),
        ((N, N), ("without a verdict", "was not_run, now not_run: why")),
        ((N, P), None),
        ((N, F), ("regressions", "failed: why; it did not run before (not_run)")),
        ((F, N, P), ("fixes", "was not_run, now passed")),
        ((F, N, F), ("still red", "failed: why")),
        ((F, P), ("fixes", "was failed, now passed")),
        ((F, F), ("still red", "failed: why")),
        ((F, L), ("still red", "was failed, now leaked: why")),
        ((P, K), ("new flakes", "was passed, now flaky")),
        ((K, K), None),
        ((K, P), None),
        ((K, F), ("regressions", "was flaky, now failed: why")),
        ((P, G), ("newly gated", "was passed, now gated")),
        ((P, S), ("newly gated", "was passed, now skipped")),
        ((F, G), ("newly gated", "was failed, now gated")),
        ((N, G), None),
        ((G, P), None),
        ((G, F), ("regressions", "failed: why; it did not run before (gated)")),
        ((P, _MISSING), ("missing", "was passed, and is not in the new run")),
        ((_MISSING, P), ("new cases", "passed")),
        ((_MISSING, F), ("new cases", "failed: why")),
        ((P, P, P, F), ("regressions", "red in 0 of 3 runs, now failed: why")),
        ((P, F, P, F), ("regressions", "red in 1 of 3 runs, now failed: why")),
        ((P, G, P, F), ("regressions", "red in 0 of 2 runs, now failed: why")),
        ((F, F, F, F), ("still red", "failed: why")),
        ((F, L, F, F), ("still red", "was red, now failed: why")),
        ((F, P, P), None),
        ((K, P, K), None),
        ((P, _MISSING, _MISSING), "gone"),
    ],
)
def test_in_which_list_a_case_is(outcomes: tuple[Outcome | None, ...], expected: tuple[str, str] | str | None) -> None:
    if expected == "gone":  # it was missing before
        *baseline, new = runs(*outcomes)
        assert not any(changes for *_, changes in compare_runs(baseline, new).lists)
        return
    assert change(*outcomes) == expected


@pytest.mark.parametrize(
    ("old", "new", "slower"),
    [
        ([1.0], [2.0], False),  # single durations are not evidence
        ([1.0] * 5, [2.0] * 5, False),  # one of 252 arrangements
        ([1.0] * 6, [2.0] * 6, False),  # one of 924
        ([1.0] * 6, [2.0] * 7, True),
        ([1.0] * 30, [2.0] * 2, False),  # one of 496 arrangements
        ([1.0] * 30, [2.0] * 3, True),
        ([1.0] * 7, [1.2] * 7, False),
        ([0.001] * 7, [0.010] * 7, False),
        ([1.0] * 7 + [2.5], [2.0] * 7, False),  # one old duration was as long
        ([2.0] * 7, [1.0] * 7, False),
        ([], [1.0] * 9, False),
    ],
)
def test_slower(old: list[float], new: list[float], slower: bool) -> None:
    assert is_slower(old, new) is slower


def test_a_slower_case_is_reported_with_its_medians() -> None:
    old, new = (
        RunRecord("old", {A: CaseRecord(P, "", (1.0,) * 7)}),
        RunRecord("new", {A: CaseRecord(P, "", (3.0,) * 7)}),
    )
    (found,) = compare_runs([old], new).slower
    assert found.text == "3.0 times as long: a median of 3 s over 7 repetitions, 1 s over 7 before"


def test_facts_that_differ() -> None:
    old = [RunRecord("a", {}, {"driver": "570", "torch": "2.12", "os": "x"}), RunRecord("b", {}, {"driver": "570"})]
    new = RunRecord("c", {}, {"driver": "575", "torch": "2.12", "os": "x", "cuda": "13"})
    assert compare_runs(old, new).facts == (Fact("driver", ("570",), "575"), Fact("cuda", (), "13"))
    assert compare_runs(old, RunRecord("c", {})).facts == ()


def test_a_baseline_is_needed() -> None:
    with pytest.raises(ValueError, match="needs a baseline"):
        compare_runs([], RunRecord("new", {}))


LEAK = finding("batch_leak", "gw0-3: 786,432 bytes", (A,))
SESSION = finding("session", "process 17 ended at 0x7f00")


def red(name: str, *findings: Finding, status: int = 1) -> RunRecord:
    return RunRecord(name, {A: CaseRecord(P)}, findings=findings, exit_status=status)


@pytest.mark.parametrize(
    ("baseline", "new", "headings"),
    [
        ([()], (LEAK,), {"new findings": 1}),
        ([(LEAK,)], (LEAK,), {"findings as before": 1}),
        ([(LEAK,)], (), {"findings gone": 1}),
        ([(LEAK,), ()], (LEAK,), {"new findings": 1}),
        ([(LEAK,), (LEAK,)], (LEAK, SESSION), {"findings as before": 1, "new findings": 1}),
        ([(LEAK,), ()], (), {}),
        ([(LEAK,)], (SESSION,), {"new findings": 1, "findings gone": 1}),
    ],
)
def test_in_which_list_a_finding_is(
    baseline: list[tuple[Finding, ...]], new: tuple[Finding, ...], headings: dict[str, int]
) -> None:
    found = compare_runs([red(str(n), *each) for n, each in enumerate(baseline)], red("new", *new))
    assert {heading: len(each) for heading, _, each in found.findings if each} == headings
    assert found.is_worse(strict=False) is ("new findings" in headings)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (LEAK, finding("batch_leak", "something else", ("b", A)), True),
        (LEAK, finding("batch_leak", "gw1-27: 1.5 bytes", ("b",)), True),
        (LEAK, finding("batch_leak", "gw0-3: many bytes", ("b",)), False),
        (LEAK, finding("teardown", LEAK.message, LEAK.cases), False),
        (SESSION, finding("session", "process 1 ended at 0x1"), True),
        (SESSION, finding("session", "process 17 began at 0x7f00"), False),
    ],
)
def test_when_two_findings_are_the_same(one: Finding, other: Finding, expected: bool) -> None:
    assert is_same_finding(one.kind, one.message, one.cases, (other.kind, other.message, other.cases)) is expected


def test_numbers_are_left_out_of_a_text() -> None:
    assert without_numbers("gw0-3 grew by 1,024.5 KiB at 0xDEADbeef") == "gw#-# grew by # KiB at #"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (red("old", status=0), red("new"), True),
        (red("old", status=5), red("new", status=3), True),
        (red("old"), red("new"), False),
        (red("old", status=0), red("new", LEAK), False),
        (red("old", status=0), red("new", status=5), False),
        (red("old", status=0), RunRecord("new", {A: CaseRecord(F)}, exit_status=1), False),
        (red("old", status=0), RunRecord("new", {A: CaseRecord(K)}, exit_status=1, fail_on_flaky=True), False),
        (red("old", status=0), RunRecord("new", {A: CaseRecord(K)}, exit_status=1), True),
    ],
)
def test_a_run_that_is_red_for_no_case_and_no_finding_is_reported(old: RunRecord, new: RunRecord, said: bool) -> None:
    found = compare_runs([old], new)
    assert bool(found.unexplained) is said
    assert found.is_worse(strict=False) is (said or bool(found.regressions or found.new_findings or new.fail_on_flaky))
    assert ("REGRESSION the new run ended with exit status" in comparison_text(found)) is said


def test_findings_are_written_in_every_form() -> None:
    many = tuple(f"suites/a/test_a.py::b{number}" for number in range(292))
    leak = finding("batch_leak", "leaks <b>", many, "pytest x")
    found = compare_runs([red("old", SESSION, status=0)], red("new", leak))
    lines = comparison_text(found).splitlines()
    what = "leaks <b> [292 cases: suites/a/test_a.py::b0, suites/a/test_a.py::b1, suites/a/test_a.py::b2, …]"
    assert lines[1:3] == [f"NEW FINDING batch_leak: {what} - not in the baseline", "    pytest x"]
    assert lines[3] == "FINDING GONE session: process 17 ended at 0x7f00 - not in the new run"
    assert "1 new findings, 1 findings gone; 1 case as before" in lines[-1]
    written = comparison_markdown(found)
    assert written.startswith("## 0 regressions, 1 new finding\n")
    assert "### New findings (1)" in written
    assert "<b>" not in written.replace(r"\<b\>", "")
    assert json.loads(comparison_json(found))["new_findings"][0]["cases"] == list(many)


def test_figures_of_both_runs_are_listed_and_make_nothing_worse() -> None:
    def run(name: str, **figures: tuple[str, ...]) -> RunRecord:
        return RunRecord(name, {A: CaseRecord(P, figures=figures)})

    old = [run("a", d2d=("3 TB/s", "2.9 TB/s"), gone=("1 us",)), run("b", d2d=("3.2 TB/s",))]
    found = compare_runs(old, run("new", d2d=("1500 GB/s",), added=("1 us",)))
    assert [(each.name, each.old, each.new, each.text) for each in found.figures] == [
        ("d2d", "3 TB/s", "1500 GB/s", "0.50 times")
    ]
    assert not found.is_worse(strict=True)
    assert f"FIGURE d2d: 3 TB/s -> 1500 GB/s (0.50 times) - {A}" in comparison_text(found)
    assert r"| d2d | 3 TB/s | 1500 GB/s | 0\.50 times |" in comparison_markdown(found)
    assert json.loads(comparison_json(found))["figures"][0]["name"] == "d2d"


OUTCOMES = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(list(Outcome)), max_size=6)


@given(st.lists(OUTCOMES, min_size=1, max_size=4), OUTCOMES)
def test_each_case_is_counted_once(baseline: list[dict[str, Outcome]], new: dict[str, Outcome]) -> None:
    def record(name: str, outcomes: dict[str, Outcome]) -> RunRecord:
        return RunRecord(name, {case: CaseRecord(outcome) for case, outcome in outcomes.items()})

    found = compare_runs([record(str(n), each) for n, each in enumerate(baseline)], record("new", new))
    listed = [each.case for *_, changes in found.lists for each in changes]
    assert len(listed) == len({*listed})
    assert len(listed) + found.same == len({*new, *baseline[-1]})
    assert {each.case for each in found.regressions} <= {case for case in new if new[case].is_red and new[case].ran}


HOSTILE = "suites/a/test_a.py::t[<script>|`x`\n\x1b[31m*b*]"


def hostile() -> Comparison:
    old = RunRecord("old|dir", {HOSTILE: CaseRecord(P)}, {"driver": "<b>"})
    new = RunRecord("new", {HOSTILE: CaseRecord(F, "a | b <img>", (), "pytest x")}, {"driver": "2"}, ("it | ended",))
    return compare_runs([old], new)


def test_the_text_has_the_most_urgent_first() -> None:
    lines = comparison_text(hostile()).splitlines()
    assert lines[0] == "new compared with old|dir"
    assert lines[1] == "NOTE new: it | ended"
    assert lines[2] == "driver: <b> -> 2"
    assert lines[3].startswith("REGRESSION suites/a/test_a.py::t[<script>|`x`")
    assert "\x1b" not in "".join(lines)
    assert lines[-1].startswith("1 regressions, 0 without a verdict, 0 new flakes, ")


def test_markdown_has_nothing_that_a_text_of_a_run_could_format() -> None:
    written = comparison_markdown(hostile())
    rows = [line for line in written.splitlines() if line.startswith("| suites")]
    assert rows == [
        r"| suites/a/test\_a\.py::t\[\<script\>\|\`x\` \\x1b\[31m\*b\*\] | was passed, now failed: a \| b \<img\> |"
    ]
    assert written.startswith("## 1 regression\n")


def test_markdown_of_many_cases_is_cut() -> None:
    old = RunRecord("old", {f"c{n}": CaseRecord(P) for n in range(250)})
    new = RunRecord("new", {f"c{n}": CaseRecord(F) for n in range(250)})
    written = comparison_markdown(compare_runs([old], new))
    assert written.count("| c") == 101  # with the heading
    assert "… and 150 more cases" in written
    assert "### Regressions (250)" in written


def test_json_has_all_lists() -> None:
    found = json.loads(comparison_json(hostile()))
    assert found["schema"] == 1
    assert found["regressions"] == [
        {
            "case": HOSTILE,
            "old": ["passed"],
            "new": "failed",
            "text": "was passed, now failed: a | b <img>",
            "reproduce": "pytest x",
        }
    ]
    assert found["facts"] == [{"name": "driver", "old": ["<b>"], "new": "2"}]
    assert {*hostile().__slots__} <= {*found}
