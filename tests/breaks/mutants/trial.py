"""A break and its cases in a fork of a warm process: the work of the fork, and the parent that follows it."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from harness import _compat
from harness.backends.backend import Backend
from harness.core.caseid import case_seed
from harness.core.plain_values import safe_repr, safe_str
from harness.executor import around_case, become
from harness.executor.session import CollectedSession
from harness.fixtures import CURRENT, CaseSettings, Current
from harness.protocol import reports
from harness.supervisor import executor_files
from tests.breaks.breaks import Break, BreakError, is_mistake
from tests.breaks.engine import Observed, Red, is_failed_check
from tests.breaks.mutants.applying import UnfitError

#: After this many cases that are red by an error of the mutant itself, no further case runs.
MISTAKES = 2
#: The least time limit of a case in seconds.
PATIENCE = 10.0


def run_in_fork(
    collected: CollectedSession,
    backend: Backend,
    enter: Callable[[], object],
    entry: Break,
    seconds: Mapping[str, float],
    patience: float = PATIENCE,
) -> Observed:
    """Make a break in a fork of this process, and run its cases until one is red. Without `apply`, nothing is broken.

    `enter` enters the device. `seconds`: by case, how long it takes. `patience`: the least time limit of a case.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        child = os.fork()
        if child == 0:
            try:
                os.close(reader)
                become.detach_from_zygote(parent)
                _run(collected, backend, enter, entry, writer, folder)
            finally:
                os._exit(1)
        os.close(writer)
        try:
            return _follow(reader, seconds, patience)
        finally:
            os.close(reader)
            _end(child)


def _end(child: int) -> None:
    for kill in (os.killpg, os.kill):  # the group exists once the child has made it
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _follow(reader: int, seconds: Mapping[str, float], patience: float) -> Observed:
    """Read the lines of the fork.

    The case that is running when the fork ends or exceeds its time is red.
    """
    buffered, running, began = b"", "", list[str]()
    red: dict[str, Red] = {}
    limit = time.monotonic() + PATIENCE + 20

    def seen(unfit: str = "") -> Observed:
        return Observed(frozenset(began).difference(red), red, frozenset(began), unfit=unfit)

    while True:
        ready = select.select([reader], [], [], max(0.0, limit - time.monotonic()))[0]
        data = os.read(reader, 65536) if ready else b""
        if not data:
            if not running:
                return seen("its process ended" if ready else "its process hung")
            red[running] = Red("crashed", "the process ended") if ready else Red("timeout", "the limit was exceeded")
            return seen()
        buffered += data
        *lines, buffered = buffered.split(b"\n")
        for line in lines:
            word, value, more = json.loads(line)
            if word == "begin":
                running = value
                began.append(value)
                limit = time.monotonic() + max(patience, 10 * seconds.get(value, 1.0))
            elif word == "unfit":
                return seen(value)
            elif word in ("red", "checked"):
                red[value] = Red("failed", more, checked=word == "checked")
            elif word == "end":
                return seen()


def _run(
    collected: CollectedSession,
    backend: Backend,
    enter: Callable[[], object],
    entry: Break,
    writer: int,
    folder: str,
) -> NoReturn:
    def send(word: str, value: str = "", more: str = "") -> None:
        os.write(writer, json.dumps([word, value, more[:500]]).encode("ascii") + b"\n")

    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None
    executor_files.share_default_cache(Path(folder))
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    become.renew_thread_pool()
    enter()
    try:
        if entry.apply is not None:
            entry.apply()
    except (UnfitError, BreakError) as error:
        send("unfit", str(error))
        os._exit(0)
    mistakes, cases = 0, entry.suites
    for place, case in enumerate(cases):
        send("begin", case)
        item = collected.items[case]
        following = collected.items[cases[place + 1]] if place + 1 < len(cases) else None
        text, checked = _case(collected, backend, item, following)
        if os.getpid() != os.getpgid(0):
            os._exit(0)  # a case has returned in its own fork
        if not text:
            continue
        send("checked" if checked else "red", case, text)
        mistakes += is_mistake(text)
        if mistakes >= MISTAKES or not is_mistake(text):
            break
    send("end")
    os._exit(0)


def _case(
    collected: CollectedSession, backend: Backend, item: pytest.Item, following: pytest.Item | None
) -> tuple[str, bool]:
    """Run a case. Return the text of its failure, or an empty text, and whether a check of the case failed."""
    failures: list[tuple[str, bool]] = []

    def note(report: pytest.TestReport) -> None:
        if reports.outcome_of_phase(report) == "failed":
            failures.append((_text(report), report.when == "call" and _is_check(report)))

    collected.relay.on_report = note
    collected.guard.capture()
    seed = case_seed(1, item.nodeid)
    item.config.stash[CURRENT] = Current(backend.kind, seed, CaseSettings(), 0.0, None, None)
    around_case.seed_everything(seed, backend)
    try:
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        if following is None:
            _compat.tear_down_all(collected.session)
    except BaseException as error:  # noqa: BLE001 - a mutant may make torch raise anything
        failures.append((f"{type(error).__name__}: {safe_str(error)}", False))
    if failures:
        text, checked = failures[0]
        return text or "failed", checked
    try:
        changed = collected.guard.compare()
        if changed:
            collected.guard.restore()
    except Exception as error:  # noqa: BLE001 - a case may leave anything
        return f"the state cannot be read: {safe_repr(error)}", False
    gc.collect(0)
    return "; ".join(problem.text for problem in changed), False


def _text(report: pytest.TestReport) -> str:
    longrepr: Any = report.longrepr
    crash = getattr(longrepr, "reprcrash", None)
    return str(crash.message) if crash is not None else str(longrepr)


def _is_check(report: pytest.TestReport) -> bool:
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash is not None and is_failed_check(crash.message, crash.path)
