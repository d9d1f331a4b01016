"""Write junit.xml from a ledger, in the xunit2 format that GitLab, Jenkins and junitparser read."""

# mypy: allow-untyped-calls
# junitparser ships a py.typed marker and annotates only half of its methods.

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from junitparser import junitparser, xunit2

from harness.backends.table import labels
from harness.outcome import Outcome
from harness.reporting import journal
from harness.reporting.atomic import write_atomically
from harness.reporting.events import Finding, Finish
from harness.reporting.ledger import Ledger, Verdict
from harness.reporting.repetitions import Repeated, repetitions
from harness.text import cap, clean, exit_text, one_line

FILE_NAME = "junit.xml"
MOST_BYTES = 29_000_000  # GitLab accepts files below 30 MB (docs.gitlab.com/ci/testing/unit_test_reports)
MOST_TEXT = 32_768  # characters of one captured text or traceback, if the report has room for them

_FAILURES = frozenset({Outcome.FAILED, Outcome.LEAKED, Outcome.CONTAMINATED, Outcome.UNEXPECTED_PASS})
_ERRORS = frozenset({Outcome.ERROR, Outcome.CRASHED, Outcome.TIMEOUT, Outcome.POISONED, Outcome.LOST})
_SKIPS = frozenset({Outcome.GATED, Outcome.SKIPPED, Outcome.WAIVED, Outcome.NOT_RUN})


@dataclass(frozen=True, slots=True)
class Report:
    """A report on disk: its path, its size in bytes, and the characters kept of each captured text."""

    path: Path
    size: int
    text_limit: int


def write(run_dir: Path, ledger: Ledger | None = None) -> Report:
    """Write ``run_dir/junit.xml`` from the ledger, or from the journal in `run_dir`. An old file is replaced.

    Raises JournalError if there is no readable journal, WriteError if the file cannot be written.
    """
    if ledger is None:
        ledger = Ledger.from_journal(journal.read(run_dir / journal.FILE_NAME))
    data, limit = serialise(ledger)
    return Report(write_atomically(run_dir / FILE_NAME, data), len(data), limit)


def serialise(ledger: Ledger, most_bytes: int = MOST_BYTES) -> tuple[bytes, int]:
    """The report as a document of at most `most_bytes`, and the limit on single texts that was needed.

    Texts are cut shorter until the document fits. Names and messages are never cut: if a run has so many cases that
    names and messages alone exceed `most_bytes`, the document is larger.
    """
    limit = fitting_limit(_costs(ledger), most_bytes)
    while True:
        data = _to_bytes(render(ledger, limit))
        if len(data) <= most_bytes or not limit:
            return data, limit
        limit //= 2


def fitting_limit(costs: Sequence[int], budget: int, most: int = MOST_TEXT) -> int:
    """The largest limit out of `most`, its half, its quarter … 0 with which texts of these sizes fit in `budget`."""
    limit = most
    while limit and sum(min(cost, limit) for cost in costs) > budget:
        limit //= 2
    return limit


def render(ledger: Ledger, text_limit: int = MOST_TEXT) -> xunit2.JUnitXml:
    """The report as a junitparser document: one suite for each folder of cases. Totals equal the ledger's verdicts.

    `text_limit` is the number of characters kept of each captured text and traceback. Every text is cleaned, so that
    the document can be written and any XML parser can read it.
    """
    document = xunit2.JUnitXml("conformance")
    names = unique_names([verdict.case for verdict in ledger.verdicts])
    grown = {each.case: each for each in repetitions(ledger) if each.grows}
    by_suite = sorted(ledger.verdicts, key=lambda verdict: verdict.suite)  # stable: collection order within a suite
    for name, verdicts in groupby(by_suite, key=lambda verdict: verdict.suite):
        suite = _suite(name, ledger)
        # Not add_testcase: it counts the whole suite again for each case.
        suite.extend(
            _case(verdict, names[verdict.case], ledger.fail_on_flaky, text_limit, grown.get(verdict.case))
            for verdict in verdicts
        )
        document.append(suite)
    if ledger.findings:
        suite = _suite("harness", ledger)
        suite.append(junitparser.SystemErr(clean(cap("\n".join(map(_finding_line, ledger.findings)), MOST_TEXT))))
        document.append(suite)
    document.update_statistics()
    return document


