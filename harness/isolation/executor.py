"""The executor: a process forked from the zygote that runs the cases it is sent and says what happened.

Everything here runs beside somebody's test, in a process that may be dying. It decides nothing: it sends facts.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import resource
import signal
import socket
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal, NoReturn

import pytest

from harness import _compat
from harness.checks import poison, process
from harness.checks.inspector import Inspector, LeakCheck
from harness.checks.meters import Meters, growths
from harness.checks.origins import Origins, record_history
from harness.checks.rounds import Rounds
from harness.checks.state import StateGuard
from harness.devices import health
from harness.devices.device import Kind
from harness.fixtures import CURRENT, Current, kept
from harness.isolation import linux, reports, seeding
from harness.isolation.wire import Channel, Message, encode

#: Exit status of an executor whose channel a case has closed or replaced: it can no longer say anything.
EXIT_CHANNEL_GONE = 241
#: What ends an executor whose case is not over in time. A real-time signal, which nothing else is likely to use.
WATCHDOG_SIGNAL = signal.SIGRTMAX - 1
#: Exit status of an executor that had no memory left to send a report.
EXIT_NO_MEMORY = 242
#: Exit status of an executor that could not load the software device.
EXIT_NO_DEVICE = 243


class Relay:
    """A plugin that hands each report, and each warning, to whoever wants it.

    Registered before the fork: registering inspects every attribute of a plugin, which costs each executor 1 ms.
    """

    def __init__(self) -> None:
        self.on_report: Callable[[pytest.TestReport], None] | None = None
        self.on_warning: Callable[[warnings.WarningMessage, str], None] | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.on_report is not None:
            self.on_report(report)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        if self.on_warning is not None:
            self.on_warning(warning_message, when)


@dataclass(frozen=True, slots=True)
class Nest:
    """What an executor inherits from the zygote.

    The collected session, its items by the id under which they are asked for, and, for a light exit, the names of the
    modules that were there and of those that hold cases. `relay` hands on pytest's reports, `guard` hears of fixtures.
    """

    session: pytest.Session
    items: Mapping[str, pytest.Item]
    modules: frozenset[str]
    case_modules: frozenset[str]
    relay: Relay
    guard: StateGuard


def detach(zygote: int) -> None:
    """Give this freshly forked process a session of its own, and a life that ends with its parent's, `zygote`."""
    os.setsid()
    linux.die_with_parent(zygote)
    linux.adopt_orphans()


def become_executor(nest: Nest, order: Message, descriptors: Sequence[int], *, cold: bool = False) -> NoReturn:
    """Turn this detached process into the executor that `order` describes, serve, and exit.

    `descriptors`: the socket to the supervisor, then those of `harness.isolation.handle.Outputs` in their order.
    Nothing of the zygote's that could be shared by mistake (standard streams, session, process group, temporary folder,
    signal handlers) survives. A `cold` one has collected by itself, and says when it is ready.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    control, out, err, stacks, facts = descriptors
    _new_standard_streams(out, err)
    for name, value in order["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.environ["TMPDIR"] = order["temp"]
    tempfile.tempdir = None
    faulthandler.enable(file=stacks, all_threads=True)
    # Chained to the default action: all stacks are written by C code, whoever holds the GIL, then the process dies.
    faulthandler.register(WATCHDOG_SIGNAL, file=stacks, all_threads=True, chain=True)
    if order["workerinput"] is not None:
        # What tests and plugins ask to know which xdist worker they are in.
        nest.session.config.workerinput = order["workerinput"]  # type: ignore[attr-defined]
    channel = Channel(socket.socket(fileno=control), "the supervisor")
    if cold:
        channel.send({"op": "ready"})
    if order["library"] is not None:
        _load_software_device(order["library"])
    Executor(nest, channel, (stacks, facts), kind=order["kind"], leak_check=order["leak_check"]).serve()


def _load_software_device(library: str) -> None:
    """Give this process the software devices. One in which that fails ends: it is no case's doing."""
    from harness.softdevice import faults, loading, warming

    try:
        loading.load(library)
        warming.warm(os.environ.get(faults.VARIABLE, ""))
    except Exception:  # noqa: BLE001 - whatever went wrong stands in what the process printed
        sys.excepthook(*sys.exc_info())
        os._exit(EXIT_NO_DEVICE)


