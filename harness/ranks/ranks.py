"""The fixture `ranks`: a case of several ranks, each a child process with its own device."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.core import clock
from harness.ranks.crew import Crew
from harness.ranks.judgement import breakage
from harness.ranks.rank import Rank

#: The time that the report of hung ranks needs, taken from that of the case: the least seconds, and the share of the
#: limit.
_RESERVE, _RESERVED_PART = 2.0, 0.05


class RanksError(AssertionError):
    """A rank has broken. The text begins with a line that names the rank, followed by the details of each rank."""


@dataclass(frozen=True)
class RankSettings:
    """The settings of the ranks of a case.

    `device`: the name of the device of a rank, by its number. `devices`: the number of devices of the case, None if any
    number of ranks can have one. `deadline`: the end of the case's time on the monotonic clock; None for no limit.
    `limit`: the time limit of the case in seconds.
    `unsafe`: returns why this process must not be forked; empty if it may be. `loading`: code with which a fresh
    interpreter can use the devices. `leftovers`: see `Crew.wait`. `note`: takes an outcome other than `failed`, and a
    line, for the verdict on the case; returns whether there will be one.
    """

    device: Callable[[int], str]
    devices: int | None
    seed: int
    deadline: float | None
    limit: float
    unsafe: Callable[[], str]
    loading: Callable[[], str]
    leftovers: Callable[[int], str | None]
    note: Callable[[str, str], bool]


@dataclass
class Ranks:
    """Runs functions in several processes at the same time. The files of a failed call stay in `folder`."""

    settings: RankSettings
    folder: Path
    _calls: int = field(default=0)

    def __repr__(self) -> str:
        return f"<ranks in {str(self.folder)!r}>"

    def run(
        self,
        body: Callable[..., Any],
        *arguments: object,
        world: int,
        limit: float | None = None,
        deaths: Mapping[int, int] | None = None,
    ) -> list[Any]:
        """Call ``body(rank, *arguments)`` in `world` processes at the same time. Return the results, by rank.

        `body` is a function of a module, and its arguments and results must be picklable. `rank` is a
        `harness.ranks.rank.Rank`. `deaths`: the ranks that are expected to die, and the status of each as
        ``os.waitstatus_to_exitcode`` returns it; their result is None. `limit`: seconds after which ranks that still
        run count as broken, at most until shortly before the case's own limit.

        Raise RanksError, which names the rank that broke first, if one raises, dies, or does not end. Raise pytest's
        skip if one skips and none breaks. No rank runs afterwards.
        """
        __tracebackhide__ = True
        settings = self.settings
        if settings.devices is not None and world > settings.devices:
            raise RanksError(
                f"{world} ranks need as many devices, and the case has {settings.devices}: add requires(ranks={world})"
            )
        self._calls += 1
        folder = self.folder / f"ranks-{self._calls}"
        folder.mkdir()
        deadline, seconds = self._deadline(limit)
        ranks = [Rank(number, world, settings.device(number), folder, settings.seed) for number in range(world)]
        loading = settings.loading() if settings.unsafe() else None
        with Crew(folder, deaths or {}) as crew:
            crew.start(ranks, body, arguments, loading=loading)
            ends = crew.wait(deadline, settings.leftovers)
        left = [f"rank {end.number} of {world} left a process running: {text}" for end in ends for text in end.left]
        left = [line for line in left if not settings.note("leaked", line)]
        broken = breakage(ends, seconds)
        if broken is not None:
            if broken.outcome != "failed":
                settings.note(broken.outcome, broken.line)
            raise RanksError(broken.text)
        if left:
            raise RanksError("\n".join(left))
        shutil.rmtree(folder, ignore_errors=True)
        skipped = next((end.report for end in ends if end.report is not None and end.report.how == "skipped"), None)
        if skipped is not None:
            pytest.skip(skipped.error)
        return [end.report.value if end.report is not None else None for end in ends]

    def _deadline(self, limit: float | None) -> tuple[float, float]:
        """Return the time by which the ranks must have ended, and the seconds until then."""
        now, settings = clock.monotonic(), self.settings
        seconds = float("inf") if limit is None else limit
        if settings.deadline is not None:
            reserve = max(_RESERVE, _RESERVED_PART * settings.limit)
            seconds = min(seconds, max(0.5, settings.deadline - reserve - now))
        if seconds == float("inf"):
            seconds = 300.0
        return now + seconds, seconds
