"""One worker of a run: what pytest asks of it, and the parts that do it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import marks
from harness.collection.cases import CASE_ID, is_apart
from harness.collection.description import CollectionDescription, DescriptionError
from harness.configuration.context import RunContext
from harness.configuration.values import OptionError, case_time_limit
from harness.core import clock, linux
from harness.core.caseid import digest_of_ids
from harness.devices.call_thread import NVML_LIMIT
from harness.devices.device import CPU, Inventory
from harness.gating.policy import Policy
from harness.journal.events import Collected, Wait
from harness.journal.journal import Journal
from harness.scheduling import device_leases, stop_request
from harness.scheduling.device_leases import BoardError, DeviceLeases
from harness.scheduling.order import Selection, read_ids
from harness.scheduling.resumption import ResumeError, Resumption, note_change
from harness.scheduling.stop_request import StopListener, StoppedError
from harness.scheduling.workers import CaseFacts, HandedOutList
from harness.supervisor import case_reports, device_monitor
from harness.supervisor.case_preparation import CasePreparation, slots_per_device
from harness.supervisor.case_reports import CaseLines, Controller, PytestSession
from harness.supervisor.device_monitor import DeviceMonitor
from harness.supervisor.device_pool import RELEASE_LIMIT, DevicePool
from harness.supervisor.diagnostics import Diagnostics
from harness.supervisor.executor_handle import Bindings
from harness.supervisor.executor_slot import CollectionCheck, ExecutorSlot, ZygoteLinks
from harness.supervisor.lane import Lane
from harness.supervisor.lookahead import RunOrder
from harness.supervisor.supervisor import Supervisor
from harness.supervisor.worker_journal import WorkerJournal
from harness.zygote.client import ZygoteError

#: An attempt may take this many case time limits: it may be repeated, and a suspected leak runs seven times, twice.
_ATTEMPT_FACTOR = 20
#: Errors of a process that has no descriptor, process or memory left.
_STARVED = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)

#: The reason in `Worker.over` if the journal cannot be written.
UNRECORDED = "harness: the run cannot be recorded"

#: The worker of a run that speaks for all.
FIRST = ("main", "gw0")


class Worker:
    """The part of a run in one pytest process: an xdist worker, or the only pytest process."""

    def __init__(
        self,
        context: RunContext,
        inventory: Inventory,
        controller: Controller,
        *,
        name: str,
        device: str,
        workerinput: dict[str, Any] | None,
    ) -> None:
        """`device`: UUID of the leased device. `workerinput`: the input of an xdist worker, otherwise None."""
        if workerinput is not None and os.getppid() == context.controller:  # not a worker on another host
            # Otherwise an orphaned worker would start a zygote and an executor on a device whose lease has ended.
            linux.die_with_parent(context.controller)
        self.context = context
        self.policy = Policy.from_json(context.policy)
        self.selection = Selection.of(self.policy, context.seed, context.shard, read_ids(context.only))
        self._resumption = Resumption.read(Path(context.resumption)) if context.resumption else Resumption()
        self.name = name
        self.journal = WorkerJournal(Journal(context.journal), name)
        self._controller = controller
        self._over = ""
        self._has_told = False
        self._inventory = inventory
        self.pool = DevicePool(
            next((entry for entry in inventory.devices if entry.uuid == device), CPU),
            inventory.usable,
            self.journal,
            folder=Path(context.temp_dir) / "drained",
            examine=context.health and context.isolation != "none",
            nvml_limit=NVML_LIMIT * context.timeout_multiplier,
            release_limit=RELEASE_LIMIT * context.timeout_multiplier,
        )
        workers = 1 if workerinput is None else int(workerinput["workercount"])
        self.preparation = CasePreparation(
            context,
            self.policy,
            inventory,
            self.pool,
            self._resumption,
            slots=slots_per_device(context.slots, workers, inventory),
        )
        keys = ("workerid", "workercount", "testrunuid")
        self._is_xdist = workerinput is not None
        self.bindings = Bindings(
            context, self.policy, None if workerinput is None else {key: workerinput[key] for key in keys}
        )
        #: The list of what the controller hands out; None in a session without xdist, which follows its own list.
        self._handed_out = None if workerinput is None else HandedOutList(Path(context.temp_dir), name)
        #: Whether the run has cases that take several devices; None until this is known.
        self._has_wide: bool | None = None
        self._order = RunOrder(self._handed_out)
        self._check = CollectionCheck(self.journal)
        self._stop: StopListener | None = None
        self._zygotes: ZygoteLinks | None = None
        self._supervisor: Supervisor | None = None
        if context.isolation != "none":
            self._start_isolation()

    def _start_isolation(self) -> None:
        """Set up the parts that run cases in executors."""
        context, journal, pool = self.context, self.journal, self.pool
        self._stop = stop = StopListener(Path(context.temp_dir) / stop_request.FOLDER, self.name)
        self._zygotes = ZygoteLinks(context, journal, stop, skip_early_exit_handlers=not pool.device.backend.hardware)
        slot = ExecutorSlot(
            self._zygotes,
            pool,
            journal,
            temp=Path(context.temp_dir),
            run_dir=Path(context.run_dir),
            stop=stop,
            leases=self._device_leases(),
            check=self._check,
            last=self._resumption.executors.get(self.name, 0),
        )
        monitor = DeviceMonitor(
            pool,
            slot,
            self.bindings,
            journal,
            seed=context.seed,
            limit=device_monitor.EXAMINATION_LIMIT * context.timeout_multiplier,
        )
        lines = CaseLines(context, self.name, verify=self.policy.verify)
        session = PytestSession(self._controller, lines, journal)
        lane = Lane(
            slot,
            pool,
            monitor,
            Diagnostics(context, journal, stop),
            self.bindings,
            session,
            lines,
            journal,
            # If each attempt has its own process, there are no levels of one process to compare.
            levels=self.policy.repeat > 1 and context.isolation != "case",
        )
        self._supervisor = Supervisor(context, self.policy, self.preparation, lane, session, lines, journal)

    def description(self) -> CollectionDescription:
        """Wait for the collection of the run's zygote, and return its description.

        Raises DescriptionError, StoppedError.
        """
        assert self._zygotes is not None
        return self._zygotes.description()

    @property
    def over(self) -> str:
        """Why this worker runs no more cases; empty while it runs cases."""
        return UNRECORDED if self.journal.failure else self._over

    def seen(self, ids: Collection[str], *, by_itself: bool) -> None:
        """Note the ids of all tests that this process has collected, before any was deselected.

        If this process has collected them `by_itself`, compare them with those of the zygote.
        """
        self._check.note(ids)
        if self.context.start == "cold" or not by_itself or self.name not in FIRST:
            return
        # Without a description the run ends with the error that `description` has raised elsewhere.
        with contextlib.suppress(DescriptionError, StoppedError):
            self._check.compare_with_zygote(self.description().order)

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
            with self.journal.noting_failures():
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
        with self.journal.noting_failures():
            self.journal.record(line)

    def note_facts(self, items: Sequence[pytest.Item]) -> None:
        """Tell the controller of an xdist run the facts about single cases that it needs."""
        folder = Path(self.context.temp_dir)
        if not self._is_xdist or CaseFacts.are_written(folder):
            return
        limits = {item.stash[CASE_ID]: limit for item in items if (limit := _own_limit(item)) is not None}
        # Devices that are not hardware are not leased: each process has its own.
        leased = items if self.pool.device.backend.hardware else ()
        devices = {item.stash[CASE_ID]: count for item in leased if (count := self.preparation.whole_devices(item))}
        apart = [item.stash[CASE_ID] for item in items if is_apart(item)]
        with self.journal.noting_failures():
            CaseFacts(limits, devices, apart, self._gated(items) if self.context.node else {}).write(folder)

    def _gated(self, items: Sequence[pytest.Item]) -> dict[str, str]:
        """Return, by case id, why this node gates the case."""
        gates = ((item.stash[CASE_ID], self.preparation.prepare(item).unmet) for item in items)
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
            with self.journal.noting_failures():
                if finished is None:
                    self._supervisor.run(item, nextitem, self._order)
                    if self._may_be_waited_for():
                        self._supervisor.finish()
                else:
                    case_reports.log_reports(item, case_reports.replayed_reports(item, finished))
                    if nextitem is None:
                        self._supervisor.finish()
                        self._supervisor.search_leaks()
        except (ZygoteError, BoardError) as error:
            self._over = f"harness: {error}"
        except (OSError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno not in _STARVED:
                raise  # a bug in the harness: pytest shows its traceback
            self._over = (
                f"harness: worker {self.name} cannot continue: {error!r}; check the limits on open files and processes "
                f"(`ulimit -n`, `ulimit -u`) and the free memory"
            )
        self.tell_failure()
        self.check_stop()

    def check_stop(self) -> str:
        """Check for a request to stop. Returns `over`. Cases that have begun may end within the grace period."""
        stop = self._stop.receive() if self._stop is not None else None
        if stop is not None and not (self._supervisor is not None and self._supervisor.has_begun):
            self._over = self._over or stop.reason
        return self.over

    @property
    def isolated(self) -> bool:
        return self._supervisor is not None

    def close(self) -> None:
        """End every process of this worker."""
        self.journal.begin_to_close()
        if self._supervisor is not None:
            self._supervisor.close()
        self.pool.close()
        if self._handed_out is not None:
            self._handed_out.close()
        if self._zygotes is not None:
            self._zygotes.close()
        if self._stop is not None:
            self._stop.close()
            self._stop = None
        self.tell_failure()

    def tell_failure(self) -> None:
        """Tell the controller once if a file of the run could not be written."""
        if self.journal.failure and not self._has_told:
            self._has_told = True
            self._controller.report_write_failure(self.journal.failure)

    def _device_leases(self) -> DeviceLeases:
        """Return the leases of GPUs. The CPU and software devices need none: each process has its own."""
        # A worker checks for waiting workers only between cases: it first makes all attempts and repetitions of a case.
        attempts = max(self.policy.repeat * (1 + self.policy.retries), 2 * self.policy.verify)
        longest = _ATTEMPT_FACTOR * attempts * self.context.case_timeout
        return DeviceLeases(
            device_leases.default_folder() if self.pool.device.backend.hardware else None,
            worker=self.name,
            memory={device.uuid: device.memory for device in self._inventory.usable if device.memory},
            limit=max(device_leases.LIMIT, longest) * self.context.timeout_multiplier,
            first_message=device_leases.FIRST_MESSAGE * self.context.timeout_multiplier,
            log=self._log_wait,
        )

    def _log_wait(self, text: str) -> None:
        """Record and print what this worker waits for."""
        self.journal.record(Wait(t=clock.now(), worker=self.name, message=text))
        self._print(text)

    def print_once(self, text: str) -> None:
        """Print a text that holds for all workers of the run. Only the first worker prints it."""
        if self.name in FIRST:
            self._print(text)

    def _print(self, text: str) -> None:
        """Print a line. An xdist worker can only reach standard error."""
        print(f"\nharness: {text}", file=sys.stderr, flush=True)


def _own_limit(item: pytest.Item) -> float | None:
    """Return the time limit in the case's marks; None without one. An invalid mark is reported elsewhere."""
    try:
        return case_time_limit(marks.marks_of(item, "timeout"), 0.0, 1.0) or None
    except OptionError:
        return None
