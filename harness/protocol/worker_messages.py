"""The messages that the controller sends to an xdist worker at its start, and those that the worker sends at its end.

xdist transports both as dictionaries: ``workerinput`` and ``workeroutput``.
"""

from __future__ import annotations

from typing import Any, TypedDict

#: The key of the run context in ``workerinput``. Without it, a worker has no cases.
CONTEXT_KEY = "harness_context"
#: The key of the leased device's UUID in ``workerinput``.
DEVICE_KEY = "harness_device"
_NEWS = "harness_news"


class WorkerNews(TypedDict):
    """What a worker sends at its end.

    `late`: reports on cases that have ended, since xdist accepts reports only on the running case. `write_failure`: the
    file that this worker cannot write. `usage_error`: why it cannot collect the arguments, since xdist drops the error.
    `failed`: the failures that code in executors added to ``session.testsfailed``.
    """

    late: list[Any]
    write_failure: str
    usage_error: list[str]
    failed: int


def news_of(owner: Any) -> WorkerNews:
    """Return the news of an xdist worker, given its configuration in the worker, or its node in the controller.

    What another process adds to the result is lost.
    """
    empty = WorkerNews(late=[], write_failure="", usage_error=[], failed=0)
    output: dict[str, WorkerNews] = getattr(owner, "workeroutput", {})
    return output.setdefault(_NEWS, empty)
