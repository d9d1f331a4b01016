"""Verify an evidence archive: derive all its statements again from its journal."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from harness.core.models import first_problem
from harness.core.outcome import EXIT_OK
from harness.core.text import format_count, inert_line, list_first, single_line
from harness.gating.mustpass import MustPass
from harness.journal import journal
from harness.journal.journal import JournalError
from harness.reporting.page import report as page
from harness.tools.evidence import archive, checks, record
from harness.tools.evidence import manifest as manifests
from harness.tools.evidence.archive import ArchiveError, Content
from harness.tools.evidence.manifest import Manifest, ManifestSummary
from harness.tools.evidence.record import EvidenceRecord, is_gpu

#: Maximum number of problems; a forged journal of a few MiB can have millions.
_MOST_PROBLEMS = 1_000
#: Maximum number of waived cases that are named.
_SHOWN = 20
#: The subject of each part of the manifest, for the sentence about a difference.
_ABOUT = {
    "complete": "whether the run is complete",
    "claim": "the claim",
    "run": "the run",
    "machine": "the machine",
    "devices": "the devices",
    "results": "the results",
    "must_pass": "the must-pass lists",
    "waivers": "the waivers",
}


@dataclass(frozen=True, slots=True)
class Demands:
    """The verifier's demands beyond the truth of the evidence.

    `lists`: must-pass lists that the run must have satisfied. `gpu`: whether it must have run on GPUs.
    """

    green: bool = False
    gpu: bool = False
    lists: Sequence[MustPass] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """The result. Verified if there are no `problems`. `record` and `manifest` are None if not readable."""

    problems: tuple[str, ...]
    manifest: Manifest | None = None
    record: EvidenceRecord | None = None


def verify_archive(file: IO[bytes], path: Path, demands: Demands, most_bytes: int = archive.MOST_BYTES) -> Verification:
    """Verify the archive in an open file. Raise ArchiveError if it cannot be read as an archive."""
    read = archive.read_archive(file, path, _is_wanted, most_bytes)
    if read.problems:
        return Verification(read.problems)
    manifest, fault = _manifest(read.members)
    if manifest is None:
        return Verification((fault,))
    problems = [*_files(manifest, read.members)]
    evidence, fault = _record(read.members, path)
    if evidence is None:
        return Verification((*problems, fault), manifest)
    run_problems = [*islice(checks.run_problems(evidence), _MOST_PROBLEMS + 1)]
    summary = manifests.summary_of(evidence, complete=not any(problem.unfinished for problem in run_problems))
    found = chain(
        problems,
        (problem.text for problem in run_problems),
        _claims(manifest, evidence),
        _differences(manifest, summary),
        _derived(evidence, read.members),
        _demands(evidence, demands),
    )
    return Verification(_named_problems(found), manifest, evidence)


def _named_problems(found: Iterator[str]) -> tuple[str, ...]:
    """Return the first problems, each once and on one line, and whether there are more."""
    named = dict.fromkeys(map(inert_line, islice(found, _MOST_PROBLEMS)))
    if next(found, None) is not None:
        named[f"there are more problems; {_MOST_PROBLEMS} are named"] = None
    return tuple(named)


def _is_wanted(name: str) -> bool:
    return not name.startswith(manifests.RUN) or record.is_read(name.removeprefix(manifests.RUN))


def _manifest(members: dict[str, Content]) -> tuple[Manifest | None, str]:
    if manifests.FILE_NAME not in members:
        return None, f"{manifests.FILE_NAME} is missing: the archive is not evidence of a run"
    data = members[manifests.FILE_NAME].data or b""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        return None, f"{manifests.FILE_NAME} is not JSON: {error}"
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema != manifests.SCHEMA:
        return None, (
            f"{manifests.FILE_NAME} has schema {schema!r}; this harness reads schema {manifests.SCHEMA}: "
            "use the harness that made the archive, or a newer one"
        )
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        return None, f"{manifests.FILE_NAME} is not valid: {first_problem(error)}"
    if manifests.manifest_bytes(manifest) != data:
        return None, f"{manifests.FILE_NAME} is not written as harness package writes it: it was edited"
    return manifest, ""


def _files(manifest: Manifest, members: dict[str, Content]) -> Iterator[str]:
    for name, facts in manifest.files.items():
        content = members.get(name)
        if content is None:
            yield f"{name} is missing: {manifests.FILE_NAME} lists it"
        elif content.sha256 != facts.sha256 or content.size != facts.size:
            yield (
                f"{name} was edited: it has {content.size} bytes and SHA-256 {content.sha256[:12]}…, but "
                f"{manifests.FILE_NAME} says {facts.size} bytes and {facts.sha256[:12]}…"
            )
    for name in members:
        if name not in manifest.files and name != manifests.FILE_NAME:
            yield f"{name} was added: {manifests.FILE_NAME} does not list it"
    for name in manifest.left_out:
        if not name.startswith(f"{manifests.RUN}files/"):
            yield f"{name} was left out as a link, which is allowed only below {manifests.RUN}files/"


def _record(members: dict[str, Content], path: Path) -> tuple[EvidenceRecord | None, str]:
    files = {
        name.removeprefix(manifests.RUN): content.data
        for name, content in members.items()
        if name.startswith(manifests.RUN) and content.data is not None
    }
    if journal.FILE_NAME not in files:
        return None, f"{manifests.RUN}{journal.FILE_NAME} is missing, so nothing can be verified"
    try:
        return record.read_evidence_record(files, path / manifests.RUN / journal.FILE_NAME), ""
    except JournalError as error:
        return None, str(error)


def _claims(manifest: Manifest, evidence: EvidenceRecord) -> Iterator[str]:
    """Yield problems of the claim, each with a specific sentence, because readers look at the claim first."""
    claim = manifest.claim
    if (claim.gpu or is_gpu(claim.device)) and not is_gpu(evidence.kind):
        yield (
            f"the archive claims a GPU, but the run was on {list_first(evidence.run.devices)}, which is "
            f"{evidence.run.label or 'no GPU'}"
        )
    missed = {result.name: result for result in evidence.ledger.lists if result.missed}
    listed = {result.name for result in evidence.ledger.lists}
    for name in claim.must_pass:
        if name in missed:
            cases = missed[name].missed
            number = format_count(len(cases), "case")
            yield f"must-pass list {name} is claimed, but {number} did not pass: {list_first(cases)}"
        elif name not in listed:
            yield f"must-pass list {name} is claimed, but the run had no such list"


def _differences(manifest: Manifest, summary: ManifestSummary) -> Iterator[str]:
    """Yield every value of the manifest that does not follow from the run."""
    said, expected = manifest.model_dump(mode="json"), summary.model_dump(mode="json")
    for part, about in _ABOUT.items():
        have, want = _flat(part, said[part]), _flat(part, expected[part])
        for name in dict.fromkeys((*want, *have)):
            if have.get(name) != want.get(name):
                yield (
                    f"{manifests.FILE_NAME} is wrong about {about}: {name} is {_shown(have.get(name))}, but "
                    f"{_shown(want.get(name))} follows from the run"
                )


def _flat(name: str, value: object) -> dict[str, object]:
    if isinstance(value, dict):
        return {path: leaf for key, item in value.items() for path, leaf in _flat(f"{name}.{key}", item).items()}
    if isinstance(value, list) and value:
        return {path: leaf for i, item in enumerate(value) for path, leaf in _flat(f"{name}[{i}]", item).items()}
    return {name: value}


def _shown(value: object) -> str:
    return "missing" if value is None else repr(single_line(str(value), 120))


def _derived(evidence: EvidenceRecord, members: dict[str, Content]) -> Iterator[str]:
    """Yield problems of files that follow from the journal."""
    expected = manifests.derived_files(evidence)
    for name, data in expected.items():
        content = members.get(name)
        if content is None:
            yield f"{name} is missing: the journal has its contents"
        elif content.data != data:
            noun = "the waivers" if name == manifests.WAIVERS else "the must-pass list"
            yield f"{name} is not {noun} that the journal has"
    for name in members:
        if name.casefold() == f"{manifests.RUN}{page.FILE_NAME}":
            yield f"{name} is not verified: harness package leaves it out, since harness report html makes it again"
        if name not in expected and name != manifests.FILE_NAME and not name.startswith(manifests.RUN):
            yield f"{name} is no file of an evidence archive of this run"


def _demands(evidence: EvidenceRecord, demands: Demands) -> Iterator[str]:
    ledger = evidence.ledger
    if demands.green and (status := ledger.run_exit_status()) != EXIT_OK:
        yield f"the run is not green, as --require-green demands: {red_reason(evidence)} (exit status {status})"
    if demands.gpu and not is_gpu(evidence.kind):
        yield f"the run is not on a GPU, as --require-gpu demands: it was on {list_first(evidence.run.devices)}"
    results = {result.hash: result for result in ledger.lists}
    for wanted in demands.lists:
        same_name = next((result for result in ledger.lists if result.name == wanted.name), None)
        result = results.get(wanted.hash)
        if result is None and same_name is not None:
            yield (
                f"must-pass list {wanted.name} differs: yours has "
                f"{format_count(len(wanted.ids), 'case')} and hash "
                f"{wanted.hash[:19]}, that of the run has {same_name.cases} and {same_name.hash[:19]}"
            )
        elif result is None:
            yield f"the run did not check must-pass list {wanted.name} ({wanted.hash[:19]})"
        elif result.missed:
            yield (
                f"must-pass list {wanted.name} is not satisfied: "
                f"{format_count(len(result.missed), 'case')} did not pass, "
                f"the first {result.missed[0]}"
            )


def red_reason(evidence: EvidenceRecord) -> str:
    """Return a short reason why the run is red; the counts if it is not."""
    ledger = evidence.ledger
    counts = Counter(verdict.outcome for verdict in ledger.red)
    words = [f"{number} {outcome}" for outcome, number in counts.items()]
    words += [format_count(len(ledger.findings), "finding")] if ledger.findings else []
    return ", ".join(words) or "no case ran"


def extract_archive(file: IO[bytes], folder: Path) -> None:
    """Write the run directory in a verified archive to a new folder. Raise ArchiveError."""
    try:
        folder.mkdir(parents=True)
        with zipfile.ZipFile(file) as packed:
            for name in packed.namelist():
                if not name.startswith(manifests.RUN):
                    continue
                path = folder / name.removeprefix(manifests.RUN)
                path.parent.mkdir(parents=True, exist_ok=True)
                with packed.open(name) as member, path.open("xb") as out:
                    for chunk in archive.file_chunks(member):
                        out.write(chunk)
    except FileExistsError:
        raise ArchiveError(f"--extract={str(folder)!r} exists already: name a new folder") from None
    except OSError as error:
        raise ArchiveError(f"cannot extract into {str(folder)!r}") from error


def _levels(evidence: EvidenceRecord) -> Iterator[str]:
    """Yield the levels of a kept statement, which `checks` has made again."""
    if evidence.conformance is None:
        return
    for level in json.loads(evidence.conformance)["statement"]["levels"]:
        numbers = f"{level['passed']} of {format_count(level['cases'], 'case')} passed"
        yield single_line(
            f"level {level['level']}: {level['state']}, {numbers}; list {level['list'][:19]}, "
            f"definition {level['definition'][:19]}"
        )


def verification_lines(evidence: EvidenceRecord, manifest: Manifest) -> list[str]:
    """Return the result of a verified archive, for people."""
    results, machine = manifest.results, manifest.machine
    totals = ", ".join(f"{number} {outcome}" for outcome, number in evidence.ledger.counts.items()) or "no cases"
    state = {"green": "the run is green", "red": f"the run is red, {red_reason(evidence)}"}.get(
        results.verdict, "nothing ran in the run"
    )
    names = Counter(device.name or device.uuid for device in manifest.devices)
    devices = ", ".join(f"{number} x {name}" for name, number in names.items())
    label = f", {evidence.run.label}" if evidence.run.label else ""
    software = f"driver {machine.driver or 'none'}, torch {machine.torch or 'none'}, harness {manifest.run.harness}"
    lines = [
        f"verified: {state} (exit status {results.exit_status})",
        f"  cases: {results.cases}: {totals}",
        f"  devices: {devices} ({manifest.claim.device}{label}); {software}",
    ]
    if manifest.claim.profile or manifest.claim.hardware:
        lines.append(f"  profile {manifest.claim.profile or 'none'}, hardware {manifest.claim.hardware or 'none'}")
    every = manifest.results.findings
    lines += [f"  finding {finding.kind}: {single_line(finding.message)}" for finding in every[:_SHOWN]]
    lines += [f"  {len(every) - _SHOWN} more findings; manifest.json names them"] if len(every) > _SHOWN else []
    lines += [f"  {result.text}" for result in evidence.ledger.lists]
    lines += [f"  {line}" for line in _levels(evidence)]
    waived = [waiver for waiver in manifest.waivers.used if waiver.source != manifests.BY_MARK]
    lines += [f"  waived: {waiver.case} ({waiver.source})" for waiver in waived[:_SHOWN]]
    lines += [f"  waived: {len(waived) - _SHOWN} more cases; manifest.json names them"] if len(waived) > _SHOWN else []
    commit = manifest.run.commit
    if commit is None:
        lines.append("  the commit is not known: the run was not in a git work tree")
    else:
        changed = ", with changes that were not committed" if manifest.run.dirty else ""
        lines.append(f"  commit {commit}{changed}; suite files {manifest.run.suite_files[:19] or 'not known'}")
    return [inert_line(line) for line in lines]
