"""Answers of a history, as plain values. `sql/questions.sql` has the questions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

from duckdb import DuckDBPyConnection

from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_NOTHING_RAN, EXIT_OK, Outcome
from harness.fleet import timeline
from harness.fleet.statistics import holm, poisson_tail
from harness.fleet.store import Questions
from harness.fleet.timeline import Observation, Onset, Slower, Suspect, onset, slower, suspects

#: The nights of the trend, which count as recent.
NIGHTS = 90
EVER = 100_000
#: A lane without a run for this many nights has no present state.
STALE = 14
#: A case that ran in no run for this many nights is reported.
NOT_RUN = 7
#: Maximum entries of one list.
MOST = 200
MOST_SLOW, MOST_FLAKY = 20, 50
#: The nights in which devices are compared, and flaky cases are searched.
RECENT = 30
#: A device is suspicious if the probability that any device looks like this by chance is below this.
SIGNIFICANCE = 0.01
#: Least number of runs with a bad result, because one broken night does not mean a broken device.
LEAST_RUNS = 2


class NothingKnownError(HarnessError):
    """The history has no such run, case, group or device, or no run at all."""


@dataclass(frozen=True, slots=True)
class Night:
    """All runs of one night."""

    night: date
    runs: int
    red_runs: int
    ran: int
    red: int
    flaky: int


@dataclass(frozen=True, slots=True)
class Lane:
    """A machine with a kind of device and a profile. `run`: its latest run. `trend`: red cases by run, in order.

    `stale`: the lane had no run for so long that it has no present state.
    """

    lane: str
    run: Mapping[str, Any]
    trend: tuple[int, ...]
    new: int = 0
    fixed: int = 0
    stale: bool = False


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """A group of failures with one fingerprint.

    `open`: it is in the latest run of a lane; `open_cases`, `open_lanes`: the numbers there. The other numbers are
    about all runs. `onsets`: where it began, by lane, as far as the window shows.
    """

    key: str
    title: str
    first: date
    last: date
    failures: int
    cases: int
    runs: int
    devices: Sequence[str]
    drivers: Sequence[str]
    lanes: Sequence[str]
    case: str
    message: str
    reproduce: str
    stack: str
    open_cases: int = 0
    open_lanes: int = 0
    onsets: tuple[Onset, ...] = ()

    @property
    def open(self) -> bool:
        return self.open_lanes > 0


@dataclass(frozen=True, slots=True)
class Outbreak:
    """Red groups that began in the same runs, probably for one cause."""

    groups: tuple[FailureGroup, ...]
    first: date

    @property
    def cases(self) -> int:
        return sum(group.open_cases for group in self.groups)


@dataclass(frozen=True, slots=True)
class SlowCase:
    """A case whose duration rises in a lane."""

    case: str
    lane: str
    slower: Slower


@dataclass(frozen=True, slots=True)
class HistoryFailure:
    """A red, flaky or waived verdict."""

    run: int
    night: date
    lane: str
    case: str
    outcome: Outcome
    device: str
    group: str
    title: str
    message: str
    reproduce: str


@dataclass(frozen=True, slots=True)
class News:
    """Differences of a run from the previous run of its lane."""

    run: int
    previous: int | None
    new: tuple[HistoryFailure, ...] = ()
    fixed: tuple[str, ...] = ()
    gated: tuple[str, ...] = ()
    findings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceSuspicion:
    """A device compared with its siblings on the same cases in the same nights.

    A stratum is one case in one night, on devices of one kind with one driver and one torch. The expected share of a
    device in the bad results of a stratum is its share of all results there. Failures everywhere, or since a driver or
    a commit, are expected equally of all devices, and make none suspicious. The number of bad results beyond the
    expectation is tested (a Poisson bound of the Mantel-Haenszel statistic), and corrected for the number of devices
    (Holm).

    `bad`: its bad results in strata with siblings; `expected`: its share of all bad results there. `chance`: the
    probability of this many, corrected for the number of devices. `runs`, `cases`: the numbers of runs and cases with
    these bad results. `events`: how often it was sick or drained; `xids`: NVIDIA's numbers of its errors.
    """

    device: str
    name: str
    host: str
    bad: int
    expected: float
    runs: int
    cases: int
    events: int
    xids: Sequence[int]
    chance: float

    @property
    def suspicious(self) -> bool:
        return self.chance <= SIGNIFICANCE and self.runs >= LEAST_RUNS

    @property
    def order(self) -> tuple[float, ...]:
        """The sort key: the most suspicious device comes first."""
        return (not self.suspicious, self.chance, -self.events, -self.bad)


def judged(rows: Sequence[tuple[Any, ...]]) -> list[DeviceSuspicion]:
    """Return the suspicions of devices. The correction does not count devices without siblings.

    `rows`: device, name, host, bad, expected, runs, cases, events and xids, as `DeviceSuspicion` has them.
    """
    tested = [row for row in rows if row[4] > 0]
    corrected = holm([poisson_tail(row[3], row[4]) for row in tested])
    chances = {row[0]: chance for row, chance in zip(tested, corrected, strict=True)}
    listed = [DeviceSuspicion(*(*row, chances.get(row[0], 1.0))) for row in rows]
    return sorted(listed, key=lambda suspicion: suspicion.order)


class Answers(Questions):
    """Queries of an open database. Properties are the values of the front page, each queried once."""

    def __init__(self, database: DuckDBPyConnection) -> None:
        super().__init__(database, "questions")

    # ---- runs ----

    @cached_property
    def runs(self) -> Mapping[int, Mapping[str, Any]]:
        """All runs by number, in the order of their begin. Raise NothingKnownError without any.

        `previous`: the number of the run before it in its lane; None without one.
        """
        runs = {row["run"]: row for row in self.table("runs")}
        if not runs:
            raise NothingKnownError("the history has no run: enter one with harness history add DIR")
        return runs

    @cached_property
    def last_night(self) -> date:
        """The night of the latest run."""
        newest: date = max(run["night"] for run in self.runs.values())
        return newest

    def run_by_id(self, run_id: str) -> Mapping[str, Any]:
        """Return a run by its id, or by its number. Raise NothingKnownError."""
        for run in self.runs.values():
            if run["run_id"] == run_id or str(run["run"]) == run_id:
                return run
        raise NothingKnownError(f"the history has no run {run_id!r}: see harness history sql 'FROM runs'")

    @cached_property
    def nights(self) -> list[Night]:
        """The last nights that have runs, in order."""
        return [Night(*row) for row in self.ask("nights", nights=NIGHTS)]

    @cached_property
    def lanes(self) -> list[Lane]:
        """The lanes, first the lane with most red cases in its latest run. Stale lanes come last."""
        rows = self.ask("lanes", trend=RECENT, stale=STALE)
        return [Lane(lane, self.runs[run], tuple(trend), *news) for lane, run, trend, *news in rows]

    @property
    def red(self) -> bool:
        """Whether the latest run of a lane is red."""
        return any(lane.run["exit_status"] not in (EXIT_OK, EXIT_NOTHING_RAN) for lane in self.present)

    @property
    def present(self) -> list[Lane]:
        """The lanes with a present state."""
        return [lane for lane in self.lanes if not lane.stale]

    # ---- news ----

    def news(self, run: int, since: int | None = None) -> News:
        """Return the differences of a run from another one, by default the previous run of its lane."""
        before = self.runs[run]["previous"] if since is None else since
        both = {"run": run, "before": before}
        return News(
            run=run,
            previous=before,
            new=tuple(self._failures(self.texts["new_failures"], **both)),
            fixed=tuple(case for (case,) in self.ask("fixed", **both)),
            gated=tuple(case for (case,) in self.ask("newly_gated", **both)),
            findings=tuple(self.ask("new_findings", **both)),
        )

    @cached_property
    def present_findings(self) -> list[tuple[str, str, str]]:
        """Lane, kind and message of each finding of the latest runs."""
        return self.ask("present_findings", stale=STALE)

    def failures(self, run: int) -> list[HistoryFailure]:
        """Return the red, flaky and waived verdicts of a run."""
        return self._failures('WHERE run = $run ORDER BY begun, "case"', run=run)

    def recent_failures(self, since: date, most: int = 20_000) -> list[HistoryFailure]:
        """Return the red, flaky and waived verdicts after a night, the latest first."""
        return self._failures('WHERE night > $since ORDER BY begun DESC, "case" LIMIT $most', since=since, most=most)

    def failures_of_case(self, case: str) -> list[HistoryFailure]:
        """Return the red, flaky and waived verdicts on a case, the latest first."""
        return self._failures('WHERE "case" = $case ORDER BY begun DESC', case=case)

    def failures_on(self, device: str, most: int = MOST) -> list[HistoryFailure]:
        """Return the latest red, flaky and waived verdicts on a device."""
        order = 'ORDER BY begun DESC, "case" LIMIT $most'
        return self._failures(f"WHERE device = $device {order}", device=device, most=most)

    def _failures(self, which: str, **values: object) -> list[HistoryFailure]:
        rows = self.rows(f"{self.texts['failures']} {which}", **values)
        return [
            HistoryFailure(run, night, lane, case, Outcome(outcome), *texts)
            for run, night, lane, case, outcome, *texts in rows
        ]

    # ---- groups ----

    def groups(
        self, *, only_open: bool = True, most: int = MOST, key: str = "", nights: int = NIGHTS
    ) -> list[FailureGroup]:
        """Return groups of red verdicts in the latest runs and, if wanted, other groups.

        Groups with most cases come first.

        `key`: only the group with this key. `nights`: the nights in which onsets are searched.
        """
        values = {"stale": STALE, "closed": not only_open, "key": key, "most": most}
        rows = self.ask("groups", **values)
        presence = self.presence([key for key, *_ in rows], nights)
        groups = []
        for row in rows:
            begins = (onset(lane, runs) for lane, runs in presence.get(row[0], {}).items())
            groups.append(FailureGroup(*(*row, tuple(filter(None, begins)))))
        return groups

    @cached_property
    def open_groups(self) -> list[FailureGroup]:
        """The groups in the latest runs."""
        return self.groups()

    @cached_property
    def outbreaks(self) -> list[Outbreak]:
        """The groups in the latest runs by the runs in which their present spells began, the latest first."""
        by_begin: dict[frozenset[tuple[str, int]], list[FailureGroup]] = {}
        for group in self.open_groups:
            begins = frozenset((onset.lane, onset.since) for onset in group.onsets if onset.until is None)
            by_begin.setdefault(begins, []).append(group)
        made = [
            Outbreak(tuple(groups), min((self.runs[run]["night"] for _, run in begins), default=groups[0].first))
            for begins, groups in by_begin.items()
        ]
        return sorted(made, key=lambda outbreak: (outbreak.first, outbreak.cases), reverse=True)

    def group(self, key: str) -> FailureGroup:
        """Return a group by its key, or by the begin of the key. Raise NothingKnownError."""
        found = self.rows("SELECT key FROM failure_group WHERE starts_with(key, $key)", key=key)
        keys = [full_key for (full_key,) in found]
        if len(keys) != 1:
            raise NothingKnownError(
                f"the history has {'several groups' if keys else 'no group'} {key!r}: see harness history report"
            )
        groups = self.groups(only_open=False, key=keys[0], nights=EVER)
        if not groups:
            raise NothingKnownError(f"the group {key!r} has no red case: it is of flaky or waived cases only")
        return groups[0]

    def past(self, run: Mapping[str, Any], keys: Sequence[str]) -> list[tuple[str, date, date, date]]:
        """Return the groups with these keys that were red in the run's lane before it.

        For each: its last night, the first night of the last spell, and the day on which its last run ended.
        """
        return self.ask("past", run=run["run"], lane=run["lane"], keys=list(keys))

    def presence(self, keys: Sequence[str], nights: int = NIGHTS) -> dict[str, dict[str, list[tuple[int, bool]]]]:
        """Return, for each group and lane, the runs in which one of its cases ran, and whether the group was there."""
        by_group: dict[str, dict[str, list[tuple[int, bool]]]] = {}
        for key, lane, run, there in self.ask("presence", keys=list(keys), nights=nights):
            by_group.setdefault(key, {}).setdefault(lane, []).append((run, there))
        return by_group

    def suspects(self, group: FailureGroup) -> list[Suspect]:
        """Return the facts whose change may have caused a group, the likeliest first."""
        presence = self.presence([group.key], EVER).get(group.key, {})
        return suspects(group.onsets, self.runs, [run for runs in presence.values() for run in runs])

    # ---- cases ----

    def case_number(self, case: str) -> int:
        """Return the number of a case. Raise NothingKnownError."""
        rows = self.rows('SELECT "case" FROM case_name WHERE id = $case', case=case)
        if not rows:
            like = self.rows("SELECT id FROM case_name WHERE contains(id, $case) ORDER BY id LIMIT 3", case=case)
            hint = (
                f"did you mean {', '.join(repr(name) for (name,) in like)}?" if like else "give the whole id of a case"
            )
            raise NothingKnownError(f"the history has no case {case!r}: {hint}")
        return int(rows[0][0])

    def case_numbers(self, cases: Sequence[str]) -> dict[str, int]:
        """Return the numbers of cases by id; unknown ones are left out."""
        ids = 'SELECT id, "case" FROM case_name WHERE list_contains($cases, id) ORDER BY id'
        return dict(self.rows(ids, cases=list(cases)))

    def observations(
        self, cases: Iterable[int], nights: int = EVER, lanes: Collection[str] | None = None
    ) -> dict[int, dict[str, list[Observation]]]:
        """Return the results of these cases in the last nights, by case and lane, in the order of the runs.

        `lanes`: only these lanes.
        """
        of = list(lanes if lanes is not None else {run["lane"] for run in self.runs.values()})
        by_case: dict[int, dict[str, list[Observation]]] = {}
        rows = self.ask("observations", cases=list(cases), nights=nights, lanes=of)
        for case, lane, run, night, outcome, *measured in rows:
            row = Observation(run, night, Outcome(outcome), *measured)
            by_case.setdefault(case, {}).setdefault(lane, []).append(row)
        return by_case

    @cached_property
    def slow_cases(self) -> list[SlowCase]:
        """The cases whose durations rise, the largest rise first. Candidates come from the medians of a few runs."""
        window = {"window": timeline.WINDOW, "ends": timeline.END_RUNS, "least": timeline.LEAST_RUNS}
        rise = {"factor": timeline.SLOWER, "seconds": timeline.SLOWER_SECONDS}
        rises = self.ask("rises", stale=STALE, most=5 * MOST_SLOW, **window, **rise)
        observed = self.observations(dict.fromkeys(case for _, case, _ in rises), NIGHTS, {lane for lane, *_ in rises})
        slow = []
        for lane, case, name in rises:
            own = observed[case][lane]
            found = slower([each.seconds for each in own if each.seconds is not None and not each.outcome.is_red])
            slow += [] if found is None else [SlowCase(name, lane, found)]
        return slow[:MOST_SLOW]

    @cached_property
    def not_run(self) -> list[tuple[str, date, str]]:
        """The cases that ran at some time, but in none of the recent runs: id, last night, and the reason."""
        return self.ask("not_run", nights=NOT_RUN, most=MOST)

    @cached_property
    def never_run(self) -> list[tuple[str, int]]:
        """Why cases of the last days ran in no run at all, with the number of cases, the largest first."""
        return self.ask("never_run", nights=NOT_RUN)

    @property
    def healed_waivers(self) -> list[HistoryFailure]:
        """The cases of the latest runs that pass although a waiver expects them to fail."""
        return self._failures(self.texts["healed"], stale=STALE)[:MOST]

    @cached_property
    def flaky_cases(self) -> list[tuple[str, int, int, int]]:
        """Cases that were flaky or changed between good and bad in the last nights.

        For each: id, bad results, results, and the number of devices with a bad one. Cases that are red in each latest
        run are not flaky.
        """
        return self.ask("flaky", nights=RECENT, most=MOST_FLAKY, steady=timeline.STEADY)

    # ---- devices ----

    @cached_property
    def suspicions(self) -> list[DeviceSuspicion]:
        """Every device of the last nights, the most suspicious first."""
        return judged(self.ask("suspicions", nights=RECENT))

    @property
    def suspicious(self) -> list[DeviceSuspicion]:
        return [device for device in self.suspicions if device.suspicious]

    def device(self, key: str) -> dict[str, Any]:
        """Return a device with its runs by night and its health events. Raise NothingKnownError."""
        rows = self.table("device", key=key)
        if not rows:
            raise NothingKnownError(f"the history has no device {key!r}: see harness history sql 'FROM devices'")
        nights, events = (self.ask(f"device_{part}", device=rows[0]["device"]) for part in ("nights", "events"))
        return {**rows[0], "nights": nights, "events": events}

    def device_history(self) -> dict[str, Any]:
        """Return each device over all runs, the most suspicious first, and the findings about no device by kind."""
        return {"devices": self.table("device_records"), "findings": dict(self.ask("findings_of_no_device"))}
