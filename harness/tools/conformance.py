"""The statement of a run: the levels of conformance that its device passed or failed, or that do not apply to it.

A level is *passed* if every case of its list passed or is not applicable, and at least one passed. A case is not
applicable if it was gated by a capability that the level lets a device lack. A level is *not applicable* if the device
lacks what the level needs, whatever else passed. It is *incomplete* if the run has no verdict for a case of the list.

Some cases expect to fail by a mark of their own (`xfail`, `leaks`), because torch is wrong. If they fail as expected,
the level may pass, and the statement names them with the reason. Waivers of a run do not count: such a case has failed.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.core.caseid import digest_of_ids
from harness.core.outcome import Outcome
from harness.core.text import format_count, list_first
from harness.gating.levels import Level, ListedLevel
from harness.gating.mustpass import MustPass
from harness.gating.requirements import TYPES
from harness.journal.environment import mapping
from harness.journal.ledger import Ledger
from harness.journal.verdicts import Verdict

PASSED, FAILED, NOT_APPLICABLE, INCOMPLETE = "passed", "failed", "not applicable", "incomplete"
FORMAT = 2
#: The file in a run directory that keeps a statement, and that `harness package` packs.
FILE_NAME = "conformance.json"


@dataclass(frozen=True, slots=True)
class LevelResult:
    """The result of one level. `failed`: the reason by case. `known`: by case, why torch fails it everywhere.

    `list`, `definition`: their hashes. `not_applicable`: the number of cases by reason. `missing`: ids.
    """

    level: str
    state: str
    cases: int
    passed: int
    failed: Mapping[str, str]
    known: Mapping[str, str]
    not_applicable: Mapping[str, int]
    missing: Sequence[str]
    list: str
    definition: str


@dataclass(frozen=True, slots=True)
class Statement:
    """The statement of a run about its device."""

    run_id: str
    label: str
    devices: tuple[str, ...]
    software: Mapping[str, str]
    levels: tuple[LevelResult, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Return the statement as JSON values, with a hash over all other values."""
        plain: dict[str, Any] = {
            "format": FORMAT,
            "run": self.run_id,
            "device": self.label,
            "devices": list(self.devices),
            "software": dict(self.software),
            "levels": [asdict(level) for level in self.levels],
        }
        digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
        return {**plain, "hash": f"sha256:{digest}"}


def judge_level(level: ListedLevel, verdicts: Mapping[str, Verdict]) -> LevelResult:
    """Return the result of a level from the verdicts of a run, by case id."""
    passed, failed, known, missing = 0, dict[str, str](), dict[str, str](), list[str]()
    lacking: Counter[str] = Counter()
    inapplicable = False
    # The CPU has the cases of any device, and no accelerator.
    needed = {*level.level.needs} - {"accelerator"}
    for case_id in level.listed.ids:
        verdict = verdicts.get(case_id)
        if verdict is None or verdict.outcome is Outcome.NOT_RUN:
            missing.append(case_id)
        elif verdict.outcome is Outcome.PASSED:
            passed += 1
        elif _gated_by(verdict) in (TYPES, *level.level.may_lack, *level.level.needs):
            lacking[verdict.message] += 1
            inapplicable |= _gated_by(verdict) in needed
        elif _expected_by_mark(verdict):
            known[case_id] = verdict.message
        else:
            failed[case_id] = (
                f"{verdict.outcome.value}: {verdict.message}" if verdict.message else verdict.outcome.value
            )
    if failed or (known and not passed):
        state = FAILED
    elif inapplicable:
        state = NOT_APPLICABLE
    elif missing:
        state = INCOMPLETE
    elif passed:
        state = PASSED
    else:
        state = NOT_APPLICABLE
    return LevelResult(
        level.name,
        state,
        len(level.listed.ids),
        passed,
        failed,
        known,
        dict(lacking),
        missing,
        level.listed.hash,
        level.level.hash,
    )


def _gated_by(verdict: Verdict) -> str:
    """Return the capability that a case lacked; empty if it was not gated."""
    finish = verdict.decided or (verdict.finishes[-1] if verdict.finishes else None)
    if verdict.outcome is not Outcome.GATED or finish is None or finish.gate is None:
        return ""
    return finish.gate.capability


