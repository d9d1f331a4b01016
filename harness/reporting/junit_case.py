"""One case as an element of a JUnit report, for each of its readers: its verdict, its attempts and their output.

junitparser and the XML library below it accept any text, including characters that XML forbids: every text is cleaned
first.
"""

from __future__ import annotations

import functools
import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from junitparser import Attr, Error, Failure, Skipped, SystemErr, SystemOut, xunit2

from harness.core.outcome import Outcome
from harness.core.text import escape_invalid_xml, list_first, single_line, truncate_middle
from harness.journal.events import Finding, Finish, Levels
from harness.journal.verdicts import Verdict, executor_end
from harness.reporting.repetitions import repeated

#: Maximum characters of one captured text or traceback of a red case.
MOST_TEXT = 32_768
#: The limit of a case that is not red is smaller by this factor.
GREEN_SHARE = 8


@dataclass(frozen=True, slots=True)
class Flavour:
    """One flavour of a JUnit report.

    `interim`: earlier attempts are separate elements; otherwise they are in the text that the reader shows.
    `whole_ids`: the name of a case is its whole id, and the report has its file. `not_run`: the tag of a case that did
    not run before the run ended.
    """

    name: str
    interim: bool = True
    whole_ids: bool = False
    not_run: str = "error"


#: By name. ``default``: the format that pytest calls xunit2, which is also valid for Jenkins' strict schema
#: (junit-10.xsd); ``jenkins`` is the same. ``gitlab``: GitLab knows no earlier attempts, shows the text of a result
#: instead of its message, and shows names without classes. A case that did not run is red, so it is an error for a
#: reader that counts. GitLab lists each case that is newly red, and would hide the cause of an interrupted run among
#: them, so there it is skipped, and one error counts all of them if nothing else is red. In every flavour each finding
#: is a case with an error, because readers show only cases and judge a run by them.
FLAVOURS = {
    flavour.name: flavour
    for flavour in (
        Flavour("default"),
        Flavour("jenkins"),
        Flavour("gitlab", interim=False, whole_ids=True, not_run="skipped"),
    )
}
DEFAULT = FLAVOURS["default"]


def named(name: object) -> Flavour:
    """Return the flavour that a run recorded as its setting.

    Another version of the harness may have other flavours, or none.
    """
    return FLAVOURS.get(name, DEFAULT) if isinstance(name, str) else DEFAULT


Pair = tuple[str, str]


class Names:
    """The cleaned (classname, name) of each case. `ids` returns an iterator over the ids of all cases at each call.

    ``suites/streams/test_events.py::TestX::test_y[cpu]`` gives ``suites.streams.test_events.TestX`` and
    ``test_y[cpu]``, or with `whole` its whole id. If several ids would give the same pair, a digest of the id is added
    to each.
    """

    def __init__(self, ids: Callable[[], Iterable[str]], *, whole: bool = False) -> None:
        self._whole = whole
        # Eight bytes per case: the names of a million cases would need ten times the memory.
        hashes = array("q", (hash(self._pair(case)) for case in ids()))
        twice = {first for first, second in pairwise(sorted(hashes)) if first == second}
        times = Counter(pair for case in ids() if hash(pair := self._pair(case)) in twice) if twice else Counter()
        self._clashing = frozenset(pair for pair, number in times.items() if number > 1)

    def of(self, case: str) -> Pair:
        """Return the names of a case."""
        pair = self._pair(case)
        return (pair[0], f"{pair[1]} #{_short_digest(case)}") if pair in self._clashing else pair

    def _pair(self, case: str) -> Pair:
        path, _, rest = case.partition("::")
        base, bracket, parameters = rest.partition("[")  # parameters may contain "::"
        classes, _, name = base.rpartition("::")
        return _classname(path, classes), escape_invalid_xml(
            case if self._whole else name + bracket + parameters or case
        )


@functools.lru_cache(4096)
def _classname(path: str, classes: str) -> str:
    module = re.sub(r"[/\\]+", ".", path.removesuffix(".py")).strip(".")
    return escape_invalid_xml(".".join(filter(None, [module, *classes.split("::")])))


def _short_digest(case: str) -> str:
    return hashlib.sha256(case.encode("utf-8", "surrogatepass")).hexdigest()[:12]


#: The limits that are tried in turn, until the report is small enough.
LIMITS = (*(MOST_TEXT >> step for step in range(16)), 0)