def unique_names(ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The cleaned (classname, name) of each case id. Each pair is unique, because readers drop later equal pairs.

    ``suites/streams/test_events.py::TestX::test_y[cpu]`` gives ``suites.streams.test_events.TestX`` and
    ``test_y[cpu]``. If several ids would give the same pair, a digest of the id is added to each.
    """
    pairs = {case: _names(case) for case in ids}
    times = Counter(pairs.values())
    return {
        case: pair if times[pair] == 1 else (pair[0], f"{pair[1]} #{_short_digest(case)}")
        for case, pair in pairs.items()
    }


def _names(case: str) -> tuple[str, str]:
    path, _, rest = case.partition("::")
    base, bracket, parameters = rest.partition("[")  # parameters may contain "::"
    *classes, name = base.split("::")
    module = re.sub(r"[/\\]+", ".", path.removesuffix(".py")).strip(".")
    return clean(".".join(filter(None, [module, *classes]))), clean(name + bracket + parameters or case)


def _short_digest(case: str) -> str:
    return hashlib.sha256(case.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _suite(name: str, ledger: Ledger) -> xunit2.TestSuite:
    suite = xunit2.TestSuite(clean(name))
    run = ledger.run
    if run is None:
        return suite
    suite.hostname = clean(run.host)
    suite.timestamp = datetime.fromtimestamp(run.t, UTC).isoformat(timespec="seconds")
    facts = {
        "run_id": run.run_id,
        "command": json.dumps(run.argv),
        "seed": str(run.seed),
        "isolation": run.isolation,
        "devices": " ".join(run.devices),
        "device": labels(run.devices),
        "inject": str(run.settings.get("inject") or ""),
        "under": str(run.settings.get("under") or ""),
        "rootdir": run.rootdir,
        "fail_on_flaky": json.dumps(run.fail_on_flaky),
        "shard": run.shard,
        "resumed_by_force": "; ".join(ledger.forced),
        "profile": run.profile,
        "hardware": run.hardware,
        "must_pass": "; ".join(result.text for result in ledger.lists),
    }
    for key, value in facts.items():
        if value:
            suite.add_property(key, clean(cap(value, 4096)))
    return suite


def _case(
    verdict: Verdict, names: tuple[str, str], fail_on_flaky: bool, text_limit: int, grown: Repeated | None
) -> xunit2.TestCase:
    classname, name = names
    # Four decimals: below 0.0001 Python writes an exponent, which some readers of the format reject.
    case = xunit2.TestCase(name, classname, round(verdict.duration, 4))
    outcome = verdict.outcome
    if outcome in _FAILURES or (outcome is Outcome.FLAKY and fail_on_flaky):
        case.append(_result(junitparser.Failure, verdict, text_limit))
    elif outcome in _ERRORS:
        case.append(_result(junitparser.Error, verdict, text_limit))
    elif outcome in _SKIPS:
        case.append(_result(junitparser.Skipped, verdict, text_limit))
    for attempt in () if outcome in _SKIPS else verdict.earlier:  # readers count a flaky case as passed
        case.append(_interim(_interim_kind(verdict, attempt), attempt, text_limit))
    if verdict.decided is not None:
        # Output, not a property: the strict schema allows no properties of a case.
        more = [f"GROWS {grown.text}", *grown.plot(blocks=True)] if grown is not None else []
        more += [f"KEEPS {one_line(verdict.decided.keeps)}"] if verdict.decided.keeps else []
        _add_output(case, verdict.decided, text_limit if outcome.is_red else text_limit // 8, more)
    return case


def _result(kind: type[junitparser.FinalResult], verdict: Verdict, text_limit: int) -> junitparser.FinalResult:
    result = kind(one_line(verdict.message) or str(verdict.outcome), str(verdict.outcome))
    # The text repeats the message, because GitLab shows only the text, and only the first lines of a long text.
    lines = [verdict.message or str(verdict.outcome), *_command(verdict.reproduce)]
    attempt = verdict.decided or next(reversed(verdict.finishes), None)
    if attempt is not None:
        lines += _facts(attempt)
    detail = _detail(verdict.decided.detail, text_limit) if verdict.decided is not None else []
    result.text = _block([*lines, *detail])
    return result


def _interim_kind(verdict: Verdict, attempt: Finish) -> type[xunit2.InterimResult]:
    if not verdict.outcome.is_red:
        return xunit2.FlakyFailure
    return xunit2.RerunError if attempt.outcome in _ERRORS else xunit2.RerunFailure


def _interim(kind: type[xunit2.InterimResult], attempt: Finish, text_limit: int) -> xunit2.InterimResult:
    result = kind(one_line(attempt.message) or str(attempt.outcome), str(attempt.outcome))
    lines = [attempt.message or str(attempt.outcome), *_command(attempt.reproduce), *_facts(attempt)]
    # The stack trace comes before the outputs: the schema requires this order.
    result.append(xunit2.StackTrace(_block([*lines, *_detail(attempt.detail, text_limit)])))
    _add_output(result, attempt, text_limit)
    return result


def _add_output(
    element: xunit2.TestCase | xunit2.InterimResult, attempt: Finish, text_limit: int, more: Sequence[str] = ()
) -> None:
    """Add the attempt's output, followed by lines of the harness."""
    printed = [cap(attempt.stdout, text_limit)] if attempt.stdout else []
    if printed or more:
        element.append(junitparser.SystemOut(clean("\n".join([*printed, *more]))))
    errors = "\n".join(filter(None, [attempt.stderr, attempt.log]))
    if errors:
        element.append(junitparser.SystemErr(clean(cap(errors, text_limit))))


def _command(reproduce: str | None) -> list[str]:
    return [f"reproduce: {reproduce}"] if reproduce else []


def _facts(attempt: Finish) -> Iterable[str]:
    """The facts that identify the attempt, one per line."""
    devices = " ".join(attempt.devices) or "none"
    where = f"worker {attempt.worker or 'none'}, executor {attempt.executor or 'none'}"
    company = "alone" if attempt.alone else "in company"
    yield f"attempt {attempt.attempt} ({company}) on {where}, devices {devices}, seed {attempt.seed}"
    if attempt.exit_status or (attempt.exit_status == 0 and attempt.outcome.breaks_executor):
        yield f"the executor ended with {exit_text(attempt.exit_status)}"
    if attempt.gate is not None:
        yield f"requires {attempt.gate.capability}: wanted {attempt.gate.wanted}, found {attempt.gate.found}"
    yield from attempt.notes


def _detail(detail: str, text_limit: int) -> list[str]:
    return ["", clean(cap(detail, text_limit))] if detail else []


def _block(lines: Sequence[str]) -> str:
    # Each line has its own limit, so that one long text does not displace the others.
    return "\n".join(clean(cap(line, MOST_TEXT)) for line in lines)


def _finding_line(finding: Finding) -> str:
    cases = f" [{', '.join(finding.cases[:20])}{', …' if len(finding.cases) > 20 else ''}]" if finding.cases else ""
    return "\n".join([f"{finding.kind}: {finding.message}{cases}", *_command(finding.reproduce)])


def _costs(ledger: Ledger) -> list[int]:
    """The approximate bytes in the document of each text that `text_limit` may cut, when cut to MOST_TEXT."""
    return [
        _bytes_in_xml(cap(text, MOST_TEXT))
        for verdict in ledger.verdicts
        for attempt in verdict.finishes
        for text in (attempt.detail, attempt.stdout, attempt.stderr, attempt.log)
        if text
    ]


def _bytes_in_xml(text: str) -> int:
    # Escapes of control characters are not counted: counting them takes longer than a second attempt at writing.
    return len(text.encode("utf-8", "replace")) + 4 * text.count("&") + 3 * (text.count("<") + text.count(">"))


def _to_bytes(document: xunit2.JUnitXml) -> bytes:
    buffer = io.BytesIO()
    document.write(buffer)
    return buffer.getvalue()
