"""The executor: a process forked from the zygote that runs the cases it is sent and says what happened.

Everything here runs beside somebody's test, in a process that may be dying. It decides nothing: it sends facts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from harness import _compat, linux
from harness.backends.backend import Backend
from harness.checks import poison, process
from harness.checks.inspector import Inspector, LeakCheck
from harness.checks.meters.table import Meters, growths
from harness.checks.origins import Origins, record_history
from harness.checks.process import Problem
from harness.checks.rounds import Rounds
from harness.devices import health
from harness.executor import failure, seeding, short_exit, streams
from harness.executor.session import CollectedSession
from harness.fixtures import CURRENT, Current, kept
from harness.outcome import Outcome
from harness.protocol import reports
from harness.protocol.exit_status import EXIT_CHANNEL_GONE, EXIT_NO_MEMORY, WATCHDOG_SIGNAL
from harness.protocol.wire import Channel, Message, encode


class Executor:
    """Runs cases on request until told to leave."""

    def __init__(
        self,
        collected: CollectedSession,
        channel: Channel,
        files: tuple[int, int],
        *,
        backend: Backend,
        leak_check: LeakCheck,
    ) -> None:
        """`files` are those for stacks and facts."""
        self._collected = collected
        self._channel = channel
        self._facts = files[1]
        self._backend = backend
        self._pid = os.getpid()
        self._watchdog = linux.Timer(WATCHDOG_SIGNAL)
        self._state = process.capture((0, 1, 2, channel.fileno(), *files))
        self._limits = self._state.limits
        self._streams = (sys.stdout, sys.stderr)
        self._has_subtests = False
        self._children: list[int] = []
        self._inspector = Inspector(collected.guard, leak_check)
        self._poisoned = False
        self._rounds: Rounds | None = None
        self._struck: dict[str, int] = {}
        self._listen()

    def serve(self) -> NoReturn:
        """Handle requests. The end of the stream means that the supervisor is gone: so are we."""
        try:
            while True:
                while (message := self._channel.pop()) is None:
                    self._channel.receive()
                    if self._channel.closed:
                        os._exit(0)
                self._handle(message)
        except MemoryError:
            os._exit(EXIT_NO_MEMORY)
        except BaseException as error:  # noqa: BLE001 - what comes here is our own: cases and hooks were asked before
            self._expect_own_channel()
            failure.end_process(error, self._channel)

    def _handle(self, message: Message) -> None:
        if message["op"] == "run":
            self._has_subtests = False
            self._run(message)
        elif message["op"] == "examine":
            self._examine(message)
        elif message["op"] == "again":
            self._again(message)
        elif message["op"] == "repeat":
            self._repeat(message)
        elif message["op"] == "round":
            self._round(message)
        else:
            self._leave(message)

    def _examine(self, message: Message) -> None:
        """Look whether the device computes rightly; each step is told before it begins, in case it is the last."""
        self._watchdog.start(message["limit"])
        try:
            facts = health.examine(
                self._backend, message["seed"], tell=lambda step: self._send({"op": "step", "step": step})
            )
        except health.HealthError as error:
            self._send({"op": "examined", "healthy": False, "text": str(error)})
        else:
            self._send({"op": "examined", "healthy": True, "facts": facts})
        self._watchdog.stop()

    def _on_warning(self, warning: warnings.WarningMessage, when: str) -> None:
        message = reports.pack_warning(warning, when)
        self._guarded(lambda: _write(self._facts, encode(message)))

    def _on_report(self, report: pytest.TestReport) -> None:
        """Each phase is written down as it ends, so that what is known survives what comes next.

        Into a file, which unlike a message wakes nobody.
        """
        config = self._collected.session.config
        self._has_subtests = self._has_subtests or type(report) is not pytest.TestReport
        if self._has_subtests and report.when == "call":
            # pytest fails a test whose subtests failed when it asks for the status, which is for terminals otherwise.
            config.hook.pytest_report_teststatus(report=report, config=config)
        message = reports.pack(config, report)
        self._flush_output()
        streams.expect_room(self._streams)
        message["out"] = [_size(1), _size(2)]
        self._guarded(lambda: _write(self._facts, encode(message)))

    def _run(self, message: Message) -> None:
        item = self._collected.items.get(message["case"])
        if item is None:
            self._send({"op": "unknown", "known": self._known_instead(message["case"])})
            return
        self._inspector.begin()
        done: Message = {"op": "done", **self._protocol(item, message)}
        problems: list[Problem] = []
        try:
            self._look_over(item, problems, done, levels=message["levels"])
        except Exception as error:
            self._watchdog.stop()
            problems = problems or self._left_behind()
            if not problems:  # then it is none of the case's doing
                raise
            text = f"left the process so that it cannot be looked over: {error!r}"
            problems.append(Problem(Outcome.CONTAMINATED, text))
        if problems:
            done["problems"] = [[problem.outcome.value, problem.text] for problem in problems]
        self._send(done)

    def _look_over(self, item: pytest.Item, problems: list[Problem], done: Message, *, levels: bool) -> None:
        """Look at the process after a case; what is wrong goes to `problems`, all else that is told to `done`."""
        poisoned = poison.sticky_error()
        self._watchdog.stop()
        state = process.capture(self._state.descriptors)
        problems += process.compare(self._state, state)
        problems += process.changed_streams(self._streams, (sys.stdout, sys.stderr))
        if state.alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if linux.has_children():
            now = linux.children()
            new = sorted(set(now) - set(self._children))
            process.await_programs(new, linux.is_starting, process.Patience(process.START_PATIENCE))
            _, own = linux.describe_process(self._pid) or ("", "")
            problems += process.new_children(self._children, now, linux.describe_process, own)
            self._children = now
        self._state = state
        self._poisoned = bool(poisoned)
        if poisoned:  # whoever asks CUDA for anything fails
            done["poison"] = poisoned
        else:
            changed, suspicions = self._inspector.end(levels=levels, keeps=bool(kept(item)))
            problems += changed
            if self._inspector.levels:
                done["levels"] = self._inspector.levels
            done["suspicions"] = suspicions
            if blind := self._inspector.unreadable():
                done["blind"] = blind
        if struck := self._faults_struck():
            done["struck"] = struck

    def _known_instead(self, case: str) -> str:
        """What was collected in place of a `case` that was not, and where."""
        known = list(self._collected.items)
        name = case.rpartition("::")[2]
        example = next((other for other in known if other.rpartition("::")[2] == name), known[0] if known else None)
        such = "" if example is None else f", such as {example!r}"
        return f"{len(known)} cases{such}, in the root folder {self._collected.session.config.rootpath}"

    def _left_behind(self) -> list[Problem]:
        """What the case left that may have kept us from looking it over; nothing: that was a mistake of ours."""
        problems: list[Problem] = []
        for look in (self._changes_of_process, lambda: self._inspector.end()[0]):
            with contextlib.suppress(Exception):  # the error that brought us here is the one that is told
                problems += look()
        return problems

    def _changes_of_process(self) -> list[Problem]:
        return process.compare(self._state, process.capture(self._state.descriptors))

    def _protocol(self, item: pytest.Item, message: Message) -> Message:
        """Have pytest run the case under the watchdog, which goes on; says what broke it off, if anything did."""
        nextitem = self._collected.items.get(message["next"]) if message["next"] is not None else None
        item.config.stash[CURRENT] = Current(self._backend.kind, seed=message["seed"])
        seeding.seed_everything(message["seed"], self._backend)
        self._watchdog.start(message["limit"])
        try:
            item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        except (KeyboardInterrupt, pytest.exit.Exception) as error:
            return {"interruption": f"raised {type(error).__name__}: {error}".rstrip(": ")}
        except MemoryError:
            raise
        except BaseException as error:
            if not failure.is_of_others(error):
                raise
            return {"hook_error": failure.describe(error)}
        return {}

    def _run_unheard(self, message: Message) -> None:
        """Run a case whose outcome nobody asks for. When a hook breaks it off this process can tell nothing more."""
        broken_off = self._protocol(self._collected.items[message["case"]], message)
        self._watchdog.stop()
        if "hook_error" in broken_off:
            sys.stderr.write(broken_off["hook_error"]["traceback"])
            os._exit(1)

    def _faults_struck(self) -> dict[str, int]:
        """How often each injected fault has struck since the last case, by name."""
        torch = sys.modules.get("torch")
        if torch is None:
            return {}
        before, self._struck = self._struck, dict(self._backend.faults_struck(torch))
        return {name: more for name, count in self._struck.items() if (more := count - before.get(name, 0))}

    def _again(self, message: Message) -> None:
        """Run a case a second time, unheard: what it left at first only was lazily made, and is no leak."""
        self._mute()
        self._run_unheard(message)
        self._listen()
        self._send({"op": "grown", "growths": self._inspector.grown()})

    def _repeat(self, message: Message) -> None:
        """Run a case several times, unheard, and tell what grew each time; with `history`, where it was made.

        Where is told of what came after the first `warmup` runs, for the meters in `history`.
        """
        self._mute()
        meters, grown = Meters("full", freeze=not message["history"]), []  # origins look at all that is new
        before = meters.read()
        origins = None
        for number in range(message["times"]):
            if message["history"] and number >= message["warmup"]:
                record_history(message["history"])
                origins = origins or Origins()
            self._run_unheard(message)
            after = meters.read()
            grown.append(growths(before, after))
            before = after
        told = origins.of(message["history"]) if origins is not None else {}
        self._send({"op": "repeated", "growths": grown, "origins": told})

    def _round(self, message: Message) -> None:
        """Run cases one after the other, unheard; tell what grew with each, once that is asked for."""
        self._mute()
        if self._rounds is None:
            self._rounds = Rounds()
        self._rounds.begin(counts=message["counts"], history=message["history"])
        grown = []
        for entry in message["cases"]:
            self._rounds.before_case()
            self._run_unheard(entry)
            changes = self._rounds.after_case()
            grown.append({} if kept(self._collected.items[entry["case"]]) else changes)
        told = self._rounds.origins() if message["last"] else {}
        self._send({"op": "round", "cases": grown, "origins": told})

    def _mute(self) -> None:
        self._collected.relay.on_report = self._collected.relay.on_warning = None

    def _listen(self) -> None:
        self._collected.relay.on_report = self._on_report
        self._collected.relay.on_warning = self._on_warning

    def _send(self, message: Message) -> None:
        self._guarded(lambda: self._channel.send(message))

    def _guarded(self, speak: Callable[[], object]) -> None:
        """Say something, if we are who is listened to and the case has left us the means."""
        self._expect_own_channel()
        try:
            speak()
        except MemoryError:
            self._restore_limits()
            try:
                speak()
            except MemoryError:
                os._exit(EXIT_NO_MEMORY)
        except BrokenPipeError:
            os._exit(0)
        except OSError as error:
            if error.errno != errno.EFBIG:  # a limit of the case's on the size of files, which is not for ours
                raise
            with self._limits_lifted():
                speak()

    def _expect_own_channel(self) -> None:
        """Return if we are who the supervisor listens to and can be heard; end or wait otherwise."""
        while os.getpid() != self._pid:
            # A copy of us that a case forked and forgot. It waits to be found, as a child process left running.
            signal.pause()
        for number in (self._channel.fileno(), self._facts):
            if process.identity(number) != self._state.descriptors[number]:
                os._exit(EXIT_CHANNEL_GONE)

    def _flush_output(self) -> None:
        """Have all that was printed in the files, whose sizes then tell one phase's output from the next's."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue  # the case closed it; the check of the descriptors tells
        linux.flush_c_stdio()

    @contextlib.contextmanager
    def _limits_lifted(self) -> Iterator[None]:
        """Have the limits that we began with, as far as may be, and then again those that the case has left."""
        left = {name: resource.getrlimit(getattr(resource, name)) for name in self._limits}
        self._restore_limits()
        try:
            yield
        finally:
            for name, limits in left.items():
                resource.setrlimit(getattr(resource, name), limits)

    def _restore_limits(self) -> None:
        for name, (soft, _) in self._limits.items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            allowed = soft if hard == resource.RLIM_INFINITY else min(soft, hard) if soft >= 0 else hard
            resource.setrlimit(number, (allowed, hard))

    def _leave(self, message: Message) -> NoReturn:
        """Tear down what is still set up, then end the way the request says, under the watchdog."""
        self._watchdog.start(message["limit"])
        bye: Message = {"op": "bye"}
        if not self._poisoned:
            self._inspector.collect()
        try:
            _compat.tear_down_all(self._collected.session)
        except BaseException as error:  # noqa: BLE001 - whatever a fixture raises is told, then we end
            bye["error"] = f"tearing down what the last cases shared raised {error!r}"
        else:
            changed, grown = ([], {}) if self._poisoned else self._inspector.finish()
            if changed:
                bye["error"] = "; ".join(problem.text for problem in changed)
            if grown:
                bye["grown"] = grown
        self._send(bye)
        if message["light"]:
            self._clear()
            self._flush_output()
            linux.c_exit(0)
            raise AssertionError("exit returned")
        self._flush_output()
        linux.interpreter_exit(0)
        raise AssertionError("Py_Exit returned")

    def _clear(self) -> None:
        """Do what the interpreter would do at its end. What cases left to be called then may raise."""
        try:
            short_exit.clear(self._collected)
        except BaseException:  # noqa: BLE001 - the end of the process shows it, as that of any other would
            sys.excepthook(*sys.exc_info())
            os._exit(1)


def _write(descriptor: int, data: bytes) -> None:
    """Append all of `data` to a file of ours, or nothing: half a line could not be told from what a case wrote."""
    left = data
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - (len(data) - len(left)))
        raise


def _size(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_size
    except OSError:
        return 0
