"""manifest.json: the claim of an evidence archive, the results of its run, and the SHA-256 of each of its files."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
from pydantic import Field

from harness import __version__
from harness.core.models import StrictModel
from harness.core.outcome import EXIT_OK, EXIT_RED, Outcome
from harness.gating import mustpass
from harness.journal import identity
from harness.journal.environment import mapping
from harness.journal.events import MustPass, Waiver
from harness.tools.evidence.record import EvidenceRecord, device_rows, is_gpu, optional_text

FILE_NAME = "manifest.json"
WAIVERS = "waivers.json"
#: The folders of the run directory and of the must-pass lists in the archive.
RUN = "run/"
LISTS = "must-pass/"
#: The source of cases that a mark in their test file waives, without a waiver.
BY_MARK = "mark xfail"
#: Incremented with every change that a reader of the previous number would misread.
SCHEMA = 1

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class EvidenceClaim(StrictModel):
    """The claim: what the run is evidence of."""

    device: str
    """The kind of the devices: cuda, simcuda, soft or cpu."""
    gpu: bool
    """Whether they are GPUs."""
    profile: str
    hardware: str
    must_pass: tuple[str, ...]
    """Names of the must-pass lists that the run satisfied."""


class RunFacts(StrictModel):
    """The run: its identity, time and environment."""

    run_ids: tuple[str, ...]
    """One for each part: a run that was resumed once has two."""
    shards: tuple[str, ...]
    started: float
    ended: float | None
    seed: int
    isolation: str
    harness: str | None
    """Version of the harness that ran the cases."""
    commit: str | None
    """What was checked out in the folder of the run."""
    dirty: bool | None
    """Whether tracked files there had been changed."""
    suite_files: str
    """Hash of the suites' files."""


class MachineFacts(StrictModel):
    host: str
    os: str | None
    kernel: str | None
    driver: str | None
    cuda_driver: str | None
    python: str | None
    torch: str | None


class DeviceFacts(StrictModel):
    uuid: str
    kind: str | None
    name: str | None


class FindingFacts(StrictModel):
    kind: str
    message: str
    cases: int
    """How many cases it concerns."""


class ManifestResults(StrictModel):
    """The totals of the verdicts."""

    verdict: str
    """green, red, ``nothing ran`` or unfinished."""
    exit_status: int | None
    cases: int
    totals: dict[str, int]
    """The number of cases with each outcome."""
    findings: tuple[FindingFacts, ...]


class ListFacts(StrictModel):
    name: str
    hash: str
    cases: int
    missed: int
    """How many of its cases did not pass."""


class UsedWaiver(StrictModel):
    case: str
    source: str
    """File and line of the waiver or the mark."""


class WaiverFacts(StrictModel):
    hash: str
    """As in the identity of the run; ``none`` without waivers."""
    count: int
    used: tuple[UsedWaiver, ...]
    """The cases that are waived."""


class FileFacts(StrictModel):
    size: int = Field(ge=0)
    sha256: Sha256


class ManifestSummary(StrictModel):
    """The facts that follow from the files of the run."""

    complete: bool
    claim: EvidenceClaim
    run: RunFacts
    machine: MachineFacts
    devices: tuple[DeviceFacts, ...]
    results: ManifestResults
    must_pass: tuple[ListFacts, ...]
    waivers: WaiverFacts


