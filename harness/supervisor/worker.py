"""One worker of a run: its device, its decisions about each case, and its executors."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.backends import cuda
from harness.collection import description
from harness.collection.cases import CASE_ID, is_case
from harness.collection.description import CollectionDescription, DescriptionError
from harness.configuration.context import RunContext
from harness.configuration.options import OptionError, case_time_limit
from harness.core import linux
from harness.core.errors import HarnessError, WriteError
from harness.core.outcome import Ruling
from harness.devices.call_thread import NVML_LIMIT
from harness.devices.device import CPU, Device, Inventory
from harness.devices.visibility import masks_for
from harness.executor import seeding
from harness.executor.phase_clock import PhaseClock
from harness.fixtures import CURRENT, Current
from harness.gating.policy import Policy
from harness.journal import lines
from harness.journal.journal import Journal, JournalWriteError, digest
from harness.scheduling import case_facts, device_leases, stop_request
from harness.scheduling.case_facts import CaseFacts
from harness.scheduling.device_leases import BoardError, DeviceLeases
from harness.scheduling.handed_out import HandedOutList
from harness.scheduling.resumption import ResumeError, Resumption, note_change
from harness.scheduling.selection import Selection, read_ids
from harness.scheduling.stop_request import StopListener
from harness.sim.interposer import front
from harness.sim.native import faults, provider
from harness.supervisor import compiler_caches, kept_files, pytest_reports, replay
from harness.supervisor.ahead import RunOrder
from harness.supervisor.case_preparation import CasePreparation, slots_per_device
from harness.supervisor.device_pool import RELEASE_LIMIT, DevicePool
from harness.supervisor.executor_handle import Binding
from harness.supervisor.executor_slot import ExecutorSlot
from harness.supervisor.inline import InlineCase
from harness.supervisor.supervisor import Supervisor
from harness.zygote.client import (
    ANSWER_LIMIT,
    START_LIMIT,
    NoZygoteError,
    ZygoteClient,
    ZygoteError,
    ZygoteProcess,
    ZygoteUnfitError,
    description_file,
    early_end_text,
    read_log_tail,
)
from harness.zygote.spec import ZygoteSpec, executor_environment

_XDIST_VARIABLES = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID")
#: How many zygotes may die before they are ready. After that, the worker gives up.
_STARTS = 5
#: An attempt may take this many case time limits: it may run once more, and a suspected leak runs twice seven times.
_ATTEMPT_FACTOR = 20
#: Errors of a process that has no descriptor, process or memory left.
_STARVED = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)

#: The reason in `Worker.over` if the journal cannot be written.
UNRECORDED = "harness: the run cannot be recorded"

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
        """`device`: UUID of the leased device. `workerinput`: the input of an xdist worker, otherwise None. `late`
        gives pytest another report on a case that was already reported. `fail` reports to the controller what cannot
        be written.
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
        #: Why this worker runs no more cases. Empty while it runs cases.
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
        self._own: list[ZygoteProcess] = []
        self._was_linked = False
        #: The hash of the list that the run's zygote has collected, once this worker has it from there.
        self._list = ""
        keys = ("workerid", "workercount", "testrunuid")
        self._workerinput = None if workerinput is None else {key: workerinput[key] for key in keys}
        #: What the controller hands out; None in a session without xdist, which goes by its list.
        self._handed_out = None if workerinput is None else HandedOutList(Path(context.temp_dir), name)
        #: Whether the run has cases that take several devices, once that is known.
        self._has_wide: bool | None = None
        self._order = RunOrder(is_case, self._handed_out)
        self._slot: ExecutorSlot | None = None
        self._supervisor: Supervisor | None = None
        if context.isolation != "none":
            self._stop = StopListener(Path(context.temp_dir) / stop_request.FOLDER, name)
            self._slot = ExecutorSlot(
                worker=name,
                temp=Path(context.temp_dir),
                files=Path(context.run_dir) / kept_files.FOLDER,
                record=self._record,
                stop=self._stop,
                leases=self._device_leases(),
                connect=self._connect,
                after_unclean_exit=partial(compiler_caches.release_locks, Path(context.run_dir)),
                await_release=self._pool.await_release,
                numbered=self._resumption.executors.get(name, 0),
            )
            self._supervisor = Supervisor(
                context,
                self.policy,
                self._preparation,
                worker=name,
                record=self._record,
                late=late,
                slot=self._slot,
                pool=self._pool,
                bind=self._bind,
            )
        elif self._pool.device.backend.accelerator or context.device == CPU.kind:
            os.environ.update(masks_for([self._pool.device]))
            if self._pool.device.backend.injectable:
                os.environ[self._pool.device.backend.faults_variable] = faults.join_injections(context.inject)
            if context.variables:
                self._prepare_process(context.variables)

    def _prepare_process(self, variables: Mapping[str, str]) -> None:
        """Get what this process would have got at its start, for cases that run in it. Raises pytest.UsageError."""
        try:
            provider.provider_of(self._pool.device.backend).prepare(variables)
            if cuda.INJECT in variables:
                front.inject_into_this_process(self.context.inject)
        except HarnessError as error:
            raise pytest.UsageError(f"--device={self.context.device}: {error}") from None

    def description(self) -> CollectionDescription:
        """What the run's zygote has collected; waits for it. Raises DescriptionError, StoppedError."""
        assert self._stop is not None
        assert self.context.zygote is not None
        file = description_file(self.context.zygote)
        log = Path(self.context.run_dir) / "zygote.log"
        if not file.exists():
            try:
                ZygoteClient(self.context.zygote, log, self._stop).close()
                self._was_linked = True
            except ZygoteUnfitError as error:
                if not file.exists():
                    raise DescriptionError(str(error)) from None
            except ZygoteError as error:
                if not file.exists():
                    # The same words, whether it died before this worker asked or after: xdist shows equal errors once.
                    why = early_end_text(log) if isinstance(error, NoZygoteError) else str(error)
                    raise _uncollected(why, file, log) from None
            except WriteError as error:
                self._note_failure(error)  # no case runs, but the cases are listed
        found = description.read_description(file)
        if found.ended:
            raise _uncollected(found.ended, file, log)
        self._list = found.hash
        return found

    def collected(self, ids: list[str], selected: list[str], deselected: list[str]) -> None:
        """Record the cases that are to run here, all selected ones of all shards, and the deselected ones.

        The ids are left out if another worker has recorded them. Raises ResumeError, and tells the controller, if the
        run is resumed and had other cases before.
        """
        changed = self._resumption.difference(ids) if self.context.resumption else ""
        if changed:
            with self._recording():
                note_change(Path(self.context.temp_dir), changed)
            if not self._resumption.forced:
                raise ResumeError(changed)
        found = digest(ids)
        with self.context.journal.open("rb") as file:
            first = (line for line in itertools.islice(file, 100) if line.startswith(b'{"event":"collected"'))
            listed = any(found.encode() in line for line in first)
        shard: dict[str, Any] = {}
        if self.context.shard:
            shard = {"selection": digest(sorted(selected)), "selected": () if listed else selected}
        line = lines.collected(
            self.name,
            count=len(ids),
            digest=found,
            part=self._resumption.part,
            ids=() if listed else ids,
            deselected=() if listed else deselected,
            pid=os.getpid(),
            **shard,
        )
        with self._recording():
            self._record(line)

    def note_facts(self, items: Sequence[pytest.Item]) -> None:
        """Tell the controller of an xdist run what it must know of single cases."""
        folder = Path(self.context.temp_dir)
        if self._workerinput is None or case_facts.are_written(folder):
            return
        limits = {item.stash[CASE_ID]: limit for item in items if (limit := _own_limit(item)) is not None}
        # Other devices are not leased: each process has its own.
        leased = items if self._pool.device.backend.hardware else ()
        devices = {item.stash[CASE_ID]: count for item in leased if (count := self._preparation.whole_devices(item))}
        with self._recording():
            CaseFacts(limits, devices, self._gated(items) if self.context.node else {}).write(folder)

    def _gated(self, items: Sequence[pytest.Item]) -> dict[str, str]:
        """Why each case that this node cannot run is gated here."""
        gates = ((item.stash[CASE_ID], self._preparation.prepare(item).unmet) for item in items)
        return {case: unmet.text for case, unmet in gates if unmet is not None}

    def _may_be_waited_for(self) -> bool:
        """Whether this worker might keep devices while it waits for cases, and another one waits for these devices.

        Only between cases does a worker see that. In a cluster run the next case may be given out only when the other
        worker has ended its own.
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
        if self.told_to_stop():
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
                    pytest_reports.log(item, replay.shown(item, finished))
                    if nextitem is None:
                        self._supervisor.finish()
                        self._supervisor.search_leaks()
        except (ZygoteError, BoardError) as error:
            self.over = f"harness: {error}"
        except (OSError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno not in _STARVED:
                raise  # a mistake of ours: pytest shows its traceback
            self.over = (
                f"harness: worker {self.name} cannot go on: {error!r}; look at the limits on open files and processes "
                f"(`ulimit -n`, `ulimit -u`) and at the free memory"
            )
        self.told_to_stop()

    def told_to_stop(self) -> str:
        """Check for a request to stop. Returns `over`. Cases that run already may end within the grace."""
        stop = self._stop.heard() if self._stop is not None else None
        if stop is not None and not (self._supervisor is not None and self._supervisor.has_begun):
            self.over = self.over or stop.reason
        return self.over

    def _record(self, *events: Mapping[str, Any]) -> None:
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
        """A context for writing to disk. If a write fails, this worker is `over`."""
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
        """A context for one case that runs in this process (isolation `none`): it seeds and writes to the journal."""
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
        item.config.stash[CURRENT] = Current(backend.kind, seed=case.seed)
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
        finally:
            plugins.unregister(record)
            with self._recording():
                record.finish(stopped)
            if self.over:
                item.session.shouldstop = self.over

    def gate(self, item: pytest.Item) -> tuple[Ruling | None, str]:
        """The ruling against gating this case, or None; and why the case is gated, or an empty text."""
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
        for zygote in self._own:
            zygote.close()
        self._own.clear()
        if self._stop is not None:
            self._stop.close()
            self._stop = None

    def _device_leases(self) -> DeviceLeases:
        """The leases of GPUs. The CPU and software devices need none: each process has its own."""
        # A worker checks for waiting workers only between cases: it first makes all attempts and repetitions of a case.
        attempts = max(self.policy.repeat * (1 + self.policy.retries), 2 * self.policy.verify)
        longest = _ATTEMPT_FACTOR * attempts * self.context.case_timeout
        return DeviceLeases(
            device_leases.default_folder() if self._pool.device.backend.hardware else None,
            worker=self.name,
            memory={device.uuid: device.memory for device in self._inventory.usable if device.memory},
            limit=max(device_leases.LIMIT, longest) * self.context.timeout_multiplier,
            first_word=device_leases.FIRST_WORD * self.context.timeout_multiplier,
            tell=self._tell_wait,
        )

    def _tell_wait(self, text: str) -> None:
        """Print at once what this worker waits for."""
        self.journal.append(lines.wait(self.name, text))
        self._print(text)

    def tell(self, text: str) -> None:
        """Print what holds for all workers of the run, once: the first worker does it."""
        if self.name in ("main", "gw0"):
            self._print(text)

    def _print(self, text: str) -> None:
        """Print at once. Of the terminal, an xdist worker has only standard error."""
        print(f"\nharness: {text}", file=sys.stderr, flush=True)

    def _bind(self, devices: Sequence[Device]) -> Binding:
        visible: dict[str, str | None] = {**masks_for(devices)}
        # The values of this process: a conftest may have changed them in the zygote after the devices were counted.
        visible |= {name: os.environ.get(name) for name in devices[0].backend.variables}
        visible |= self.context.variables
        if devices[0].backend.injectable:
            visible[devices[0].backend.faults_variable] = faults.join_injections(self.context.inject) or None
        visible |= compiler_caches.variables(Path(self.context.run_dir), os.environ)
        return Binding(
            devices=tuple(device.uuid for device in devices),
            kind=devices[0].kind,
            environment=executor_environment(os.environ, visible, _XDIST_VARIABLES),
            workerinput=self._workerinput,
            leak_check=self.context.leak_check,
            library=self.context.library,
            snapshots="allocator" in self.context.collect_on_failure,
        )

    def _connect(self) -> ZygoteClient:
        """The run's zygote, or a zygote of this worker if that one is gone. Raises ZygoteError, StoppedError."""
        run_dir = Path(self.context.run_dir)
        if self.context.zygote is not None and not self._own:
            # A zygote that was ready before has finished collecting, so it answers soon unless it is stopped or hangs.
            limit = ANSWER_LIMIT if self._was_linked else START_LIMIT
            link = self._link(self.context.zygote, run_dir / "zygote.log", limit)
            if link is not None:
                self._was_linked = True
                return link
        log = run_dir / f"zygote-{self.name}.log"
        spec = ZygoteSpec.of(self.context, skip_early_exit_handlers=not self._pool.device.backend.hardware)
        for _ in range(_STARTS):
            home = Path(self.context.temp_dir) / f"zygote-{self.name}-{len(self._own) + 1}"
            self._own.append(ZygoteProcess(spec, folder=Path(self.context.invocation_dir), home=home, log=log))
            link = self._link(self._own[-1].address, log)
            if link is not None:
                return link
        raise ZygoteError(f"worker {self.name}: {_STARTS} zygotes died before they were ready; see {log}")

    def _link(self, address: str, log: Path, limit: float = START_LIMIT) -> ZygoteClient | None:
        """A connection. If the zygote is gone: None, and a finding is recorded. Raises ZygoteUnfitError."""
        assert self._stop is not None
        try:
            link = ZygoteClient(address, log, self._stop, limit=limit, on_wait=self._record_wait)
            self._expect_same_list(address, link)
            return link
        except ZygoteUnfitError:
            raise
        except ZygoteError as error:
            self._record(lines.finding("zygote", str(error)))
            return None

    def _expect_same_list(self, address: str, link: ZygoteClient) -> None:
        """Raise ZygoteUnfitError if the zygote at `address` has collected other cases than those of this worker."""
        try:
            if not self._list or description.read_collection_hash(description_file(address)) == self._list:
                return
        except DescriptionError as error:
            link.close()
            raise ZygoteUnfitError(str(error)) from None
        link.close()
        raise ZygoteUnfitError(
            "a zygote that was started again found other cases, or another order, than the first zygote of the run; "
            "check that what is collected does not depend on the time, on chance or on files that change"
        )

    def _record_wait(self, message: str) -> None:
        self._record(lines.wait(self.name, message))


def _uncollected(why: str, file: Path, log: Path) -> DescriptionError:
    """The error of a zygote that has not come to the end of its collection."""
    at = description.last_collecting_file(file)
    text = f"the tests could not be collected{f' beyond {at!r}' if at else ''}: {why}"
    ending = "" if "its log ends with" in text else f"; the zygote's log ends with:\n{read_log_tail(log)}"
    return DescriptionError(text + ending)


def _own_limit(item: pytest.Item) -> float | None:
    """The time limit in the case's marks; None without one. An invalid mark is reported elsewhere."""
    marks = list(item.iter_markers("timeout"))
    try:
        return case_time_limit(marks, 0.0, 1.0) or None
    except OptionError:
        return None
