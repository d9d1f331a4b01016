"""The runs that a command line names, and the one reader of a run, which takes one line of its journal at a time.

Everything that this package says about a run is computed from a `RunSummary`. The verdicts in it are those of
`harness.journal.ledger`, which every report uses.
"""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import msgspec

from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_NOTHING_RAN, EXIT_OK
from harness.core.text import escape_invalid_xml, format_count, list_first, single_line
from harness.journal import environment, journal, reader
from harness.journal.environment import EnvironmentFileError, mapping
from harness.journal.events import Collected, Device, Event, Finish, RunStarted, Waiver
from harness.journal.ledger import Ledger
from harness.journal.reader import Damaged, Unknown

#: Levels of subfolders that are searched for run directories: from a checkout, ``matrix-results/NIGHT/RUN/PART`` of
#: `ci/slurm/nightly.sbatch`.
LEVELS = 4
#: Characters of the end of a stack that are kept. The innermost frame is at the end.
MOST_OF_STACK = 20_000
#: Maximum unreadable lines that a text names.
_MOST_DAMAGED = 3
#: The facts that determine the speed of a device: clocks in MHz, power limit in watts.
_SPEED = ("graphics_clock", "memory_clock", "power_limit")


class NoRunError(HarnessError):
    """A given path is neither a run directory nor a folder of run directories."""


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """Runs without duplicates: directories in the order of their paths, since a matrix must not depend on the order of
    arguments, then archives. `notes`: sentences about what was left out.
    """

    paths: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def find_runs(given: Sequence[Path]) -> FoundRuns:
    """Return the run directories among `given`, and those in folders up to `LEVELS` levels below.

    Symbolic links below the given folders are not followed: they may lead anywhere. Raise NoRunError.
    """
    runs: dict[str, Path] = {}
    links: list[str] = []
    twice = 0
    for folder in given:
        below = [folder] if _has_journal(folder) else list(_below(folder, LEVELS, links))
        if not below:
            raise NoRunError(_reason(folder))
        for path in below:
            real = os.path.realpath(path)
            twice += real in runs
            runs.setdefault(real, path)
    return FoundRuns(tuple(path for _, path in sorted(runs.items())), tuple(_notes(links, twice)))


def _has_journal(folder: Path) -> bool:
    return os.path.lexists(folder / journal.FILE_NAME)


def _reason(folder: Path) -> str:
    if not folder.exists():
        return f"there is no folder {str(folder)!r}: give run directories, or folders of run directories"
    if not folder.is_dir():
        return f"{str(folder)!r} is not a folder: give run directories, or folders of run directories"
    where = f"in it, or in folders up to {LEVELS} levels below"
    return f"there is no run in {str(folder)!r}: expected {journal.FILE_NAME} {where}; give another folder"


def _below(folder: Path, levels: int, links: list[str]) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except (NotADirectoryError, FileNotFoundError):
        return
    except OSError as error:
        raise NoRunError(f"cannot list the folder {str(folder)!r}: {error.strerror}; make it readable") from None
    for entry in listed:
        path = folder / entry.name
        if entry.is_symlink():
            links.append(entry.name)
        elif entry.is_dir():
            if _has_journal(path):
                yield path
            elif levels > 1:
                yield from _below(path, levels - 1, links)


def _notes(links: Sequence[str], twice: int) -> Iterable[str]:
    if links:
        names = list_first([escape_invalid_xml(name) for name in sorted(links)])
        yield f"{format_count(len(links), 'symbolic link was', 'symbolic links were')} not followed: {names}"
    if twice:
        yield f"run directories that were given twice and count once: {twice}"