def _new_standard_streams(out: int, err: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target, inheritable=True)
    for source in (null, out, err):
        os.close(source)
    linux.line_buffer_c_stdio()
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    # Unbuffered, since what is still in a buffer is lost in a crash; visible escapes, since any text may be printed.
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            _Unbuffered(number, "w", closefd=False), encoding="utf-8", errors="backslashreplace", write_through=True
        )
        for number in (1, 2)
    )


class _Unbuffered(io.FileIO):
    """A raw file that writes all it is given, which is what the text layer expects of a buffered one."""

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        done = 0
        while done < len(view):
            done += super().write(view[done:])
        return done


class Executor:
    """Runs cases on request until told to leave."""

    def __init__(
        self, nest: Nest, channel: Channel, files: tuple[int, int], *, kind: Kind, leak_check: LeakCheck
    ) -> None:
        """`files` are those for stacks and facts."""
        self._nest = nest
        self._channel = channel
        self._facts = files[1]
        self._kind = kind
        self._pid = os.getpid()
        self._watchdog = linux.Timer(WATCHDOG_SIGNAL)
        self._state = process.capture((0, 1, 2, channel.fileno(), *files))
        self._limits = self._state.limits
        self._streams = (sys.stdout, sys.stderr)
        self._has_subtests = False
        self._children: list[int] = []
        self._inspector = Inspector(nest.guard, leak_check)
        self._poisoned = False
        self._rounds: Rounds | None = None
        self._struck: dict[str, int] = {}
        self._listen()

    def serve(self) -> NoReturn:
        """Handle requests. The end of the stream means that the supervisor is gone: so are we."""
        while True:
            while (message := self._channel.pop()) is None:
                self._channel.receive()
                if self._channel.closed:
                    os._exit(0)
            if message["op"] == "run":
                self._has_subtests = False
                try:
                    self._run(message)
                except MemoryError:
                    os._exit(EXIT_NO_MEMORY)
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
        kind: Literal["cuda", "cpu"] = "cuda" if self._kind == "cuda" else "cpu"
        try:
            facts = health.examine(kind, message["seed"], tell=lambda step: self._send({"op": "step", "step": step}))
        except health.HealthError as error:
            self._send({"op": "examined", "healthy": False, "text": str(error)})
        else:
            self._send({"op": "examined", "healthy": True, "facts": facts})
        self._watchdog.stop()

    def _hear_warning(self, warning: warnings.WarningMessage, when: str) -> None:
        message = reports.pack_warning(warning, when)
        self._guarded(lambda: _write(self._facts, encode(message)))

    def _hear_report(self, report: pytest.TestReport) -> None:
        """Each phase is written down as it ends, so that what is known survives what comes next.

        Into a file, which unlike a message wakes nobody.
        """
        config = self._nest.session.config
        self._has_subtests = self._has_subtests or type(report) is not pytest.TestReport
        if self._has_subtests and report.when == "call":
            # pytest fails a test whose subtests failed when it asks for the status, which is for terminals otherwise.
            config.hook.pytest_report_teststatus(report=report, config=config)
        message = reports.pack(config, report)
        self._flush_output()
        message["out"] = [_size(1), _size(2)]
        self._guarded(lambda: _write(self._facts, encode(message)))

    def _run(self, message: Message) -> None:
        item = self._nest.items.get(message["case"])
        if item is None:
            self._send({"op": "unknown"})
            return
        self._inspector.begin()
        interruption = self._protocol(item, message)
        poisoned = poison.sticky_error()
        self._watchdog.stop()
        state = process.capture(self._state.descriptors)
        problems = process.compare(self._state, state)
        problems += process.changed_streams(self._streams, (sys.stdout, sys.stderr))
        if state.alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if linux.has_children():
            now = linux.children()
            new = sorted(set(now) - set(self._children))
            process.await_programs(new, linux.is_starting, process.Patience(process.START_PATIENCE))
            problems += process.new_children(self._children, now, linux.describe_process)
            self._children = now
        self._state = state
        done: Message = {"op": "done"}
        self._poisoned = bool(poisoned)
        if not poisoned:  # else whoever asks CUDA for anything fails
            changed, suspicions = self._inspector.end(levels=message["levels"], keeps=bool(kept(item)))
            problems += changed
            if levels := self._inspector.levels:
                done["levels"] = levels
            done["suspicions"] = suspicions
            if blind := self._inspector.blind():
                done["blind"] = blind
        if struck := self._faults_struck():
            done["struck"] = struck
        if interruption:
            done["interruption"] = interruption
        if poisoned:
            done["poison"] = poisoned
        if problems:
            done["problems"] = [[problem.outcome.value, problem.text] for problem in problems]
        self._send(done)

    def _protocol(self, item: pytest.Item, message: Message) -> str:
        """Have pytest run the case under the watchdog, which goes on; says what interrupted it, or nothing."""
        nextitem = self._nest.items.get(message["next"]) if message["next"] is not None else None
        item.config.stash[CURRENT] = Current(self._kind, seed=message["seed"])
        seeding.seed_everything(message["seed"], self._kind)
        self._watchdog.start(message["limit"])
        try:
            item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        except (KeyboardInterrupt, pytest.exit.Exception) as error:
            return f"raised {type(error).__name__}: {error}".rstrip(": ")
        return ""

    def _faults_struck(self) -> dict[str, int]:
        """How often each injected fault has struck since the last case, by name."""
        soft = getattr(sys.modules.get("torch"), "soft", None)
        if self._kind != "soft" or soft is None:
            return {}
        before, self._struck = self._struck, dict(soft.faults_struck())
        return {name: more for name, count in self._struck.items() if (more := count - before.get(name, 0))}

    def _again(self, message: Message) -> None:
        """Run a case a second time, unheard: what it left at first only was lazily made, and is no leak."""
        self._mute()
        self._protocol(self._nest.items[message["case"]], message)
        self._watchdog.stop()
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
            self._protocol(self._nest.items[message["case"]], message)
            self._watchdog.stop()
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
            item = self._nest.items[entry["case"]]
            self._protocol(item, entry)
            self._watchdog.stop()
            changes = self._rounds.after_case()
            grown.append({} if kept(item) else changes)
        told = self._rounds.origins() if message["last"] else {}
        self._send({"op": "round", "cases": grown, "origins": told})

    def _mute(self) -> None:
        self._nest.relay.on_report = self._nest.relay.on_warning = None

    def _listen(self) -> None:
        self._nest.relay.on_report = self._hear_report
        self._nest.relay.on_warning = self._hear_warning

    def _send(self, message: Message) -> None:
        self._guarded(lambda: self._channel.send(message))

    def _guarded(self, speak: Callable[[], object]) -> None:
        """Say something, if we are who is listened to and the case has left us the means."""
        while os.getpid() != self._pid:
            # A copy of us that a case forked and forgot. It waits to be found, as a child process left running.
            signal.pause()
        for number in (self._channel.fileno(), self._facts):
            if process.identity(number) != self._state.descriptors[number]:
                os._exit(EXIT_CHANNEL_GONE)
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

    def _flush_output(self) -> None:
        """Have all that was printed in the files, whose sizes then tell one phase's output from the next's."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue  # the case closed it; the check of the descriptors tells
        linux.flush_c_stdio()

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
        try:
            if not self._poisoned:
                self._inspector.collect()
            _compat.tear_down_all(self._nest.session)
        except BaseException as error:  # noqa: BLE001 - whatever a fixture raises is told, then we end
            bye["error"] = f"tearing down what the last cases shared raised {error!r}"
        else:
            changed, grown = ([], {}) if self._poisoned else self._inspector.leave()
            if changed:
                bye["error"] = "; ".join(problem.text for problem in changed)
            if grown:
                bye["grown"] = grown
        self._send(bye)
        if message["light"]:
            self._light_exit()
        self._flush_output()
        linux.interpreter_exit(0)
        raise AssertionError("Py_Exit returned")

    def _light_exit(self) -> NoReturn:
        """What the end of an interpreter does, for all that was made since the fork, and no more.

        Finalising a process that has imported torch takes 0.15 s, nearly all of it spent on what the zygote made and
        the same for every case. Order as in CPython: threads, exit callbacks, globals, then C's exit handlers.
        """
        _compat.join_threads()
        _compat.run_exit_callbacks()
        # New modules are the last in the dictionary; to look at all of it would copy the pages of every module's name.
        made = takewhile(lambda name: name not in self._nest.modules, reversed(sys.modules))
        for name in [*made, *self._nest.case_modules]:
            if isinstance(module := sys.modules.get(name), types.ModuleType):
                _drop_values(vars(module))
        gc.collect()
        self._flush_output()
        linux.c_exit(0)
        raise AssertionError("exit returned")


def _drop_values(namespace: dict[str, Any]) -> None:
    """Let go of what a module made; its modules, functions and classes stay, which a ``__del__`` may call."""
    kept = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
    for name in [key for key, value in namespace.items() if not key.startswith("__") and not isinstance(value, kept)]:
        namespace[name] = None


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _size(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_size
    except OSError:
        return 0
