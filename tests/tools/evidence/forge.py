"""An honest run on two GPUs, its archive, and a forger's changes to both."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from harness import __version__
from harness.core.caseid import case_seed
from harness.core.outcome import Outcome
from harness.journal import identity
from harness.reporting import junit
from harness.tools.evidence import archive, checks, record
from harness.tools.evidence import manifest as manifests
from harness.tools.evidence.manifest import FileFacts
from tests.reporting import build
from tests.reporting.build import Line

A, B, C, D = (f"suites/a/test_a.py::{name}" for name in ("test_a", "test_b", "test_c", "test_d"))
GPUS = ("GPU-11111111-0000-0000-0000-000000000000", "GPU-22222222-0000-0000-0000-000000000000")
JOURNAL, ENVIRONMENT, JUNIT = "run/journal.ndjson", "run/environment.json", "run/junit.xml"
WAIVER = build.waiver(D)

Members = dict[str, bytes]


def seeds(case: str) -> Line:
    return {"seed": case_seed(7, case), "devices": [GPUS[0]]}


def lines() -> list[Line]:
    """Return a red run: passed, failed, gated, waived. Its must-pass list is satisfied."""
    waiver = {name: value for name, value in WAIVER.items() if name not in ("event", "t")}
    listed = build.must_pass(A, name="core.txt")
    known = {
        "suite files": f"sha256:{'5' * 64}",
        "torch": "2.13.0",
        "driver": "570.1",
        "device": "NVIDIA H100",
        "waivers": identity.waivers_digest([waiver]),
        "must-pass lists": f"core.txt {listed['hash'][:19]}",
        "python": "3.11.7",
        "harness": __version__,
    }
    gate = {"capability": "memory", "wanted": ">=1TiB", "found": "80GiB"}
    failed = {"message": "assert 1 == 2", "detail": "Traceback: assert 1 == 2"}
    waived = {"ruling": {"outcome": "waived", "text": "waived: known", "source": WAIVER["source"]}, **failed}
    return [
        build.run(devices=list(GPUS), identity=known, settings={"device": "auto", "repeat": 1, "verify": None}),
        listed,
        {**WAIVER},
        build.collected(A, B, C, D),
        build.executor("gw0-1", devices=[GPUS[0]]),
        *(line for case in (A,) for line in (build.start(case, **seeds(case)), build.finish(case, **seeds(case)))),
        build.start(B, **seeds(B)),
        build.finish(B, Outcome.FAILED, **failed, **seeds(B)),
        build.finish(C, Outcome.GATED, gate=gate, executor=None, **{**seeds(C), "devices": []}),
        build.start(D, **seeds(D)),
        build.finish(D, Outcome.FAILED, **waived, **seeds(D)),
        build.executor("gw0-1", "ended", devices=[GPUS[0]], cases=3, exit_status=0, reason="retired"),
        build.end(exit_status=1),
    ]


def environment(**changes: Any) -> dict[str, Any]:
    gpu = {"kind": "cuda", "name": "NVIDIA H100", "compute_capability": [9, 0]}
    return {
        "schema": 1,
        "host": "node1",
        "os": {"name": "Debian", "kernel": "6", "machine": "x86_64"},
        "devices": [{"uuid": uuid, **gpu} for uuid in GPUS],
        "driver": "570.1",
        "cuda_driver": "12.8",
        "notes": [],
        "software_device": None,
        "versions": {"harness": __version__, "python": "3.11.7", "torch": "2.13.0"},
        "command": ["pytest", "suites/"],
        "seed": 7,
        "isolation": "batch",
        "rootdir": "/here",
        "git": {"commit": "c" * 40, "dirty": False, "reason": None},
        **changes,
    }


def journal_bytes(events: Sequence[Line]) -> bytes:
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in events).encode()


def report(events: Sequence[Line], known: Mapping[str, Any] | None = None) -> bytes:
    known = environment() if known is None else known
    return junit.serialise_junit(build.ledger(*events), known)[0]


def run_files(events: Sequence[Line] | None = None, **more: bytes) -> Members:
    """Return the files of a run directory, as members of an archive."""
    events = lines() if events is None else events
    files = {JOURNAL: journal_bytes(events), JUNIT: report(events), "run/files/gw0-1/out.txt": b"out\n"}
    return {**files, ENVIRONMENT: json.dumps(environment()).encode(), **more}


def sealed(files: Members) -> Members:
    """Return all members of an archive of these files, as an honest packager makes them, whatever they contain."""
    known = record.read_evidence_record(
        {name.removeprefix("run/"): data for name, data in files.items() if record.is_read(name.removeprefix("run/"))},
        Path("journal.ndjson"),
    )
    members = {**manifests.derived_files(known), **files}
    complete = not any(each.unfinished for each in checks.run_problems(known))
    manifest = manifests.make_manifest(manifests.summary_of(known, complete=complete), facts(members), {})
    return {**members, "manifest.json": manifests.manifest_bytes(manifest)}


def facts(members: Members) -> dict[str, FileFacts]:
    return {
        name: FileFacts(size=len(data), sha256=sha256(data).hexdigest())
        for name, data in sorted(members.items())
        if name != "manifest.json"
    }


def zipped(members: Members) -> bytes:
    buffer = io.BytesIO()
    archive.write_archive(buffer, ((name, len(data), [data]) for name, data in sorted(members.items())))
    return buffer.getvalue()


@dataclass
class Forger:
    """Changes the members of an honest archive."""

    members: Members

    @classmethod
    def of(cls, events: Sequence[Line] | None = None) -> Forger:
        return cls(sealed(run_files(events)))

    @property
    def run(self) -> Members:
        return {name: data for name, data in self.members.items() if name.startswith("run/")}

    def journal(self, change: Callable[[list[Line]], object], *, junit: bool = False) -> None:
        """Edit the lines of the journal, and remake all files derived from it; junit.xml only on request."""
        events = [json.loads(line) for line in self.members[JOURNAL].splitlines()]
        change(events)
        files = {**self.run, JOURNAL: journal_bytes(events)}
        if junit:
            files[JUNIT] = report(events, json.loads(self.members[ENVIRONMENT]))
        self.members = sealed(files)

    def environment(self, **changes: Any) -> None:
        """Edit environment.json, and remake all files derived from it."""
        facts = {**json.loads(self.members[ENVIRONMENT]), **changes}
        events = [json.loads(line) for line in self.members[JOURNAL].splitlines()]
        self.members = sealed({**self.run, ENVIRONMENT: json.dumps(facts).encode(), JUNIT: report(events, facts)})

    def file(self, name: str, data: bytes | None, *, seal: bool = False) -> None:
        """Replace, add or (None) remove a member; with `seal`, update its hash in the manifest."""
        if data is None:
            del self.members[name]
        else:
            self.members[name] = data
        if seal:
            self.manifest(lambda _: None)

    def manifest(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Edit the manifest, and recompute its hashes."""
        value = json.loads(self.members["manifest.json"])
        value["files"] = {name: each.model_dump() for name, each in facts(self.members).items()}
        change(value)
        self.members["manifest.json"] = (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
