"""The report as a run directory, so that the history, comparisons and reports show a node over time.

Each check is a case, ``ready/gpu 3::row_remapping`` or ``ready/node::disk``, on the device that it looked at. The
journal says that the results are imported from ``ready.json``, the report itself, since no case ran with pytest.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.core.atomic import write_atomically
from harness.core.caseid import digest_of_ids
from harness.core.errors import HarnessError, convert_to_write_error
from harness.core.outcome import Outcome, run_exit_status
from harness.core.secrets import mask_command
from harness.core.text import escape_invalid_xml, single_line
from harness.journal import environment, journal
from harness.journal.events import SCHEMA, Collected, End, Event, Finish, Imported, ImportedFile, RunStarted
from harness.journal.identity import make_run_id
from harness.journal.journal import encode_line
from harness.ready.model import CheckRun, NodeReport, Problem, Verdict

REPORT = "ready.json"
TOOL = "harness ready"
_SUITE = "ready"
#: Facts of a run that the report has in its stack, by their names in a run.
_IDENTITY = ("torch", "driver", "python", "harness")


class RecordError(HarnessError):
    """The folder of a record cannot be used."""


def write_run(report: NodeReport, folder: Path, argv: Sequence[str]) -> None:
    """Write a run directory. `argv`: the command line, program first. Raise RecordError, WriteError."""
    if (folder / journal.FILE_NAME).exists():
        raise RecordError(f"{str(folder)!r} already contains a run: name another folder")
    data = msgspec.json.format(msgspec.json.encode(report))
    with convert_to_write_error(f"the folder {str(folder)!r}"):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / REPORT, data)
    environment.write_environment(folder, facts(report, argv))
    lines = events(report, argv, hashlib.sha256(data).hexdigest())
    write_atomically(folder / journal.FILE_NAME, b"".join(encode_line(event) for event in lines))


def events(report: NodeReport, argv: Sequence[str], digest: str) -> Iterator[Event]:
    """Yield the lines of the journal. Pure but for the random end of the run's id."""
    words = tuple(escape_invalid_xml(word) for word in mask_command(argv))
    finishes = list(_finishes(report))
    ids = tuple(finish.case for finish in finishes)
    imported = ImportedFile(path=REPORT, sha256=digest, cases=max(1, len(ids)))
    yield RunStarted(
        t=report.time,
        schema_version=SCHEMA,
        run_id=make_run_id(time.gmtime(report.time)),
        argv=words,
        seed=0,
        isolation="none",
        host=report.host,
        pid=0,
        devices=tuple(gpu.uuid for gpu in report.gpus),
        fail_on_flaky=False,
        rootdir="",
        hardware=report.stack.get("hardware", ""),
        identity={name: report.stack.get(name, "none") for name in _IDENTITY},
        imported=Imported(tool=TOOL, files=(imported,)),
    )
    yield Collected(t=report.time, worker="", count=len(ids), hash=digest_of_ids(ids), ids=ids)
    yield from finishes
    status = run_exit_status([finish.outcome for finish in finishes])
    yield End(t=report.time + report.seconds, exit_status=status, duration=report.seconds)


def _finishes(report: NodeReport) -> Iterator[Finish]:
    """Yield a case for each check, and one for each problem whose check is not listed."""
    numbers = {gpu.uuid: f"gpu {gpu.index}" for gpu in report.gpus if gpu.index is not None}
    runs = {(run.name, run.gpu): run for run in report.checks}
    found: dict[tuple[str, str | None], list[Problem]] = {}
    for problem in report.problems:
        found.setdefault((problem.check, problem.gpu), []).append(problem)
    for name, gpu in dict.fromkeys((*runs, *found)):
        problems = found.get((name, gpu), [])
        run = runs.get((name, gpu), CheckRun(name=name, gpu=gpu, state="problem"))
        place = "node" if gpu is None else numbers.get(gpu, gpu)
        yield Finish(
            t=report.time + min(run.seconds, report.seconds),
            case=single_line(f"{_SUITE}/{place}::{name}"),
            attempt=1,
            devices=() if gpu is None else (gpu,),
            seed=0,
            outcome=_outcome(run, problems),
            final=True,
            duration=run.seconds,
            message=single_line("; ".join(map(_text, problems)) or run.text),
        )


def _outcome(run: CheckRun, problems: Sequence[Problem]) -> Outcome:
    """Return failed for a problem, also a degraded one: the history says since when. An unknown check is an error."""
    verdicts = {problem.verdict for problem in problems} - {Verdict.READY}
    if verdicts - {Verdict.UNKNOWN}:
        return Outcome.FAILED
    if verdicts or (run.state == "unknown" and not problems):
        return Outcome.ERROR
    return Outcome.SKIPPED if run.state == "skipped" else Outcome.PASSED


def _text(problem: Problem) -> str:
    return f"{problem.verdict.text}: wanted {problem.wanted}, found {problem.found}; next: {problem.step.text}"


def facts(report: NodeReport, argv: Sequence[str]) -> dict[str, Any]:
    """Return the facts for environment.json."""
    stack = report.stack
    return {
        "schema": environment.SCHEMA,
        "host": report.host,
        "devices": [{"uuid": gpu.uuid, "name": gpu.name, "index": gpu.index} for gpu in report.gpus],
        "driver": stack.get("driver"),
        "cuda_driver": stack.get("cuda_driver"),
        "versions": {name: stack.get(name) for name in ("torch", "cuda", "python", "harness")},
        "command": [escape_invalid_xml(word) for word in mask_command(argv)],
        "ready": {"verdict": report.verdict.value, "mode": report.mode, "stack": dict(stack)},
    }
