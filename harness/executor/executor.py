"""The executor: a process forked from the zygote that runs the requested cases and reports facts.

This code shares its process with a test, and the process may be about to die. Other processes make the verdicts.
"""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from gc import collect  # imported by name: a case may have replaced it
from itertools import takewhile

# Imported by name: a case may have replaced the attributes of the modules when its reports are written, and after its
# end.
from os import _exit, environ
from pathlib import Path
from sys import modules
from typing import Any, NoReturn

import pytest

from harness import _compat
from harness.backends.backend import Backend
from harness.checks.growth import may_still_leak
from harness.checks.inspector import ChildWatch, LeakCheck, StateInspector, sticky_error
from harness.checks.meters import MeterReader, meter_growths
from harness.checks.origins import GrowthOrigins, GrowthRounds, record_allocation_history
from harness.checks.state.essentials import essential_settings
from harness.checks.state.guard import split_by_use
from harness.checks.state.section import SettingsSection
from harness.checks.trend import WARMUP_REPETITIONS
from harness.core import linux
from harness.core.clock import monotonic, now
from harness.core.outcome import Outcome
from harness.core.plain_values import safe_repr, safe_str
from harness.core.text import format_count
from harness.devices import health
from harness.executor.around_case import MOST_SNAPSHOTS, PeakMemory, seed_everything, write_allocator_snapshot
from harness.executor.channel import (
    GuardedChannel,
    describe_exception,
    is_raised_by_other_plugin,
    report_error_and_exit,
)
from harness.executor.session import CollectedSession, SessionWatch, late_marks, make_late_warning
from harness.executor.streams import StandardStreams
from harness.fixtures import CURRENT, XML_ATTRIBUTES, CaseSettings, Current, kept
from harness.marks import reason_for_races
from harness.protocol import reports
from harness.protocol.endings import EXIT_NO_MEMORY, WATCHDOG_SIGNAL, CaseEnd, ProcessEnd, StateProblem, as_message
from harness.protocol.phase_page import PHASES, PassedPhase, PhasePage
from harness.protocol.wire import Channel, Message
from harness.sim.simcuda.work_checks import RaceWatch

#: Seconds after which no further case of one request begins, because the supervisor gets no message meanwhile.
BURST = 0.05
_PLAIN = CaseEnd()
_ALL_PHASES = [*range(len(PHASES))]
_REPORT = pytest.TestReport
_ABORTS = (KeyboardInterrupt, pytest.exit.Exception)


