"""GitHub Actions output of a run: a job summary in Markdown, and annotations on the lines that failed.

Texts of cases have no effect: markup, mentions and commands in them are shown verbatim.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from harness.core.outcome import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_NOTHING_RAN, EXIT_OK, Outcome
from harness.core.text import escape_invalid_xml, format_count, list_first, single_line, truncate_middle
from harness.journal.environment import Places
from harness.journal.events import Finding
from harness.journal.ledger import Results, Summary
from harness.journal.verdicts import Verdict

#: GitHub accepts 1 MiB for all summaries of a step together. This leaves some of it for other commands.
MOST_BYTES = 1_000_000
#: Maximum number of red cases in memory; the summary shows as many of them as fit.
_KEPT = 500
#: Maximum characters of one traceback, and of a name or message.
_MOST_DETAIL = 8_000
_MOST_LINE = 300
#: GitHub shows ten errors per step.
MOST_ANNOTATIONS = 10
_MOST_ANNOTATION = 4_000
#: Minimum number of annotations for findings.
_LEAST_FINDINGS = 3

#: A row of the table of suites: suite, host and device.
_Row = tuple[str, str, str]

# Characters that are invisible, or that change the order of others: controls, bidirectional marks, zero width.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")

# The last line of a pytest traceback ("path:12: AssertionError"), and frames of Python and of faulthandler.
_PYTEST_LINE = re.compile(r"^(?P<file>[^\s:][^:\n]*\.py):(?P<line>[0-9]{1,9}): ", re.MULTILINE)
_FRAME = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>[0-9]{1,9})', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a file, relative to the root folder. `line` is 0 if unknown."""

    file: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class _RedCase:
    """The shown parts of a red case. Long texts are cut, because many cases are kept."""

    case: str
    outcome: Outcome
    message: str
    reproduce: str
    facts: tuple[str, ...]
    detail: str
    where: Location

    @classmethod
    def of(cls, verdict: Verdict, rootdir: str) -> _RedCase:
        attempt = verdict.decided
        facts: tuple[str, ...] = ()
        if attempt is not None:
            devices = " ".join(attempt.devices) or "none"
            recorded = (f"property {name} = {value}" for name, value in attempt.properties)
            where = f"device {devices}, seed {attempt.seed}, executor {attempt.executor or 'none'}"
            facts = (where, *attempt.notes, *recorded)
        facts = (*(f"second device: {device.text}" for device in verdict.second_devices), *facts)
        detail = "" if attempt is None else attempt.detail
        return cls(
            case=verdict.case,
            outcome=verdict.outcome,
            message=truncate_middle(verdict.message or str(verdict.outcome), _MOST_ANNOTATION),
            reproduce=verdict.reproduce or "",
            facts=tuple(truncate_middle(fact, _MOST_ANNOTATION) for fact in facts),
            detail=truncate_middle(detail, _MOST_DETAIL),
            where=failure_location(verdict.case, detail, rootdir),
        )


@dataclass(slots=True)
class _SummaryContents:
    """The contents of the summary: the worst red cases, and numbers."""

    fail_on_flaky: bool
    rootdir: str
    red: list[_RedCase] = field(default_factory=list)
    red_cases: int = 0
    flaky: list[tuple[str, str]] = field(default_factory=list)
    suites: dict[_Row, Counter[Outcome]] = field(default_factory=dict)
    seconds: dict[_Row, float] = field(default_factory=dict)
    gates: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, results: Results, facts: Mapping[str, Any] | None) -> _SummaryContents:
        run = results.runs[-1] if results.runs else None
        places = Places(results.runs, results.shards, facts)
        contents = cls(run is not None and run.fail_on_flaky, "" if run is None else run.rootdir)
        for verdict, _ in results.cases():
            contents._add(verdict, places)
        contents._keep_worst()
        return contents

    def _add(self, verdict: Verdict, places: Places) -> None:
        place = places.of(verdict)
        row = place.suite, place.host, places.device(place) or "none"
        self.suites.setdefault(row, Counter())[verdict.outcome] += 1
        self.seconds[row] = self.seconds.get(row, 0.0) + verdict.duration
        if verdict.outcome is Outcome.GATED and (verdict.message in self.gates or len(self.gates) < _KEPT):
            self.gates[verdict.message] += 1
        if verdict.outcome.is_red or (self.fail_on_flaky and verdict.outcome is Outcome.FLAKY):
            self.red_cases += 1
            self.red.append(_RedCase.of(verdict, self.rootdir))
            if len(self.red) == 2 * _KEPT:
                self._keep_worst()
        elif verdict.outcome is Outcome.FLAKY and len(self.flaky) < _KEPT:
            self.flaky.append((verdict.case, verdict.message))

    def _keep_worst(self) -> None:
        self.red.sort(key=lambda case: -case.outcome.severity)
        del self.red[_KEPT:]


