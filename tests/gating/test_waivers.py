"""Waivers: when one applies, its ruling on an outcome, and the faults of a run's waivers."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from datetime import date, timedelta
from typing import Any

import msgspec
import pytest

from harness.core.outcome import Outcome
from harness.devices.capabilities import VOCABULARY, Capabilities
from harness.devices.device import Detected, Value
from harness.gating.waivers import (
    EXPECTABLE,
    Waiver,
    WaiverError,
    WaiverFault,
    applying_waivers,
    idle_waivers,
    is_link,
    rule_by_waivers,
    waiver_faults,
    waiver_from_mark,
    waivers_without_checks,
)
from tests.gating import examples
from tests.gating.examples import TODAY

CASE = "suites/streams/test_x.py::test_copy[cuda-1]"


def waiver(case: str = CASE, **changes: Any) -> Waiver:
    return examples.waiver(case, **changes)


def found(**values: Value | None) -> Capabilities:
    """The capabilities of a device: these values, all others absent."""
    return Capabilities({name: functools.partial(Detected, values.get(name)) for name in VOCABULARY})


GPU = found(device="cuda", driver=(570, 1), compute_capability=(9, 0))


def test_a_waiver_is_the_same_after_json_carried_it() -> None:
    before = waiver(when={"driver": ">=570", "not": {"ecc": True}}, expect=(Outcome.CRASHED, Outcome.PASSED))
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(before))), Waiver) == before


@pytest.mark.parametrize(
    ("changes", "applies"),
    [
        pytest.param({}, True, id="on its last day"),
        pytest.param({"expires": TODAY - timedelta(days=1)}, False, id="not the day after"),
        pytest.param({"case": "suites/streams/*[cuda-*]"}, True, id="its pattern matches the case"),
        pytest.param({"case": "suites/profiler/*"}, False, id="its pattern does not match"),
        pytest.param({"when": {"device": "cuda", "driver": ">=570,<571"}}, True, id="its conditions hold"),
        pytest.param({"when": {"device": "cuda", "driver": ">=571"}}, False, id="one of them does not"),
        pytest.param({"when": {"not": {"device": "cuda"}}}, False, id="a negated one does not"),
        pytest.param({"link": ""}, True, id="a missing link is reported elsewhere"),
    ],
)
def test_a_waiver_applies_where_pattern_conditions_and_date_fit(changes: dict[str, Any], applies: bool) -> None:
    one = waiver(**changes)
    assert applying_waivers([one], CASE, GPU, TODAY) == ((one,) if applies else ())


def test_all_waivers_that_apply_are_given() -> None:
    first, second = waiver(), waiver("*", source="known.yaml:9")
    assert applying_waivers([first, waiver("other"), second], CASE, GPU, TODAY) == (first, second)


REASON = "copies are not ordered (https://example.org/1; known.yaml:2)"
FLAKY_TOO = (Outcome.FAILED, Outcome.FLAKY, Outcome.PASSED)


@pytest.mark.parametrize(
    ("settled", "message", "expect", "outcome", "text"),
    [
        pytest.param("failed", "E 1", ("failed",), "waived", f"waived: {REASON}: failed: E 1", id="expected failure"),
        pytest.param("crashed", "", ("crashed",), "waived", f"waived: {REASON}: crashed", id="expected crash"),
        pytest.param("timeout", "t", ("failed", "timeout"), "waived", f"waived: {REASON}: timeout: t", id="one of two"),
        pytest.param(
            "passed",
            "",
            ("failed",),
            "unexpected_pass",
            "passed, but waived as failed in known.yaml:2: remove the waiver",
            id="unexpected pass",
        ),
        pytest.param(
            "crashed",
            "SIGSEGV in call",
            ("failed", "timeout"),
            "crashed",
            "crashed, but waived as failed or timeout in known.yaml:2: SIGSEGV in call",
            id="another outcome than waived",
        ),
        pytest.param(
            "leaked",
            "",
            ("failed",),
            "leaked",
            "leaked, but waived as failed in known.yaml:2: no message",
            id="another outcome without a message",
        ),
        pytest.param(
            "flaky",
            "message",
            ("crashed",),
            "unexpected_pass",
            "flaky, but waived as crashed in known.yaml:2: if the failure is intermittent, expect flaky too; message",
            id="flaky where it should have failed",
        ),
        pytest.param("flaky", "f", FLAKY_TOO, "waived", f"waived: {REASON}: flaky: f", id="expected to be flaky"),
        pytest.param(
            "passed",
            "",
            FLAKY_TOO,
            "passed",
            f"passed this time; waived as failed or flaky or passed: {REASON}",
            id="intermittent, and passed this time",
        ),
        pytest.param("failed", "f", FLAKY_TOO, "waived", f"waived: {REASON}: failed: f", id="intermittent, and failed"),
        pytest.param(
            "waived",
            "expected failure",
            ("failed",),
            "failed",
            "marked xfail and waived in known.yaml:2: keep one",
            id="marked and waived",
        ),
        pytest.param(
            "waived",
            "expected failure",
            ("leaked",),
            "unexpected_pass",
            "failed as its xfail says, but waived as leaked in known.yaml:2: remove the waiver",
            id="marked, and without the leak that is waived",
        ),
        pytest.param(
            "waived", "expected failure", ("leaked", "passed"), "waived", "expected failure", id="marked, may leak"
        ),
        pytest.param(
            "unexpected_pass",
            "",
            ("failed",),
            "unexpected_pass",
            "marked xfail and waived in known.yaml:2, and passed: remove both",
            id="marked and waived, and passed",
        ),
    ],
)
def test_the_ruling_of_one_waiver(settled: str, message: str, expect: tuple[str, ...], outcome: str, text: str) -> None:
    one = waiver(expect=tuple(Outcome(word) for word in expect))
    ruling = rule_by_waivers(Outcome(settled), message, [one])
    assert ruling is not None
    assert (ruling.outcome, ruling.text, ruling.source) == (Outcome(outcome), text, "known.yaml:2")


@pytest.mark.parametrize("settled", list(Outcome))
@pytest.mark.parametrize("expect", EXPECTABLE)
def test_a_waiver_turns_only_expected_outcomes_green(settled: Outcome, expect: Outcome) -> None:
    ruling = rule_by_waivers(settled, "", [waiver(expect=(expect,))])
    if not settled.ran:
        assert ruling is None
    else:
        assert ruling is not None
        assert ruling.outcome.is_red is (settled is not expect)


@pytest.mark.parametrize(
    ("expect", "added"),
    [(("leaked",), True), (("contaminated",), True), (("failed",), False), (("failed", "leaked"), False)],
)
def test_without_checks_a_case_that_only_leaks_may_pass(expect: tuple[str, ...], added: bool) -> None:
    outcomes = tuple(Outcome(word) for word in expect)
    (found,) = waivers_without_checks([waiver(expect=outcomes)])
    assert found == waiver(expect=(*outcomes, Outcome.PASSED) if added else outcomes)


@pytest.mark.parametrize("settled", list(Outcome))
def test_without_a_waiver_there_is_no_ruling(settled: Outcome) -> None:
    assert rule_by_waivers(settled, "", []) is None


@pytest.mark.parametrize("settled", list(Outcome))
def test_two_waivers_for_one_case_are_red_whatever_it_did(settled: Outcome) -> None:
    both = [waiver(expect=(Outcome.FAILED, Outcome.PASSED)), waiver("*", source="more.yaml:5")]
    ruling = rule_by_waivers(settled, "m", both)
    if not settled.ran:
        assert ruling is None
        return
    assert ruling is not None
    assert ruling.outcome is (settled if settled.is_red else Outcome.FAILED)
    assert ruling.text == (
        f"2 waivers apply ('{CASE}' in known.yaml:2, '*' in more.yaml:5): keep one; the case was {settled}: m"
    )
    assert ruling.source == "known.yaml:2, more.yaml:5"


def all_faults(
    *waivers: Waiver, case_ids: tuple[str, ...] = (CASE,), arguments: tuple[str, ...] = ("suites",)
) -> list[WaiverFault]:
    return waiver_faults(waivers, TODAY) + idle_waivers(waivers, case_ids, arguments)


def test_a_valid_waiver_has_no_fault() -> None:
    assert all_faults(waiver()) == []


def test_an_expired_waiver_is_a_fault() -> None:
    (fault,) = all_faults(waiver(expires=TODAY - timedelta(days=1)))
    assert fault == (
        "waiver_expired",
        f"the waiver for '{CASE}' in known.yaml:2 expired on 2026-11-20: see https://example.org/1, "
        "then renew or remove it (owner: somebody)",
    )


@pytest.mark.parametrize(
    ("link", "words"), [("", "has no link"), ("TODO", "has the link 'TODO', which is not an http or https URL")]
)
def test_a_waiver_without_a_valid_link_is_a_fault(link: str, words: str) -> None:
    (fault,) = all_faults(waiver(link=link))
    assert fault.kind == "waiver_no_link"
    assert fault.message.startswith(f"the waiver for '{CASE}' in known.yaml:2 {words}: give the URL")


@pytest.mark.parametrize(
    ("pattern", "arguments", "kinds"),
    [
        pytest.param("suites/streams/*", ("suites",), [], id="it matches"),
        pytest.param(
            "suites/gone/*", ("suites",), ["waiver_matches_nothing"], id="it matches nothing that was collected"
        ),
        pytest.param("suites/gone/*", ("suites/streams",), [], id="what it is about was not to be collected"),
        pytest.param("suites/gone/*", (".",), ["waiver_matches_nothing"], id="everything was collected"),
    ],
)
def test_a_waiver_that_matches_no_case_is_a_fault(pattern: str, arguments: tuple[str, ...], kinds: list[str]) -> None:
    assert [fault.kind for fault in all_faults(waiver(pattern), arguments=arguments)] == kinds


def test_every_fault_of_a_waiver_is_reported() -> None:
    kinds = [fault.kind for fault in all_faults(waiver("suites/gone", link="", expires=date(2020, 1, 1)))]
    assert kinds == ["waiver_expired", "waiver_no_link", "waiver_matches_nothing"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://example.org/issues/1", True),
        ("http://example.org", True),
        ("https://example.org?issue=1", True),
        ("", False),
        ("TODO", False),
        ("https://", False),
        ("https:///1", False),
        ("https://example.org/a b", False),
        ("see https://example.org/1", False),
        ("javascript:alert(1)", False),
    ],
)
def test_a_link_is_an_http_url(text: str, expected: bool) -> None:
    assert is_link(text) is expected


def test_a_worker_loads_no_reader_of_files_for_them() -> None:
    heavy = {"pydantic", "yaml", "torch"}
    code = f"import sys, harness.gating.waivers; sys.exit(' '.join({heavy} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


LINK = "https://example.org/1"


@pytest.mark.parametrize(
    ("mark", "expect"),
    [
        (pytest.mark.leaks("known", link=LINK), Outcome.LEAKED),
        (pytest.mark.leaks(reason="known", link=LINK), Outcome.LEAKED),
        (pytest.mark.leaks("known", link=LINK, kind="contaminated"), Outcome.CONTAMINATED),
    ],
)
def test_a_mark_is_a_waiver_without_an_end(mark: pytest.MarkDecorator, expect: Outcome) -> None:
    found = waiver_from_mark(mark.mark, "suites/a.py::test[x]", "suites/a.py:3")
    assert (found.case, found.expect, found.reason, found.source) == (
        "suites/a.py::test[x]",
        (expect,),
        "known",
        "suites/a.py:3",
    )
    assert not found.expired(date(9999, 1, 1))


@pytest.mark.parametrize(
    ("mark", "error"),
    [
        (pytest.mark.leaks(), "takes a reason, link=... and optionally kind"),
        (pytest.mark.leaks("a", "b", link=LINK), "takes a reason"),
        (pytest.mark.leaks(" ", link=LINK), "takes a reason"),
        (pytest.mark.leaks("a", link=LINK, until="2027"), "takes a reason"),
        (pytest.mark.leaks("a", link=LINK, kind="failed"), "leaks(kind='failed'): expected 'leaked' or 'contaminated'"),
        (pytest.mark.leaks("a"), "leaks(link=''): give the URL of the issue"),
        (pytest.mark.leaks("a", link="soon"), "leaks(link='soon'): give the URL"),
    ],
)
def test_a_mark_that_cannot_be_used_is_refused(mark: pytest.MarkDecorator, error: str) -> None:
    with pytest.raises(WaiverError) as caught:
        waiver_from_mark(mark.mark, "a", "b")
    assert error in str(caught.value)