def is_plain(path: Path) -> bool:
    """Return whether the path is a regular file and not a symbolic link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def find_runs_and_archives(given: Sequence[Path]) -> FoundRuns:
    """Return the runs. A regular file is an evidence archive. Raise NoRunError for a folder without a run.

    The sessions of the nodes of a cluster run are left out, since each has only a part of the results, and the run has
    all.
    """
    archives = [path for path in given if path.is_file()]
    folders = [path for path in given if path not in archives]
    listing = find_runs(folders)
    whole = {path: _cluster_run(path) for path in listing.paths}
    runs = [path for path, run in whole.items() if run is None]
    notes = list(listing.notes)
    for run in dict.fromkeys(filter(None, whole.values())):
        sessions = format_count(sum(cluster == run for cluster in whole.values()), "session")
        notes.append(f"left out {sessions} of nodes of {str(run)!r}, which has their results")
    if not runs and not archives and notes:
        raise NoRunError(f"{notes[-1]}: give that folder")
    return FoundRuns((*runs, *dict.fromkeys(archives)), tuple(notes))


def _cluster_run(path: Path) -> Path | None:
    """Return the cluster run to which a node's session belongs. The session is in ``nodes/NODE/N`` of that run."""
    parents = path.resolve().parents
    if len(parents) > 2 and parents[1].name == "nodes" and (parents[2] / journal.FILE_NAME).exists():
        return parents[2]
    return None


class NoRunDirectoryError(HarnessError):
    """A path is not a run, or its evidence is refused."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run.

    `ledger`: its verdicts, findings and totals. Outputs of cases are not kept, stacks only if `summarise` keeps them.
    `facts`: those of environment.json; None without a readable file, and `doubt` is the reason. `print`: the hash of
    the journal, which is equal for copies of a run. `health`: the lines about devices that were sick or drained.
    `waivers`: the number of waivers. `deselected`: cases that the options left out. `selected`: cases of all shards.
    `unread`: the beginnings of ids that were not collected.
    """

    path: Path
    ledger: Ledger
    facts: Mapping[str, Any] | None = None
    doubt: EnvironmentFileError | None = None
    print: str = ""
    health: tuple[Device, ...] = ()
    waivers: int = 0
    deselected: tuple[str, ...] = ()
    selected: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def run(self) -> RunStarted:
        """The latest ``run`` line."""
        run = self.ledger.run
        assert run is not None  # `read_run` has checked this
        return run

    @property
    def name(self) -> str:
        """The path as text."""
        return escape_invalid_xml(str(self.path))

    @property
    def doubts(self) -> list[str]:
        """Why the run may not be what it seems, in sentences."""
        ledger, problems, imported = self.ledger, self.ledger.read_problems, self.run.imported
        doubts = [] if self.doubt is None else [str(self.doubt)]
        if imported is not None:
            doubts.append(f"its cases were run {imported.text}")
        if ledger.end is None:
            doubts.append("it did not finish")
        if problems.damaged_lines:
            named = problems.damaged[:_MOST_DAMAGED]
            first = "; ".join(f"line {line.number}: {single_line(line.reason, 100)}" for line in named)
            doubts.append(f"lines of its journal that cannot be read: {problems.damaged_lines} ({first})")
        doubts += problems.remarks
        if self.facts is None:
            doubts.append(f"it has no readable {environment.FILE_NAME}, so its machine and software may be unknown")
        status = ledger.run_exit_status()
        red = ledger.end is not None and status not in (EXIT_OK, EXIT_NOTHING_RAN)
        if red and not ledger.red_cases and not ledger.findings:
            doubts.append(
                f"it ended with exit status {status}, and no case or finding explains it: read the output of pytest"
            )
        return doubts


class _Fold:
    """Collects what a `RunSummary` has beside the ledger, from lines on their way to the ledger."""

    def __init__(self, *, stacks: bool) -> None:
        self._stacks = stacks
        self.health: list[Device] = []
        self.waivers = 0
        self.deselected: dict[str, None] = {}
        self.selected: dict[str, None] = {}
        self.unread: dict[str, None] = {}

    def passing(self, lines: Iterable[Event | Damaged | Unknown]) -> Iterator[Event | Damaged | Unknown]:
        """Yield the lines, without the outputs of cases."""
        for line in lines:
            match line:
                case Finish():
                    yield self._short(line)
                    continue
                case Collected():
                    self.deselected |= dict.fromkeys(line.deselected)
                    self.selected |= dict.fromkeys(line.selected)
                    self.unread |= dict.fromkeys(line.unread)
                case Device():
                    self.health += [line] if line.state != "healthy" else []
                case Waiver():
                    self.waivers += 1
            yield line

    def _short(self, finish: Finish) -> Finish:
        detail = finish.detail[-MOST_OF_STACK:] if self._stacks and finish.outcome.is_red else ""
        if detail == finish.detail and not (finish.stdout or finish.stderr or finish.log):
            return finish
        return msgspec.structs.replace(finish, stdout="", stderr="", log="", detail=detail)


