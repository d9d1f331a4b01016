"""The run directory of a cluster run: created and locked, resumed, and reported at the end."""

from __future__ import annotations

import dataclasses
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.backends.table import BACKENDS, own_kinds
from harness.core.outcome import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_USAGE
from harness.core.text import format_count
from harness.journal import identity, journal, reader
from harness.journal.events import End, Event, RunStarted, Suspect
from harness.journal.ledger import Ledger
from harness.reporting import formats, junit, repetitions, terminal
from harness.reporting.page import report as page
from harness.scheduling import remote_queue
from harness.scheduling.resume import (
    RunLock,
    RunLockedError,
    lost_lines,
    nothing_to_continue,
    reopened_lines,
    resumption_of,
    set_aside,
)
from harness.scheduling.workers import ResumeError
from harness.tools.cluster import sessions
from harness.tools.cluster.engine import Engine
from harness.tools.cluster.head import Head
from harness.tools.cluster.sessions import ClusterError, ClusterRequest, Earlier, read_rules

#: Arguments of pytest that a cluster run sets itself, or that make no sense on many nodes.
_OWN = {
    "--results-dir": "give it before the --",
    "--resume": "give it before the --",
    "--shard": "cases move between the nodes, so there are no shards",
    "--dist": "the head distributes the cases",
    "--maxfail": "a node cannot stop the others",
    "-x": "a node cannot stop the others",
    "--exitfirst": "a node cannot stop the others",
    "-n0": "each node needs workers: leave it out, or give their number",
    "--pdb": "there is no terminal on the nodes",
}


def pytest_arguments(given: Sequence[str], seed: int) -> tuple[str, ...]:
    """Return the pytest arguments for each node. Raise ClusterError for arguments that are not supported."""
    for word in given:
        short = word.replace("--harness-", "--", 1)
        if short.partition("=")[0] in _OWN:
            raise ClusterError(
                f"{word!r} cannot be an argument of pytest in a cluster run: {_OWN[short.partition('=')[0]]}"
            )
        if short == "--isolation=none":
            raise ClusterError(f"{word!r} cannot be used in a cluster run: cases need processes of their own")
    words = list(given)
    if not any(word.startswith(("-n", "--numprocesses")) for word in words):
        words.append("-nauto")
    if not any(word.partition("=")[0] in ("--seed", "--harness-seed") for word in words):
        words.append(f"--harness-seed={seed}")
    return tuple(words)


def forwarded_variables(environ: dict[str, str]) -> dict[str, str]:
    """Return the variables of this process for the nodes: harness options, and declarations of software devices."""
    names = {name for kind in own_kinds() for name in BACKENDS[kind].variables}
    return {
        name: value
        for name, value in environ.items()
        if (name.startswith("HARNESS_") or name in names) and name != remote_queue.VARIABLE
    }


def run_cluster(options: ClusterRequest, engine: Engine, log: Callable[[str], None]) -> int:
    """Run on all nodes of the engine, and report. Return the exit status."""
    begun = time.monotonic()
    run_id = identity.make_run_id()
    run_dir, lock = _run_dir(options, run_id)
    try:
        earlier, seed = _earlier(options, run_dir, log)
        wanted = dataclasses.replace(
            options,
            arguments=pytest_arguments(options.arguments, seed),
            folder=options.folder or str(Path.cwd()),
            run_dir=run_dir,
            run_id=run_id,
            variables=forwarded_variables(dict(os.environ)),
        )
        rules = read_rules(wanted.arguments, wanted.folder)
        hosts = engine.hosts()
        log(f"{format_count(len(hosts), 'node')}: {', '.join(host.name for host in hosts)}; results in {run_dir}")
        head = Head(wanted, rules, hosts, log, earlier)
        head.run()
        if not head.has_begun:
            why = head.refusal or ("stopped before it began" if head.stopped_by else "no node started a case")
            log(f"the run did not begin: {why}; what the nodes printed is in {run_dir / 'nodes'}")
            if head.stopped_by:
                return EXIT_INTERRUPTED
            return EXIT_USAGE if earlier is not None else EXIT_INTERNAL
        return write_reports(run_dir, interrupted=bool(head.stopped_by), seconds=time.monotonic() - begun, log=log)
    finally:
        lock.release()


def _run_dir(options: ClusterRequest, run_id: str) -> tuple[Path, RunLock]:
    """Return the run directory, locked for this process. Raise ClusterError."""
    wanted = options.resume or options.results_dir or Path("results") / run_id
    run_dir = wanted.resolve()
    if options.resume is None and (run_dir / journal.FILE_NAME).exists():
        raise ClusterError(
            f"--results-dir={str(wanted)!r} already contains a run: name another folder, or continue that run with "
            f"--resume {wanted}"
        )
    try:
        if options.resume is not None:
            nothing_to_continue(run_dir)  # refuses a folder with other files before anything is written there
        run_dir.mkdir(parents=True, exist_ok=True)
        return run_dir, RunLock(run_dir)
    except (RunLockedError, ResumeError) as error:
        raise ClusterError(f"{str(wanted)!r}: {error}") from None
    except OSError as error:
        raise ClusterError(f"the run directory {str(wanted)!r} cannot be made: {error.strerror}") from None


def _earlier(options: ClusterRequest, run_dir: Path, log: Callable[[str], None]) -> tuple[Earlier | None, int]:
    """Return the state of the run before it was interrupted, and the seed."""
    if options.resume is None:
        return None, random.SystemRandom().getrandbits(32)
    if why := nothing_to_continue(run_dir):
        log(f"--resume={str(options.resume)!r}: {why}, so this run starts from the beginning")
        set_aside(run_dir)
        return None, random.SystemRandom().getrandbits(32)
    contents = reader.read_run_journal(run_dir / journal.FILE_NAME)
    first = next(event for event in contents.events if isinstance(event, RunStarted))
    try:
        resumption = resumption_of(contents, forced=options.force)
    except ResumeError as error:
        raise ClusterError(f"--resume={str(options.resume)!r}: {error}") from None
    facts = {name: text for name, text in identity.identity_facts(first).items() if name not in sessions.FREE}
    lines: tuple[Event, ...] = (*lost_lines(contents), *reopened_lines(contents, resumption))
    suspects = {event.case: event.host for event in contents.events if isinstance(event, Suspect)}
    return Earlier(resumption, first.run_id, facts, lines, suspects, options.force), first.seed


def write_reports(run_dir: Path, *, interrupted: bool, seconds: float, log: Callable[[str], None]) -> int:
    """Write the end of the journal, junit.xml and report.html, and print the summary. Return the exit status."""
    path = run_dir / journal.FILE_NAME
    contents = reader.read_run_journal(path)
    ledger = Ledger.from_journal(contents)
    status = EXIT_INTERRUPTED if interrupted else ledger.exit_status()
    end = End(t=time.time(), exit_status=status, duration=round(seconds, 3))
    with journal.Journal(path) as written:
        written.append(end)
    ledger = dataclasses.replace(ledger, end=end)
    junit.write_junit(run_dir, ledger)
    page.write_html_report(run_dir, dataclasses.replace(contents, events=(*contents.events, end)), ledger=ledger)
    wanted = str(ledger.run.settings.get("report") or "") if ledger.run is not None else ""
    reports = [text.strip() for text in wanted.split(",") if text.strip()]
    formats.write_reports(reports, ledger, run_dir=run_dir, base=Path.cwd(), note=log)
    for line in terminal.terminal_summary(ledger, run_dir, blocks=repetitions.can_encode_blocks(sys.stdout.encoding)):
        log(line)
    return status