def _expected_by_mark(verdict: Verdict) -> bool:
    """Return whether a case failed as a mark in its own file expects, and not a waiver of the run."""
    if verdict.outcome is not Outcome.WAIVED or verdict.decided is None:
        return False
    ruling = verdict.decided.ruling
    return ruling is None or ruling.source.rpartition(":")[0] == verdict.case.partition("::")[0]


def make_statement(ledger: Ledger, software: Mapping[str, str], levels: Sequence[ListedLevel]) -> Statement:
    """Return the statement of a run about these levels."""
    verdicts = {verdict.case: verdict for verdict in ledger.verdicts}
    run = ledger.run
    return Statement(
        run.run_id if run else "",
        (run.label if run else "") or "",
        tuple(run.devices) if run else (),
        software,
        tuple(judge_level(level, verdicts) for level in levels),
    )


def kept_bytes(statement: Statement, levels: Sequence[ListedLevel]) -> bytes:
    """Return the statement file of a run directory, with the definitions and lists from which the statement follows."""
    kept = {
        "statement": statement.as_json(),
        "definitions": {level.name: level.level.model_dump(mode="json") for level in levels},
        "lists": {level.name: list(level.listed.ids) for level in levels},
    }
    return (json.dumps(kept, indent=1, sort_keys=True) + "\n").encode()


def kept_problem(data: bytes, ledger: Ledger, software: Mapping[str, str]) -> str:
    """Return why the kept statement does not follow from the run; "" if it does."""
    try:
        kept = json.loads(data)
        definitions, lists = kept["definitions"], kept["lists"]
        levels = [
            ListedLevel(name, Level.model_validate_json(json.dumps(definition)), _listed(name, lists[name]))
            for name, definition in definitions.items()
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return f"{FILE_NAME} is not a statement with its definitions and lists"
    made = make_statement(ledger, software, levels)
    if data == kept_bytes(made, levels):
        return ""
    given = mapping(kept.get("statement"))
    differ = [name for name, value in made.as_json().items() if given.get(name) != value]
    return (
        f"{FILE_NAME} does not follow from the journal: {', '.join(differ) or 'its form'} differs; "
        "write it again with harness conformance --keep"
    )


def _listed(name: str, ids: Sequence[object]) -> MustPass:
    texts = tuple(str(case) for case in ids)
    return MustPass(f"{name}.txt", "", texts, digest_of_ids(texts))


def software_of(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the software that a statement names, from the facts of environment.json."""
    versions = mapping(facts.get("versions"))
    return {name: str(versions[name]) for name in ("torch", "python", "cuda") if versions.get(name)}


def statement_lines(statement: Statement, most: int = 5) -> list[str]:
    """Return the statement for people: one line per level, and up to `most` failed cases for each."""
    device = statement.label or list_first(statement.devices)
    software = ", ".join(f"{name} {version}" for name, version in statement.software.items())
    lines = [f"{device}, {software}, run {statement.run_id}"]
    for level in statement.levels:
        parts = [f"{level.passed} of {format_count(level.cases, 'case')} passed"]
        parts += [f"{len(level.failed)} failed"] if level.failed else []
        parts += [f"{len(level.known)} failed as torch does everywhere"] if level.known else []
        parts += [f"{len(level.missing)} without a verdict"] if level.missing else []
        parts += [f"{sum(level.not_applicable.values())} not applicable"] if level.not_applicable else []
        lines.append(f"{level.state.upper():15}{level.level:12}{', '.join(parts)}; list {level.list[:19]}")
        shown = list(level.failed.items())[:most]
        lines += [f"{'':15}failed: {case} ({why[:160]})" for case, why in shown]
        lines += [f"{'':15}and {len(level.failed) - most} more"] if len(level.failed) > most else []
        known = Counter(level.known.values())
        lines += [f"{'':15}{number} {reason[:160]}" for reason, number in known.items()]
        lines += [f"{'':15}{number} not applicable: {reason}" for reason, number in level.not_applicable.items()]
    return lines