def summarise(
    path: Path,
    lines: Iterable[Event | Damaged | Unknown],
    facts: Mapping[str, Any] | None = None,
    *,
    print_: str = "",
    doubt: EnvironmentFileError | None = None,
    stacks: bool = False,
) -> RunSummary:
    """Return the summary of a run, from the lines of its journal. `stacks`: keep the ends of stacks of red attempts.

    Raise JournalError if no run started in the journal.
    """
    fold = _Fold(stacks=stacks)
    ledger = Ledger.from_lines(fold.passing(lines))
    if ledger.run is None:
        raise reader.no_run_error(path / journal.FILE_NAME)
    return RunSummary(
        path=path,
        ledger=ledger,
        facts=facts,
        doubt=doubt,
        print=print_,
        health=tuple(fold.health),
        waivers=fold.waivers,
        deselected=tuple(fold.deselected),
        selected=tuple(fold.selected),
        unread=tuple(fold.unread),
    )


def read_run(run_dir: Path, *, stacks: bool = False, environments: bool = True) -> RunSummary:
    """Return the summary of the run in a run directory. `environments`: whether to read its environment.json.

    Raise JournalError without a journal of a run.
    """
    file = run_dir / journal.FILE_NAME
    print_ = _print(file)  # before the journal is read: later lines of an unfinished run belong to another state
    facts, doubt = None, None
    try:
        facts = environment.read_environment(run_dir) if environments else None
    except EnvironmentFileError as error:
        doubt = error
    lines = (line for _, line in reader.stream_journal(file))
    return summarise(run_dir, lines, facts, print_=print_, doubt=doubt, stacks=stacks)


def read_run_or_archive(path: Path, *, stacks: bool = False) -> RunSummary:
    """Return the run in a run directory, or in an archive of ``harness package``, which is verified first.

    Raise NoRunDirectoryError for another path or refused evidence, JournalError without a journal of a run.
    """
    if path.is_dir():
        return read_run(path, stacks=stacks)
    if not path.exists():
        raise NoRunDirectoryError(f"there is no {str(path)!r}: expected a run directory or an evidence archive")
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise NoRunDirectoryError(f"{str(path)!r} is no run: expected a run directory or an archive of harness package")
    from harness.tools.evidence import verify  # takes 0.3 s, and few runs are archives

    with path.open("rb") as file:
        verified = verify.verify_archive(file, path, verify.Demands())
    if verified.problems or verified.record is None:
        raise NoRunDirectoryError(
            f"the evidence {str(path)!r} is refused: {'; '.join(verified.problems[:3])}; see harness verify"
        )
    kept = verified.record
    lines = (*kept.contents.events, *kept.contents.damaged, *kept.contents.unknown)
    return summarise(path, lines, kept.environment, print_=sha256(kept.data).hexdigest(), stacks=stacks)


def _print(file: Path) -> str:
    """Return the hash of a journal; "" if it cannot be read, an error that its reader reports."""
    try:
        if not file.is_file():  # to open a named pipe would wait for a writer
            return ""
        with file.open("rb") as data:
            return file_digest(data, "sha256").hexdigest()
    except OSError:
        return ""


def environment_facts(recorded: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of an environment file that can explain a difference, by name. Missing facts are left out.

    Device facts are kind, number, clocks, power limit and ECC, but not their identities.
    """
    system, git = mapping(recorded.get("os")), mapping(recorded.get("git"))
    facts = {name: recorded.get(name) for name in ("driver", "cuda_driver", "isolation", "under")}
    facts |= mapping(recorded.get("versions"))
    facts |= {"os": system.get("name"), "kernel": system.get("kernel"), "commit": git.get("commit")}
    rows = environment.devices_of(recorded)
    if rows:
        names = [str(row.get("name")) for row in rows]
        facts["devices"] = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    for name in (*_SPEED, "ecc"):
        if any(row.get(name) is not None for row in rows):
            facts[name.replace("_", " ")] = ", ".join(dict.fromkeys(str(row.get(name)) for row in rows))
    facts |= {f"${name}": value for name, value in mapping(recorded.get("environment")).items()}
    known = {str(name): str(value) for name, value in facts.items() if value is not None}
    return {escape_invalid_xml(name): escape_invalid_xml(value) for name, value in known.items()}
