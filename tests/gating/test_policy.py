"""Policy: selection, gates, verdicts and verification, as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

import msgspec
import pytest

from harness.core.outcome import AttemptResult, Outcome
from harness.devices.capabilities import Capabilities
from harness.devices.device import Detected, Value
from harness.gating import policy as rules
from harness.gating.policy import Policy
from harness.gating.requirements import parse_requirements
from harness.gating.waivers import Waiver

O = Outcome  # noqa: E741 - the tables below are read by column

WAIVER = Waiver(
    case="*",
    when={"not": {"device": "cuda"}},
    expect=(O.FAILED,),
    reason="known",
    link="https://example.org/1",
    owner="me",
    expires=date(2030, 1, 1),
    source="known.yaml:2",
)


def result(outcome: Outcome, message: str = "", *, alone: bool = True, duration: float = 1.0) -> AttemptResult:
    return AttemptResult(outcome, message=message, alone=alone, duration=duration)


def test_a_policy_travels_as_json() -> None:
    policy = Policy(
        profile="nightly",
        hardware="h200",
        promised={"device": "cuda", "any": [{"ecc": True}]},
        gates=("memory",),
        skips=False,
        suites=("streams",),
        cases=("a*", "b"),
        exclude=("c",),
        waivers=(WAIVER,),
        shuffle=True,
        repeat=3,
        retries=2,
        verify=5,
    )
    for each in (policy, Policy()):
        assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(each))), Policy) == each


@pytest.mark.parametrize(
    ("chosen", "selected"),
    [
        ({}, ["s/a::x", "s/a::y", "s/b::x"]),
        ({"suites": ("a",)}, ["s/a::x", "s/a::y"]),
        ({"cases": ("*::x",)}, ["s/a::x", "s/b::x"]),
        ({"suites": ("b",), "cases": ("*::y",)}, ["s/a::y", "s/b::x"]),
        ({"exclude": ("*::x",)}, ["s/a::y"]),
        ({"suites": ("a",), "exclude": ("*::y",)}, ["s/a::x"]),
        ({"suites": ("c",)}, []),
    ],
)
def test_selection(chosen: dict[str, Any], selected: list[str]) -> None:
    cases = {"s/a::x": "a", "s/a::y": "a", "s/b::x": "b"}
    assert [case for case, suite in cases.items() if Policy(**chosen).selects(case, suite)] == selected


@pytest.mark.parametrize(
    ("chosen", "arguments", "reported"),
    [
        ({"suites": ("a", "zz")}, ["."], [("suites", 1)]),
        ({"suites": ("a", "zz")}, ["suites/a"], []),
        ({"suites": ("zz",)}, ["suites/zz"], [("suites", 0)]),
        ({"cases": ("suites/a/*", "suites/zz/*")}, ["suites"], [("cases", 1)]),
        ({"cases": ("suites/zz/*",)}, ["suites/a"], []),
        ({"exclude": ("*::gone",)}, ["."], [("exclude", 0)]),
        ({"exclude": ("*::gone",)}, [], []),
        ({}, ["."], []),
    ],
)
def test_a_pattern_without_a_case_is_reported_only_if_the_run_collected_its_cases(
    chosen: dict[str, Any], arguments: list[str], reported: list[tuple[str, int]]
) -> None:
    found = rules.idle_rules(Policy(**chosen), [("suites/a/test_x.py::x", "a")], arguments)
    assert [where for where, _ in found] == reported


SMALL: dict[str, Value | None] = {
    "device": "cuda",
    "memory": 8 * 2**30,
    "triton": None,
    "ecc": False,
    "torch": (2, 13, 1),
}


def gate(policy: Policy, requires: Mapping[str, object]) -> str | None:
    findings = {name: Detected(value) for name, value in SMALL.items()}
    offered = Capabilities({name: partial(findings.__getitem__, name) for name in findings})
    ruling = rules.rule_on_gate(policy, parse_requirements(requires), offered)
    return None if ruling is None else f"{ruling.outcome}: {ruling.text}"


@pytest.mark.parametrize(
    ("policy", "requires", "ruling"),
    [
        (Policy(), {"triton": True}, None),
        (Policy(profile="p", gates=("triton",)), {"triton": True}, None),
        (
            Policy(profile="p", gates=("memory",)),
            {"triton": True},
            "failed: gated, but profile p does not allow gating for triton: triton: wanted True, found",
        ),
        (Policy(profile="p", gates=("memory",)), {"triton": True, "memory": ">=12GiB"}, None),
        (Policy(profile="p", gates=("memory",)), {"any": [{"memory": ">=12GiB"}, {"ecc": True}]}, "failed: gated"),
        (Policy(profile="p", gates=("memory", "ecc")), {"any": [{"memory": ">=12GiB"}, {"ecc": True}]}, None),
        (Policy(profile="p", gates=()), {"not": {"ecc": False}}, "failed: gated"),
        # A requirement that is lower than the machine's value is not a gap.
        (Policy(profile="p", gates=()), {"not": {"device": "cuda"}}, None),
        (Policy(profile="p", gates=()), {"memory": "<8GiB"}, None),
        (Policy(profile="p", gates=()), {"torch": False}, None),
        (Policy(profile="p", gates=()), {"torch": "<2.12"}, None),
        (Policy(profile="p", gates=()), {"torch": "==2.12"}, None),
        (Policy(profile="p", gates=()), {"torch": "!=2.13"}, None),
        (Policy(profile="p", gates=()), {"torch": "==2.14"}, "failed: gated"),
        (Policy(profile="p", gates=()), {"torch": ">=2.11,<2.13"}, None),
        (Policy(profile="p", gates=()), {"torch": ">=2.14"}, "failed: gated"),
        (Policy(profile="p", gates=()), {"torch": ">=2.14,<2.15"}, "failed: gated"),
        (Policy(profile="p", gates=()), {"triton": "<3"}, "failed: gated"),
        (Policy(profile="p", gates=()), {"device": "soft"}, "failed: gated"),
        (Policy(profile="p", gates=()), {"not": {"device": "cuda", "memory": "<12GiB"}}, "failed: gated"),
        (Policy(profile="p", gates=()), {"any": [{"not": {"device": "cuda"}}, {"torch": False}]}, None),
        (Policy(profile="p", gates=()), {"any": [{"not": {"device": "cuda"}}, {"triton": True}]}, "failed: gated"),
        (
            Policy(hardware="h", promised={"memory": "<8GiB"}),
            {"memory": "<8GiB"},
            "failed: gated, but hardware h promises",
        ),
        (
            Policy(hardware="h", promised={"memory": ">=16GiB"}),
            {"memory": ">=12GiB"},
            "failed: gated, but hardware h promises what the case requires: memory: wanted >=12GiB, found 8.0GiB",
        ),
        (Policy(hardware="h", promised={"memory": ">=8GiB"}), {"memory": ">=12GiB"}, None),
        (Policy(hardware="h", promised={"triton": True}), {"memory": ">=12GiB", "triton": True}, None),
        (
            Policy(hardware="h", promised={"triton": True}, profile="p", gates=("triton",)),
            {"triton": True},
            "failed: gated, but hardware h promises",
        ),
    ],
)
def test_gates(policy: Policy, requires: Mapping[str, object], ruling: str | None) -> None:
    found = gate(policy, requires)
    assert (found is None) == (ruling is None)
    assert (found or "").startswith(ruling or "")


@pytest.mark.parametrize(
    ("policy", "settled", "finals", "waivers", "ruling"),
    [
        (Policy(), O.PASSED, [result(O.PASSED)], [], None),
        (Policy(), O.FAILED, [result(O.FAILED, "no")], [], None),
        (Policy(skips=True), O.SKIPPED, [result(O.SKIPPED, "why")], [], None),
        (
            Policy(profile="p", skips=False),
            O.SKIPPED,
            [result(O.SKIPPED, "why")],
            [],
            (O.FAILED, "skipped itself, but profile p forbids skips: why"),
        ),
        (Policy(), O.FAILED, [result(O.FAILED, "no")], [WAIVER], (O.WAIVED, "known")),
        (Policy(), O.PASSED, [result(O.PASSED)], [WAIVER], (O.UNEXPECTED_PASS, "known.yaml:2")),
        (
            Policy(repeat=3),
            O.FAILED,
            [result(O.PASSED), result(O.FAILED, "no"), result(O.PASSED)],
            [],
            (O.FAILED, "failed in 1 of 3 repetitions: no"),
        ),
        (
            Policy(repeat=3),
            O.CRASHED,
            [result(O.CRASHED, "SIGSEGV"), result(O.FAILED, "no"), result(O.CRASHED, "SIGSEGV")],
            [],
            (O.CRASHED, "crashed in 2 of 3 repetitions: SIGSEGV"),
        ),
        (Policy(repeat=2), O.PASSED, [result(O.PASSED), result(O.PASSED)], [], None),
        (Policy(repeat=2), O.FLAKY, [result(O.PASSED), result(O.PASSED)], [], None),
        (
            Policy(repeat=2),
            O.FAILED,
            [result(O.FAILED, "no"), result(O.FAILED, "no")],
            [WAIVER],
            (O.WAIVED, "failed in 2 of 2 repetitions: no"),
        ),
    ],
)
def test_verdicts(
    policy: Policy,
    settled: Outcome,
    finals: Sequence[AttemptResult],
    waivers: Sequence[Waiver],
    ruling: tuple[Outcome, str] | None,
) -> None:
    found = rules.rule_on_verdict(policy, settled, finals, waivers)
    if ruling is None:
        assert found is None
    else:
        assert found is not None
        assert found.outcome is ruling[0]
        assert ruling[1] in f"{found.text} {found.source}"


GOOD, BAD = result(O.PASSED), result(O.FAILED, "no")


@pytest.mark.parametrize(
    ("together", "afresh", "outcome", "text"),
    [
        ([GOOD, GOOD], [GOOD, GOOD], O.PASSED, "verified: passed 4 times, the slowest in 1.00 s"),
        (
            [GOOD, BAD],
            [GOOD, GOOD],
            O.FAILED,
            "not verified: passed 1 of 2 times in one process and 2 of 2 times in fresh processes; failed: no",
        ),
        ([GOOD, GOOD], [GOOD, BAD], O.FAILED, "2 of 2 times in one process and 1 of 2 times in fresh processes"),
        ([BAD, BAD], [BAD, BAD], O.FAILED, "0 of 2 times in one process and 0 of 2 times"),
        ([GOOD, result(O.CRASHED, "SIGSEGV")], [GOOD, BAD], O.FAILED, "crashed: SIGSEGV"),
        ([GOOD, result(O.CRASHED)], [GOOD, GOOD], O.FAILED, "in fresh processes; crashed"),
        ([result(O.SKIPPED, "why")] * 2, [result(O.SKIPPED, "why")] * 2, O.SKIPPED, "why"),
        ([result(O.SKIPPED, "why")] * 2, [GOOD, GOOD], O.FAILED, "not verified: passed 0 of 2 times"),
        ([result(O.WAIVED, "xfail")] * 2, [result(O.WAIVED, "xfail")] * 2, O.WAIVED, "xfail"),
        ([GOOD, GOOD], [GOOD, result(O.PASSED, duration=8.0)], O.PASSED, "verified"),
        (
            [GOOD, GOOD],
            [GOOD, result(O.PASSED, duration=8.1)],
            O.FAILED,
            "not verified: the slowest run took 8.1 s, over 80% of the limit of 10 s",
        ),
    ],
)
def test_verification(together: list[AttemptResult], afresh: list[AttemptResult], outcome: Outcome, text: str) -> None:
    ruling = rules.rule_on_verification(together, afresh, 10.0)
    assert ruling.outcome is outcome
    assert text in ruling.text


@pytest.mark.parametrize(
    ("policy", "extended", "operators", "named", "selected"),
    [
        (Policy(), False, (), False, True),
        (Policy(), True, ("add",), False, False),
        (Policy(), True, ("add",), True, True),
        (Policy(extended=True), True, (), False, True),
        (Policy(operators=("add",)), True, ("add", "add.Tensor"), False, True),
        (Policy(operators=("add",)), False, (), False, False),
        (Policy(operators=("add",), extended=True), True, ("mul",), True, False),
    ],
)
def test_marks_select(policy: Policy, extended: bool, operators: tuple[str, ...], named: bool, selected: bool) -> None:
    assert rules.selects_marked(policy, extended=extended, operators=operators, named=named) is selected