class Executor:
    """Runs cases on request, until a request to exit."""

    def __init__(
        self,
        collected: CollectedSession,
        channel: Channel,
        files: tuple[int, int],
        page: PhasePage,
        *,
        backend: Backend,
        leak_check: LeakCheck,
        races: RaceWatch | None,
        snapshots: Path | None,
        settings: CaseSettings,
    ) -> None:
        """`files`: the descriptors for stacks and facts. `page`: for the phases that have passed.

        `races`: the findings about the order of work, if the devices check it. `snapshots`: the folder for those of the
        allocator, if wanted. `settings`: the settings of the run that cases may read.
        """
        self._collected = collected
        self._page = page
        self._backend = backend
        self._watchdog = linux.PosixTimer(WATCHDOG_SIGNAL)
        own = essential_settings((0, 1, 2, channel.fileno(), *files), environ.get("TMPDIR", ""))
        collected.guard.extend(SettingsSection(lambda: own), alone=leak_check == "off")
        self._channel = GuardedChannel(channel, files[1])
        self._streams = StandardStreams()
        self._has_subtests = False
        #: Whether the current case has raised an error, including expected ones.
        self._has_raised = False
        #: The location of the current case, and whether each of its reports is on the page.
        self._location: object = None
        self._is_plain = True
        self._children = ChildWatch(lambda: collected.watch.live)
        #: Problems that the fixtures of the current case have found.
        self._problems: list[StateProblem] = []
        self._inspector = StateInspector(collected.guard, leak_check)
        collected.watch.holders += [self._inspector, self._children]
        self._races = races
        self._poisoned = False
        self._rounds: GrowthRounds | None = None
        self._struck: dict[str, int] = {}
        self._peaks = PeakMemory(backend)
        self._snapshots = snapshots
        self._settings = settings
        self._snapshots_made = 0
        self._session = SessionWatch(collected.session, collected.relay)
        self._listen()

    def serve(self) -> NoReturn:
        """Handle requests. Exit at the end of the stream, because the supervisor is gone."""
        handle: dict[str, Callable[[Message], None]] = {
            "run": self._run,
            "examine": self._examine,
            "again": self._again,
            "repeat": self._repeat,
            "round": self._round,
        }
        try:
            if not self._backend.hardware:
                self._inspector.begin()  # before the first request, when no process waits for it
            while True:
                message = self._channel.receive()
                handle.get(message["op"], self._leave)(message)
        except MemoryError:
            _exit(EXIT_NO_MEMORY)
        except BaseException as error:  # noqa: BLE001 - the harness's own error: those of cases and hooks are handled
            report_error_and_exit(error, self._channel.unguarded())

    def _examine(self, message: Message) -> None:
        """Check that the device computes correctly. Each step is reported before it begins, because it may hang."""
        self._watchdog.start(message["limit"])
        try:
            facts = health.examine_device(
                self._backend, message["seed"], tell=lambda step: self._channel.send({"op": "step", "step": step})
            )
        except health.HealthError as error:
            self._channel.send({"op": "examined", "healthy": False, "text": str(error)})
        else:
            self._channel.send({"op": "examined", "healthy": True, "facts": facts})
        self._watchdog.stop()

    def _on_warning(self, warning: warnings.WarningMessage, when: str) -> None:
        message = reports.pack_warning(warning, when)
        self._channel.note(message)

    def _on_report(self, report: pytest.TestReport) -> None:
        """Write the report of each phase when it ends, to the page or as a fact, so that it survives a later crash.

        A message would wake the supervisor; these writes do not.
        """
        config, clock = self._collected.session.config, self._collected.clock
        outcome = reports.outcome_of_phase(report)
        if attributes := config.stash.get(XML_ATTRIBUTES, None):
            reports.attach_xml_attributes(report, attributes)
        if outcome == "failed" and self._snapshots is not None and self._snapshots_made < MOST_SNAPSHOTS:
            self._snapshots_made += 1
            write_allocator_snapshot(self._snapshots, self._snapshots_made)
        self._has_subtests = self._has_subtests or type(report) is not _REPORT
        self._has_raised = self._has_raised or outcome == "failed" or hasattr(report, "wasxfail")
        if self._has_subtests and report.when == "call":
            # In this hook, pytest fails a test with failed subtests. Otherwise only terminal reporters call it.
            config.hook.pytest_report_teststatus(report=report, config=config)
        self._streams.flush()
        self._streams.raise_if_disk_full()
        sizes = self._streams.sizes()
        memory = self._peaks.host(), self._peaks.device() if report.when == "teardown" else 0
        if reports.is_default_pass(report, self._location):
            self._channel.expect_own_process()
            times = reports.phase_times_of(report, clock.times)
            if self._page.add(PassedPhase(PHASES.index(report.when), *times, *sizes, *memory)):
                return
        self._is_plain = False
        message = reports.pack_report(config, report, self._location, when=clock.when, times=clock.times)
        message |= {"after": len(self._page.written), "out": sizes, "memory": memory}
        self._channel.note(message)

    def _run(self, message: Message) -> None:
        """Run the case of a request, and then its further cases while each passes with nothing else to report."""
        cases = [message, *message.get("more", ())]
        over = monotonic() + BURST
        for place, case in enumerate(cases, start=1):
            self._page.begin(message["number"] + place - 1)
            end = self._run_case(case)
            plain = end == _PLAIN and self._is_plain and [phase.when for phase in self._page.written] == _ALL_PHASES
            if place == len(cases) or not plain or self._page.held or monotonic() >= over:
                self._channel.send(as_message(end))
                return
            self._note_begin(cases[place]["case"])

    def _note_begin(self, case: str) -> None:
        """Record that the next case begins. This implies that the last one has passed with nothing else to report."""
        self._streams.flush()
        sizes = self._streams.sizes()
        message = {"op": "begun", "case": case, "t": now(), "out": sizes, "passed": self._page.written}
        self._channel.note(message)

    def _run_case(self, message: Message) -> CaseEnd:
        """Run a case and check the process."""
        self._has_subtests, self._has_raised, self._is_plain = False, False, True
        item = self._collected.items.get(message["case"])
        if item is None:
            return CaseEnd(unknown=self._known_instead(message["case"]))
        self._inspector.begin(message["case"])
        marks = len(item.own_markers)
        if self._races is not None:
            self._races.begin()
        self._peaks.begin()
        self._session.begin()
        end = self._protocol(item, message)
        end.session = self._session.news()
        for name in late_marks(item, item.own_markers[marks:]):
            text = f"the mark {name!r} was added while the case ran, too late: marks are read before the case begins"
            self._on_warning(make_late_warning(text, item), "runtest")
        try:
            self._check_process(item, message, end)
        except Exception as error:
            # A check has failed: the case has damaged the process, or the harness has a bug.
            self._watchdog.stop()
            end.problems = end.problems or self._remaining_problems()
            if not end.problems:  # the case is not the cause
                raise
            text = f"left the process in a state that cannot be checked: {safe_repr(error)}"
            end.problems.append(StateProblem(Outcome.CONTAMINATED, text))
        return end

    def _check_process(self, item: pytest.Item, request: Message, end: CaseEnd) -> None:
        """Check the process after a case, and add the results to its end."""
        end.poison = sticky_error() or ""
        self._watchdog.stop()
        end.problems += self._problems
        leftovers, of_fixtures = self._children.check()
        end.problems += leftovers
        if self._races is not None and reason_for_races(item) is None:
            end.raced = self._races.end()
        self._poisoned = bool(end.poison)
        if not self._poisoned:  # otherwise every further CUDA call would fail
            changed, suspicions = self._inspector.end(
                request["case"], levels=request["levels"], keeps=kept(item), has_raised=self._has_raised
            )
            end.problems += changed
            of_fixtures += self._collected.guard.take_fixture_problems()
            end.levels, end.suspicions = self._inspector.levels, suspicions
            end.blind = self._inspector.unreadable()
        own, others = split_by_use(of_fixtures, getattr(item, "fixturenames", ()))
        end.problems += own
        end.fixtures = [problem.text for problem in others]
        end.struck = self._faults_struck()

    def _known_instead(self, case: str) -> str:
        """Return text about the cases that this process collected, with an example similar to the missing `case`."""
        cases = list(self._collected.items)
        name = case.rpartition("::")[2]
        example = next((other for other in cases if other.rpartition("::")[2] == name), cases[0] if cases else None)
        such = "" if example is None else f", for example {example!r}"
        return f"{format_count(len(cases), 'case')}{such}, in the root folder {self._collected.session.config.rootpath}"

    def _remaining_problems(self) -> list[StateProblem]:
        """Return the problems that may have made a check fail. If there are none, the error is the harness's own."""
        problems: list[StateProblem] = []
        with contextlib.suppress(Exception):  # the first error is the one that is reported
            problems += self._inspector.end()[0]
        return problems

    def _protocol(self, item: pytest.Item, message: Message, *, briefly: bool = False) -> CaseEnd:
        """Have pytest run the case under the watchdog, which keeps running. Return the end, with what aborted the case.

        With `briefly`, a case that works for the seconds of ``--endurance`` works for one round only.
        """
        nextitem = self._collected.items.get(message["next"]) if message["next"] is not None else None
        self._location = item.location
        settings = replace(self._settings, endurance=0.0) if briefly else self._settings
        limit, self._problems = message["limit"], []
        item.config.stash[CURRENT] = Current(
            self._backend.kind, message["seed"], settings, limit, monotonic() + limit, self._problems
        )
        seed_everything(message["seed"], self._backend)
        self._watchdog.start(message["limit"])
        had = len(item.user_properties)
        try:
            item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        except _ABORTS as error:
            return CaseEnd(interruption=f"raised {type(error).__name__}: {safe_str(error)}".rstrip(": "))
        except MemoryError:
            raise
        except BaseException as error:
            if not is_raised_by_other_plugin(error):
                raise
            return CaseEnd(hook_error=describe_exception(error))
        finally:
            item.config.stash.get(XML_ATTRIBUTES, {}).clear()
            del item.user_properties[had:]  # they are in the reports; if kept, they would look like a leak of the case
        return CaseEnd()

    def _run_without_report(self, message: Message) -> None:
        """Run a case whose outcome is not needed.

        If a hook aborts the case, exit, since no measurement would be valid.
        """
        end = self._protocol(self._collected.items[message["case"]], message, briefly=True)
        self._watchdog.stop()
        if end.hook_error is not None:
            self._streams.error.write(end.hook_error.traceback)
            _exit(1)

    def _faults_struck(self) -> dict[str, int]:
        """Return how often each injected fault was triggered since the last case, by name."""
        torch = modules.get("torch")
        if torch is None:
            return {}
        before, self._struck = self._struck, dict(self._backend.faults_struck(torch))
        return {name: more for name, count in self._struck.items() if (more := count - before.get(name, 0))}

    def _again(self, message: Message) -> None:
        """Run a case again without reports. Lazy initialisation grows only in the first run, unlike a leak."""
        self._mute()
        self._run_without_report(message)
        self._listen()
        grown = self._inspector.grown(keeps=kept(self._collected.items[message["case"]]), has_raised=self._has_raised)
        self._channel.send({"op": "grown", "growths": grown})

    def _repeat(self, message: Message) -> None:
        """Run a case several times without reports, and send the growth of each run.

        Stop once a leak is ruled out. If `history` names meters, do not stop early, and also send the origin of their
        growth after the runs that do not count.
        """
        self._mute()
        # The search for origins examines all new objects, so they must not be frozen.
        meters, grown = MeterReader("full", freeze=not message["history"], without_arenas=True), []
        before = meters.read()
        origins, keeps = None, kept(self._collected.items[message["case"]])
        for number in range(message["times"]):
            if message["history"] and number >= WARMUP_REPETITIONS:
                record_allocation_history(message["history"])
                origins = origins or GrowthOrigins()
            self._run_without_report(message)
            after = meters.read()
            changes = meter_growths(before, after)
            grown.append(changes if keeps is None else keeps.beyond(changes))
            before = after
            if not message["history"] and not may_still_leak(grown):
                break
        origin_lines = origins.of(message["history"]) if origins is not None else {}
        self._channel.send({"op": "repeated", "growths": grown, "origins": origin_lines})

    def _round(self, message: Message) -> None:
        """Run cases one after the other without reports, and send the growth of each if the request has `counts`."""
        self._mute()
        if self._rounds is None:
            self._rounds = GrowthRounds()
        self._rounds.begin(counts=message["counts"], history=message["history"])
        grown = []
        for entry in message["cases"]:
            self._rounds.before_case()
            self._run_without_report(entry)
            grown.append(self._rounds.after_case(keeps=kept(self._collected.items[entry["case"]])))
        origins = self._rounds.origins() if message["last"] else {}
        self._channel.send({"op": "round", "cases": grown, "origins": origins})

    def _mute(self) -> None:
        self._collected.relay.on_report = self._collected.relay.on_warning = None

    def _listen(self) -> None:
        self._collected.relay.on_report = self._on_report
        self._collected.relay.on_warning = self._on_warning

    def _leave(self, message: Message) -> NoReturn:
        """Tear down all fixtures, then exit under the watchdog, as requested."""
        self._watchdog.start(message["limit"])
        end = ProcessEnd()
        self._session.begin()
        # After a single case that has torn down everything, nothing is left to compare.
        compared = not self._poisoned and (self._inspector.several or _compat.is_set_up(self._collected.session))
        try:
            if compared:
                self._inspector.collect()
            _compat.tear_down_all(self._collected.session)
        except BaseException as error:  # noqa: BLE001 - any error of a fixture is reported, then the process exits
            end.error = f"the teardown of fixtures that the last cases shared raised {safe_repr(error)}"
        else:
            changed, end.grown, end.by_case = self._inspector.finish() if compared else ([], {}, {})
            if not self._poisoned:
                if message["owned"]:
                    self._children.leave_to_case()
                changed += self._fixture_problems()
            end.error = "; ".join(problem.text for problem in changed)
        end.session = self._session.news()
        save_coverage()
        self._channel.send(as_message(end))
        if message["light"]:
            self._clear()
            self._streams.flush()
            linux.c_exit(0)
            raise AssertionError("exit returned")
        self._streams.flush()
        linux.interpreter_exit(0)
        raise AssertionError("Py_Exit returned")

    def _fixture_problems(self) -> list[StateProblem]:
        """Return what fixtures have left behind at the end of the process."""
        of_fixtures = self._collected.guard.take_fixture_problems()
        with contextlib.suppress(OSError):  # a case has used up the descriptors, and is red for that
            of_fixtures += self._children.check()[1]
        return [entry.problem for entry in of_fixtures]

    def _clear(self) -> None:
        """Do the finalisation work of the interpreter. Exit callbacks of cases may raise."""
        try:
            clear_new_modules(self._collected)
        except BaseException:  # noqa: BLE001 - the exit status shows it, as in any other process
            sys.excepthook(*sys.exc_info())
            _exit(1)


