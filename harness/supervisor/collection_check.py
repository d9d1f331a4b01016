"""Compares what the processes of a run have collected: all must see the same tests."""

from __future__ import annotations

from collections.abc import Collection

from harness.collection.description import collection_difference
from harness.core.caseid import digest_of_ids
from harness.core.text import format_count
from harness.protocol.wire import escape_surrogates
from harness.supervisor.worker_journal import WorkerJournal

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
