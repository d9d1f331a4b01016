"""Order dependence: find the earlier cases that make a case fail, by running ever fewer of them before it.

A journal may come from somebody else. It names the cases, the seed and the kind of device, and nothing that runs code:
the root folder and options such as ``-p`` come from the user, and the files of all cases must be files of that folder.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.backends.table import backend_of, own_kinds
from harness.configuration.under import CALL_WRAPPERS
from harness.core import clock
from harness.core.errors import HarnessError
from harness.core.outcome import Outcome
from harness.core.secrets import mask_command
from harness.journal import journal, reader
from harness.journal.events import Bisected, Finish, RunStarted, Start
from harness.journal.journal import Journal
from harness.journal.reader import JournalContents
from harness.supervisor.leak_bisect import minimise

#: pytest options with a value that change how cases are collected, or which warnings are errors. Each of them can load
#: code (`-W` imports the class of the warning), so none is taken from a journal.
_OMITTED_SHORT = ("-c", "-o", "-p", "-W")
_OMITTED_LONG = ("--config-file", "--confcutdir", "--import-mode", "--override-ini", "--pythonwarnings")


class BisectError(HarnessError):
    """There is no failure to bisect, or it cannot be bisected."""


@dataclass(frozen=True, slots=True)
class ProcessHistory:
    """A case that failed in a shared process, its outcome, and the cases that ran in the process before it.

    `earlier` is in order. `rootdir` and `options` are those of today's user, with settings of the run; `omitted`: the
    options of the run that can load code. `masks` maps the variables that select the visible devices to their values;
    empty on the CPU.
    """

    case: str
    earlier: tuple[str, ...]
    outcome: Outcome
    seed: int
    rootdir: str
    options: tuple[str, ...]
    masks: Mapping[str, str]
    omitted: tuple[str, ...] = ()

    def command(self, earlier: Sequence[str]) -> str:
        """Return the shell line that runs the case after `earlier` in one process, from the root folder."""
        words = [*earlier, self.case, "--isolation=batch", "-n0", f"--seed={self.seed}", *mask_command(self.options)]
        masks = [f"{name}={shlex.quote(value)}" for name, value in self.masks.items()]
        return " ".join([*masks, "pytest", *map(shlex.quote, words)])


@dataclass(frozen=True, slots=True)
class Dependence:
    """The case fails after the `culprits`, and needs each of them. `trials`: the number of runs of the search."""

    history: ProcessHistory
    culprits: tuple[str, ...]
    trials: int


def process_history_of(
    contents: JournalContents, case: str, rootdir: Path, options: Sequence[str] = ()
) -> ProcessHistory:
    """Return the cases that shared a process with `case` before it failed.

    `rootdir`: the root folder of today's suites. `options`: the user's options for pytest. Raise BisectError if the
    case did not fail, failed only in its own process, or a case is not in a file of today's suites.
    """
    run = next((event for event in contents.events if isinstance(event, RunStarted)), None)
    if run is not None and run.imported is not None:
        raise BisectError(f"cases of {str(contents.path.parent)!r} were run {run.imported.text}: nothing can run again")
    finishes = [event for event in contents.events if isinstance(event, Finish) and event.case == case]
    if run is None or not finishes:
        raise BisectError(f"{case!r} did not run in {str(contents.path.parent)!r}: give its whole id, as in the report")
    wrong = [finish for finish in finishes if finish.outcome.is_red and finish.outcome is not Outcome.LOST]
    if not wrong:
        raise BisectError(f"{case!r} did not go wrong in {str(contents.path.parent)!r}")
    shared = next((finish for finish in wrong if not finish.alone), None)
    if shared is None:
        how = f"; reproduce: {wrong[0].reproduce}" if wrong[0].reproduce else ""
        raise BisectError(f"{case!r} went wrong in its own process, so it needs no other case{how}")
    starts = [event for event in contents.events if isinstance(event, Start) and event.executor == shared.executor]
    ids = [start.case for start in starts]
    if case not in ids:
        raise BisectError(f"the journal of {str(contents.path.parent)!r} has no start of {case!r}: it is damaged")
    before = list(dict.fromkeys(ids[: ids.index(case)]))
    for each in (*before, case):
        if fault := _fault_of_id(each, rootdir):
            raise BisectError(
                f"{each!r} is not run: {fault}; type this in the root folder of the suites, {str(rootdir)!r} is not it"
            )
    masked = {uuid: backend.mask for uuid in shared.devices if (backend := backend_of(uuid)) is not None}
    devices = [uuid for uuid, mask in masked.items() if mask is not None]
    return ProcessHistory(
        case=case,
        earlier=tuple(before),
        outcome=shared.outcome,
        seed=run.seed,
        rootdir=str(rootdir),
        options=(*options, *_kept_settings(run.settings)),
        masks={str(masked[devices[0]]): ",".join(devices)} if devices else {},
        omitted=_omitted_options(run.argv),
    )


def _fault_of_id(case: str, rootdir: Path) -> str:
    """Return why a case of a journal is not one of the files of today's suites; empty if it is.

    A file in a run directory, or behind a link that leads out of the root folder, may have come with the journal.
    """
    if not case.isprintable():
        return "its id has control characters"
    path, separator, _ = case.partition("::")
    parts = Path(path).parts
    if not separator or path.startswith(("-", "@", "/")) or ".." in parts:
        return "expected the path of a test file below the root folder, '::' and a name"
    root = Path(os.path.realpath(rootdir))
    file = Path(os.path.realpath(root / path))
    if not file.is_file() or not file.is_relative_to(root):
        return f"the root folder has no file {path!r}"
    inside = (folder for name in (file, root / path) for folder in name.parents if folder.is_relative_to(root))
    if run := next((folder for folder in inside if (folder / journal.FILE_NAME).exists()), None):
        return f"its file is in the run directory {str(run)!r}"
    return ""


def _omitted_options(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of a run that change how cases are collected, or which warnings are errors."""
    kept: list[str] = []
    words = iter(argv[1:])
    for word in words:
        if word == "--":
            break
        long = word.startswith("--")
        flag, joined, value = word.partition("=") if long else (word[:2], word[2:], word[2:])
        if flag not in (_OMITTED_LONG if long else _OMITTED_SHORT):
            continue
        value = value if joined else next(words, "")
        if not (flag == "-p" and value.startswith("no:")):
            kept += [f"{flag}={value}"] if long else [flag, value]
    return tuple(kept)