class Manifest(ManifestSummary):
    """The whole file."""

    schema_version: int = Field(alias="schema")
    tool: str
    """Version of the harness that made the archive."""
    files: dict[str, FileFacts]
    left_out: dict[str, str]
    """Links in the run directory, which are not in the archive, with what they point to."""


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the contents of the file. Equal manifests give equal bytes."""
    values = manifest.model_dump(mode="json", by_alias=True)
    return (json.dumps(values, indent=1, sort_keys=True, ensure_ascii=True) + "\n").encode("ascii")


def make_manifest(summary: ManifestSummary, files: dict[str, FileFacts], left_out: dict[str, str]) -> Manifest:
    parts = {name: getattr(summary, name) for name in ManifestSummary.model_fields}
    return Manifest(schema=SCHEMA, tool=__version__, files=files, left_out=left_out, **parts)


def summary_of(record: EvidenceRecord, *, complete: bool) -> ManifestSummary:
    """Return the facts that follow from the journal and the environment files."""
    ledger, run, facts = record.ledger, record.run, record.environment
    versions, system, git = (mapping(facts.get(name)) for name in ("versions", "os", "git"))
    rows = device_rows(facts)
    dirty = git.get("dirty")
    return ManifestSummary(
        complete=complete,
        claim=EvidenceClaim(
            device=record.kind,
            gpu=is_gpu(record.kind),
            profile=run.profile,
            hardware=run.hardware,
            must_pass=tuple(must_pass.name for must_pass in ledger.lists if not must_pass.missed),
        ),
        run=RunFacts(
            run_ids=tuple(part.run_id for part in record.ledger.runs),
            shards=tuple(f"{shard.shard}: {shard.run_id}" for shard in record.ledger.shards),
            started=record.ledger.runs[0].t,
            ended=None if ledger.end is None else ledger.end.t,
            seed=run.seed,
            isolation=run.isolation,
            harness=optional_text(versions.get("harness")),
            commit=optional_text(git.get("commit")),
            dirty=dirty if isinstance(dirty, bool) else None,
            suite_files=run.identity.get(identity.SUITE_FILES, ""),
        ),
        machine=MachineFacts(
            host=run.host,
            os=optional_text(system.get("name")),
            kernel=optional_text(system.get("kernel")),
            driver=optional_text(facts.get("driver")),
            cuda_driver=optional_text(facts.get("cuda_driver")),
            python=optional_text(versions.get("python")),
            torch=optional_text(versions.get("torch")),
        ),
        devices=tuple(
            DeviceFacts(
                uuid=uuid,
                kind=optional_text(rows.get(uuid, {}).get("kind")),
                name=optional_text(rows.get(uuid, {}).get("name")),
            )
            for uuid in run.devices
        ),
        results=ManifestResults(
            verdict=_verdict(record),
            exit_status=None if ledger.end is None else ledger.end.exit_status,
            cases=len(ledger.verdicts),
            totals={outcome.value: number for outcome, number in ledger.counts.items()},
            findings=tuple(
                FindingFacts(kind=finding.kind, message=finding.message, cases=len(finding.cases))
                for finding in ledger.findings
            ),
        ),
        must_pass=tuple(
            ListFacts(name=must_pass.name, hash=must_pass.hash, cases=must_pass.cases, missed=len(must_pass.missed))
            for must_pass in ledger.lists
        ),
        waivers=WaiverFacts(
            hash=run.identity.get(identity.WAIVERS, "none"), count=len(record.waivers), used=tuple(_used(record))
        ),
    )


def _verdict(record: EvidenceRecord) -> str:
    if record.ledger.end is None:
        return "unfinished"
    status = record.ledger.run_exit_status()
    return "green" if status == EXIT_OK else "red" if status == EXIT_RED or record.ledger.red else "nothing ran"


def _used(record: EvidenceRecord) -> list[UsedWaiver]:
    used = []
    for verdict in record.ledger.verdicts:
        if verdict.outcome is Outcome.WAIVED:
            rulings = [finish.ruling for finish in verdict.finishes if finish.ruling is not None]
            source = rulings[-1].source if rulings else BY_MARK
            used.append(UsedWaiver(case=verdict.case, source=source))
    return used


def derived_files(record: EvidenceRecord) -> dict[str, bytes]:
    """Return the files of the archive that are written from the journal: must-pass lists and waivers, by name."""
    lists = [event for event in record.contents.events if isinstance(event, MustPass)]
    files: dict[str, bytes] = {}
    for must_pass in lists:
        # Lists from two folders may have the same file name.
        name = (
            f"{LISTS}{must_pass.name}"
            if f"{LISTS}{must_pass.name}" not in files
            else f"{LISTS}{must_pass.hash[7:19]}-{must_pass.name}"
        )
        files[name] = mustpass.must_pass_bytes(mustpass.MustPass(must_pass.name, "", must_pass.ids, must_pass.hash))
    waivers = [waiver_fields(waiver) for waiver in record.waivers]
    return {**files, WAIVERS: (json.dumps(waivers, indent=1, sort_keys=True) + "\n").encode("ascii")}


def waiver_fields(waiver: Waiver) -> dict[str, object]:
    """Return a waiver of the journal as in its file and in the hash of the run's waivers."""
    fields: dict[str, object] = msgspec.to_builtins(waiver)
    defaults = {"when": {}, "link": "", "owner": ""}
    return {**defaults, **{name: value for name, value in fields.items() if name not in ("event", "t")}}