_FAILURES = frozenset({Outcome.FAILED, Outcome.LEAKED, Outcome.CONTAMINATED, Outcome.RACED, Outcome.UNEXPECTED_PASS})
_ERRORS = frozenset({Outcome.ERROR, Outcome.CRASHED, Outcome.TIMEOUT, Outcome.POISONED, Outcome.LOST})
_SKIPS = frozenset({Outcome.GATED, Outcome.SKIPPED, Outcome.WAIVED})


#: The elements of results, by tag.
_RESULTS = {"failure": Failure, "error": Error, "skipped": Skipped}

_TAGS = {
    outcome: tag
    for tag, outcomes in (("failure", _FAILURES), ("error", _ERRORS), ("skipped", _SKIPS))
    for outcome in outcomes
}


def tag_of(outcome: Outcome, flavour: Flavour, *, fail_on_flaky: bool) -> str:
    """Return the tag of a case with this outcome; empty for a case that readers must count as passed."""
    if outcome is Outcome.NOT_RUN:
        return flavour.not_run
    return "failure" if fail_on_flaky and outcome is Outcome.FLAKY else _TAGS.get(outcome, "")


class _Case(xunit2.TestCase):  # type: ignore[misc]
    """`file`: only in the flavour for GitLab."""

    file = Attr()


def xml(element: Any) -> bytes:
    """Return an element of junitparser with cleaned texts, as XML bytes."""
    # XML readers turn a plain carriage return into a line feed. Python's library escapes it in attributes only.
    data: bytes = element.tostring()
    return data.replace(b"\r", b"&#13;")


