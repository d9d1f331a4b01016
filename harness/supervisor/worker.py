"""One worker of a run: its device, its decisions about each case, and its executors."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness import marks
from harness.collection.cases import CASE_ID, is_apart, is_case
from harness.collection.description import CollectionDescription, DescriptionError, collection_difference
from harness.configuration.context import RunContext
from harness.configuration.options import OptionError, case_time_limit
from harness.core import clock, linux
from harness.core.caseid import digest_of_ids
from harness.core.errors import HarnessError, WriteError
from harness.core.outcome import Ruling
from harness.core.text import format_count
from harness.devices.call_thread import NVML_LIMIT
from harness.devices.device import CPU, Device, Inventory
from harness.devices.visibility import masks_for
from harness.executor import seeding
from harness.executor.phase_clock import PhaseClock
from harness.fixtures import CURRENT, SUITE_PROPERTIES, CaseSettings, Current
from harness.gating import types
from harness.gating.policy import Policy
from harness.journal.events import Collected, Event, Finding, SessionProperty, Wait
from harness.journal.journal import Journal, JournalWriteError
from harness.protocol.wire import escape_surrogates
from harness.scheduling import case_facts, device_leases, stop_request
from harness.scheduling.case_facts import CaseFacts
from harness.scheduling.device_leases import BoardError, DeviceLeases
from harness.scheduling.order import Selection, read_ids
from harness.scheduling.resumption import ResumeError, Resumption, note_change
from harness.scheduling.stop_request import StopListener, StoppedError
from harness.scheduling.workers import HandedOutList
from harness.sim.interposer import front
from harness.sim.native import faults, provider
from harness.supervisor import compiler_caches, kept_files, pytest_reports
from harness.supervisor.ahead import RunOrder
from harness.supervisor.case_preparation import CasePreparation, slots_per_device
from harness.supervisor.device_pool import RELEASE_LIMIT, DevicePool
from harness.supervisor.executor_handle import Binding
from harness.supervisor.executor_slot import ExecutorNaming, ExecutorSlot, SlotHooks
from harness.supervisor.inline import InlineCase
from harness.supervisor.supervisor import Supervisor
from harness.supervisor.zygote_links import ZygoteLinks
from harness.zygote.client import ZygoteError
from harness.zygote.spec import executor_environment

_XDIST_VARIABLES = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID")
#: An attempt may take this many case time limits: it may be repeated, and a suspected leak runs seven times, twice.
_ATTEMPT_FACTOR = 20
#: Errors of a process that has no descriptor, process or memory left.
_STARVED = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)

#: The reason in `Worker.over` if the journal cannot be written.
UNRECORDED = "harness: the run cannot be recorded"

#: The worker of a run that speaks for all.
FIRST = ("main", "gw0")

#: The name of the plugin that measures cases in this process.
_PHASE_CLOCK = "harness-phase-clock"


class Worker:
    """The part of a run in one pytest process: an xdist worker, or the only pytest process."""

    def __init__(
        self,
        context: RunContext,
        inventory: Inventory,
        *,
        name: str,
        device: str,
        workerinput: dict[str, Any] | None,
        late: Callable[[pytest.TestReport], None],
        fail: Callable[[str], None],
    ) -> None:
        """`device`: UUID of the leased device. `workerinput`: the input of an xdist worker, otherwise None.

        `late` gives pytest another report on a case that was already reported. `fail` reports a failed write to the
        controller.
        """
        if workerinput is not None and os.getppid() == context.controller:  # not a worker on another host
            # Otherwise an orphaned worker would start a zygote and an executor on a device whose lease has ended.
            linux.die_with_parent(context.controller)
        self.context = context
        self.policy = Policy.from_json(context.policy)
        self.selection = Selection.of(self.policy, context.seed, context.shard, read_ids(context.only))
        self._resumption = Resumption.read(Path(context.resumption)) if context.resumption else Resumption()
        self.name = name
        self.journal = Journal(context.journal)
        #: Why this worker runs no more cases; empty while it runs cases.
        self.over = ""
        self._fail = fail
        self._failed = self._closing = False
        self._stop: StopListener | None = None
        self._inventory = inventory
        self._pool = DevicePool(
            next((entry for entry in inventory.devices if entry.uuid == device), CPU),
            inventory.usable,
            worker=name,
            folder=Path(context.temp_dir) / "drained",
            record=self._record,
            examine=context.health and context.isolation != "none",
            nvml_limit=NVML_LIMIT * context.timeout_multiplier,
            release_limit=RELEASE_LIMIT * context.timeout_multiplier,
        )
        workers = 1 if workerinput is None else int(workerinput["workercount"])
        self._preparation = CasePreparation(
            context,
            self.policy,
            inventory,
            self._pool,
            self._resumption,
            slots=slots_per_device(context.slots, workers, inventory),
        )
        keys = ("workerid", "workercount", "testrunuid")
        self._workerinput = None if workerinput is None else {key: workerinput[key] for key in keys}
        #: The list of what the controller hands out; None in a session without xdist, which follows its own list.
        self._handed_out = None if workerinput is None else HandedOutList(Path(context.temp_dir), name)
        #: Whether the run has cases that take several devices; None until this is known.
        self._has_wide: bool | None = None
        self._order = RunOrder(is_case, self._handed_out)
        #: The ids of all tests that this process has collected; None before that.
        self._seen: set[str] | None = None
        self._has_differed = False
        self._zygotes: ZygoteLinks | None = None
        self._slot: ExecutorSlot | None = None
        self._supervisor: Supervisor | None = None
        if context.isolation != "none":
            self._start_isolation(late)
        elif self._pool.device.backend.accelerator or context.device == self._pool.device.kind:
            self._offer_devices_here()

    def _start_isolation(self, late: Callable[[pytest.TestReport], None]) -> None:
        """Set up the parts that run cases in executors."""
        context = self.context
        self._stop = StopListener(Path(context.temp_dir) / stop_request.FOLDER, self.name)
        self._zygotes = ZygoteLinks(
            context,
            self.name,
            self._stop,
            record=self._record,
            on_write_error=self._note_failure,
            skip_early_exit_handlers=not self._pool.device.backend.hardware,
        )
        naming = ExecutorNaming(
            self.name,
            temp=Path(context.temp_dir),
            kept=Path(context.run_dir) / kept_files.FOLDER,
            last=self._resumption.executors.get(self.name, 0),
        )
        hooks = SlotHooks(
            connect=self._zygotes.connect,
            after_unclean_exit=partial(compiler_caches.release_locks, Path(context.run_dir)),
            await_release=self._pool.await_release,
            compare_collection=self._compare_collection,
        )
        self._slot = ExecutorSlot(naming, hooks, record=self._record, stop=self._stop, leases=self._device_leases())
        self._supervisor = Supervisor(
            context,
            self.policy,
            self._preparation,
            worker=self.name,
            record=self._record,
            late=late,
            slot=self._slot,
            pool=self._pool,
            bind=self._bind,
        )

    def _offer_devices_here(self) -> None:
        """Set the environment of this process, for cases that run in it. Raises pytest.UsageError."""
        device = self._pool.device
        os.environ.update(masks_for([device]))
        for name, value in device.backend.stated.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if device.backend.injectable:
            os.environ[device.backend.faults_variable] = faults.join_injections(self.context.inject)
        if self.context.variables:
            self._prepare_process(self.context.variables)

    def _prepare_process(self, variables: Mapping[str, str]) -> None:
        """Set up what this process would have got at its start, for cases that run in it. Raises pytest.UsageError."""
        try:
            provider.provider_of(self._pool.device.backend).prepare(variables)
            if self._pool.device.backend.interposed and self._pool.device.backend.faults_variable in variables:
                front.inject_into_this_process(self.context.inject)
        except HarnessError as error:
            raise pytest.UsageError(f"--device={self.context.device}: {error}") from None

    def description(self) -> CollectionDescription:
        """Wait for the collection of the run's zygote, and return its description.

        Raises DescriptionError, StoppedError.
        """
        assert self._zygotes is not None
        return self._zygotes.description()

    def seen(self, ids: Collection[str], *, by_itself: bool) -> None:
        """Note the ids of all tests that this process has collected, before any was deselected.

        If this process has collected them `by_itself`, compare them with those of the zygote.
        """
        self._seen = {str(escape_surrogates(name)) for name in ids}
        if self.context.start == "cold" or not by_itself:
            return
        try:
            theirs = {str(escape_surrogates(name)) for name in self.description().order}
        except (DescriptionError, StoppedError):
            return  # the run ends with this error
        text = collection_difference("the zygote", theirs, f"worker {self.name}", self._seen)
        if text and self.name in FIRST:
            self._add_collection_finding(text)

    def _compare_collection(self, executor: str, count: int, digest: str) -> None:
        """Compare what a cold executor has collected with what this process has. Only the first difference counts."""
        if self._seen is not None and digest != digest_of_ids(sorted(self._seen)) and not self._has_differed:
            self._has_differed = True
            numbers = f"{format_count(count, 'test')}, and worker {self.name} {format_count(len(self._seen), 'test')}"
            self._add_collection_finding(f"executor {executor} collected {numbers}")

    def _add_collection_finding(self, text: str) -> None:
        advice = (
            "look for a file or conftest whose tests depend on the process that collects them or on its devices, such "
            "as torch.cuda.device_count() or an environment variable"
        )
        with self._recording():
            self._record(Finding(t=clock.now(), kind="collections_differ", message=f"{text}; {advice}"))

    def collected(
        self,
        ids: list[str],
        selected: list[str],
        deselected: list[str],
        unread: list[str],
        skipped: Mapping[str, str],
    ) -> None:
        """Record the cases of this shard, the selected cases of all shards, the deselected ones and the unread files.

        `skipped`: the reasons of files that skipped themselves.

        The ids are left out if another worker has recorded them. If a resumed run had other cases before, note that for
        the controller and raise ResumeError.
        """
        changed = self._resumption.difference(ids) if self.context.resumption else ""
        if changed:
            with self._recording():
                note_change(Path(self.context.temp_dir), changed)
            if not self._resumption.forced:
                raise ResumeError(changed)
        digest = digest_of_ids(ids)
        with self.context.journal.open("rb") as file:
            first = (line for line in itertools.islice(file, 100) if line.startswith(b'{"event":"collected"'))
            listed = any(digest.encode() in line for line in first)
        line = Collected(
            t=clock.now(),
            worker=self.name,
            count=len(ids),
            hash=digest,
            part=self._resumption.part,
            ids=() if listed else tuple(ids),
            deselected=() if listed else tuple(deselected),
            unread=() if listed else tuple(unread),
            skipped={} if listed else {**skipped},
            pid=os.getpid(),
            selection=digest_of_ids(sorted(selected)) if self.context.shard else "",
            selected=tuple(selected) if self.context.shard and not listed else (),
        )
        with self._recording():
            self._record(line)

    def note_facts(self, items: Sequence[pytest.Item]) -> None:
        """Tell the controller of an xdist run the facts about single cases that it needs."""
        folder = Path(self.context.temp_dir)
        if self._workerinput is None or case_facts.are_written(folder):
            return
        limits = {item.stash[CASE_ID]: limit for item in items if (limit := _own_limit(item)) is not None}
        # Devices that are not hardware are not leased: each process has its own.
        leased = items if self._pool.device.backend.hardware else ()
        devices = {item.stash[CASE_ID]: count for item in leased if (count := self._preparation.whole_devices(item))}
        apart = [item.stash[CASE_ID] for item in items if is_apart(item)]
        with self._recording():
            CaseFacts(limits, devices, apart, self._gated(items) if self.context.node else {}).write(folder)

    def _gated(self, items: Sequence[pytest.Item]) -> dict[str, str]:
        """Return, by case id, why this node gates the case."""
        gates = ((item.stash[CASE_ID], self._preparation.prepare(item).unmet) for item in items)
        return {case: unmet.text for case, unmet in gates if unmet is not None}

    def _may_be_waited_for(self) -> bool:
        """Return whether this worker might wait for cases while another worker waits for its devices.

        A worker notices a waiting worker only between cases. In a cluster run, the next case may be handed out only
        when the other worker has ended its case.
        """
        if not self.context.node or self._supervisor is None or self._supervisor.has_begun or not self._order.starves:
            return False
        if self._has_wide is None:
            self._has_wide = bool(CaseFacts.read(Path(self.context.temp_dir)).devices)
        return self._has_wide

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Run one case in an executor, unless this worker is `over`. A fatal error sets `over`.

        A case that had its verdict before the run was resumed is only reported.
        """
        assert self._supervisor is not None
        if self.check_stop():
            return
        self._order.at(item, nextitem)
        finished = self._resumption.finished.get(item.stash[CASE_ID])
        try:
            with self._recording():
                if finished is None:
                    self._supervisor.run(item, nextitem, self._order.ahead)
                    if self._may_be_waited_for():
                        self._supervisor.finish()
                else:
                    pytest_reports.log(item, pytest_reports.replayed_reports(item, finished))
                    if nextitem is None:
                        self._supervisor.finish()
                        self._supervisor.search_leaks()
        except (ZygoteError, BoardError) as error:
            self.over = f"harness: {error}"
        except (OSError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno not in _STARVED:
                raise  # a bug in the harness: pytest shows its traceback
            self.over = (
                f"harness: worker {self.name} cannot continue: {error!r}; check the limits on open files and processes "
                f"(`ulimit -n`, `ulimit -u`) and the free memory"
            )
        self.check_stop()

    def check_stop(self) -> str:
        """Check for a request to stop. Returns `over`. Cases that have begun may end within the grace period."""
        stop = self._stop.receive() if self._stop is not None else None
        if stop is not None and not (self._supervisor is not None and self._supervisor.has_begun):
            self.over = self.over or stop.reason
        return self.over

    def _record(self, *events: Event) -> None:
        """Append to the journal, all events in one write.

        After a failure nothing more is appended, so that the run can end without new errors.
        Raises JournalWriteError at the first failure, except while the worker closes.
        """
        if self._failed:
            return
        try:
            self.journal.append(*events)
        except JournalWriteError as error:
            self._note_failure(error)
            if not self._closing:
                raise

    @contextlib.contextmanager
    def _recording(self) -> Generator[None]:
        """Note a failed write to disk in this context: this worker is then `over`."""
        try:
            yield
        except WriteError as error:
            self._note_failure(error)

    def _note_failure(self, error: WriteError) -> None:
        if not self._failed:
            self._failed = True
            self.over = UNRECORDED
            self._fail(str(error))

    @contextlib.contextmanager
    def inline(self, item: pytest.Item) -> Generator[None]:
        """Seed and record one case that runs in this process (isolation `none`)."""
        if not is_case(item):
            yield
            return
        case = self._preparation.prepare(item)
        if case.unmet is not None:
            with self._recording():
                self._record(case.gated(case.unmet, self.name))
            yield
            return
        record = InlineCase(case, self.context, worker=self.name, device=self._pool.device.uuid, record=self._record)
        backend = self._pool.device.backend
        if self.context.library is not None:
            provider.provider_of(backend).enter_inline(self.context.library)
        elif backend.warmed:
            backend.import_torch()
        item.config.stash[CURRENT] = Current(backend.kind, case.seed, self._case_settings())
        os.environ.update({name: value for name, value in self._types().items() if value is not None})
        seeding.seed_everything(case.seed, backend)
        plugins = item.config.pluginmanager
        if not plugins.has_plugin(_PHASE_CLOCK):
            plugins.register(PhaseClock(), _PHASE_CLOCK)
        plugins.register(record)
        with self._recording():
            record.start()
        stopped = ""
        try:
            yield
        except KeyboardInterrupt as error:
            stopped = str(error) or f"stopped by {signal.SIGINT.name}"
            raise
        except pytest.exit.Exception as error:  # also if the user quits a debugger
            stopped = f"pytest.exit: {error.msg}"
            raise
        finally:
            plugins.unregister(record)
            with self._recording():
                record.finish(stopped)
                properties = item.config.stash.get(SUITE_PROPERTIES, [])
                self._record(*(SessionProperty(t=clock.now(), name=name, value=value) for name, value in properties))
                properties.clear()
            if self.over:
                item.session.shouldstop = self.over

    def gate(self, item: pytest.Item) -> tuple[Ruling | None, str]:
        """Return the ruling against gating this case, or None; and why the case is gated, or an empty text."""
        if not is_case(item):
            return None, ""
        case = self._preparation.prepare(item)
        return case.objection, "" if case.unmet is None else case.unmet.text

    @property
    def isolated(self) -> bool:
        return self._supervisor is not None

    def close(self) -> None:
        """End every process of this worker."""
        self._closing = True
        if self._supervisor is not None:
            self._supervisor.close()
        self._pool.close()
        if self._handed_out is not None:
            self._handed_out.close()
        if self._zygotes is not None:
            self._zygotes.close()
        if self._stop is not None:
            self._stop.close()
            self._stop = None

    def _device_leases(self) -> DeviceLeases:
        """Return the leases of GPUs. The CPU and software devices need none: each process has its own."""
        # A worker checks for waiting workers only between cases: it first makes all attempts and repetitions of a case.
        attempts = max(self.policy.repeat * (1 + self.policy.retries), 2 * self.policy.verify)
        longest = _ATTEMPT_FACTOR * attempts * self.context.case_timeout
        return DeviceLeases(
            device_leases.default_folder() if self._pool.device.backend.hardware else None,
            worker=self.name,
            memory={device.uuid: device.memory for device in self._inventory.usable if device.memory},
            limit=max(device_leases.LIMIT, longest) * self.context.timeout_multiplier,
            first_message=device_leases.FIRST_MESSAGE * self.context.timeout_multiplier,
            log=self._log_wait,
        )

    def _log_wait(self, text: str) -> None:
        """Record and print what this worker waits for."""
        self.journal.append(Wait(t=clock.now(), worker=self.name, message=text))
        self._print(text)

    def print_once(self, text: str) -> None:
        """Print a text that holds for all workers of the run. Only the first worker prints it."""
        if self.name in FIRST:
            self._print(text)

    def _print(self, text: str) -> None:
        """Print a line. An xdist worker can only reach standard error."""
        print(f"\nharness: {text}", file=sys.stderr, flush=True)

    def _bind(self, devices: Sequence[Device]) -> Binding:
        visible: dict[str, str | None] = {**masks_for(devices)}
        # Use the values of this process: a conftest may have changed them in the zygote after the devices were counted.
        visible |= {name: os.environ.get(name) for name in devices[0].backend.variables}
        visible |= self.context.variables | devices[0].backend.stated
        if devices[0].backend.injectable:
            visible[devices[0].backend.faults_variable] = faults.join_injections(self.context.inject) or None
        visible |= compiler_caches.variables(Path(self.context.run_dir), os.environ)
        return Binding(
            devices=tuple(device.uuid for device in devices),
            kind=devices[0].kind,
            environment=executor_environment(os.environ, {**visible, **self._types()}, _XDIST_VARIABLES),
            workerinput=self._workerinput,
            leak_check=self.context.leak_check,
            library=self.context.library,
            snapshots="allocator" in self.context.collect_on_failure,
            settings=self._case_settings(),
            echo=self.context.echo,
        )

    def _types(self) -> dict[str, str | None]:
        """Return the environment variable with the types that the device lacks."""
        return {types.VARIABLE: ",".join(self.policy.without_types) or None}

    def _case_settings(self) -> CaseSettings:
        return CaseSettings(self.context.endurance, self.policy.floors, self.policy.hardware)


def _own_limit(item: pytest.Item) -> float | None:
    """Return the time limit in the case's marks; None without one. An invalid mark is reported elsewhere."""
    try:
        return case_time_limit(marks.marks_of(item, "timeout"), 0.0, 1.0) or None
    except OptionError:
        return None