def _kept_settings(settings: Mapping[str, object]) -> tuple[str, ...]:
    """Return the options that reproduce the kind of device, its faults, and how cases run."""
    device = settings.get("device", "auto")
    kept = [f"--device={device}"] if device in own_kinds() else []
    if injected := settings.get("inject"):
        kept.append(f"--inject={injected}")
    kept += ["--start=cold"] if settings.get("start") == "cold" else []
    kept += [f"--under={settings['under']}"] if settings.get("under") in CALL_WRAPPERS else []
    return tuple(kept)


def bisect_order(history: ProcessHistory, log: Callable[[str], object]) -> Dependence:
    """Find the culprits. `log` gets a line per trial. Raise BisectError if the failure does not repeat."""
    trials = 0

    def goes_wrong(earlier: Sequence[str]) -> bool:
        nonlocal trials
        trials += 1
        outcome = _replay(history, earlier)
        log(f"trial {trials}: after {len(earlier)} of {len(history.earlier)} cases: {outcome or 'not reached'}")
        return outcome is history.outcome

    if not goes_wrong(history.earlier):
        raise BisectError(
            f"{history.case!r} is not {history.outcome} again after the same {len(history.earlier)} cases "
            "with the same seed: it depends on something else as well"
        )
    culprits = minimise(history.earlier, goes_wrong)
    if not culprits:
        raise BisectError(
            f"{history.case!r} is {history.outcome} without any other case; reproduce: {history.command([])}"
        )
    return Dependence(history, tuple(culprits), trials)


def record_dependence(run_dir: Path, dependence: Dependence) -> None:
    """Write the result into the journal of the run."""
    with Journal(run_dir / journal.FILE_NAME) as file:
        file.append(
            Bisected(
                t=clock.now(),
                case=dependence.history.case,
                outcome=dependence.history.outcome,
                culprits=dependence.culprits,
                trials=dependence.trials,
                reproduce=dependence.history.command(dependence.culprits),
            )
        )


def inherited_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a nested run, without variables that set options.

    The command line of that run sets them.
    """
    kept = "HARNESS_CACHE_DIR"  # the cache with the built software device
    return {n: v for n, v in environ.items() if n == kept or not n.startswith(("PYTEST_", "HARNESS_"))}


def _replay(history: ProcessHistory, earlier: Sequence[str]) -> Outcome | None:
    """Return the outcome of the case after `earlier` in one process. None if one of these ended the process first."""
    environ = {**inherited_environment(os.environ), **history.masks}
    with tempfile.TemporaryDirectory(prefix="harness-bisect-") as folder:
        run_dir, listed = Path(folder) / "run", Path(folder) / "cases"
        listed.write_text("\n".join([*earlier, history.case]), encoding="utf-8", errors="surrogateescape")
        arguments = [f"@{listed}", "--harness-isolation=batch", "-n0", "-p", "no:cacheprovider", *history.options]
        arguments.append(f"--harness-seed={history.seed}")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments, f"--harness-results-dir={run_dir}"],
            cwd=history.rootdir,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if not (run_dir / journal.FILE_NAME).exists():
            printed = done.stdout.decode(errors="replace").strip().splitlines()
            raise BisectError(f"the cases do not run: pytest printed {' '.join(printed[-3:])!r}")
        events = reader.read_journal(run_dir / journal.FILE_NAME).events
    finishes = [event for event in events if isinstance(event, Finish)]
    tried = next((finish for finish in finishes if finish.case == history.case), None)
    if tried is None:
        raise BisectError(f"{history.case!r} is no longer collected in {history.rootdir!r}")
    together = {finish.case for finish in finishes if finish.executor == tried.executor and finish.attempt == 1}
    return tried.outcome if {*earlier} <= together else None
