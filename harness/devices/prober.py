"""Runs `harness.devices.probe` in a separate process, judges how it ended, and caches its answer."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.backends.cuda import MASK
from harness.core.atomic import WriteError, write_atomically
from harness.core.disposable import DisposableRun, run_disposable
from harness.core.text import format_exit_code, single_line
from harness.devices import software
from harness.devices.device import Detected, Device, mask_for
from harness.devices.probe import Question

Answers = Mapping[str, Detected]
T = TypeVar("T")

_PROGRAM = (sys.executable, "-m", "harness.devices.probe")
#: Without persistence mode the driver takes several seconds to initialise a GPU, one after another for up to eight.
#: An import of torch may come from a network file system.
_LIMITS = {Question.DRIVER: 60.0, Question.LIBRARIES: 180.0, Question.PROCESSOR: 180.0}
_KILL_LIMIT = 5.0  # seconds: a bit more than `disposable.KILL` needs
_MOST_BYTES = 65536
_FORMAT = 1


class Prober:
    """Asks the probe about one device. Each question is sent once, when it is first needed."""

    def __init__(
        self,
        device: Device,
        *,
        driver: str | None,
        cache: Path | None = None,
        torch: Callable[[], str | None] = software.torch_build,
        program: Sequence[str] = _PROGRAM,
        limit: float | None = None,
    ) -> None:
        """`driver` is the driver's version; `torch` returns torch's. `cache` is a folder that a run's processes share.

        `program` is the command to start; the question and this process's pid are appended. `limit` is in seconds.
        """
        self._device = device
        self._driver = driver
        self._torch = torch
        self._cache = cache
        self._program = tuple(program)
        self._limit = limit
        self._answers: dict[Question, Answers] = {}

    def ask(self, question: Question) -> Answers:
        """Return a finding for each capability of the question.

        If the probe failed, the capability is absent, with the reason.

        This starts a process, unless this object or another process with the same `cache` already did. Errors of the
        probe or the cache are not raised.
        """
        if question not in self._answers:
            self._answers[question] = (
                self._run(question) if self._cache is None else self._cached(question, self._cache)
            )
        return self._answers[question]

    def first_reading(self, name: str, read: Callable[[], Detected]) -> Detected:
        """Return the value that the first process with the same `cache` read under `name`.

        Read it if this is the first. Use this for values that change while the run uses the device. Errors of the cache
        are not raised.
        """
        if self._cache is None:
            return read()

        def parsed(stored: Any) -> Detected | None:
            known = isinstance(stored, dict) and isinstance(stored.get("value"), int)
            return Detected(stored["value"], str(stored.get("detail", ""))) if known else None

        key = {"format": _FORMAT, "reading": name, "device": self._device.uuid}
        return _kept(self._cache, key, self._limit_of(Question.DRIVER), read, parsed)

    def _cached(self, question: Question, folder: Path) -> Answers:
        key = {
            "format": _FORMAT,
            "question": question.value,
            "driver": self._driver,
            "torch": self._torch(),
            "device": self._device.uuid,
        }
        limit = self._limit_of(question) + 2 * _KILL_LIMIT
        return _kept(folder, key, limit, lambda: self._run(question), lambda stored: parse_answer(stored, question))

    def _limit_of(self, question: Question) -> float:
        return _LIMITS[question] if self._limit is None else self._limit

    def _run(self, question: Question) -> Answers:
        try:
            environ = {**os.environ, MASK: mask_for([self._device])}
        except ValueError as error:
            return _none(question, str(error))
        command = (*self._program, question.value, str(os.getpid()))
        limit = self._limit_of(question)
        try:
            return parse_probe_run(question, run_disposable(command, limit, environ=environ), limit)
        except OSError as error:
            return _none(question, f"the probe does not start ({error.strerror})")


def parse_probe_run(question: Question, run: DisposableRun, limit: float) -> Answers:
    """Return the finding for each capability of `question`, from how the probe ended and what it wrote."""
    if not run.in_time:
        alive = " and could not be killed" if run.status is None else ""
        return _none(question, f"the probe did not end within {limit:g} s{alive}")
    if run.status != 0:
        last = f": {single_line(run.last_error, 300)}" if run.last_error else ""
        return _none(question, f"the probe ended with {format_exit_code(run.status or 0)}{last}")
    try:
        answer = json.loads(run.output)
    except (ValueError, RecursionError):
        answer = None
    answers = parse_answer(answer, question)
    return _none(question, f"the probe's answer cannot be read: {run.output[:100]!r}") if answers is None else answers


def parse_answer(answer: Any, question: Question) -> Answers | None:
    """Return the findings in a probe's answer. None if it is not a valid answer to `question`."""
    if not isinstance(answer, dict) or set(answer) != set(question.capabilities):
        return None
    findings: dict[str, Detected] = {}
    for name in question.capabilities:
        finding = _finding(answer[name])
        if finding is None:
            return None
        findings[name] = finding
    return findings


def _finding(entry: Any) -> Detected | None:
    match entry:
        case {"value": bool() | None as value, "detail": str(detail)}:
            return Detected(value, single_line(detail))
        case {"value": [*parts], "detail": str(detail)} if parts and all(type(part) is int for part in parts):
            return Detected(tuple(parts), single_line(detail))
    return None


def _none(question: Question, reason: str) -> Answers:
    return {name: Detected(None, reason) for name in question.capabilities}


def _kept(
    folder: Path, key: Mapping[str, Any], limit: float, ask: Callable[[], T], parsed: Callable[[Any], T | None]
) -> T:
    """Return the answer that `folder` has for a key, or ask and keep the answer. Other processes wait, `limit` seconds.

    `parsed` makes an answer of JSON values; None for invalid ones. The folder only saves time, so its errors are not
    raised.
    """
    from filelock import FileLock  # slow to import, and needed only here

    file = folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.json"
    answer = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock"), timeout=limit):
            answer = parsed(_load(file, key))
            if answer is None:
                answer = ask()
                value = {"key": key, "answer": msgspec.to_builtins(answer)}
                write_atomically(file, json.dumps(value).encode("ascii"))
    except (OSError, NotImplementedError, WriteError):  # the folder cannot be written or locked
        return ask() if answer is None else answer
    return answer


def _load(file: Path, key: Mapping[str, Any]) -> Any:
    """Return the answer in a file; None if the file is missing, truncated, or has another key."""
    try:
        with file.open("rb") as stream:
            stored = json.loads(stream.read(_MOST_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return stored.get("answer") if isinstance(stored, dict) and stored.get("key") == key else None