@dataclass(frozen=True, slots=True)
class CaseWriter:
    """Writes cases in a flavour, with at most `limit` characters of each captured text and traceback.

    `costs`: if given, the bytes that texts need with each of LIMITS are added to this list. `imported`: another tool
    ran the cases, so an attempt has no worker and no seed.
    """

    flavour: Flavour
    names: Names
    limit: int
    costs: list[int] | None = None
    imported: bool = False

    def case(self, verdict: Verdict, levels: Sequence[Levels], tag: str, seconds: float) -> bytes:
        """Return the element of a case, on its own line. `tag`: the tag of its result, see `tag_of`."""
        classname, name = self.names.of(verdict.case)
        case = _Case(name, classname, seconds)
        if self.flavour.whole_ids:
            case.file = escape_invalid_xml(verdict.case.partition("::")[0])
        if tag:
            case.append(self._result(tag, verdict))
        earlier = () if tag == "skipped" else verdict.earlier  # readers count a flaky case as passed
        if self.flavour.interim:
            case.extend(self._interim(verdict, attempt) for attempt in earlier)
        if verdict.decided is not None:
            earlier = () if tag or self.flavour.interim else earlier
            case.extend(self._output(verdict, verdict.decided, levels, earlier))
        return xml(case) + b"\n"

    def _result(self, tag: str, verdict: Verdict) -> Any:
        # The text repeats the message, because GitLab shows only the text, and only the first lines of a long text.
        lines = [verdict.message or str(verdict.outcome), *_command(verdict.reproduce)]
        lines += [f"second device: {device.text}" for device in verdict.second_devices]
        attempt = verdict.decided or next(reversed(verdict.finishes), None)
        if attempt is not None:
            lines += self._facts(attempt)
        if verdict.decided is not None:
            lines += self._detail(verdict.decided.detail)
        if not self.flavour.interim and tag != "skipped":
            lines += self._described(verdict.earlier)
        message = single_line(verdict.message) or str(verdict.outcome)
        return _with_text(_RESULTS[tag](message, str(verdict.outcome)), _block(lines))

    def _interim(self, verdict: Verdict, attempt: Finish) -> Any:
        """Return the element for an attempt that did not decide, in Maven Surefire's vocabulary."""
        kind = xunit2.FlakyFailure
        if verdict.outcome.is_red:
            kind = xunit2.RerunError if attempt.outcome in _ERRORS else xunit2.RerunFailure
        element = kind(single_line(attempt.message) or str(attempt.outcome), str(attempt.outcome))
        # The stack trace comes before the outputs: the schema requires this order.
        element.append(xunit2.StackTrace(_block(self._described([attempt])[1:])))
        element.extend(self._captured(SystemOut, attempt.stdout, 1))
        element.extend(self._captured(SystemErr, _errors(attempt), 1))
        return element

    def _facts(self, attempt: Finish) -> Iterable[str]:
        return attempt.notes if self.imported else _attempt_lines(attempt)

    def _described(self, attempts: Iterable[Finish]) -> list[str]:
        """Return attempts as lines, each after an empty line."""
        lines = []
        for attempt in attempts:
            lines += ["", attempt.message or str(attempt.outcome), *_command(attempt.reproduce), *self._facts(attempt)]
            lines += self._detail(attempt.detail)
        return lines

    def _output(
        self, verdict: Verdict, attempt: Finish, levels: Sequence[Levels], earlier: Sequence[Finish]
    ) -> list[Any]:
        """Return the output of an attempt, followed by lines of the harness."""
        # Output, not a property, because the strict schema allows no properties of a case.
        more = self._described(earlier)
        for grown in repeated(verdict.case, levels) if levels else ():
            more += [f"GROWS {grown.text}", *grown.plot(blocks=True)] if grown.grows else []
        more += [f"KEEPS {single_line(attempt.keeps)}"] if attempt.keeps else []
        more += [f"PROPERTY {single_line(name)} = {value}" for name, value in attempt.properties]
        share = 1 if verdict.outcome.is_red else GREEN_SHARE
        out = self._captured(SystemOut, attempt.stdout, share, more)
        return out + self._captured(SystemErr, _errors(attempt), share)

    def _captured(self, kind: Any, text: str, share: int, more: Sequence[str] = ()) -> list[Any]:
        """Return the element of an output, or nothing if it is empty."""
        if not text and not more:
            return []
        lines = [self._cut(text, share)] if text else []
        return [kind(escape_invalid_xml("\n".join([*lines, *more])))]

    def _detail(self, detail: str) -> list[str]:
        return ["", escape_invalid_xml(self._cut(detail, 1))] if detail else []

    def _cut(self, text: str, share: int) -> str:
        if self.costs is not None:
            kept = truncate_middle(text, MOST_TEXT // share)
            cost = len(xml(SystemOut(escape_invalid_xml(kept))))
            for place, limit in enumerate(LIMITS):
                self.costs[place] += min(cost, cost * (limit // share) // len(kept))
        return truncate_middle(text, self.limit // share)


def finding_case(finding: Finding, number: int) -> bytes:
    """Return a finding as a separate case."""
    name, message = f"finding {number}: {single_line(finding.kind)}", single_line(finding.message) or finding.kind
    return _harness_case(name, "findings", message, "finding", finding_text(finding))


def run_case(text: str) -> bytes:
    """Return why a run is red although no case and no finding is, as a separate case."""
    return _harness_case("the run", "run", text, "run", text)


def _harness_case(name: str, subject: str, message: str, kind: str, text: str) -> bytes:
    case = _Case(escape_invalid_xml(name), f"harness.{subject}", 0.0)
    error = Error(escape_invalid_xml(message), kind)
    case.append(_with_text(error, escape_invalid_xml(truncate_middle(text, MOST_TEXT))))
    return xml(case) + b"\n"


def finding_text(finding: Finding) -> str:
    """Return a finding as text, with the first of its cases and its command."""
    cases = f" [{list_first(finding.cases, 20)}]" if finding.cases else ""
    return "\n".join([f"{finding.kind}: {finding.message}{cases}", *_command(finding.reproduce)])


def _command(reproduce: str | None) -> list[str]:
    return [f"reproduce: {reproduce}"] if reproduce else []


def _errors(attempt: Finish) -> str:
    return "\n".join(filter(None, [attempt.stderr, attempt.log]))


def _attempt_lines(attempt: Finish) -> Iterable[str]:
    """Yield the facts that identify the attempt, one per line."""
    devices = " ".join(attempt.devices) or "none"
    where = f"worker {attempt.worker or 'none'}, executor {attempt.executor or 'none'}"
    place = "alone" if attempt.alone else "after other cases"
    yield f"attempt {attempt.attempt} ({place}) on {where}, devices {devices}, seed {attempt.seed}"
    if end := executor_end(attempt):
        yield end
    if attempt.gate is not None:
        yield f"requires {attempt.gate.text}"
    yield from attempt.notes


def _with_text(element: Any, text: str) -> Any:
    element.text = text
    return element


def _block(lines: Sequence[str]) -> str:
    # Each line has its own limit, so that one long text does not displace the others.
    return "\n".join(escape_invalid_xml(truncate_middle(line, MOST_TEXT)) for line in lines)
