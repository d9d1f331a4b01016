"""One worker of a run: what it knows about its cases, and what it records about their collection."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import marks
from harness.collection.cases import CASE_ID, is_apart
from harness.configuration.context import RunContext
from harness.configuration.values import OptionError, case_time_limit
from harness.core import clock, linux
from harness.core.caseid import digest_of_ids
from harness.devices.call_thread import NVML_LIMIT
from harness.devices.device import CPU, Inventory
from harness.journal.events import Collected
from harness.journal.journal import Journal, WorkerJournal
from harness.scheduling.order import Selection, read_ids
from harness.scheduling.workers import CaseFacts, ResumeError, Resumption, note_change
from harness.supervisor.case import CasePreparation, slots_per_device
from harness.supervisor.case_reports import Controller
from harness.supervisor.device_pool import RELEASE_LIMIT, DevicePool
from harness.supervisor.executor_handle import Bindings

#: The reason in `Worker.over` if the journal cannot be written.
UNRECORDED = "harness: the run cannot be recorded"

#: The worker of a run that speaks for all.
FIRST = ("main", "gw0")


class Worker:
    """The part of a run in one pytest process: an xdist worker, or the only pytest process.

    pytest itself runs the cases here. `harness.supervisor.supervisor.Supervisor` runs them in executors.
    """

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
        self.policy = context.policy
        self.selection = Selection.of(self.policy, context.seed, context.shard, read_ids(context.only))
        self._resumption = Resumption.read(Path(context.resumption)) if context.resumption else Resumption()
        self.name = name
        self.journal = WorkerJournal(Journal(context.journal), name)
        self._controller = controller
        self._over = ""
        self._has_told = False
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
        shown = None if workerinput is None else {key: workerinput[key] for key in keys}
        self.bindings = Bindings(context, self.policy, shown)
        self._is_xdist = workerinput is not None

    @property
    def over(self) -> str:
        """Why this worker runs no more cases; empty while it runs cases."""
        return UNRECORDED if self.journal.failure else self._over

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

    def check_stop(self) -> str:
        """Return `over`."""
        return self.over

    def close(self) -> None:
        """Release everything."""
        self.journal.begin_to_close()
        self.pool.close()
        self.tell_failure()

    def tell_failure(self) -> None:
        """Tell the controller once if a file of the run could not be written."""
        if self.journal.failure and not self._has_told:
            self._has_told = True
            self._controller.report_write_failure(self.journal.failure)

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
