"""One case as an element of a JUnit report: its verdict, its attempts and their output, as cleaned texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.core.outcome import Outcome
from harness.core.text import cap, clean, one_line
from harness.journal.events import Finding, Finish, Levels
from harness.journal.verdicts import Verdict
from harness.protocol.exit_text import executor_exit_text
from harness.reporting.junit_flavour import Flavour
from harness.reporting.junit_names import Names
from harness.reporting.repetitions import repeated
from harness.reporting.xml_text import attributes, element, escaped

#: Characters of one captured text or traceback, if the report has room for them.
MOST_TEXT = 32_768
#: The limits that are tried, until the report is small enough.
LIMITS = (*(MOST_TEXT >> step for step in range(16)), 0)
#: Of texts of cases that are not red, this part of the limit is kept.
_GREEN_SHARE = 8

_FAILURES = frozenset({Outcome.FAILED, Outcome.LEAKED, Outcome.CONTAMINATED, Outcome.UNEXPECTED_PASS})
_ERRORS = frozenset({Outcome.ERROR, Outcome.CRASHED, Outcome.TIMEOUT, Outcome.POISONED, Outcome.LOST})
_SKIPS = frozenset({Outcome.GATED, Outcome.SKIPPED, Outcome.WAIVED, Outcome.NOT_RUN})


_TAGS = {
    outcome: tag
    for tag, outcomes in (("failure", _FAILURES), ("error", _ERRORS), ("skipped", _SKIPS))
    for outcome in outcomes
}


def tag_of(outcome: Outcome, *, fail_on_flaky: bool) -> str:
    """The element of a case with this outcome; empty for a case that readers are to count as passed."""
    return "failure" if fail_on_flaky and outcome is Outcome.FLAKY else _TAGS.get(outcome, "")


@dataclass(frozen=True, slots=True)
class CaseWriter:
    """Writes cases in a flavour, with at most `limit` characters of each captured text and traceback.

    `costs`: if there is such a list, the bytes that texts need with each of LIMITS are added to it.
    """

    flavour: Flavour
    names: Names
    limit: int
    costs: list[int] | None = None

    def case(self, verdict: Verdict, levels: Sequence[Levels], tag: str, seconds: float) -> str:
        """The element of a case. `tag`: that of its result, see `tag_of`."""
        inner = self._result(tag, verdict) if tag else ""
        earlier = () if tag == "skipped" else verdict.earlier  # readers count a flaky case as passed
        if self.flavour.interim:
            inner += "".join(self._interim(verdict, attempt) for attempt in earlier)
        if verdict.decided is not None:
            inner += self._output(verdict, verdict.decided, levels, () if tag or self.flavour.interim else earlier)
        return (
            f"<testcase{self._attributes(verdict.case, seconds)}>{inner}</testcase>\n"
            if inner
            else (f"<testcase{self._attributes(verdict.case, seconds)} />\n")
        )

    def _attributes(self, case: str, seconds: float) -> str:
        classname, name = self.names.of(case)
        if not self.flavour.whole_ids:
            return attributes(name=name, classname=classname, time=str(seconds))
        return attributes(name=name, classname=classname, file=clean(case.partition("::")[0]), time=str(seconds))

    def _result(self, tag: str, verdict: Verdict) -> str:
        # The text repeats the message, because GitLab shows only the text, and only the first lines of a long text.
        lines = [verdict.message or str(verdict.outcome), *_command(verdict.reproduce)]
        lines += [f"second device: {each.text}" for each in verdict.second_devices]
        attempt = verdict.decided or next(reversed(verdict.finishes), None)
        if attempt is not None:
            lines += _facts(attempt)
        if verdict.decided is not None:
            lines += self._detail(verdict.decided.detail)
        if not self.flavour.interim and tag != "skipped":
            lines += self._told(verdict.earlier)
        message = one_line(verdict.message) or str(verdict.outcome)
        return element(tag, _block(lines), type=str(verdict.outcome), message=message)

    def _interim(self, verdict: Verdict, attempt: Finish) -> str:
        """An attempt that did not decide, in the words of Maven's Surefire."""
        tag = "flakyFailure"
        if verdict.outcome.is_red:
            tag = "rerunError" if attempt.outcome in _ERRORS else "rerunFailure"
        # The stack trace comes before the outputs: the schema requires this order.
        inner = element("stackTrace", _block(self._told([attempt])[1:]))
        inner += self._captured("system-out", attempt.stdout, 1) + self._captured("system-err", _errors(attempt), 1)
        message = one_line(attempt.message) or str(attempt.outcome)
        start = attributes(type=str(attempt.outcome), message=clean(message))
        return f"<{tag}{start}>{inner}</{tag}>"

    def _told(self, attempts: Iterable[Finish]) -> list[str]:
        """Attempts as lines, each after an empty one."""
        lines = []
        for attempt in attempts:
            lines += ["", attempt.message or str(attempt.outcome), *_command(attempt.reproduce), *_facts(attempt)]
            lines += self._detail(attempt.detail)
        return lines

    def _output(self, verdict: Verdict, attempt: Finish, levels: Sequence[Levels], earlier: Sequence[Finish]) -> str:
        """The output of an attempt, followed by lines of the harness."""
        # Output, not a property: the strict schema allows no properties of a case.
        more = self._told(earlier)
        for grown in repeated(verdict.case, levels) if levels else ():
            more += [f"GROWS {grown.text}", *grown.plot(blocks=True)] if grown.grows else []
        more += [f"KEEPS {one_line(attempt.keeps)}"] if attempt.keeps else []
        more += [f"PROPERTY {one_line(name)} = {value}" for name, value in attempt.properties]
        share = 1 if verdict.outcome.is_red else _GREEN_SHARE
        return self._captured("system-out", attempt.stdout, share, more) + self._captured(
            "system-err", _errors(attempt), share
        )

    def _captured(self, tag: str, text: str, share: int, more: Sequence[str] = ()) -> str:
        if not text and not more:
            return ""
        lines = [self._cut(text, share)] if text else []
        return element(tag, clean("\n".join([*lines, *more])))

    def _detail(self, detail: str) -> list[str]:
        return ["", clean(self._cut(detail, 1))] if detail else []

    def _cut(self, text: str, share: int) -> str:
        if self.costs is not None:
            kept = cap(text, MOST_TEXT // share)
            cost = len(escaped(clean(kept)).encode("utf-8"))
            for place, limit in enumerate(LIMITS):
                self.costs[place] += min(cost, cost * (limit // share) // len(kept))
        return cap(text, self.limit // share)


def finding_case(finding: Finding, number: int) -> str:
    """A finding as a case of its own."""
    start = attributes(
        name=clean(f"finding {number}: {one_line(finding.kind)}"), classname="harness.findings", time="0.0"
    )
    message = one_line(finding.message) or finding.kind
    error = element("error", clean(cap(finding_text(finding), MOST_TEXT)), type="finding", message=clean(message))
    return f"<testcase{start}>{error}</testcase>\n"


def finding_text(finding: Finding) -> str:
    """A finding as text, with the first of its cases and its command."""
    cases = f" [{', '.join(finding.cases[:20])}{', …' if len(finding.cases) > 20 else ''}]" if finding.cases else ""
    return "\n".join([f"{finding.kind}: {finding.message}{cases}", *_command(finding.reproduce)])


def _command(reproduce: str | None) -> list[str]:
    return [f"reproduce: {reproduce}"] if reproduce else []


def _errors(attempt: Finish) -> str:
    return "\n".join(filter(None, [attempt.stderr, attempt.log]))


def _facts(attempt: Finish) -> Iterable[str]:
    """The facts that identify the attempt, one per line."""
    devices = " ".join(attempt.devices) or "none"
    where = f"worker {attempt.worker or 'none'}, executor {attempt.executor or 'none'}"
    company = "alone" if attempt.alone else "in company"
    yield f"attempt {attempt.attempt} ({company}) on {where}, devices {devices}, seed {attempt.seed}"
    if attempt.exit_status or (attempt.exit_status == 0 and attempt.outcome.breaks_executor):
        yield f"the executor ended with {executor_exit_text(attempt.exit_status, attempt.outcome)}"
    if attempt.gate is not None:
        yield f"requires {attempt.gate.capability}: wanted {attempt.gate.wanted}, found {attempt.gate.found}"
    yield from attempt.notes


def _block(lines: Sequence[str]) -> str:
    # Each line has its own limit, so that one long text does not displace the others.
    return "\n".join(clean(cap(line, MOST_TEXT)) for line in lines)
