"""Order dependence: find the earlier cases that make a case fail, by running ever fewer of them before it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.backends.table import backend_of
from harness.core.errors import HarnessError
from harness.core.outcome import Outcome
from harness.journal import journal, lines, reader
from harness.journal.events import Finish, RunStarted, Start
from harness.journal.journal import Journal
from harness.journal.reader import JournalContents
from harness.supervisor.minimise import minimise

#: pytest options with a value that change how cases are collected, or which warnings are errors.
_KEPT_SHORT = ("-c", "-o", "-p", "-W")
_KEPT_LONG = ("--config-file", "--confcutdir", "--import-mode", "--override-ini", "--pythonwarnings", "--rootdir")


class BisectError(HarnessError):
    """There is no failure to bisect, or it cannot be bisected."""


@dataclass(frozen=True, slots=True)
class ProcessHistory:
    """A case that failed in a shared process, its outcome, and the cases that ran in the process before it.

    `earlier` is in order. `masks` maps the variables that select the visible devices to their values; empty on the CPU.
    """

    case: str
    earlier: tuple[str, ...]
    outcome: Outcome
    seed: int
    rootdir: str
    options: tuple[str, ...]
    masks: Mapping[str, str]

    def command(self, earlier: Sequence[str]) -> str:
        """Return the shell line that runs the case after `earlier` in one process, from the root folder."""
        words = [*earlier, self.case, "--isolation=batch", "-n0", f"--seed={self.seed}", *self.options]
        masks = [f"{name}={shlex.quote(value)}" for name, value in self.masks.items()]
        return " ".join([*masks, "pytest", *map(shlex.quote, words)])


@dataclass(frozen=True, slots=True)
class Dependence:
    """The case fails after the `culprits`, and needs each of them. `trials`: the number of runs of the search."""

    history: ProcessHistory
    culprits: tuple[str, ...]
    trials: int


def process_history_of(contents: JournalContents, case: str) -> ProcessHistory:
    """Return the cases that shared a process with `case` before it failed.

    Raise BisectError if the case did not fail, or failed only in its own process.
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
    before = [start.case for start in starts[: [start.case for start in starts].index(case)]]
    masked = {uuid: backend.mask for uuid in shared.devices if (backend := backend_of(uuid)) is not None}
    devices = [uuid for uuid, mask in masked.items() if mask is not None]
    return ProcessHistory(
        case=case,
        earlier=tuple(dict.fromkeys(before)),
        outcome=shared.outcome,
        seed=run.seed,
        rootdir=run.rootdir,
        options=(*_kept_options(run.argv, run.rootdir), *_kept_settings(run.settings)),
        masks={str(masked[devices[0]]): ",".join(devices)} if devices else {},
    )


def _kept_options(argv: Sequence[str], rootdir: str) -> tuple[str, ...]:
    """Return the arguments of a run that change how cases are collected, or which warnings are errors."""
    kept: list[str] = []
    words = iter(argv[1:])
    for word in words:
        if word == "--":
            break
        long = word.startswith("--")
        flag, joined, value = word.partition("=") if long else (word[:2], word[2:], word[2:])
        if flag not in (_KEPT_LONG if long else _KEPT_SHORT):
            continue
        value = value if joined else next(words, "")
        if flag == "--rootdir":
            value = rootdir  # the user's folder may be relative to another one
        if not (flag == "-p" and value.startswith("no:")):
            kept += [f"{flag}={value}"] if long else [flag, value]
    return tuple(kept)


def _kept_settings(settings: Mapping[str, object]) -> tuple[str, ...]:
    """Return the options that reproduce the kind of device, its faults, and how cases run."""
    device = settings.get("device", "auto")
    kept = [] if device == "auto" else [f"--device={device}"]
    if injected := settings.get("inject"):
        kept.append(f"--inject={injected}")
    kept += [f"--{name}={settings[name]}" for name in ("start", "under") if settings.get(name) not in (None, "auto")]
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
            lines.bisected(
                dependence.history.case,
                outcome=dependence.history.outcome.value,
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
