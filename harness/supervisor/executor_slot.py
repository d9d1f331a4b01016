"""The executors of one supervisor, of which at most one is in use, and the zygotes that fork them.

The journal records the start and end of each executor, and differences between what processes have collected."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator
from pathlib import Path
from typing import Literal

from harness.collection import description
from harness.collection.description import CollectionDescription, DescriptionError, collection_difference
from harness.configuration.context import RunContext
from harness.core import clock, temp_folder
from harness.core.caseid import digest_of_ids
from harness.core.errors import WriteError, convert_to_write_error
from harness.core.text import format_count
from harness.journal.events import Executor, Wait
from harness.journal.journal import WorkerJournal
from harness.protocol.wire import escape_surrogates
from harness.scheduling.device_leases import DeviceLeases
from harness.scheduling.leases import Claim, Lease
from harness.scheduling.stop_request import StopListener
from harness.supervisor import executor_files
from harness.supervisor.device_pool import DevicePool
from harness.supervisor.executor_handle import Binding, ExecutorHandle, Outputs
from harness.zygote.client import (
    ANSWER_LIMIT,
    START_LIMIT,
    ForkRefusedError,
    NoZygoteError,
    ZygoteClient,
    ZygoteError,
    ZygoteProcess,
    ZygoteUnfitError,
    description_file,
    early_end_text,
    read_log_tail,
)
from harness.zygote.spec import ZygoteSpec

_ADVICE = (
    "look for a file or conftest whose tests depend on the process that collects them or on its devices, such as "
    "torch.cuda.device_count() or an environment variable"
)


class CollectionCheck:
    """Compares the tests of one worker with those of the zygote and of cold executors, and records differences."""

    def __init__(self, journal: WorkerJournal) -> None:
        self._journal = journal
        #: The ids of all tests that this worker has collected; None before that.
        self._seen: set[str] | None = None
        self._has_differed = False

    def note(self, ids: Collection[str]) -> None:
        """Note the ids of all tests that this worker has collected, before any was deselected."""
        self._seen = {str(escape_surrogates(name)) for name in ids}

    def compare_with_zygote(self, ids: Collection[str]) -> None:
        """Compare this worker's tests with those of the zygote."""
        theirs = {str(escape_surrogates(name)) for name in ids}
        text = collection_difference("the zygote", theirs, f"worker {self._journal.worker}", self._seen or set())
        if text:
            self._add_finding(text)

    def compare_with_executor(self, executor: str, count: int, digest: str) -> None:
        """Compare this worker's tests with those of a cold executor. Only the first difference counts.

        `digest`: the hash of the executor's sorted ids.
        """
        if self._seen is not None and digest != digest_of_ids(sorted(self._seen)) and not self._has_differed:
            self._has_differed = True
            mine = f"worker {self._journal.worker} {format_count(len(self._seen), 'test')}"
            self._add_finding(f"executor {executor} collected {format_count(count, 'test')}, and {mine}")

    def _add_finding(self, text: str) -> None:
        with self._journal.noting_failures():
            self._journal.add_finding("collections_differ", f"{text}; {_ADVICE}")


#: How many zygotes may die before they are ready. After that, the worker gives up.
_STARTS = 5


