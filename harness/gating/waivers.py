"""Waivers: known failures on certain machines, until a date. Plain values only.

A waived case still runs, and `rule_by_waivers` decides its outcome. `waiver_faults` and `idle_waivers` report problems
with the waivers of a run. `harness.gating.waiverfile` reads waivers from files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, NamedTuple

from harness.core.errors import HarnessError
from harness.core.outcome import Outcome, Ruling
from harness.devices.capabilities import Capabilities
from harness.gating import patterns, requirements
from harness.gating.requirements import Mark

#: The outcomes that a waiver may expect. `passed` and `flaky` are for intermittent failures.
EXPECTABLE = (
    Outcome.FAILED,
    Outcome.ERROR,
    Outcome.CRASHED,
    Outcome.TIMEOUT,
    Outcome.POISONED,
    Outcome.LEAKED,
    Outcome.CONTAMINATED,
    Outcome.RACED,
    Outcome.FLAKY,
    Outcome.PASSED,
)

#: The outcomes that the checks after a case give.
_CHECKED = frozenset({Outcome.LEAKED, Outcome.CONTAMINATED})


@dataclass(frozen=True, slots=True)
class Waiver:
    """One entry of a waiver file.

    `case` is a pattern for case ids. `when` has conditions as in ``requires``, already parsed once without error; if it
    is empty, the waiver holds everywhere. `link` is "" if none is given, which the run reports as a fault. `expires` is
    the last day on which the waiver holds. `source` is its file and line: ``configs/waivers/a.yaml:12``.
    """

    case: str
    when: Mapping[str, Any]
    expect: tuple[Outcome, ...]
    reason: str
    link: str
    owner: str
    expires: date
    source: str

    def __str__(self) -> str:
        return f"the waiver for {self.case!r} in {self.source}"

    @property
    def expected(self) -> str:
        """The expected outcomes in words: ``failed or crashed``."""
        return " or ".join(self.expect)

    def expired(self, today: date) -> bool:
        """Return whether the last day of the waiver is over."""
        return today > self.expires


class WaiverError(HarnessError):
    """A ``leaks`` mark of a case has invalid arguments."""


def waiver_from_mark(mark: Mark, case_id: str, source: str) -> Waiver:
    """Return the waiver for ``@pytest.mark.leaks(reason, link=..., kind="leaked")``. The waiver never expires.

    Raise WaiverError.
    """
    words = {"kind": Outcome.LEAKED.value, "link": "", **dict(zip(("reason",), mark.args, strict=False)), **mark.kwargs}
    if len(mark.args) > 1 or set(words) - {"reason", "kind", "link"} or not str(words.get("reason", "")).strip():
        raise WaiverError("leaks(...) takes a reason, link=... and optionally kind='leaked' or kind='contaminated'")
    if words["kind"] not in (Outcome.LEAKED, Outcome.CONTAMINATED):
        raise WaiverError(f"leaks(kind={words['kind']!r}): expected 'leaked' or 'contaminated'")
    if not is_link(str(words["link"])):
        raise WaiverError(f"leaks(link={words['link']!r}): give the URL of the issue that it waits for")
    kind = Outcome(words["kind"])
    return Waiver(case_id, {}, (kind,), str(words["reason"]), str(words["link"]), "", date.max, source)


def applying_waivers(
    waivers: Iterable[Waiver], case_id: str, capabilities: Capabilities, today: date
) -> tuple[Waiver, ...]:
    """Return the waivers that apply to a case on its device: pattern and conditions match, and the waiver is not
    expired.
    """
    return tuple(
        waiver
        for waiver in waivers
        if patterns.matches_pattern(waiver.case, case_id)
        and not waiver.expired(today)
        and requirements.first_unmet(requirements.parse_requirements(waiver.when), capabilities) is None
    )


def waivers_without_checks(waivers: Iterable[Waiver]) -> tuple[Waiver, ...]:
    """Return the waivers as they hold in a run with ``--leak-check=off``.

    That run does not see most leaks and changes of state, so a case for which nothing else is expected may also pass.
    """
    return tuple(
        replace(waiver, expect=(*waiver.expect, Outcome.PASSED)) if _CHECKED.issuperset(waiver.expect) else waiver
        for waiver in waivers
    )


def rule_by_waivers(settled: Outcome, message: str, waivers: Sequence[Waiver]) -> Ruling | None:
    """Return the ruling of the waivers that apply to a case, given its outcome without them and that outcome's message.

    None if no waiver applies, or if the case did not run to a verdict.
    """
    if not waivers or not settled.ran:
        return None
    if len(waivers) > 1:
        return _rule_of_several(settled, message, waivers)
    (waiver,) = waivers
    outcome, text = _rule_of_one(settled, message, waiver)
    return Ruling(outcome, text, waiver.source)


def _rule_of_several(settled: Outcome, message: str, waivers: Sequence[Waiver]) -> Ruling:
    listed = ", ".join(f"{waiver.case!r} in {waiver.source}" for waiver in waivers)
    text = f"{len(waivers)} waivers apply ({listed}): keep one; the case was {_with_message(settled, message)}"
    return Ruling(settled if settled.is_red else Outcome.FAILED, text, ", ".join(waiver.source for waiver in waivers))


def _rule_of_one(settled: Outcome, message: str, waiver: Waiver) -> tuple[Outcome, str]:
    """Return outcome and text, with one branch per kind of outcome.

    A red outcome stays unless the waiver expects it.
    """
    if settled is Outcome.WAIVED:
        return _rule_of_xfail(message, waiver)
    if settled is Outcome.UNEXPECTED_PASS:
        return settled, f"marked xfail and waived in {waiver.source}, and passed: remove both"
    because = f"{waiver.reason} ({waiver.link or 'no link'}; {waiver.source})"
    if settled is Outcome.PASSED and settled in waiver.expect:
        return settled, f"passed this time; waived as {waiver.expected}: {because}"
    if settled in waiver.expect:
        return Outcome.WAIVED, f"waived: {because}: {_with_message(settled, message)}"
    if settled is Outcome.PASSED:
        return (
            Outcome.UNEXPECTED_PASS,
            f"passed, but waived as {waiver.expected} in {waiver.source}: remove the waiver",
        )
    if settled is Outcome.FLAKY:
        advice = "if the failure is intermittent, expect flaky too"
        text = f"flaky, but waived as {waiver.expected} in {waiver.source}: {advice}; {message}"
        return Outcome.UNEXPECTED_PASS, text
    return settled, f"{settled}, but waived as {waiver.expected} in {waiver.source}: {message or 'no message'}"


def _rule_of_xfail(message: str, waiver: Waiver) -> tuple[Outcome, str]:
    """Return outcome and text for a case that failed as its mark ``xfail`` says.

    A waiver for a leak is no second one for the failure.
    """
    kinds = {*waiver.expect} - {Outcome.PASSED}
    if not kinds or kinds - _CHECKED:
        return Outcome.FAILED, f"marked xfail and waived in {waiver.source}: keep one"
    if Outcome.PASSED in waiver.expect:
        return Outcome.WAIVED, message
    text = f"failed as its xfail says, but waived as {waiver.expected} in {waiver.source}: remove the waiver"
    return Outcome.UNEXPECTED_PASS, text


def _with_message(outcome: Outcome, message: str) -> str:
    return f"{outcome}: {message}" if message else str(outcome)


def is_link(text: str) -> bool:
    """Return whether `text` is an http or https URL."""
    return re.fullmatch(r"https?://[^\s/?#]+([/?#]\S*)?", text) is not None


class WaiverFault(NamedTuple):
    """A problem with a waiver that makes the run red, with its kind."""

    kind: str
    message: str


def waiver_faults(waivers: Iterable[Waiver], today: date) -> list[WaiverFault]:
    """Return the faults of the waivers of a run that do not depend on its cases."""
    faults = []
    for waiver in waivers:
        if waiver.expired(today):
            advice = f"see {waiver.link}" if waiver.link else "ask its owner"
            message = f"{waiver} expired on {waiver.expires}: {advice}, then renew or remove it"
            faults.append(WaiverFault("waiver_expired", f"{message} (owner: {waiver.owner})"))
        if not is_link(waiver.link):
            problem = (
                f"has the link {waiver.link!r}, which is not an http or https URL" if waiver.link else "has no link"
            )
            message = f"{waiver} {problem}: give the URL of the issue that it waits for (owner: {waiver.owner})"
            faults.append(WaiverFault("waiver_no_link", message))
    return faults


def idle_waivers(
    waivers: Iterable[Waiver], case_ids: Collection[str], arguments: Sequence[str], unread: Collection[str] = ()
) -> list[WaiverFault]:
    """Return faults for the waivers that match none of `case_ids`: all collected cases, including deselected ones.

    `arguments` are the collection arguments of the run (see `pattern_reaches`), `unread` the beginnings of ids that the
    run has not collected. A waiver for cases outside the arguments, or for cases that may be unread, is not a fault.
    """
    return [
        WaiverFault("waiver_matches_nothing", f"{waiver} matches no case of this run: correct its pattern or remove it")
        for waiver in waivers
        if patterns.pattern_reaches(waiver.case, arguments)
        and not patterns.may_begin(patterns.literal_prefix(waiver.case), unread)
        and not any(patterns.matches_pattern(waiver.case, case_id) for case_id in case_ids)
    ]