def save_coverage() -> None:
    """Write coverage's data of this process next to its data file, for the controller to combine.

    A session in an executor never ends, so pytest-cov does not do it.

    pytest-cov starts coverage in the process that collects, so coverage continues in each fork. An error is printed.
    """
    coverage = sys.modules.get("coverage")
    current = getattr(coverage, "Coverage", None)
    measured = None if current is None else current.current()
    if measured is None:
        return
    try:
        measured.stop()
        measured.save()
    except Exception as error:  # noqa: BLE001 - it may not matter to the run, and is no fault of a case
        print(f"harness: the coverage data of this process is lost: {error!r}", file=sys.stderr)


def clear_new_modules(collected: CollectedSession) -> None:
    """End threads, run exit callbacks, clear the globals of new modules: CPython's order, before C's exit handlers.

    This is the interpreter's finalisation, but only of objects made since the fork. The whole of it takes 0.15 s in a
    process that has imported torch, nearly all for objects from before the fork, which are the same for every case.
    """
    _compat.join_threads()
    _compat.run_exit_callbacks(collected.last_finalizer)
    # New modules are last in the dictionary. A scan of the whole dictionary would copy the memory pages of every
    # module's name.
    made = takewhile(lambda name: name not in collected.modules, reversed(modules))
    for name in [*made, *collected.case_modules]:
        if issubclass(type(module := modules.get(name)), types.ModuleType):
            _drop_values(vars(module))
    collect()


def _drop_values(namespace: dict[str, Any]) -> None:
    """Drop the values of a module. Modules, functions and classes stay, because a ``__del__`` may use them."""
    kept = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
    # Not isinstance, which reads the class of an object and so would load lazily loaded modules.
    left = [key for key, value in namespace.items() if not key.startswith("__") and not issubclass(type(value), kept)]
    for name in left:
        namespace[name] = None
