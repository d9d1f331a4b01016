"""The record of one run for comparisons: plain values about each case and about the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core.figures import PREFIX, read_figure
from harness.core.outcome import EXIT_NOTHING_RAN, EXIT_OK, Outcome
from harness.core.text import escape_invalid_xml, single_line, truncate_middle
from harness.journal import environment, identity, journal, reader
from harness.journal.events import Finish, RunStarted
from harness.journal.ledger import Ledger
from harness.journal.verdicts import Verdict

#: Options that the environment file also has, and the seed, which differs between any two runs.
_TOLD = ("--seed", "--isolation", "--under", "--profile")
#: The facts that determine the speed of a device: clocks in MHz, power limit in watts.
_SPEED = ("graphics_clock", "memory_clock", "power_limit")
#: Maximum characters of a hash, and of another value.
_HASH, _SHOWN = 19, 200


@dataclass(frozen=True, slots=True)
class CaseRecord:
    """One case in one run. `durations`: seconds of each attempt that counts and ran.

    `figures`: the speeds that the case recorded, as texts, by name, one per attempt.
    """

    outcome: Outcome
    message: str = ""
    durations: tuple[float, ...] = ()
    reproduce: str | None = None
    figures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FindingRecord:
    """One finding of one run."""

    kind: str
    message: str
    cases: tuple[str, ...] = ()
    reproduce: str | None = None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. `facts`: its machine, software and options, by name, as texts. `notes`: doubts about it.

    `exit_status`: the run's exit status. `fail_on_flaky`: a flaky case makes the run red.
    """

    name: str
    cases: Mapping[str, CaseRecord]
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    findings: tuple[FindingRecord, ...] = ()
    exit_status: int = EXIT_OK
    fail_on_flaky: bool = False

    @property
    def is_red(self) -> bool:
        """Whether the run is red, for any reason."""
        return self.exit_status not in (EXIT_OK, EXIT_NOTHING_RAN)

    @property
    def is_explained(self) -> bool:
        """Whether a case or a finding makes the run red."""
        red = (
            record.outcome.is_red or (self.fail_on_flaky and record.outcome is Outcome.FLAKY)
            for record in self.cases.values()
        )
        return bool(self.findings) or any(red)


def read_run_record(run_dir: Path) -> RunRecord:
    """Read a run directory.

    Raise JournalError without a journal of a run, EnvironmentFileError for a broken environment file.
    """
    contents = reader.read_run_journal(run_dir / journal.FILE_NAME)
    ledger = Ledger.from_journal(contents)
    notes = [f"{len(contents.damaged)} unreadable lines of its journal were ignored"] if contents.damaged else []
    if ledger.end is None:
        notes.append("it did not finish")
    if ledger.run is not None and ledger.run.imported is not None:
        notes.append(f"its cases were run {ledger.run.imported.text}")
    run_facts = environment.read_environment(run_dir)
    if run_facts is None:
        notes.append(f"it has no {environment.FILE_NAME}, so its machine and software are not compared")
    return RunRecord(
        name=escape_invalid_xml(str(run_dir)),
        cases={verdict.case: _case(verdict) for verdict in ledger.verdicts},
        facts=environment_facts(run_facts or {}) | ({} if ledger.run is None else _conditions(ledger.run)),
        notes=tuple(notes),
        findings=tuple(
            FindingRecord(
                escape_invalid_xml(finding.kind), escape_invalid_xml(finding.message), finding.cases, finding.reproduce
            )
            for finding in ledger.findings
        ),
        exit_status=ledger.run_exit_status(),
        fail_on_flaky=ledger.fail_on_flaky,
    )


def environment_facts(recorded: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of an environment file that can explain a difference, by name. Missing facts are left out.

    Device facts are kind, number, clocks, power limit and ECC, but not their identities.
    """
    facts: dict[str, str] = {}
    for name in ("driver", "cuda_driver", "isolation", "under"):
        _put(facts, name, recorded.get(name))
    for name, version in _mapping(recorded.get("versions")).items():
        _put(facts, str(name), version)
    system = _mapping(recorded.get("os"))
    _put(facts, "os", system.get("name"))
    _put(facts, "kernel", system.get("kernel"))
    _put(facts, "commit", _mapping(recorded.get("git")).get("commit"))
    rows = environment.devices_of(recorded)
    if rows:
        names = [str(row.get("name")) for row in rows]
        facts["devices"] = escape_invalid_xml(
            ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        )
        for name in (*_SPEED, "ecc"):
            if any(row.get(name) is not None for row in rows):
                facts[name.replace("_", " ")] = escape_invalid_xml(
                    ", ".join(dict.fromkeys(str(row.get(name)) for row in rows))
                )
    for name, value in _mapping(recorded.get("environment")).items():
        _put(facts, f"${name}", value)
    return facts


def _conditions(run: RunStarted) -> dict[str, str]:
    """Return other facts that can explain a difference, by name: profile, hashes of suites and waivers, options."""
    facts = {"profile": run.profile or "none"}
    for name, value in identity.identity_facts(run).items():
        if name in (identity.SUITE_FILES, identity.WAIVERS, identity.MUST_PASS) or (
            name.startswith("--") and name not in _TOLD
        ):
            facts[name] = (
                escape_invalid_xml(value[:_HASH] if value.startswith("sha256:") else truncate_middle(value, _SHOWN))
                or "not set"
            )
    return facts


def _case(verdict: Verdict) -> CaseRecord:
    counting = [finish for finish in verdict.finishes if finish.final and finish.outcome.ran]
    return CaseRecord(
        outcome=verdict.outcome,
        message=single_line(verdict.message),
        durations=tuple(finish.duration for finish in counting),
        reproduce=verdict.reproduce,
        figures=_figures(counting),
    )


def _figures(counting: Sequence[Finish]) -> dict[str, tuple[str, ...]]:
    """Return the recorded properties that are figures of speed."""
    figures: dict[str, tuple[str, ...]] = {}
    for finish in counting:
        for name, text in finish.properties:
            if name.startswith(PREFIX) and read_figure(text) is not None:
                name = escape_invalid_xml(name.removeprefix(PREFIX))
                figures[name] = (*figures.get(name, ()), text)
    return figures


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}


def _put(facts: dict[str, str], name: str, value: object) -> None:
    if value is not None:
        facts[escape_invalid_xml(name)] = escape_invalid_xml(str(value))
