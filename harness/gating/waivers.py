"""Waivers: failures that are known, on the machines where they are known, until a date. Plain values only.

A waived case runs. `rule` says what becomes of its outcome, and `faults` what is wrong with the waivers of a run as a
whole. `harness.gating.waiverfile` reads them from files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

from harness.devices.capabilities import Capabilities
from harness.errors import HarnessError
from harness.gating import patterns, requirements
from harness.gating.requirements import Mark
from harness.outcome import Outcome, Ruling

#: What a waiver may expect of a case. `passed` and `flaky` are for intermittent failures.
EXPECTABLE = (
    Outcome.FAILED,
    Outcome.ERROR,
    Outcome.CRASHED,
    Outcome.TIMEOUT,
    Outcome.POISONED,
    Outcome.LEAKED,
    Outcome.CONTAMINATED,
    Outcome.FLAKY,
    Outcome.PASSED,
)


@dataclass(frozen=True, slots=True)
class Waiver:
    """One entry of a waiver file.

    `case` is a pattern over case ids. `when` holds conditions as ``requires`` takes them, and has been parsed once
    without error; empty, the waiver holds everywhere. `link` is "" where none is given, which is a fault of the run.
    `expires` is the last day on which the waiver holds. `source` says where it stands: ``configs/waivers/a.yaml:12``.
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
        """Whether its last day is over."""
        return today > self.expires

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "case": self.case,
            "when": dict(self.when),
            "expect": [outcome.value for outcome in self.expect],
            "reason": self.reason,
            "link": self.link,
            "owner": self.owner,
            "expires": self.expires.isoformat(),
            "source": self.source,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Waiver:
        """What `to_json` returned, after JSON carried it."""
        expect = tuple(Outcome(value) for value in data["expect"])
        return cls(**{**data, "expect": expect, "expires": date.fromisoformat(data["expires"])})


class WaiverError(HarnessError):
    """A waiver in a case's own marks that cannot be used."""


def from_mark(mark: Mark, case_id: str, source: str) -> Waiver:
    """The waiver that ``@pytest.mark.leaks(reason, link=..., kind="leaked")`` is; it has no end. Raises WaiverError."""
    words = {"kind": Outcome.LEAKED.value, "link": "", **dict(zip(("reason",), mark.args, strict=False)), **mark.kwargs}
    if len(mark.args) > 1 or set(words) - {"reason", "kind", "link"} or not str(words.get("reason", "")).strip():
        raise WaiverError("leaks(...) takes a reason, link=... and kind='leaked' or kind='contaminated'")
    if words["kind"] not in (Outcome.LEAKED, Outcome.CONTAMINATED):
        raise WaiverError(f"leaks(kind={words['kind']!r}): expected 'leaked' or 'contaminated'")
    if not is_link(str(words["link"])):
        raise WaiverError(f"leaks(link={words['link']!r}): give the link of the issue that it waits for")
    kind = Outcome(words["kind"])
    return Waiver(case_id, {}, (kind,), str(words["reason"]), str(words["link"]), "", date.max, source)


def applying(waivers: Iterable[Waiver], case_id: str, capabilities: Capabilities, today: date) -> tuple[Waiver, ...]:
    """The waivers that hold for a case on what it ran on: pattern, conditions and date all fit."""
    return tuple(
        waiver
        for waiver in waivers
        if patterns.matches(waiver.case, case_id)
        and not waiver.expired(today)
        and requirements.evaluate(requirements.parse(waiver.when), capabilities) is None
    )


def rule(settled: Outcome, message: str, waivers: Sequence[Waiver]) -> Ruling | None:
    """What the waivers that apply make of a case, given its outcome without them and that outcome's message.

    None where they have nothing to say: none applies, or the case came to no verdict of its own.
    """
    if not waivers or not settled.ran:
        return None
    if len(waivers) > 1:
        return _two(settled, message, waivers)
    (waiver,) = waivers
    outcome, text = _one(settled, message, waiver)
    return Ruling(outcome, text, waiver.source)


def _two(settled: Outcome, message: str, waivers: Sequence[Waiver]) -> Ruling:
    told = ", ".join(f"{waiver.case!r} in {waiver.source}" for waiver in waivers)
    text = f"{len(waivers)} waivers apply ({told}): keep one; the case was {_told(settled, message)}"
    return Ruling(settled if settled.is_red else Outcome.FAILED, text, ", ".join(each.source for each in waivers))


def _one(settled: Outcome, message: str, waiver: Waiver) -> tuple[Outcome, str]:
    """A row for each kind of outcome; those that are red stay what they are unless the waiver expects them."""
    if settled is Outcome.WAIVED:
        return Outcome.FAILED, f"marked xfail and waived in {waiver.source}: keep one"
    if settled is Outcome.UNEXPECTED_PASS:
        return settled, f"marked xfail and waived in {waiver.source}, and passed: remove both"
    because = f"{waiver.reason} ({waiver.link or 'no link'}; {waiver.source})"
    if settled is Outcome.PASSED and settled in waiver.expect:
        return settled, f"passed this time; waived as {waiver.expected}: {because}"
    if settled in waiver.expect:
        return Outcome.WAIVED, f"waived: {because}: {_told(settled, message)}"
    if settled is Outcome.PASSED:
        return (
            Outcome.UNEXPECTED_PASS,
            f"passed, though waived as {waiver.expected} in {waiver.source}: remove the waiver",
        )
    if settled is Outcome.FLAKY:
        advice = "expect flaky too if it comes and goes"
        text = f"flaky, though waived as {waiver.expected} in {waiver.source}: {advice}; {message}"
        return Outcome.UNEXPECTED_PASS, text
    return settled, f"{settled}, though waived as {waiver.expected} in {waiver.source}: {message or 'no message'}"


def _told(outcome: Outcome, message: str) -> str:
    return f"{outcome}: {message}" if message else str(outcome)


def is_link(text: str) -> bool:
    """Whether `text` is a link that a reader can follow: an http or https URL."""
    return re.fullmatch(r"https?://[^\s/?#]+([/?#]\S*)?", text) is not None


class Fault(NamedTuple):
    """Something about the waivers of a run that makes it red by itself, with the word for its kind."""

    kind: str
    message: str


def faults(waivers: Iterable[Waiver], today: date) -> list[Fault]:
    """What is wrong with the waivers of a run, whatever its cases are."""
    found = []
    for waiver in waivers:
        if waiver.expired(today):
            message = f"{waiver} expired on {waiver.expires}: see {waiver.link or 'its owner'}, then renew or remove it"
            found.append(Fault("waiver_expired", f"{message} (owner: {waiver.owner})"))
        if not is_link(waiver.link):
            what = f"has a link that is no URL, {waiver.link!r}" if waiver.link else "has no link"
            message = f"{waiver} {what}: give the one of the issue it waits for (owner: {waiver.owner})"
            found.append(Fault("waiver_no_link", message))
    return found


def idle(waivers: Iterable[Waiver], case_ids: Collection[str], arguments: Sequence[str]) -> list[Fault]:
    """The waivers that match none of `case_ids`: all that were collected, deselected ones too.

    `arguments` are what the run was told to collect (see `patterns.reaches`): a waiver for what it left out is not
    blamed.
    """
    return [
        Fault("waiver_matches_nothing", f"{waiver} matches no case of this run: correct its pattern or remove it")
        for waiver in waivers
        if patterns.reaches(waiver.case, arguments)
        and not any(patterns.matches(waiver.case, case_id) for case_id in case_ids)
    ]
