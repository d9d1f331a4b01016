"""The time of a run in seconds from its start. The time between the parts of a resumed run is left out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from harness.journal.events import End, Event, Executor, Finish, RunStarted, Start


@dataclass(frozen=True, slots=True)
class Axis:
    """A time axis. `begins`: starts of the parts, in seconds since 1970. `offsets`: their positions.

    `span`: the end in seconds.
    """

    begins: tuple[float, ...]
    offsets: tuple[float, ...]
    span: float

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> Self:
        """Return the axis from the first line of the run to its last event."""
        begins: list[float] = []
        lasts: list[float] = []
        for event in events:
            if isinstance(event, RunStarted):
                begins.append(max([event.t, *begins[-1:], *lasts[-1:]]))
                lasts.append(begins[-1])
            elif isinstance(event, Start | Finish | Executor | End) and begins:
                lasts[-1] = max(lasts[-1], event.t)
        offsets, span = [], 0.0
        for begin, last in zip(begins, lasts, strict=True):
            offsets.append(span)
            span += last - begin
        return cls(tuple(begins), tuple(offsets), span)

    def of(self, moment: float) -> float:
        """Return the position of a moment, clamped to the start and the end of the run."""
        part = bisect_right(self.begins, moment) - 1
        if part < 0:
            return 0.0
        end = self.offsets[part + 1] if part + 1 < len(self.offsets) else self.span
        return min(self.offsets[part] + moment - self.begins[part], end)
