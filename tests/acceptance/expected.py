"""The expected results of a fixture suite, and their comparison with everything that a run leaves.

Each file of a fixture suite defines a table, which is read without importing the file::

    EXPECTED = {
        "test_segv": "crashed: SIGSEGV in call",
        "TestA::test_b[1]": {"batch": "flaky", "case": "passed"},
    }

A value is an outcome and, after a colon, a part of the message; or one such value per isolation mode. Four other tables
are optional, and may also be given per isolation mode:

- ``OPTIONS``: the options with which the suite runs;
- ``FINDINGS``: the kinds of the findings, each followed by a part of its message in the same form;
- ``SAYS``: texts of the terminal;
- ``COUNTS``: the difference between pytest's last line and the outcomes, since pytest counts phases and not cases.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import jsonschema
import xmlschema

from harness.core.text import escape_invalid_xml, format_count
from tests.acceptance.project import Project, Result
from tests.schemas import shipped_schema

#: The element of a JUnit case, by outcome.
ELEMENTS = {
    "passed": None,
    "flaky": "flakyFailure",
    "gated": "skipped",
    "skipped": "skipped",
    "waived": "skipped",
    "not_run": "error",
    "failed": "failure",
    "leaked": "failure",
    "contaminated": "failure",
    "raced": "failure",
    "unexpected_pass": "failure",
    "error": "error",
    "crashed": "error",
    "timeout": "error",
    "poisoned": "error",
    "lost": "error",
}
WORDS = dict.fromkeys(ELEMENTS, "failed") | {
    "passed": "passed",
    "flaky": "flaky",
    "gated": "gated",
    "skipped": "skipped",
    "waived": "xfailed",
    "error": "error",
}
RED = {"not_run"} | {outcome for outcome, tag in ELEMENTS.items() if tag in ("failure", "error")}
NOT_RUN = {"gated", "skipped", "not_run", "lost"}
#: Outcomes that only an attempt in a fresh process reaches, unless the case was the first in its process.
BREAKS = {"crashed", "timeout", "poisoned", "leaked", "contaminated"}
_RESULT_TAGS = {"failure", "error", "skipped"}
_TABLES = {"EXPECTED", "OPTIONS", "FINDINGS", "SAYS", "COUNTS"}
_MODES = {"batch", "case", "none"}
_SUMMED = {"passed", "failed", "error", "skipped", "xfailed", "xpassed", "gated", "flaky"}


@dataclass(frozen=True)
class Expected:
    """The expected summary of a run: outcome or kind, and a part of the message, of each case and finding; the rest."""

    cases: Mapping[str, tuple[str, str]]
    findings: Sequence[tuple[str, str]] = ()
    says: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    options: Sequence[str] = ()

    @property
    def outcomes(self) -> dict[str, str]:
        return {case: outcome for case, (outcome, _) in self.cases.items()}

    @property
    def fail_on_flaky(self) -> bool:
        return "--fail-on-flaky" in self.options

    def status(self) -> int:
        """Return the exit status that follows from the outcomes and findings."""
        outcomes = set(self.outcomes.values())
        if outcomes & RED or self.findings or (self.fail_on_flaky and "flaky" in outcomes):
            return 1
        return 0 if outcomes - NOT_RUN else 5

    def only(self, keep: Sequence[str]) -> Expected:
        """Return the expectation for a run of fewer cases: those whose ids end with one of `keep`."""
        cases = {case: value for case, value in self.cases.items() if case.endswith(tuple(keep))}
        return replace(self, cases=cases, counts=_counted(cases))


def expected(project: Project, mode: str) -> Expected:
    """Return the expectations in the tables of the suites in `project` for isolation `mode`."""
    cases: dict[str, tuple[str, str]] = {}
    findings: list[tuple[str, str]] = []
    says: list[str] = []
    options: dict[str, None] = {}
    more: Counter[str] = Counter()
    for path in sorted(project.folder.glob("suites/**/test_*.py")):
        tables = _tables(path)
        for name, value in tables["EXPECTED"].items():
            case = f"{path.relative_to(project.folder).as_posix()}::{name}"
            cases[case] = _outcome_and_message(_for_mode(value, mode))
        findings += map(_outcome_and_message, _for_mode(tables.get("FINDINGS", []), mode))
        says += _for_mode(tables.get("SAYS", []), mode)
        options |= dict.fromkeys(_for_mode(tables.get("OPTIONS", []), mode))
        more.update(_for_mode(tables.get("COUNTS", {}), mode))
    counts = Counter(_counted(cases))
    counts.update(more)
    return Expected(
        cases, sorted(findings), says, {word: number for word, number in counts.items() if number}, [*options]
    )


def _outcome_and_message(text: str) -> tuple[str, str]:
    outcome, _, message = text.partition(": ")
    return outcome, message


def _tables(path: Path) -> dict[str, Any]:
    """Return the literal tables of a suite's file. The file is not imported, since that may crash this process."""
    found: dict[str, Any] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in _TABLES:
                found[name] = ast.literal_eval(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value and name in _TABLES:
                found[name] = ast.literal_eval(value)
    return found


def _for_mode(value: Any, mode: str) -> Any:
    return value[mode] if isinstance(value, dict) and _MODES & value.keys() else value


def _counted(cases: Mapping[str, tuple[str, str]]) -> dict[str, int]:
    return dict(Counter(WORDS[outcome] for outcome, _ in cases.values()))


def compare(result: Result, wanted: Expected, *, alone: bool = False) -> None:
    """Compare everything that a run left with the expectation; `alone`: each case had its own process.

    This covers verdicts and their messages, findings, exit status, the journal line by line, junit.xml, and the
    terminal.
    """
    ledger = result.ledger
    found = {verdict.case: (verdict.outcome.value, verdict.message) for verdict in ledger.verdicts}
    wrong = [
        f"{case}: expected {wanted.cases.get(case)}, found {found.get(case)}"
        for case in dict.fromkeys([*found, *wanted.cases])
        if not _agree(found.get(case), wanted.cases.get(case))
    ]
    assert not wrong, "\n".join(wrong) + f"\n{result.tail()}"
    findings = sorted((finding.kind, finding.message) for finding in ledger.findings)
    alike = len(findings) == len(wanted.findings) and all(map(_agree, findings, wanted.findings))
    assert alike, f"findings {findings}, expected {wanted.findings}\n{result.tail()}"
    missing = [text for text in wanted.says if text not in result.terminal]
    assert not missing, f"the terminal does not say {missing}\n{result.tail()}"
    assert result.status == wanted.status(), result.tail()
    _compare_journal(result, wanted, alone=alone)
    compare_junit(result, wanted.cases, fail_on_flaky=wanted.fail_on_flaky)
    summed = {word: number for word, number in result.counts.items() if word in _SUMMED | wanted.counts.keys()}
    assert summed == wanted.counts, f"pytest counts {summed}, expected {wanted.counts}\n{result.tail()}"
    counts = ", ".join(f"{count} {outcome}" for outcome, count in ledger.counts.items())
    found_text = format_count(len(wanted.findings), "finding") if wanted.findings else ""
    reported = f"{format_count(len(wanted.cases), 'case')}: {counts}" + (f"; {found_text}" if found_text else "")
    assert f"\n{reported}\n" in result.terminal
    word = "finding" if len(wanted.findings) == 1 else "findings"
    assert result.counts.get(word, 0) == len(wanted.findings), f"pytest counts {result.counts}\n{result.tail()}"


def _agree(found: tuple[str, str] | None, wanted: tuple[str, str] | None) -> bool:
    return (
        found is not None
        and wanted is not None
        and found[0] == wanted[0]
        and escape_invalid_xml(wanted[1]) in escape_invalid_xml(found[1])
    )


@cache
def _line_schema(event: str) -> Any:
    """Return the validator for lines of this kind. The whole schema tries all kinds, and takes five times as long."""
    schema = shipped_schema("journal/journal")
    kinds = schema["discriminator"]["mapping"]
    return jsonschema.Draft202012Validator({"$ref": kinds[event], "$defs": schema["$defs"]})


@cache
def _junit_schema() -> Any:
    return xmlschema.XMLSchema(Path(__file__).parents[1] / "reporting" / "strict_junit.xsd")


def check_journal(result: Result) -> None:
    """Check that each line is valid in the shipped schema."""
    assert not result.contents.damaged
    assert not result.contents.unknown
    for line in result.lines:
        _line_schema(line["event"]).validate(line)


def _compare_journal(result: Result, wanted: Expected, *, alone: bool) -> None:
    check_journal(result)
    lines = result.lines
    assert lines[0]["event"] == "run"
    assert lines[-1]["event"] == "end"
    assert lines[-1]["exit_status"] == result.status
    ids = {*map(escape_invalid_xml, wanted.cases)}
    busy: dict[str, str] = {}
    for line in lines:
        if line["event"] == "activity":
            busy[line["worker"]] = line["what"]
        if line["event"] == "collected":
            assert line["count"] == len(wanted.cases)
            assert not line["ids"] or {*map(escape_invalid_xml, line["ids"])} == ids
    assert not any(busy.values()), f"begun and never over: {busy}"
    confirmed = {line["case"] for line in lines if line["event"] == "confirmation" and line["leaks"]}
    running: dict[str, dict[str, Any]] = {}
    finals: Counter[str] = Counter()
    for line in lines:
        if line["event"] == "start":
            assert line["worker"] not in running
            running[line["worker"]] = line
        elif line["event"] == "finish":
            if line["outcome"] != "gated":
                start = running.pop(line["worker"])
                keys = ("case", "attempt", "alone", "executor", "devices", "seed")
                assert [start[key] for key in keys] == [line[key] for key in keys]
            if line["outcome"] in RED:
                assert f"--seed={lines[0]['seed']}" in line["reproduce"]
            if line["final"]:
                finals[line["case"]] += 1
                if alone:
                    assert line["alone"]
                if line["outcome"] in BREAKS and line["case"] not in confirmed:
                    assert line["alone"], f"{line['case']} is blamed for what happened in company"
    assert not running
    assert {*map(escape_invalid_xml, finals)} == ids
    spawned = Counter(
        (line["executor"], line["pid"], state)
        for line in lines
        if line["event"] == "executor"
        for state in [line["state"]]
    )
    assert all(number == 1 for number in spawned.values())
    started = {(name, pid) for name, pid, state in spawned if state == "started"}
    assert started == {(name, pid) for name, pid, state in spawned if state == "ended"}


def compare_junit(result: Result, cases: Mapping[str, tuple[str, str]], *, fail_on_flaky: bool = False) -> None:
    """Check that junit.xml is valid, has each case once with the right element, and correct totals.

    Each finding is a case with an error.
    """
    root = result.junit
    _junit_schema().validate(root)
    found: dict[tuple[str, str], Element] = {}
    for element in root.iter("testcase"):
        key = element.attrib["classname"], element.attrib["name"]
        assert key not in found
        found[key] = element
    findings = [found.pop(key) for key in list(found) if key[0] == "harness.findings"]
    assert [element.find("error") is not None for element in findings] == [True] * len(result.ledger.findings)
    of_run = [found.pop(key) for key in list(found) if key[0] == "harness.run"]
    unexplained = result.ledger.run_exit_status() and not result.ledger.findings and not result.ledger.red
    assert [element.find("error") is not None for element in of_run] == [True] * bool(unexplained)
    assert set(found) == {_junit_name(case) for case in cases}
    for case, (outcome, message) in cases.items():
        element = found[_junit_name(case)]
        tags = [child.tag for child in element if child.tag in _RESULT_TAGS | {"flakyFailure"}]
        tag = ELEMENTS[outcome]
        if outcome == "flaky":
            assert tags == ["failure", "flakyFailure"] if fail_on_flaky else tags == ["flakyFailure"], case
        else:
            assert tags == ([] if tag is None else [tag]), case
        if tag is not None and outcome != "flaky":
            child = element.find(tag)
            assert child is not None
            assert child.attrib["type"] == outcome
            assert escape_invalid_xml(message) in child.attrib["message"]
    children = Counter(child.tag for element in found.values() for child in element)
    assert int(root.attrib["tests"]) == len(cases) + len(findings) + len(of_run)
    assert int(root.attrib["failures"]) == children["failure"]
    assert int(root.attrib["errors"]) == children["error"] + len(findings) + len(of_run)
    assert sum(int(suite.attrib["tests"]) for suite in root) == len(cases) + len(findings) + len(of_run)
    assert sum(int(suite.attrib["skipped"]) for suite in root) == children["skipped"]


def _junit_name(case: str) -> tuple[str, str]:
    path, _, rest = case.partition("::")
    words, bracket, parameters = rest.partition("[")
    *classes, name = words.split("::")
    return ".".join([*path.removesuffix(".py").split("/"), *classes]), escape_invalid_xml(name + bracket + parameters)