def job_summary(results: Results, facts: Mapping[str, Any] | None) -> Iterator[bytes]:
    """Yield the job summary, red cases first. `facts`: the facts of environment.json.

    The summary begins and ends with an empty line, so that it can follow other text.
    """
    contents = _SummaryContents.of(results, facts)
    room = MOST_BYTES - 200  # leaves room for the last line
    for part in _parts(results.summary, contents):
        data = part.encode("utf-8")
        if len(data) > room:
            yield b"\n_More is left out: GitHub takes 1 MiB. The run directory has all of it._\n"
            return
        yield data
        room -= len(data)


def _parts(summary: Summary, contents: _SummaryContents) -> Iterator[str]:
    """Yield the summary in independent pieces, the most important first."""
    yield f"\n## {_headline(summary)}\n\n"
    counts = sorted(summary.counts.items(), key=lambda entry: -entry[0].severity)
    yield _table(("outcome", "cases"), ((outcome.value, str(number)) for outcome, number in counts))
    for finding in summary.findings:
        cases = (
            f" ({format_count(len(finding.cases), 'case')}: {markdown_code(list_first(finding.cases))})"
            if finding.cases
            else ""
        )
        yield f"\n- **finding** {markdown_code(finding.kind)}: {markdown_code(finding.message)}{cases}\n"
        yield f"    - {markdown_code(finding.reproduce)}\n" if finding.reproduce else ""
    for remark in (*summary.read_problems.remarks, *(f"resumed by force: {change}" for change in summary.forced)):
        yield f"\n- {markdown_code(remark)}\n"
    yield "\n"
    for result in summary.lists:
        yield f"- {markdown_code(result.text)}\n"
    yield "\n### Red cases\n\n" if contents.red else ""
    yield from map(_red, contents.red)
    if contents.red_cases > len(contents.red):
        yield f"\n_And {contents.red_cases - len(contents.red)} more red cases._\n"
    yield "\n### Flaky cases\n\n" if contents.flaky else ""
    yield from (f"- {markdown_code(case)}: {markdown_code(message)}\n" for case, message in contents.flaky)
    yield from _suite_tables(contents)
    if contents.gates:
        yield "\n<details><summary>Gated cases, by reason</summary>\n\n"
        yield _table(
            ("cases", "reason"), ((str(number), markdown_code(text)) for text, number in contents.gates.most_common())
        )
        yield "\n</details>\n"
    yield _run_line(summary)


def _headline(summary: Summary) -> str:
    status, total = summary.run_exit_status(), format_count(sum(summary.counts.values()), "case")
    findings = f", {format_count(len(summary.findings), 'finding')}" if summary.findings else ""
    if summary.end is None:
        return f"Not finished: the run was cut off; {summary.red_cases} of {total} red{findings}"
    if status == EXIT_OK:
        return f"Green: {total}, none of them red"
    if status == EXIT_NOTHING_RAN:
        return f"Nothing ran: {total}"
    word = {EXIT_INTERRUPTED: "Interrupted", EXIT_INTERNAL: "Internal error"}.get(status, "Red")
    return f"{word}: {summary.red_cases} of {total} red{findings}; exit status {status}"


def _red(case: _RedCase) -> str:
    title = f"<b>{case.outcome.upper()}</b> {markdown_code(case.case)}"
    command = [f"reproduce: {case.reproduce}"] if case.reproduce else []
    lines = [case.message, *command, *case.facts, "", case.detail]
    return f"<details><summary>{title}</summary>\n\n{markdown_block(lines)}\n\n</details>\n"


def _suite_tables(contents: _SummaryContents) -> Iterator[str]:
    if not contents.suites:
        return
    rows = [
        (
            markdown_code(suite),
            markdown_code(f"{host}: {device}" if host else device),
            *(str(number) if number else "" for number in _numbers(counts)),
            f"{contents.seconds[suite, host, device]:.1f}",
        )
        for (suite, host, device), counts in sorted(contents.suites.items())
    ]
    yield "\n<details><summary>Suites</summary>\n\n"
    yield _table(("suite", "where", "red", "flaky", "passed", "gated, skipped or waived", "seconds"), rows)
    yield "\n</details>\n"


