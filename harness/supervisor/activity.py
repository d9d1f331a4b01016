"""What a worker does beside attempts at cases: told to the journal, so that a long silence can be explained."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Activity:
    what: str
    since: float


class Activities:
    """What one worker is doing. An activity may begin within another, which then goes on when it ends."""

    def __init__(
        self, record: Callable[[Mapping[str, Any]], None], worker: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock`: seconds since 1970, as the journal has them."""
        self._record = record
        self._worker = worker
        self._clock = clock
        self._stack: list[_Activity] = []

    @contextlib.contextmanager
    def doing(self, what: str) -> Generator[Callable[[str], None]]:
        """Tell the journal that `what` begins, and at the end that it is over.

        `what` stands after "is": ``"examining device GPU-1"``. The context's value tells the same activity anew, in
        other words.
        """
        activity = _Activity(what, self._clock())
        self._stack.append(activity)
        self._tell()

        def tell(what: str) -> None:
            activity.what = what
            self._tell()

        try:
            yield tell
        finally:
            self._stack.remove(activity)
            self._tell()

    def _tell(self) -> None:
        event: dict[str, Any] = {"event": "activity", "worker": self._worker, "what": ""}
        if self._stack:
            event |= {"what": self._stack[-1].what, "since": self._stack[-1].since}
        self._record(event)
