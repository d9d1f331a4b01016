"""A run in the controller: it is set up once, sent to every worker, and reported at the end."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harness.backends.table import labels
from harness.controller import plan, preparation, rules, stop_signals
from harness.controller.plan import Machine
from harness.controller.run_record import RunRecord
from harness.controller.stop_signals import StopSignals
from harness.core import clock, linux, temp_folder
from harness.core.caseid import digest_of_ids
from harness.core.errors import WriteError, convert_to_write_error
from harness.core.outcome import EXIT_INTERNAL
from harness.core.secrets import mask_command
from harness.devices import capabilities
from harness.devices.device import Inventory
from harness.journal import environment, identity, reader
from harness.journal.events import (
    SCHEMA,
    Event,
    RunStarted,
)
from harness.progress.progress import Progress, Snapshot
from harness.scheduling import stop_request
from harness.scheduling.durations import Durations
from harness.scheduling.leases import LeaseBook
from harness.scheduling.remote_queue import RemoteQueue
from harness.scheduling.resume import (
    EarlierRun,
    InterruptedRun,
    RunLock,
)
from harness.scheduling.workers import CaseFacts
from harness.sim.native.provider import ProvidedDevice
from harness.supervisor import executor_files
from harness.zygote.client import ZygoteError, ZygoteProcess
from harness.zygote.spec import ZygoteSpec


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
        if not plugin_argument:  # in other suites, that is the user's choice
            preparation.expect_assertions()
        preparation.expect_arguments(config)
        preparation.expect_modules(config.getini("harness_preload"))
        self.begun = clock.monotonic()
        self.queue = queue
        self.inventory = inventory
        self.devices = inventory.usable
        #: The pytest session, once it has begun.
        self.session: pytest.Session | None = None
        self._leases = LeaseBook([device.uuid for device in inventory.separate])
        self.zygote: ZygoteProcess | None = None
        self.progress = Progress()
        #: Lines for people, printed in the header.
        self.notes: list[str] = []
        self._tail: JournalTail | None = None
        self.plan = plan.make(config)
        isolation, self.aside = preparation.isolation_of(config, self.plan.settings)
        if isolation != "none" and inventory.gpus:
            preparation.prepare_leases()
        self.durations = Durations.of(self.plan.settings, config.invocation_params.dir, plan.configs(config), inventory)
        self.earlier_run = EarlierRun.of(self.plan.settings, config.invocation_params.dir)
        #: The run that this one resumes; None for a new run.
        self.interrupted = InterruptedRun.of(self.plan.settings, config.invocation_params.dir)
        self._lock: RunLock | None = None
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
            races = preparation.checks_races(config, self.plan.settings, self.devices, isolation)
            software = preparation.provide(self.devices, self.plan.settings["inject"], inline=isolation == "none")
            self.identity = identity.run_identity(inventory, rules.files_identity(config, self.plan))
            folder = preparation.claim_run_folder(self.plan, self.interrupted, config.invocation_params.dir)
            self._lock = folder.lock
            self.notes += folder.notes
            self.context = preparation.make_context(
                config,
                self.plan,
                folder,
                temp=temp,
                devices=self.devices,
                isolation=isolation,
                software=software,
                races=races,
                seed=preparation.seed_of(self.plan, self.interrupted, self.identity[identity.SUITE_FILES]),
                earlier=self.earlier_run,
                interrupted=self.interrupted,
                node="" if queue is None else queue.node,
                plugin_argument=plugin_argument,
            )
            try:
                self.signals = self._handle_signals(config, temp)
                undo.callback(self.close)
                self.record = self._make_record(config, machine, software)
                self._start_zygote()
            except (WriteError, ZygoteError) as error:
                full = isinstance(error, WriteError)
                advice = ": make room, or choose another folder with --results-dir" if full else ""
                pytest.exit(f"harness: {error}; no case was run{advice}", returncode=EXIT_INTERNAL)
            undo.pop_all()

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

    def _make_record(self, config: pytest.Config, machine: Machine, software: ProvidedDevice | None) -> RunRecord:
        """Record what the run is. Raises WriteError, pytest.UsageError."""
        context = self.context
        facts = environment.collect_environment(
            self.inventory,
            argv=["pytest", *context.args],
            seed=context.seed,
            isolation=context.isolation,
            rootdir=Path(context.rootdir),
            software_device=(software.facts or None) if software else None,
            under=context.under,
        )
        return RunRecord(
            context,
            self.plan,
            self.signals,
            line=self._run_line(),
            facts=facts,
            problems=self.plan.problems_before_collection(machine, datetime.now(UTC).date()),
            arguments=preparation.arguments(config),
            earlier=self.earlier_run,
            interrupted=self.interrupted,
            judges=self.queue is None,
            begun=self.begun,
        )

    def _start_zygote(self) -> None:
        """Start the zygote, unless the cases run in this process. Raises WriteError, ZygoteError."""
        context = self.context
        if self.interrupted is not None:
            shutil.rmtree(self.run_dir / executor_files.COMPILER_CACHES, ignore_errors=True)
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

    def device_of(self, worker: str) -> str:
        """Return the UUID of the device that a worker holds from now on."""
        return self._leases.take(worker)

    def request_stop(self, reason: str, grace: float) -> None:
        """Ask the workers to stop after `grace` seconds, for another reason than a signal."""
        self.signals.request_stop(reason, grace)

    def has_failed(self) -> bool:
        """Return whether the collection has failed, so that no case runs."""
        if self.session is None or not self.session.testsfailed:
            return False
        return not self.session.config.option.continue_on_collection_errors

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
        self._leases.give_back(worker)
        self.progress.forget(worker)
        if error:
            message = f"worker {worker} died ({error}); its unfinished cases are lost or went to other workers"
            self.record.add_finding("worker", message)

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
        """Write the reports. Returns the run's exit status, given pytest's own; see `RunRecord.report`."""
        status = self.record.report(status)
        if self.record.ledger is not None:
            self.durations.keep(self.record.ledger)
        return status

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
        shutil.rmtree(self.run_dir / executor_files.COMPILER_CACHES, ignore_errors=True)
        temp_folder.remove_temp_folder(Path(self.context.temp_dir))
        for lock in (self._lock, self.interrupted):
            if lock is not None:
                lock.release()
        self.signals.restore()


class JournalTail:
    """Reads the lines that were added since the last read. An incomplete line is left for the next read.

    Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        # The file stays open: when a process closes any descriptor of a file, the kernel releases all locks of the
        # process on that file. Another thread, which writes to the journal, may hold such a lock.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._path = path
        self._offset = 0

    def read(self) -> tuple[Event, ...]:
        """Return the events since the last call, without damaged lines. Raises OSError."""
        new = os.fstat(self._descriptor).st_size - self._offset
        data = os.pread(self._descriptor, max(0, new), self._offset)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return reader.parse_journal(self._path, whole).events

    def close(self) -> None:
        """Close the file. No other thread may write to the journal at that time."""
        os.close(self._descriptor)