def _numbers(counts: Mapping[Outcome, int]) -> tuple[int, int, int, int]:
    red = sum(number for outcome, number in counts.items() if outcome.is_red)
    flaky, passed = counts.get(Outcome.FLAKY, 0), counts.get(Outcome.PASSED, 0)
    return red, flaky, passed, sum(counts.values()) - red - flaky - passed


def _run_line(summary: Summary) -> str:
    run = summary.run
    if run is None:
        return ""
    identity = {name: text for name, text in run.identity.items() if not text.startswith("sha256:")}
    facts = {
        "run": run.run_id,
        "host": run.host,
        "devices": " ".join(run.devices) + (f" ({run.label})" if run.label else ""),
        "seed": str(run.seed),
        "isolation": run.isolation,
        "ran": "" if run.imported is None else run.imported.text,
        "profile": run.profile,
        "shard": run.shard,
        **identity,
    }
    rows = ((markdown_code(name), markdown_code(text)) for name, text in facts.items() if text)
    return f"\n<details><summary>Run</summary>\n\n{_table(('fact', 'value'), rows)}\n</details>\n\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def markdown_code(text: str) -> str:
    """Return a text as one line of code, with punctuation as character references: no markup, mentions or links."""
    line = _visible(single_line(text, _MOST_LINE) or " ")
    return f"<code>{_PUNCTUATION.sub(lambda match: f'&#{ord(match[0])};', line)}</code>"


def markdown_block(lines: Iterable[str]) -> str:
    """Return lines as a block of code."""
    text = _visible("\n".join(lines).strip("\n"))
    return f"<pre>{html.escape(text)}</pre>"


def _visible(text: str) -> str:
    text = escape_invalid_xml(text).replace("\r\n", "\n").replace("\r", "\n")
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def failure_location(case: str, detail: str, rootdir: str) -> Location:
    """Return where a case failed: the last line of its own file in the traceback or stack, otherwise the file alone."""
    own = case.partition("::")[0]
    location = Location(own)
    # In the stack of a crashed process, the call that crashed comes first.
    stack = "most recent call first" in detail
    for pattern in (_PYTEST_LINE, _FRAME):
        for match in pattern.finditer(detail):
            if _relative(match["file"], rootdir) == own:
                location = Location(own, int(match["line"]))
                if stack:
                    return location
        if location.line:
            return location
    return location


def _relative(file: str, rootdir: str) -> str:
    path = PurePosixPath(file)
    return str(path.relative_to(rootdir)) if rootdir and path.is_relative_to(rootdir) else str(path)


def workflow_commands(results: Results) -> Iterator[str]:
    """Yield workflow commands that mark the lines where cases failed: as many as GitHub shows, the most severe first.

    Some annotations are reserved for findings, because one finding may explain all red cases.
    """
    contents = _SummaryContents.of(results, None)
    findings = results.summary.findings
    total = contents.red_cases + len(findings)
    room = MOST_ANNOTATIONS if total <= MOST_ANNOTATIONS else MOST_ANNOTATIONS - 1
    of_cases = min(len(contents.red), room - min(len(findings), _LEAST_FINDINGS))
    yield from map(_case_command, contents.red[:of_cases])
    yield from map(_finding_command, findings[: room - of_cases])
    if total > MOST_ANNOTATIONS:
        yield _command({"title": "more"}, f"{total - room} more red cases and findings: see the job summary")


def _case_command(case: _RedCase) -> str:
    line = {"line": str(case.where.line)} if case.where.line else {}
    text = f"{case.message}\n{case.reproduce}".rstrip("\n")
    return _command({"file": case.where.file, **line, "title": f"{case.outcome.upper()} {case.case}"}, text)


def _finding_command(finding: Finding) -> str:
    cases = [f"{format_count(len(finding.cases), 'case')}: {list_first(finding.cases)}"] if finding.cases else []
    return _command(
        {"title": f"finding {finding.kind}"}, "\n".join([finding.message, *cases, finding.reproduce or ""]).rstrip("\n")
    )


def _command(properties: Mapping[str, str], message: str) -> str:
    """Return a workflow command of kind ``error``. No text can end it or begin another one."""
    written = ",".join(f"{name}={_escaped(_visible(value), ':,')}" for name, value in properties.items())
    return f"::error {written}::{_escaped(_visible(truncate_middle(message, _MOST_ANNOTATION)), '')}"


def _escaped(text: str, more: str) -> str:
    return "".join(
        f"%{ord(character):02X}" if character in "%\r\n" or character in more else character for character in text
    )
