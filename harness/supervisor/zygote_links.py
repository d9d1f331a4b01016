"""The zygotes of a worker: the run's, and those that the worker starts once the run's zygote is gone."""

from __future__ import annotations

from pathlib import Path

from harness.collection import description
from harness.collection.description import CollectionDescription, DescriptionError
from harness.configuration.context import RunContext
from harness.core import clock
from harness.core.errors import WriteError
from harness.journal.events import Wait
from harness.scheduling.stop_request import StopListener
from harness.supervisor.worker_journal import WorkerJournal
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
from harness.zygote.spec import ZygoteSpec

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
