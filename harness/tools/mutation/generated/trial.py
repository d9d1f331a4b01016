"""One mutant against its cases, in a fork of a warm process: the work of the fork, and the parent that follows it."""

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from harness import _compat
from harness.backends.backend import Backend
from harness.core.caseid import case_seed
from harness.core.plain_values import safe_repr, safe_str
from harness.executor import become, seeding
from harness.executor.session import CollectedSession
from harness.fixtures import CURRENT, CaseSettings, Current
from harness.protocol import reports
from harness.supervisor import compiler_caches
from harness.tools.mutation.breaks import is_mistake

#: After this many cases that are red by an error of the mutant itself, no further case runs.
MISTAKES = 2
#: The least time limit of a case in seconds.
PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of the cases of a mutant.

    `unfit`: why the mutant was not made. `red`: the case that caught it, with the text of its failure in `text`.
    `mistakes`: the number of cases that were red by an error of the mutant itself; the last one is in `text` if no case
    caught it. `ran`: the number of cases that ran.
    """

    red: str = ""
    text: str = ""
    mistakes: int = 0
    ran: int = 0
    unfit: str = ""


def run_trial(
    collected: CollectedSession,
    backend: Backend,
    enter: Callable[[], object],
    change: Callable[[], str],
    cases: Sequence[str],
    seconds: Mapping[str, float],
) -> Trial:
    """Run the cases in a fork of this process until one is red.

    `change` makes the mutant, or returns why this is impossible.
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
                _run(collected, backend, enter, change, cases, writer, folder)
            finally:
                os._exit(1)
        os.close(writer)
        try:
            return _follow(reader, seconds)
        finally:
            os.close(reader)
            _end(child)


def _end(child: int) -> None:
    for kill in (os.killpg, os.kill):  # the group exists once the child has made it
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _follow(reader: int, seconds: Mapping[str, float]) -> Trial:
    """Read the lines of the fork.

    The case that is running when the fork ends or exceeds its time has caught the mutant.
    """
    buffered, running, ran, mistakes, text = b"", "", 0, 0, ""
    limit = time.monotonic() + PATIENCE + 20
    while True:
        ready = select.select([reader], [], [], max(0.0, limit - time.monotonic()))[0]
        data = os.read(reader, 65536) if ready else b""
        if not data:
            if not running:
                return Trial(unfit=text or ("its process ended" if ready else "its process hung"))
            return Trial(running, "the process ended" if ready else "the time limit was exceeded", mistakes, ran)
        buffered += data
        *lines, buffered = buffered.split(b"\n")
        for line in lines:
            word, value, more = json.loads(line)
            if word == "begin":
                running, ran = value, ran + 1
                limit = time.monotonic() + max(PATIENCE, 10 * seconds.get(value, 1.0))
            elif word == "unfit":
                return Trial(unfit=value)
            elif word == "mistake":
                mistakes, text = mistakes + 1, more
            elif word == "red":
                return Trial(value, more, mistakes, ran)
            elif word == "end":
                return Trial("", text, mistakes, ran)


def _run(
    collected: CollectedSession,
    backend: Backend,
    enter: Callable[[], object],
    change: Callable[[], str],
    cases: Sequence[str],
    writer: int,
    folder: str,
) -> NoReturn:
    def send(word: str, value: str = "", more: str = "") -> None:
        os.write(writer, json.dumps([word, value, more[:500]]).encode("ascii") + b"\n")

    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None
    compiler_caches.share_default(Path(folder))
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    become.renew_thread_pool()
    enter()
    if why := change():
        send("unfit", why)
        os._exit(0)
    mistakes = 0
    for place, case in enumerate(cases):
        send("begin", case)
        item = collected.items[case]
        following = collected.items[cases[place + 1]] if place + 1 < len(cases) else None
        text = _case(collected, backend, item, following)
        if os.getpid() != os.getpgid(0):
            os._exit(0)  # a case has returned in its own fork
        if not text:
            continue
        if is_mistake(text):
            mistakes += 1
            send("mistake", case, text)
            if mistakes >= MISTAKES:
                break
        else:
            send("red", case, text)
            os._exit(0)
    send("end")
    os._exit(0)


def _case(collected: CollectedSession, backend: Backend, item: pytest.Item, following: pytest.Item | None) -> str:
    """Run a case. Return the text of its failure, or an empty text."""
    failures: list[str] = []

    def note(report: pytest.TestReport) -> None:
        if reports.outcome_of_phase(report) == "failed":
            failures.append(_text(report))

    collected.relay.on_report = note
    collected.guard.capture()
    seed = case_seed(1, item.nodeid)
    item.config.stash[CURRENT] = Current(backend.kind, seed, CaseSettings(), 0.0, None, None)
    seeding.seed_everything(seed, backend)
    try:
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        if following is None:
            _compat.tear_down_all(collected.session)
    except BaseException as error:  # noqa: BLE001 - a mutant may make torch raise anything
        failures.append(f"{type(error).__name__}: {safe_str(error)}")
    if failures:
        return failures[0] or "failed"
    try:
        changed = collected.guard.compare()
        if changed:
            collected.guard.restore()
    except Exception as error:  # noqa: BLE001 - a case may leave anything
        return f"the state cannot be read: {safe_repr(error)}"
    gc.collect(0)
    return "; ".join(problem.text for problem in changed)


def _text(report: pytest.TestReport) -> str:
    longrepr: Any = report.longrepr
    crash = getattr(longrepr, "reprcrash", None)
    return str(crash.message) if crash is not None else str(longrepr)