class ZygoteLinks:
    """Connects one worker to a zygote."""

    def __init__(
        self,
        context: RunContext,
        journal: WorkerJournal,
        stop: StopListener,
        *,
        skip_early_exit_handlers: bool,
    ) -> None:
        """`skip_early_exit_handlers`: see `ZygoteSpec`."""
        self._context = context
        self._journal = journal
        self._stop = stop
        self._skip_early_exit_handlers = skip_early_exit_handlers
        self._own: list[ZygoteProcess] = []
        self._was_linked = False
        #: The hash of the list of cases that the run's zygote has collected, once this worker has received it.
        self._list = ""

    def description(self) -> CollectionDescription:
        """Wait for the collection of the run's zygote, and return its description.

        Raises DescriptionError, StoppedError.
        """
        assert self._context.zygote is not None
        file = description_file(self._context.zygote)
        log = Path(self._context.run_dir) / "zygote.log"
        if not file.exists():
            try:
                ZygoteClient(self._context.zygote, log, self._stop).close()
                self._was_linked = True
            except ZygoteUnfitError as error:
                if not file.exists():
                    raise DescriptionError(str(error)) from None
            except ZygoteError as error:
                if not file.exists():
                    # The words are the same whether the zygote died before or after this call: xdist shows equal errors
                    # once.
                    why = early_end_text(log) if isinstance(error, NoZygoteError) else str(error)
                    raise _unfinished(why, file, log) from None
            except WriteError as error:
                self._journal.note_failure(error)  # no case runs, but the cases are listed
        collected = description.read_description(file)
        if collected.ended:
            raise _unfinished(collected.ended, file, log)
        self._list = collected.hash
        return collected

    def connect(self) -> ZygoteClient:
        """Connect to the run's zygote, or, if that is gone, to one of this worker's.

        Raises ZygoteError, StoppedError.
        """
        run_dir = Path(self._context.run_dir)
        if self._context.zygote is not None and not self._own:
            # A zygote that was ready before has finished collecting, so it answers soon unless it is stopped or hangs.
            limit = ANSWER_LIMIT if self._was_linked else START_LIMIT
            link = self._link(self._context.zygote, run_dir / "zygote.log", limit)
            if link is not None:
                self._was_linked = True
                return link
        log = run_dir / f"zygote-{self._journal.worker}.log"
        spec = ZygoteSpec.of(self._context, skip_early_exit_handlers=self._skip_early_exit_handlers)
        for _ in range(_STARTS):
            home = Path(self._context.temp_dir) / f"zygote-{self._journal.worker}-{len(self._own) + 1}"
            self._own.append(ZygoteProcess(spec, folder=Path(self._context.invocation_dir), home=home, log=log))
            link = self._link(self._own[-1].address, log)
            if link is not None:
                return link
        raise ZygoteError(f"worker {self._journal.worker}: {_STARTS} zygotes died before they were ready; see {log}")

    def close(self) -> None:
        """End the zygotes that this worker has started."""
        for zygote in self._own:
            zygote.close()
        self._own.clear()

    def _link(self, address: str, log: Path, limit: float = START_LIMIT) -> ZygoteClient | None:
        """Return a connection. If the zygote is gone, record a finding and return None. Raises ZygoteUnfitError."""
        try:
            link = ZygoteClient(address, log, self._stop, limit=limit, on_wait=self._record_wait)
            self._expect_same_list(address, link)
            return link
        except ZygoteUnfitError:
            raise
        except ZygoteError as error:
            self._journal.add_finding("zygote", str(error))
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
            "a restarted zygote found other cases, or another order, than the first zygote of the run; "
            "make the collection independent of the time, of random numbers and of files that change"
        )

    def _record_wait(self, message: str) -> None:
        self._journal.record(Wait(t=clock.now(), worker=self._journal.worker, message=message))


def _unfinished(why: str, file: Path, log: Path) -> DescriptionError:
    """Return the error for a zygote that did not finish its collection."""
    at = description.last_collecting_file(file)
    text = f"the tests could not be collected{f' beyond {at!r}' if at else ''}: {why}"
    ending = "" if "its log ends with" in text else f"; the zygote's log ends with:\n{read_log_tail(log)}"
    return DescriptionError(text + ending)


class ExecutorSlot:
    """Spawns executors and disposes of them."""

    def __init__(
        self,
        zygotes: ZygoteLinks,
        pool: DevicePool,
        journal: WorkerJournal,
        *,
        temp: Path,
        run_dir: Path,
        stop: StopListener,
        leases: DeviceLeases,
        check: CollectionCheck | None = None,
        last: int = 0,
    ) -> None:
        """`temp`: the folder of the executors' temporary files. `run_dir`: where files are kept.

        `leases`: the leases of the devices of an executor. `check`: compares what cold executors collect. `last`: the
        number of the worker's last executor before the run was resumed.
        """
        self._temp = temp
        self._run_dir = run_dir
        self._kept = run_dir / executor_files.KEPT
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
        self._count = last
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
        name = f"{self._journal.worker}-e{self._count}"
        outputs = self._outputs.pop() if self._outputs else Outputs()
        try:
            # Only a cold executor takes long, since it imports and collects; a fork takes milliseconds.
            with self._journal.doing(f"starting executor {name} cold") if link.cold else contextlib.nullcontext():
                return ExecutorHandle(name, link, outputs, binding, self._temp / name, self._kept / name, ahead=ahead)
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
            executor_files.release_cache_locks(self._run_dir)
        self._pool.await_release(handle.binding.devices, handle.name, handle.cases[-1:])
        if not hold:
            self._leases.give_back()
        if handle.lost:
            self.drop_zygote()
        handle.gather_temp()
        if keep_files:
            executor_files.unshare_default_cache(handle.temp)
            most = min(executor_files.MOST_OF_EXECUTOR, self._keep_budget)
            with convert_to_write_error(f"into {str(self._kept)!r}"):
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
            executor_files.release_cache_locks(self._run_dir)
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
                worker=self._journal.worker,
                pid=handle.pid,
                devices=handle.binding.devices,
                startup=startup,
                cases=len(handle.cases),
                exit_status=handle.exit_status,
                reason=reason,
            )
        )
