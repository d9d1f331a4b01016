"""Propose waivers for the red cases of a run, and name old waivers to remove. A person checks and completes them.

A proposal does not mean that a failure is acceptable. Link and owner are empty, so that an unreviewed proposal cannot
be loaded.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.backends import cuda
from harness.backends.table import backend_of
from harness.core.caseid import function_of
from harness.core.errors import HarnessError
from harness.core.models import first_problem
from harness.core.outcome import Outcome
from harness.core.text import format_count, single_line
from harness.devices import software
from harness.gating import patterns
from harness.gating.waivers import EXPECTABLE
from harness.journal import environment
from harness.journal.events import Collected, Ruling
from harness.journal.ledger import Ledger
from harness.journal.reader import JournalContents
from harness.journal.verdicts import Verdict

#: How long a proposed waiver is valid.
LIFE = timedelta(days=30)
_MOST_NAMED = 20  # cases named in the remarks of one kind
_REASON_LIMIT = 300  # characters


class ProposalError(HarnessError):
    """A file of the run directory cannot be read, so no proposals can be made."""


class RunMachine(BaseModel):
    """The devices and the driver of a run, from environment.json. Other fields of that file are ignored."""

    class Device(BaseModel):
        model_config = ConfigDict(extra="ignore", strict=True)

        uuid: str
        compute_capability: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] | None = None

    model_config = ConfigDict(extra="ignore", strict=True)

    devices: tuple[Device, ...] = ()
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """An entry for a waiver file, without link and owner. `cases` are the ids that its pattern matches."""

    case: str
    when: dict[str, Any]
    expect: tuple[Outcome, ...]
    reason: str
    expires: date
    cases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Proposals:
    """The entries, and remarks on further steps, one per line."""

    entries: tuple[Proposal, ...]
    remarks: tuple[str, ...]


def read_machine(run_dir: Path) -> RunMachine | None:
    """Return the machine of a run; None without environment.json. Raise ProposalError, EnvironmentFileError."""
    path = run_dir / environment.FILE_NAME
    data = environment.KIND.read_if_exists(path)
    if data is None:
        return None
    try:
        return RunMachine.model_validate_json(data)
    except ValidationError as error:
        raise ProposalError(f"{str(path)!r} is no environment.json of a run: {first_problem(error)}") from None


def propose_waivers(contents: JournalContents, machine: RunMachine | None, today: date) -> Proposals:
    """Return an entry for each red case without a waiver, and remarks on the other red cases.

    Parametrised variants of one test with the same outcome and message become one pattern, if the pattern matches no
    other collected case.
    """
    ledger = Ledger.from_journal(contents)
    left_out = {case for event in contents.events if isinstance(event, Collected) for case in event.deselected}
    ids = _Ids({verdict.case for verdict in ledger.verdicts} | left_out)
    groups: dict[tuple[str, tuple[Outcome, ...], str], list[Verdict]] = {}
    for verdict in ledger.red:
        if expect := _seen(verdict):
            groups.setdefault((function_of(verdict.case), expect, verdict.message), []).append(verdict)
    entries, remarks = [], []
    for (function, expect, message), group in groups.items():
        for pattern, verdicts in _patterns(function, group, ids):
            if pattern is None:
                remarks.append(f"not proposed, because its pattern also matches other cases: {verdicts[0].case}")
                continue
            devices = {uuid for verdict in verdicts for finish in verdict.finishes for uuid in finish.devices}
            reason = _one_printable_line(single_line(message, _REASON_LIMIT)) or " or ".join(expect)
            cases = tuple(verdict.case for verdict in verdicts)
            entries.append(Proposal(pattern, _when(devices, machine), expect, reason, today + LIFE, cases))
    return Proposals(tuple(entries), (*remarks, *_remarks(ledger)))


def proposals_yaml(proposals: Proposals, title: str) -> str:
    """Return a waiver file with empty links and owners. `title` names the source of the proposals."""
    lines = [
        f"# {_one_printable_line(title)}",
        "# Each entry accepts a known failure under the conditions in 'when'. Check each entry: is the failure",
        "# acceptable? Remove conditions that do not matter. Fill in link (the issue) and owner.",
        "waivers:" if proposals.entries else "waivers: []",
    ]
    for entry in proposals.entries:
        if len(entry.cases) > 1:
            lines.append(f"  # {format_count(len(entry.cases), 'case')}")
        expect = entry.expect[0].value if len(entry.expect) == 1 else [outcome.value for outcome in entry.expect]
        lines += [
            f"  - case: {_quoted(entry.case)}",
            *([f"    when: {_flow(entry.when)}"] if entry.when else ["    # when: unknown, so it applies everywhere"]),
            f"    expect: {expect if isinstance(expect, str) else _flow(expect)}",
            f"    reason: {_quoted(entry.reason)}",
            "    link: ''  # the issue that must be solved",
            "    owner: ''  # the person or team responsible",
            f"    expires: {entry.expires}",
        ]
    return "\n".join([*lines, *(f"# {_one_printable_line(remark)}" for remark in proposals.remarks), ""])


class _Ids:
    """All collected ids, including deselected ones."""

    def __init__(self, ids: Collection[str]) -> None:
        self._ids = ids
        self._by_function: dict[str, list[str]] = {}
        for case in ids:
            self._by_function.setdefault(function_of(case), []).append(case)

    def matched(self, pattern: str, function: str) -> set[str]:
        """Return the ids that match `pattern`, which was made from cases of `function`."""
        # A comparison of all ids takes minutes for 10,000 red cases. Only a wildcard in the name can match another
        # function.
        among = self._by_function[function] if patterns.literal_prefix(_pattern(function)) == function else self._ids
        return {case for case in among if patterns.matches_pattern(pattern, case)}


def _patterns(function: str, group: Sequence[Verdict], ids: _Ids) -> Iterator[tuple[str | None, Sequence[Verdict]]]:
    """Yield one pattern for the group if it matches nothing else, otherwise one per case (None if impossible)."""
    together = f"{_pattern(function)}[*]"
    if len(group) > 1 and ids.matched(together, function) == {verdict.case for verdict in group}:
        yield together, group
        return
    for verdict in group:
        pattern = _pattern(verdict.case)
        alone = patterns.literal_prefix(pattern) == verdict.case or ids.matched(pattern, function) == {verdict.case}
        yield pattern if alone else None, [verdict]


def _seen(verdict: Verdict) -> tuple[Outcome, ...]:
    """Return the outcomes that a waiver for the case would have to expect. Empty if no waiver is possible."""
    ruling = _ruling(verdict)
    if ruling is not None and _of_waiver(ruling):
        return ()
    if verdict.outcome is Outcome.FLAKY:
        return Outcome.FLAKY, Outcome.PASSED
    outcomes = {finish.outcome for finish in verdict.finishes if finish.final}
    if verdict.outcome not in outcomes.intersection(EXPECTABLE):
        return ()
    return tuple(outcome for outcome in EXPECTABLE if outcome in outcomes)


def _ruling(verdict: Verdict) -> Ruling | None:
    """Return the rule of the run that gave the case its outcome."""
    rulings = (finish.ruling for finish in reversed(verdict.finishes) if finish.ruling is not None)
    return next((ruling for ruling in rulings if ruling.outcome is verdict.outcome), None)


def _of_waiver(ruling: Ruling) -> bool:
    """Return whether the rule is a waiver: only waivers have a line of a file as their source."""
    return re.search(r":[0-9]+$", ruling.source) is not None


def _when(devices: Collection[str], machine: RunMachine | None) -> dict[str, Any]:
    """Return conditions that hold for these devices (by UUID) and this driver. Empty if the devices differ in kind."""
    kinds = {backend_of(uuid) for uuid in devices}
    backend = kinds.pop() if len(kinds) == 1 else None
    if backend is None:
        return {}
    if not backend.accelerator:
        return {"not": {"device": cuda.BACKEND.kind}}  # the condition ``device: cpu`` is true on every machine
    when: dict[str, Any] = {"device": backend.kind}
    if not backend.nvml:
        return when
    capabilities = {device.uuid: device.compute_capability for device in machine.devices} if machine else {}
    ordered = sorted({capability for uuid in devices if (capability := capabilities.get(uuid)) is not None})
    if ordered and all(capabilities.get(uuid) is not None for uuid in devices):
        lowest, highest = (f"{major}.{minor}" for major, minor in (ordered[0], ordered[-1]))
        when["compute_capability"] = f"=={lowest}" if lowest == highest else f">={lowest},<={highest}"
    release = software.parse_release(machine.driver) if machine and machine.driver else None
    if release:
        when["driver"] = f">={'.'.join(map(str, release))},<{release[0] + 1}"
    return when


def _remarks(ledger: Ledger) -> Iterator[str]:
    """Yield the remaining steps: old waivers to change or remove, and red cases that cannot be waived."""
    for finding in ledger.findings:
        if finding.kind.startswith("waiver_"):
            yield finding.message
    ruled = [(verdict, ruling) for verdict in ledger.verdicts if (ruling := _ruling(verdict)) and _of_waiver(ruling)]
    needed = Counter(ruling.source for verdict, ruling in ruled if verdict.outcome is Outcome.WAIVED)
    red = {verdict.case for verdict in ledger.red}
    wrong: dict[tuple[str, str], list[str]] = {}
    for verdict, ruling in ruled:
        if verdict.case in red:
            wrong.setdefault((ruling.source, ruling.text), []).append(verdict.case)
    for (source, text), cases in wrong.items():
        more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
        still = f"; {needed[source]} other cases still need it" if needed[source] else ""
        yield f"{source}: {cases[0]}{more}: {text}{still}"
    waivers = {verdict.case for verdict, _ in ruled}
    others = [verdict for verdict in ledger.red if verdict.case not in waivers and not _seen(verdict)]
    for verdict in others[:_MOST_NAMED]:
        yield f"not for a waiver: {verdict.case}: {verdict.outcome}: {verdict.message}"
    if len(others) > _MOST_NAMED:
        yield f"not for a waiver: {len(others) - _MOST_NAMED} more cases"


def _pattern(text: str) -> str:
    """Return a pattern for `text`. A ``?`` replaces each character that a pattern or a file cannot contain."""
    plain = "".join(character if character.isprintable() and character != "*" else "?" for character in text)
    inner = plain.strip()
    begin = len(plain) - len(plain.lstrip())
    return f"{'?' * begin}{inner}{'?' * (len(plain) - begin - len(inner))}"


def _one_printable_line(text: str) -> str:
    """Return the text on one line. Unprintable characters, and those that YAML forbids, become visible escapes."""
    words = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in words)


def _quoted(text: str) -> str:
    """Return the text as a quoted YAML scalar, so that every reader takes it as text."""
    return _dumped(text, default_style='"')


def _flow(value: object) -> str:
    return _dumped(value, default_flow_style=True)


def _dumped(value: object, **style: Any) -> str:
    text: str = yaml.safe_dump(value, width=math.inf, allow_unicode=True, sort_keys=False, **style)
    return text.strip()
