"""The verdict over time on one case in one lane, from its results over many runs. Pure functions.

A lane is a machine with a kind of device and a profile, so that its runs are comparable. `Observation`s come in the
order of their runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from itertools import groupby
from statistics import median

from harness.checks.trend import theil_sen_slope
from harness.core.outcome import Outcome
from harness.fleet.classing import CauseClass, ResultPlace, Sure, Tally, classify
from harness.fleet.statistics import wilson

#: The number of runs in which flaky results and trends are searched.
WINDOW = 30
#: A case that was red this often in a row no longer counts as flaky.
STEADY = 3
#: A case is slower if its median rose by this factor and by this many seconds, and the probability of such a rise by
#: chance is below `TREND`. A single slow night is no trend.
SLOWER = 1.25
SLOWER_SECONDS = 0.05
TREND = 0.001
#: Least number of runs with a duration for a trend.
LEAST_RUNS = 10
#: Runs at either end of the window whose medians are compared.
END_RUNS = 5


class VerdictTrend(StrEnum):
    """The state of a case over time."""

    GREEN = "green"
    REGRESSED = "regressed"
    ALWAYS_RED = "red since its first run"
    FLAKY = "flaky"
    FIXED = "fixed"
    GATED = "newly gated"
    NOT_RUN = "no result"


@dataclass(frozen=True, slots=True)
class Observation:
    """A result of the case. `run`: the number of the run. `seconds`: None if the case did not run.

    `host_memory`, `device_memory`: the peak memory in MiB; None if unknown.
    """

    run: int
    night: date
    outcome: Outcome
    device: str = ""
    seconds: float | None = None
    host_memory: float | None = None
    device_memory: float | None = None

    @property
    def bad(self) -> bool:
        return self.outcome.is_red or self.outcome is Outcome.FLAKY


@dataclass(frozen=True, slots=True)
class Slower:
    """A rise of the duration: medians at the begin and the end of the window, and the probability by chance."""

    before: float
    after: float
    chance: float


@dataclass(frozen=True, slots=True)
class Story:
    """The verdict over time.

    `since`: the run in which the present state began. `before`: the last run before it with another result; None if
    there is none. `bad`, `ran`: results in the window. `interval`: the Wilson interval of the rate. `device`: the only
    device with bad results, unless chance explains that others have none.
    """

    kind: VerdictTrend
    since: int | None
    before: int | None
    bad: int
    ran: int
    interval: tuple[float, float]
    device: str = ""
    slower: Slower | None = None

    @property
    def rate(self) -> float:
        return self.bad / self.ran if self.ran else 0.0


def story(observations: Sequence[Observation]) -> Story:
    """Return the verdict over time."""
    ran = [
        observation for observation in observations if observation.outcome.ran or observation.outcome is Outcome.LOST
    ]
    window = ran[-WINDOW:]
    bad = [observation for observation in window if observation.bad]
    kind, since, before = _state(observations, ran, window)
    return Story(
        kind=kind,
        since=since,
        before=before,
        bad=len(bad),
        ran=len(window),
        interval=wilson(len(bad), len(window)),
        device=single_device(window),
        slower=slower(
            [
                observation.seconds
                for observation in ran
                if observation.seconds is not None and not observation.outcome.is_red
            ]
        ),
    )


def _state(
    observations: Sequence[Observation], ran: Sequence[Observation], window: Sequence[Observation]
) -> tuple[VerdictTrend, int | None, int | None]:
    if not ran:
        return VerdictTrend.NOT_RUN, None, None
    silent = observations[[observation.run for observation in observations].index(ran[-1].run) + 1 :]
    if silent and silent[-1].outcome in (Outcome.GATED, Outcome.SKIPPED):
        return VerdictTrend.GATED, silent[0].run, ran[-1].run
    streaks = [(bad, list(streak)) for bad, streak in groupby(ran, key=lambda observation: observation.bad)]
    is_bad, last = streaks[-1]
    before = streaks[-2][1][-1].run if len(streaks) > 1 else None
    # A spell of STEADY red runs is a defect that was fixed, not a flake.
    spells = sum(
        bad and len(list(own)) < STEADY for bad, own in groupby(window, key=lambda observation: observation.bad)
    )
    unsteady = spells > 1 or any(observation.outcome is Outcome.FLAKY for observation in window)
    steady = len(last) >= STEADY and not any(observation.outcome is Outcome.FLAKY for observation in last)
    first = last[0].run
    if is_bad:
        if unsteady and not steady:
            return VerdictTrend.FLAKY, first, before
        return (VerdictTrend.REGRESSED if before is not None else VerdictTrend.ALWAYS_RED), first, before
    if unsteady:
        return VerdictTrend.FLAKY, first, before
    if len(streaks) > 1 and last[0] in window:
        # One bad result between good ones is not a defect that was fixed.
        single = len(streaks[-2][1]) == 1 and len(streaks) > 2
        return (VerdictTrend.FLAKY if single else VerdictTrend.FIXED), first, before
    return VerdictTrend.GREEN, first, before


def single_device(observations: Sequence[Observation]) -> str:
    """Return the only device with bad results; "" if there is none, or if chance explains it."""
    counts = Counter((observation.device, observation.bad) for observation in observations)
    tallies = {
        ResultPlace("", uuids=(device,) if device else ()): Tally(red=counts[device, True], green=counts[device, False])
        for device, _ in counts
    }
    classing = classify(tallies)
    if classing is None or classing.kind is not CauseClass.ONE_UUID or classing.sure is not Sure.STRONG:
        return ""
    return classing.causes[0].value


def slower(seconds: Sequence[float]) -> Slower | None:
    """Return the rise of the durations over the last runs; None without one. Single slow runs do not count."""
    values = list(seconds[-WINDOW:])
    if len(values) < LEAST_RUNS:
        return None
    before, after = median(values[:END_RUNS]), median(values[-END_RUNS:])
    if after < SLOWER * before or after - before < SLOWER_SECONDS:
        return None
    slope = theil_sen_slope(values)
    return Slower(before, after, slope.chance) if slope.chance < TREND else None
