"""A run in the controller: it is set up once, sent to every worker, and reported at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import platform
import random
import secrets
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Generator, Iterable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.backends.table import labels
from harness.configuration import carried, command_line, options
from harness.configuration.context import RunContext
from harness.configuration.rootdir import RootFolder
from harness.controller import plan, preparation, rules, stop_signals
from harness.controller.journal_tail import JournalTail
from harness.controller.plan import ConfigProblem, Machine
from harness.controller.stop_signals import StopSignals
from harness.core import clock, linux, temp_folder
from harness.core.caseid import digest_of_ids, suite_of
from harness.core.errors import HarnessError, WriteError, convert_to_write_error
from harness.core.outcome import EXIT_INTERNAL, EXIT_NOTHING_RAN, EXIT_OK
from harness.core.secrets import mask_command
from harness.devices import capabilities
from harness.devices.device import Inventory
from harness.journal import environment, identity, reader
from harness.journal import journal as journals
from harness.journal.events import (
    SCHEMA,
    Collected,
    End,
    Event,
    Finding,
    RunStarted,
    SessionProperty,
    Stopped,
)
from harness.journal.journal import Journal, JournalError, JournalWriteError
from harness.journal.ledger import Ledger
from harness.journal.lines import decode_line
from harness.journal.reader import JournalContents
from harness.progress.progress import Progress, Snapshot
from harness.reporting import formats, junit
from harness.reporting.page import report as page
from harness.scheduling import resumption, stop_request
from harness.scheduling.case_facts import CaseFacts
from harness.scheduling.durations import Durations
from harness.scheduling.leases import LeaseBook
from harness.scheduling.remote_queue import RemoteQueue
from harness.scheduling.resume import (
    EarlierRun,
    InterruptedRun,
    RunLock,
    changed_conditions_message,
    nothing_to_continue,
    set_aside,
)
from harness.sim.native.provider import ProvidedDevice
from harness.supervisor import compiler_caches
from harness.zygote.client import ZygoteError, ZygoteProcess
from harness.zygote.spec import ZygoteSpec, collection_overrides


class Run:
    """One run, in the process that controls it."""

    def __init__(
        self, config: pytest.Config, inventory: Inventory, *, plugin_argument: bool, queue: RemoteQueue | None = None
    ) -> None:
        """Make the run directory and the other inputs of the workers. `queue`: for a session of a cluster run.

        Raises pytest.UsageError for options that cannot be used. If a folder cannot be made, the session ends with one
        sentence. In both cases nothing is left behind.
        """
        preparation.expect_proc()
        preparation.expect_arguments(config)
        preparation.expect_modules(config.getini("harness_preload"))
        self.begun = clock.monotonic()
        self.queue = queue
        self.inventory = inventory
        self.devices = inventory.usable
        self.leases = LeaseBook([device.uuid for device in inventory.separate])
        self.ledger: Ledger | None = None
        self.zygote: ZygoteProcess | None = None
        self.progress = Progress()
        #: Lines for people, printed above the summary.
        self.remarks: list[str] = []
        #: Lines for people, printed in the header.
        self.notes: list[str] = []
        self._tail: JournalTail | None = None
        #: The failed write; empty while all writes succeed.
        self.failure = ""
        self._arguments = preparation.arguments(config)
        self.plan = plan.make(config)
        isolation, self.aside = preparation.isolation_of(config, self.plan.settings)
        if isolation != "none" and inventory.gpus:
            preparation.prepare_leases()
        self.durations = Durations.of(self.plan.settings, config.invocation_params.dir, plan.configs(config), inventory)
        self.earlier_run = EarlierRun.of(self.plan.settings, config.invocation_params.dir)
        #: The run that this one resumes; None for a new run. Nothing is recorded in it until `accept`.
        self.interrupted = InterruptedRun.of(self.plan.settings, config.invocation_params.dir)
        self._lock: RunLock | None = None
        self._recorded = False
        with contextlib.ExitStack() as undo:
            if self.interrupted is not None:
                undo.callback(self.interrupted.release)
            temp = preparation.make_run_temp_folder(config)
            undo.callback(temp_folder.remove_temp_folder, temp)
            machine = {
                d.uuid: capabilities.detect_capabilities(inventory, d, temp / "capabilities") for d in self.devices
            }
            for device in self.devices:
                if device.backend.nvml:
                    # Read before any case takes memory. Leases divide it, so that a case is not gated because of its
                    # neighbours.
                    _ = machine[device.uuid]["free_memory"]
            self.plan.refuse_mismatches(machine)
            software = preparation.provide(self.devices, self.plan.settings["inject"], inline=isolation == "none")
            self.identity = identity.run_identity(inventory, rules.files_identity(config, self.plan))
            self.context = self._make_context(config, temp, isolation, software, plugin_argument=plugin_argument)
            try:
                self.signals = self._handle_signals(config, temp)
                undo.callback(self.close)
                self._begin(machine, software)
            except (WriteError, ZygoteError) as error:
                full = isinstance(error, WriteError)
                advice = ": make room, or choose another folder with --results-dir" if full else ""
                pytest.exit(f"harness: {error}; no case was run{advice}", returncode=EXIT_INTERNAL)
            undo.pop_all()

    def _make_context(
        self,
        config: pytest.Config,
        temp: Path,
        isolation: str,
        software: ProvidedDevice | None,
        *,
        plugin_argument: bool,
    ) -> RunContext:
        """Make the run directory, and return the facts that all processes of the run share.

        Raises pytest.UsageError.
        """
        settings, invocation, root = self.plan.settings, config.invocation_params, RootFolder.of(config)
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        args = tuple(str(argument) for argument in invocation.args)
        seed = settings["seed"]
        return RunContext(
            run_id=run_id,
            run_dir=str(self._make_run_dir(invocation.dir, run_id)),
            only="" if self.earlier_run is None else str(self.earlier_run.write(temp)),
            resumption="" if self.interrupted is None else str(self.interrupted.resumption.write(temp)),
            temp_dir=str(temp),
            rootdir=root.folder,
            inifile=root.inifile,
            root_given=bool(config.getoption("inifilename") or config.getoption("rootdir")),
            confcutdir=config.getoption("confcutdir"),
            ini_values=tuple(config.getoption("override_ini") or ()),
            invocation_dir=str(invocation.dir),
            args=args,
            root_args=command_line.arguments_with_root(config),
            taken=tuple(sorted(command_line.foreign_short_flags(config))),
            carried=self._carried(config),
            overrides=collection_overrides(config.pluginmanager.has_plugin),
            sys_path=tuple(sys.path),
            preload=(*config.getini("harness_preload"), *self.devices[0].backend.modules),
            seed=self._drawn_seed() if seed is None else seed,
            isolation=isolation,
            plugin_argument=plugin_argument,
            controller=os.getpid(),
            zygote=None,
            case_timeout=settings["case_timeout"],
            timeout_multiplier=settings["timeout_multiplier"],
            endurance=settings["endurance"],
            fail_on_flaky=settings["fail_on_flaky"],
            health=settings["health"],
            leak_check=settings["leak_check"],
            leak_search=None if settings["leak_search"] == options.AUTO else settings["leak_search"],
            policy=self.plan.policy.to_json(),
            device=settings["device"],
            backend=settings["backend"],
            inject=settings["inject"],
            library=software.library if software else None,
            variables=dict(software.variables) if software else {},
            # A suite of this project that starts a thread at import is an error. Other suites cannot be changed here.
            start="fork" if settings["start"] == "auto" and not plugin_argument else settings["start"],
            under=settings["under"],
            slots=settings["slots"],
            shard=settings["shard"],
            collect_on_failure=settings["collect_on_failure"],
            node="" if self.queue is None else self.queue.node,
            echo=config.getoption("capture", None) == "no",
        )

    def _carried(self, config: pytest.Config) -> tuple[str, ...]:
        """Return the arguments that a reproduce line must have, and limits that are not from the ini file."""
        words = command_line.user_arguments(config)
        taken, positional = command_line.foreign_short_flags(config), config.option.file_or_dir
        arguments = carried.reproduce_arguments(words, positional, config.getini("addopts"), taken)
        for name in ("case_timeout", "timeout_multiplier", "leak_check", "endurance"):
            option, value = options.OPTIONS[name], self.plan.settings[name]
            if value != options.resolve_option(name, None, {}, config.getini(option.dest)):
                flag = options.long_flag(option.flag) if option.flag in taken else option.flag
                arguments.append(f"{flag}={value}".removesuffix(".0"))
        if self.plan.policy.floors:  # figures are compared with its floors
            option = options.OPTIONS["hardware"]
            flag = options.long_flag(option.flag) if option.flag in taken else option.flag
            arguments.append(f"{flag}={self.plan.policy.hardware}")
        return tuple(arguments)

    def _drawn_seed(self) -> int:
        """Return a random seed. A resumed run keeps its own seed.

        The seed of a shard follows from the suites, since all shards must have the same seed without communication.
        """
        if self.interrupted is not None:
            return self.interrupted.seed
        if self.plan.settings["shard"]:
            return int(self.identity[identity.SUITE_FILES].removeprefix("sha256:")[:8], 16)
        return random.SystemRandom().getrandbits(32)

    def _handle_signals(self, config: pytest.Config, temp: Path) -> StopSignals:
        """Return the handling of signals. From now on, a signal asks the workers to stop."""
        stops = temp / stop_request.FOLDER
        with convert_to_write_error(f"into {str(temp)!r}"):
            stops.mkdir()
        isolated = self.context.isolation != "none"
        waits = config.getoption("dist", "no") != "no" and isolated
        signals = StopSignals(stops, grace=self.plan.settings["grace"], waits=waits)
        # Without isolation, pytest itself handles Ctrl-C. It does not handle SIGTERM and SIGHUP, so here they end the
        # session like Ctrl-C.
        signals.install(stop_signals.ALL if isolated else (signal.SIGTERM, signal.SIGHUP))
        return signals

    def _begin(self, machine: Machine, software: ProvidedDevice | None) -> None:
        """Record what the run is, and start the zygote. Raises WriteError, pytest.UsageError."""
        context = self.context
        self.journal = Journal(context.journal)
        self._problems = self.plan.problems_before_collection(machine, _today())
        self._facts = environment.collect_environment(
            self.inventory,
            argv=["pytest", *context.args],
            seed=context.seed,
            isolation=context.isolation,
            rootdir=Path(context.rootdir),
            software_device=(software.facts or None) if software else None,
            under=context.under,
        )
        self._line = self._run_line()
        if self.interrupted is None:
            self._record_start()
        else:
            try:
                changes = tuple(self.interrupted.changes(self._line))
                self._line = msgspec.structs.replace(self._line, forced=changes)
            except HarnessError as error:
                raise pytest.UsageError(f"--resume={str(self.plan.settings['resume'])!r}: {error}") from None
            shutil.rmtree(self.run_dir / compiler_caches.FOLDER, ignore_errors=True)
        if context.isolation != "none":
            spec = ZygoteSpec.of(context, skip_early_exit_handlers=not self.inventory.gpus)
            folder, home = Path(context.invocation_dir), Path(context.temp_dir) / "zygote"
            self.zygote = ZygoteProcess(spec, folder=folder, home=home, log=self.run_dir / "zygote.log")
            self.context = context.with_zygote(self.zygote.address)

    def _run_line(self) -> RunStarted:
        context = self.context
        devices = tuple(device.uuid for device in self.devices)
        return RunStarted(
            t=clock.now(),
            schema_version=SCHEMA,
            run_id=context.run_id,
            argv=tuple(mask_command(["pytest", *context.args])),
            host=platform.node(),
            pid=os.getpid(),
            devices=devices,
            label=labels(devices),
            rootdir=context.rootdir,
            shard=context.shard,
            part=1 if self.interrupted is None else self.interrupted.resumption.part,
            identity=self.identity,
            **rules.run_fields(self.plan, seed=context.seed, isolation=context.isolation),
        )

    def _record_start(self) -> None:
        """Record the start of the run, or of its next part. Raises WriteError."""
        self._recorded = True
        self.journal.append(self._line)
        if self.interrupted is None:
            self.journal.append(*rules.list_lines(self.plan))
        else:
            self.journal.append(*self.interrupted.lost, *self.interrupted.reopened)
            with convert_to_write_error(f"into {str(self.run_dir)!r}"):
                self.interrupted.keep_environment()
        for kind, message in self._problems:
            self.add_finding(kind, message)
        environment.write_environment(self.run_dir, self._facts)

    def expected(self, ids: Sequence[str]) -> list[float]:
        """Return the expected seconds of each of these cases. Cases that are only replayed take none."""
        finished = {} if self.interrupted is None else self.interrupted.resumption.finished
        facts = CaseFacts.read(Path(self.context.temp_dir))
        estimates = self.durations.expected(ids, facts.limits, self.context.case_timeout)
        return [0.0 if case in finished else seconds for case, seconds in zip(ids, estimates, strict=True)]

    def widths(self, ids: Sequence[str]) -> list[int]:
        """Return the number of leased devices of each case that needs more than a slot; 0 for all others.

        The number is 0 also for a case that no device can run.
        """
        devices = CaseFacts.read(Path(self.context.temp_dir)).devices
        most = len(self.devices)
        return [count if (count := devices.get(case, 0)) <= most else 0 for case in ids]

    def apart(self, ids: Sequence[str]) -> list[int]:
        """Return the positions of the cases that run in their own process."""
        apart = frozenset(CaseFacts.read(Path(self.context.temp_dir)).apart)
        return [position for position, case in enumerate(ids) if case in apart]

    def described(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return the facts of this session for the head of a cluster run: list, expected seconds, gates by position."""
        gated = CaseFacts.read(Path(self.context.temp_dir)).gated
        return {
            "count": len(ids),
            "hash": digest_of_ids(ids),
            "seconds": [round(seconds, 3) for seconds in self.expected(ids)],
            "gated": {str(position): gated[case] for position, case in enumerate(ids) if case in gated},
            "devices": {device.uuid: device.name for device in self.devices},
        }

    def accept(self) -> None:
        """Begin a resumed run after the collection, if it has the same cases as before.

        Raises pytest.UsageError if it has not. The run directory is then unchanged.
        """
        if self._recorded or self.interrupted is None:
            return
        changed = resumption.noted_change(Path(self.context.temp_dir))
        if changed:
            changes = (f"the list of cases has changed: {changed}",)
            if not self.interrupted.force:
                raise pytest.UsageError(
                    f"--resume={str(self.plan.settings['resume'])!r}: {changed_conditions_message(changes)}"
                )
            self._line = msgspec.structs.replace(self._line, forced=(*self._line.forced, *changes))
        try:
            self._record_start()
        except WriteError as error:
            self.fail(str(error))

    @property
    def local_collection(self) -> list[str]:
        """Why each process of this run collects the tests itself, apart from plugins. Empty for most runs."""
        if self.context.isolation == "none":
            return [f"isolation is none{f' for {self.aside}' if self.aside else ''}"]
        return ["executors start cold"] if self.context.start == "cold" else []

    @property
    def selected_lines(self) -> list[str]:
        """Lines for people about the cases of an earlier run that this run selects."""
        lines = [*self.durations.notes]
        lines += [] if self.earlier_run is None else [f"only the {self.earlier_run.text}"]
        return lines if self.interrupted is None else [*lines, self.interrupted.text]

    @property
    def run_dir(self) -> Path:
        return Path(self.context.run_dir)

    def worker_down(self, worker: str, error: object | None) -> None:
        """Free the device of a worker that has ended.

        If the worker died, add a finding, since a worker never runs a case itself.
        """
        self.leases.give_back(worker)
        self.progress.forget(worker)
        if error:
            message = f"worker {worker} died ({error}); its unfinished cases are lost or went to other workers"
            self.add_finding("worker", message)

    @property
    def inline(self) -> bool:
        """Whether the cases of this run are executed in pytest's own processes."""
        return self.context.isolation == "none"

    def snapshot(self) -> Snapshot:
        """Return the progress of the run. Raises OSError if the journal cannot be read."""
        if self._tail is None:
            self._tail = JournalTail(self.context.journal)
        self.progress.enter(self._tail.read())
        own = os.getpid()
        workers = {
            worker: (pid, state)
            for worker, pid in self.progress.pids.items()
            if (state := linux.child_state(pid, own)) not in ("", "Z")
        }
        stopped = {worker: pid for worker, (pid, state) in workers.items() if state in "Tt"}
        return self.progress.snapshot(clock.now(), stopped, {worker: pid for worker, (pid, _) in workers.items()})

    def report(self, status: int) -> int:
        """Write the end of the journal, junit.xml and report.html. Returns the run's exit status, given pytest's own.

        The run's status is never milder than pytest's. If pytest reports that all tests passed, the ledger decides.
        After a failed write, the status is that of an internal error.
        """
        if not self._recorded:
            return status  # a resumed run that did not reach its cases: its run directory is unchanged
        if self.signals.by:
            self._append(Stopped(t=clock.now(), by=self.signals.by, grace=self.signals.grace))
        try:
            contents, ledger = self._account(status)
        except JournalError as error:
            self.fail(str(error))
            return EXIT_INTERNAL
        if self.queue is None and status in (EXIT_OK, EXIT_NOTHING_RAN) and (ledger.verdicts or ledger.findings):
            status = ledger.exit_status()
        elif status == EXIT_OK:
            status = EXIT_NOTHING_RAN
        if self.queue is not None:  # the head of the cluster run judges and reports
            self._ended(ledger, status)
            return EXIT_INTERNAL if self.failure else status
        self.ledger = self._ended(ledger, status)
        try:
            junit.write_junit(self.run_dir, self.ledger)
            self._write_page(contents, self.ledger)
            formats.write_reports(
                self.plan.settings["report"],
                self.ledger,
                run_dir=self.run_dir,
                base=Path(self.context.invocation_dir),
                note=self.remarks.append,
            )
        except WriteError as error:
            self.fail(str(error))
            self.ledger = self._ended(ledger, status)
        self.durations.keep(self.ledger)
        return EXIT_INTERNAL if self.failure else status

    def _write_page(self, contents: JournalContents, ledger: Ledger) -> None:
        """Write report.html. Raises WriteError. Any other error of the harness does not change the run's verdict."""
        if ledger.end is not None:
            contents = dataclasses.replace(contents, events=(*contents.events, ledger.end))
        try:
            with _uncollected():
                page.write_html_report(self.run_dir, contents, ledger=ledger)
        except WriteError:
            raise
        except Exception as error:  # noqa: BLE001
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename}:{last.lineno}"
            self.remarks.append(f"{page.FILE_NAME} was not written, an error of the harness: {error!r} in {where}")

    def _account(self, status: int) -> tuple[JournalContents, Ledger]:
        """Return the journal so far, with events that follow from it, and its ledger. Raises JournalError.

        `status`: pytest's own exit status. If it is bad for a reason that the journal lacks, that is a finding, since
        reports have nothing else.
        """
        # Otherwise the garbage collector walks xdist's reports repeatedly while the ledger is built, which doubles the
        # time for 10,000 cases.
        with _uncollected():
            contents = reader.read_journal(self.context.journal)
            lines = [event for event in contents.events if isinstance(event, Collected)]
            cases = dict.fromkeys(case for line in lines for case in (*line.ids, *line.selected, *line.deselected))
            unread = dict.fromkeys(start for line in lines for start in line.unread)
            skipped = {start: reason for line in lines for start, reason in line.skipped.items()}
            if cases or unread or skipped:
                named = [(case, suite_of(case)) for case in cases]
                problems = self.plan.problems_after_collection(named, self._arguments, unread, skipped)
                if self.earlier_run is not None and (gone := self.earlier_run.gone(cases, self._arguments)):
                    problems.append(ConfigProblem("from_missing", gone))
                contents = self._with_findings(contents, problems)
            ledger = Ledger.from_journal(contents)
            explained = bool(ledger.red or ledger.findings or self.failure or self.signals.by)
            if not explained and status not in (EXIT_OK, EXIT_NOTHING_RAN) and self.queue is None:
                why = f"pytest ended with exit status {status}, which no case and no other finding explains"
                contents = self._with_findings(contents, [ConfigProblem("session", f"{why}: see its output")])
                ledger = Ledger.from_journal(contents)
            return contents, ledger

    def _with_findings(self, contents: JournalContents, problems: Iterable[ConfigProblem]) -> JournalContents:
        """Record findings, and return the contents of the journal with those that are new."""
        added = [self.add_finding(kind, message) for kind, message in problems]
        findings = tuple(finding for finding in added if finding is not None)
        return dataclasses.replace(contents, events=contents.events + findings)

    def _ended(self, ledger: Ledger, status: int) -> Ledger:
        """Record the end of the run. Return the ledger with it."""
        duration = round(clock.monotonic() - self.begun, 3)
        status = EXIT_INTERNAL if self.failure else status
        end = End(t=clock.now(), exit_status=status, duration=duration)
        self._append(end)
        return dataclasses.replace(ledger, end=end)

    def fail(self, problem: str) -> None:
        """Note a failed write. The run ends with the status of an internal error."""
        if not self.failure:
            self.failure = problem
            self.signals.request_stop("stopped since the run cannot be recorded")

    @property
    def failure_text(self) -> str:
        """One sentence about a failed write, the progress and the next step; empty if all writes succeeded."""
        if not self.failure:
            return ""
        done = "the number of finished cases is unknown"
        if self.ledger is not None:
            verdicts = self.ledger.verdicts
            decided = sum(verdict.decided is not None for verdict in verdicts)
            done = f"{decided} of {len(verdicts)} cases have a verdict in the journal"
        return f"harness: {self.failure}; {done}: make room, then type: harness report {self.run_dir}"

    def _append(self, event: Event) -> None:
        try:
            self.journal.append(event)
        except JournalWriteError as error:
            self.fail(str(error))

    def session_properties(self) -> list[tuple[str, str]]:
        """Return the properties of the whole run that cases recorded, each once."""
        with self.journal.path.open("rb") as file:
            events = [decode_line(line) for line in file if line.startswith(b'{"event":"session_property",')]
        return list(dict.fromkeys((event.name, event.value) for event in events if isinstance(event, SessionProperty)))

    def add_finding(self, kind: str, message: str) -> Finding | None:
        """Record a finding. None if a resumed run has it already."""
        if self.interrupted is not None and (kind, message) in self.interrupted.resumption.findings:
            return None
        finding = Finding(t=clock.now(), kind=kind, message=message)
        self._append(finding)
        return finding

    def note_problem(self, kind: str, message: str) -> None:
        """Record a finding, or keep it until a resumed run is accepted and its next part begins.

        Each is recorded once, although several workers may report it.
        """
        problem = ConfigProblem(kind, message)
        if problem in self._problems:
            return
        self._problems.append(problem)
        if self._recorded:
            self.add_finding(*problem)

    def close(self) -> None:
        """End the zygote; remove the compiler caches and the temporary folder."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None
        if self.zygote is not None:
            self.zygote.close()
            self.zygote = None
        if self.queue is not None:
            self.queue.close()
        shutil.rmtree(self.run_dir / compiler_caches.FOLDER, ignore_errors=True)
        temp_folder.remove_temp_folder(Path(self.context.temp_dir))
        for lock in (self._lock, self.interrupted):
            if lock is not None:
                lock.release()
        self.signals.restore()

    def _make_run_dir(self, base: Path, run_id: str) -> Path:
        if self.interrupted is not None:
            return self.interrupted.run_dir
        resume, wanted = self.plan.settings["resume"], self.plan.settings["results_dir"]
        run_dir = (base / (resume or wanted or Path("results") / run_id)).resolve()
        option = f"{'--resume' if resume else '--results-dir'}={str(resume or wanted or run_dir)!r}"
        if resume is None and (run_dir / journals.FILE_NAME).exists():
            raise pytest.UsageError(
                f"{option} already contains a run: name another folder, or continue that run with --resume={wanted}"
            )
        try:
            why = nothing_to_continue(run_dir) if resume is not None else ""
            run_dir.mkdir(parents=True, exist_ok=True)
            self._lock = RunLock(run_dir)
            if resume is not None:
                if not nothing_to_continue(run_dir):
                    raise pytest.UsageError(f"{option}: another run has begun there: type the command again")
                self.notes.append(f"{option}: {why}, so this run starts from the beginning")
                set_aside(run_dir)
        except HarnessError as error:
            raise pytest.UsageError(f"{option}: {error}") from None
        except OSError as error:
            raise pytest.UsageError(f"{option} cannot be made: {error.strerror}") from None
        return run_dir


@contextlib.contextmanager
def _uncollected() -> Generator[None]:
    """Disable the garbage collector in the context."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _today() -> date:
    """Return the date in UTC, so that a waiver expires everywhere at the same time."""
    return datetime.now(UTC).date()
