"""The executors of one supervisor, of which at most one is in use. The journal records the start and end of each."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from harness.core import clock, temp_folder
from harness.core.errors import WriteError, convert_to_write_error
from harness.journal.events import Executor
from harness.scheduling.device_leases import DeviceLeases
from harness.scheduling.leases import Claim, Lease
from harness.scheduling.stop_request import StopListener
from harness.supervisor import executor_files
from harness.supervisor.binding import Binding
from harness.supervisor.collection_check import CollectionCheck
from harness.supervisor.device_pool import DevicePool
from harness.supervisor.executor_handle import ExecutorHandle, Outputs
from harness.supervisor.worker_journal import WorkerJournal
from harness.zygote.client import ForkRefusedError, ZygoteClient, ZygoteError


@dataclass(frozen=True, slots=True)
class ExecutorNaming:
    """Names and folders of the executors of one worker."""

    worker: str
    #: The folder of their temporary files.
    temp: Path
    #: The run directory, in which files are kept.
    run_dir: Path
    #: The number of the worker's last executor before the run was resumed.
    last: int = 0

    @property
    def kept(self) -> Path:
        """The folder of the files that are kept."""
        return self.run_dir / executor_files.KEPT


class Zygotes(Protocol):
    """Where a slot gets its zygote."""

    def connect(self) -> ZygoteClient:
        """Find or start a zygote. Raises ZygoteError, StoppedError."""
        ...


class ExecutorSlot:
    """Spawns executors and disposes of them."""

    def __init__(
        self,
        naming: ExecutorNaming,
        zygotes: Zygotes,
        pool: DevicePool,
        journal: WorkerJournal,
        *,
        stop: StopListener,
        leases: DeviceLeases,
        check: CollectionCheck | None = None,
    ) -> None:
        """`leases`: the leases of the devices of an executor. `check`: compares what cold executors collect."""
        self._naming = naming
        self._zygotes = zygotes
        self._pool = pool
        self._journal = journal
        self._check = check
        self._keep_budget = executor_files.MOST_OF_WORKER
        self.stop = stop
        self._leases = leases
        self._lease = Lease(())
        #: The output files that no executor uses.
        self._outputs: list[Outputs] = []
        self._link: ZygoteClient | None = None
        self._count = naming.last
        self._reported_failures: set[str] = set()
        self.current: ExecutorHandle | None = None
        self._spare: ExecutorHandle | None = None

    def lease(self, claim: Claim) -> tuple[str, ...]:
        """Wait for the devices of a claim, hold them, and return their UUIDs. There must be no current executor.

        Raises NoDeviceError, and StoppedError after a request to stop the run.
        """
        assert self.current is None
        doing = self._journal.doing
        return self._leases.take(
            claim,
            waiting=lambda device: doing(f"waiting for device {device}, which another worker uses"),
            interrupt=self.stop.refuse,
        )

    def serves(self, claim: Claim) -> bool:
        """Return whether the current executor has exactly the devices for a case with this claim."""
        return self.current is not None and self._lease.devices == claim.within(self._lease)

    def spawn(self, binding: Binding, claim: Claim | None = None) -> ExecutorHandle:
        """Lease the devices for `claim` (by default, alone), and start an executor there.

        There must be no current executor.

        If the zygote is gone, retry once with a new one. Raises ZygoteError, and StoppedError after a request to stop
        the run.
        """
        assert self.current is None
        claim = (claim or Claim(binding.devices[0])).exactly(binding.devices)
        try:
            return self._spawn(binding, claim)
        except ForkRefusedError:
            self._leases.give_back()
            raise
        except ZygoteError:
            self._leases.give_back()
            if self._link is None:
                raise
            self.drop_zygote()
            return self._spawn(binding, claim)

    def prepare(self, binding: Binding) -> None:
        """Have an executor forked while the current one works, so that the next `spawn` need not wait.

        This has no effect on executors that start cold. If it fails, the next `spawn` starts another executor, and
        raises if that fails too.
        """
        if self._spare is None and self._link is not None and not self._link.cold:
            with contextlib.suppress(ZygoteError, WriteError, OSError):  # OSError: no free descriptor
                self._spare = self._start(self._link, binding, ahead=True)

    def drop_spare(self) -> None:
        """End the executor that `prepare` has started, unless it is in use."""
        if self._spare is None:
            return
        with contextlib.suppress(ZygoteError):  # the next user of the zygote gets the error
            if self._spare.await_start():
                self._spare.kill(at_once=True)
        self._put_spare_away()

    @property
    def wanted(self) -> bool:
        """Whether another worker waits for the devices of the current executor."""
        return self._leases.wanted()

    def _spawn(self, binding: Binding, claim: Claim) -> ExecutorHandle:
        self.lease(claim)
        self.stop.refuse()
        doing = self._journal.doing
        begun = clock.monotonic()
        if self._link is None:
            with doing("waiting for the zygote to collect the cases"):
                self._link = self._zygotes.connect()
        handle = self._adopt(binding) or self._start(self._link, binding)
        self.current = handle
        self._leases.bind(handle.pid)
        self._lease = Lease(binding.devices, claim.share, claim.memory)
        if handle.collected is not None and self._check is not None:
            self._check.compare_with_executor(handle.name, *handle.collected)
        self._record_state(handle, "started", startup=round(clock.monotonic() - begun, 6), reason=self._link.cold)
        return handle

    def _start(self, link: ZygoteClient, binding: Binding, *, ahead: bool = False) -> ExecutorHandle:
        """Start an executor. Raises ZygoteError, StoppedError, WriteError."""
        self._count += 1
        name, naming = f"{self._naming.worker}-e{self._count}", self._naming
        outputs = self._outputs.pop() if self._outputs else Outputs()
        try:
            # Only a cold executor takes long, since it imports and collects; a fork takes milliseconds.
            with self._journal.doing(f"starting executor {name} cold") if link.cold else contextlib.nullcontext():
                return ExecutorHandle(name, link, outputs, binding, naming.temp / name, naming.kept / name, ahead=ahead)
        except BaseException:
            self._outputs.append(outputs)
            raise

    def _adopt(self, binding: Binding) -> ExecutorHandle | None:
        """Return the executor that `prepare` has started, if it is usable and has this binding.

        Raises ZygoteError.
        """
        spare = self._spare
        if spare is None:
            return None
        if spare.binding != binding:
            self.drop_spare()
            return None
        with contextlib.suppress(ForkRefusedError):
            if spare.await_start():
                self._spare = None
                return spare
        self._put_spare_away()
        return None

    def _put_spare_away(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            self._put_away(spare)
            temp_folder.remove_temp_folder(spare.temp)

    def _put_away(self, handle: ExecutorHandle) -> None:
        """Close a handle.

        Its output files are reused, unless the executor could not be killed and may still write to them.
        """
        handle.close()
        if handle.unkillable:
            handle.outputs.close()
        else:
            self._outputs.append(handle.outputs)

    def dispose(self, handle: ExecutorHandle, reason: str, *, keep_files: bool = False, hold: bool = False) -> None:
        """Kill the executor if it still runs, record its end in the journal, and remove its temporary files.

        With `keep_files`, move the files into the run directory instead, for the analysis of a failure. With `hold`, no
        other worker gets its devices until `release`.
        """
        if handle.exit_status is None:
            try:
                handle.kill()
            except ZygoteError as error:
                handle.lost = str(error)
        if handle.unkillable:
            reason = "could not be killed"
        self._record_state(handle, "ended", reason=reason)
        for text in handle.stuck:
            self._journal.add_finding("unkillable", text, handle.cases)
        self._report_failure(handle)
        self._put_away(handle)
        self.current = None
        if handle.exit_status != 0:
            executor_files.release_cache_locks(self._naming.run_dir)
        self._pool.await_release(handle.binding.devices, handle.name, handle.cases[-1:])
        if not hold:
            self._leases.give_back()
        if handle.lost:
            self.drop_zygote()
        handle.gather_temp()
        if keep_files:
            executor_files.unshare_default_cache(handle.temp)
            most = min(executor_files.MOST_OF_EXECUTOR, self._keep_budget)
            with convert_to_write_error(f"into {str(self._naming.kept)!r}"):
                self._keep_budget -= executor_files.keep_files(handle.temp, handle.kept, most)
        temp_folder.remove_temp_folder(handle.temp)

    def release(self) -> None:
        """Release the devices for other workers, unless an executor of this worker runs."""
        if self.current is None:
            self._leases.give_back()

    @contextlib.contextmanager
    def set_aside(self) -> Generator[None]:
        """Keep the current executor while another one is started and ended. No other worker gets the devices."""
        kept, self.current = self.current, None
        link, lease = self._link, self._lease
        try:
            yield
        finally:
            if self.current is not None:
                self.dispose(self.current, "rehearsal", hold=True)
            self.current, self._lease = kept, lease
            if kept is not None and self._link is not link:  # its zygote has ended since, and the executor with it
                self._record_state(kept, "ended", reason="the zygote was lost")
                self._put_away(kept)
                self.current = None

    def drop_zygote(self) -> None:
        """Disconnect from the zygote, and drop the current executor: the kernel kills it when its zygote ends."""
        if self.current is not None:
            self._record_state(self.current, "ended", reason="the zygote was lost")
            self._put_away(self.current)
            self.current = None
            executor_files.release_cache_locks(self._naming.run_dir)
        self._put_spare_away()
        self._leases.give_back()
        if self._link is not None:
            self._link.close()
            self._link = None

    def abandon(self, reason: str) -> None:
        """End the current executor, if there is one, even if it runs a case."""
        if self.current is not None:
            self.dispose(self.current, reason, keep_files=True)

    def close(self, reason: str) -> None:
        """End the current executor, disconnect from the zygote, and close the output files."""
        self.abandon(reason)
        self.drop_zygote()
        self._leases.close()
        while self._outputs:
            self._outputs.pop().close()

    def _report_failure(self, handle: ExecutorHandle) -> None:
        """Record a finding about an error of the harness in an executor: one finding per traceback."""
        failure = handle.harness_error
        if failure is None or failure.traceback in self._reported_failures:
            return
        self._reported_failures.add(failure.traceback)
        message = f"the harness failed in executor {handle.name}: {failure.error}\n{failure.traceback}"
        self._journal.add_finding("harness_error", message, handle.cases[-1:])

    def _record_state(
        self,
        handle: ExecutorHandle,
        state: Literal["started", "ended"],
        *,
        startup: float | None = None,
        reason: str = "",
    ) -> None:
        self._journal.record(
            Executor(
                t=clock.now(),
                executor=handle.name,
                state=state,
                worker=self._naming.worker,
                pid=handle.pid,
                devices=handle.binding.devices,
                startup=startup,
                cases=len(handle.cases),
                exit_status=handle.exit_status,
                reason=reason,
            )
        )
