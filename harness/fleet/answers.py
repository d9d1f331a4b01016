"""Answers of a history, as plain values. `harness.fleet.questions` has the SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING, Any

from harness.core.errors import HarnessError
from harness.core.outcome import Outcome
from harness.fleet import questions
from harness.fleet.changes import Onset, Suspect, onset, suspects
from harness.fleet.timeline import Observation, Slower, slower

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: The nights of the trend, which count as recent.
NIGHTS = 90
EVER = 100_000
#: A lane without a run for this many nights has no present state.
STALE = 14
#: A case that ran in no run for this many nights is reported.
NOT_RUN = 7
#: Maximum entries of one list.
MOST = 200


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
    """A machine with a kind of device and a profile. `run`: its latest run. `trend`: red cases by run, in order."""

    lane: str
    run: Mapping[str, Any]
    previous: int | None
    trend: tuple[int, ...]
    new: int = 0
    fixed: int = 0


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
    devices: tuple[str, ...]
    drivers: tuple[str, ...]
    lanes: tuple[str, ...]
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
    findings: tuple[tuple[str, str], ...] = field(default=())


class Answers:
    """Queries of an open database."""

    def __init__(self, database: DuckDBPyConnection) -> None:
        self.database = database
        self._runs: Mapping[int, Mapping[str, Any]] | None = None
        self._silent: dict[int, list[tuple[str, date | None, str]]] = {}

    def _rows(self, question: str, **values: object) -> list[tuple[Any, ...]]:
        return [*self.database.execute(question, values or None).fetchall()]

    # ---- runs ----

    @property
    def runs(self) -> Mapping[int, Mapping[str, Any]]:
        """All runs by number, in the order of their begin. Raise NothingKnownError without any."""
        if self._runs is None:
            cursor = self.database.execute(questions.RUNS)
            names = [name for name, *_ in cursor.description or ()]
            self._runs = {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}
        if not self._runs:
            raise NothingKnownError("the history has no run: enter one with harness history add DIR")
        return self._runs

    @property
    def last_night(self) -> date:
        """The night of the latest run."""
        nights = [run["night"] for run in self.runs.values()]
        night: date = max(nights)
        return night

    def run_by_id(self, run_id: str) -> Mapping[str, Any]:
        """Return a run by its id, or by its number. Raise NothingKnownError."""
        for run in self.runs.values():
            if run["run_id"] == run_id or str(run["run"]) == run_id:
                return run
        raise NothingKnownError(f"the history has no run {run_id!r}: see harness history sql 'FROM runs'")

    def nights(self, most: int = NIGHTS) -> list[Night]:
        """Return the last nights that have runs, in order."""
        return [Night(*row) for row in self._rows(questions.NIGHTS, nights=most)]

    def lanes(self, most: int = 30) -> list[Lane]:
        """Return the lanes, first the lane with most red cases in its latest run. Stale lanes come last."""
        by_lane: dict[str, list[Mapping[str, Any]]] = {}
        for run in self.runs.values():
            by_lane.setdefault(run["lane"], []).append(run)
        news = self.news_counts({runs[-1]["run"]: runs[-2]["run"] for runs in by_lane.values() if len(runs) > 1})
        lanes = []
        for lane, runs in by_lane.items():
            last = runs[-1]
            new, fixed = news.get(last["run"], (0, 0))
            previous = runs[-2]["run"] if len(runs) > 1 else None
            trend = tuple(run["red"] for run in runs[-most:])
            lanes.append(Lane(lane, last, previous, trend, new, fixed))
        newest = self.last_night
        return sorted(lanes, key=lambda lane: (self.is_stale(lane, newest), -lane.run["red"], lane.lane))

    @staticmethod
    def is_stale(lane: Lane, newest: date) -> bool:
        """Return whether the lane had no run for so long that it has no present state."""
        night: date = lane.run["night"]
        return (newest - night).days >= STALE

    def previous(self, run: int) -> int | None:
        """Return the run before this one in its lane."""
        lane = self.runs[run]["lane"]
        before = None
        for number, row in self.runs.items():
            if number == run:
                return before
            if row["lane"] == lane:
                before = number
        return before

    # ---- news ----

    def news_counts(self, pairs: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """Return, for each run and its previous one, how many cases are newly red, and how many are no longer red."""
        of: dict[int, set[str]] = {}
        for run, case in self._rows(questions.RED_CASES, runs=[*pairs, *pairs.values()]):
            of.setdefault(run, set()).add(case)
        return {
            run: (len(of.get(run, set()) - of.get(before, set())), len(of.get(before, set()) - of.get(run, set())))
            for run, before in pairs.items()
        }

    def news(self, run: int, since: int | None = None) -> News:
        """Return the differences of a run from another one, by default the previous run of its lane."""
        before = self.previous(run) if since is None else since
        failures = self.failures(run)
        findings = self.findings(run)
        if before is None:
            listed = tuple((kind, message) for kind, message, _ in findings)
            return News(
                run, None, new=tuple(failure for failure in failures if failure.outcome.is_red), findings=listed
            )
        red_before = {(failure.case, failure.group) for failure in self.failures(before) if failure.outcome.is_red}
        red = [failure for failure in failures if failure.outcome.is_red]
        both = {"run": run, "before": before}
        titles = {title for _, _, title in self.findings(before)}
        return News(
            run=run,
            previous=before,
            new=tuple(failure for failure in red if (failure.case, failure.group) not in red_before),
            fixed=tuple(case for (case,) in self._rows(questions.FIXED, **both)),
            gated=tuple(case for (case,) in self._rows(questions.NEWLY_GATED, **both)),
            findings=tuple((kind, text) for kind, text, title in findings if title not in titles),
        )

    def findings(self, run: int) -> list[tuple[str, str, str]]:
        """Return kind, message and title of the findings of a run."""
        return self._rows(questions.FINDINGS, run=run)

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
        failures = []
        for row in self._rows(f"{questions.FAILURES} {which}", **values):
            columns: list[Any] = [*row]
            columns[4] = Outcome(columns[4])
            failures.append(HistoryFailure(*columns))
        return failures

    # ---- groups ----

    def groups(
        self, *, only_open: bool = True, most: int = MOST, key: str = "", nights: int = NIGHTS
    ) -> list[FailureGroup]:
        """Return groups of red verdicts in the latest runs and, if wanted, other groups.

        Groups with most cases come first.

        `key`: only the group with this key. `nights`: the nights in which onsets are searched.
        """
        values = {"stale": STALE, "closed": not only_open, "key": key, "most": most}
        rows: list[list[Any]] = [
            [tuple(each) if isinstance(each, list) else each for each in row]
            for row in self._rows(questions.GROUPS, **values)
        ]
        groups = [FailureGroup(*row) for row in rows]
        presence = self.presence([group.key for group in groups], nights)
        onsets = [[onset(lane, runs) for lane, runs in presence.get(group.key, {}).items()] for group in groups]
        return [
            replace(group, onsets=tuple(begin for begin in begins if begin is not None))
            for group, begins in zip(groups, onsets, strict=True)
        ]

    def group(self, key: str) -> FailureGroup:
        """Return a group by its key, or by the begin of the key. Raise NothingKnownError."""
        found = self._rows("SELECT key FROM failure_group WHERE starts_with(key, $key)", key=key)
        keys = [full_key for (full_key,) in found]
        if len(keys) != 1:
            raise NothingKnownError(
                f"the history has {'several groups' if keys else 'no group'} {key!r}: see harness history report"
            )
        groups = self.groups(only_open=False, key=keys[0], nights=EVER)
        if not groups:
            raise NothingKnownError(f"the group {key!r} has no red case: it is of flaky or waived cases only")
        return groups[0]

    def red_runs_of_groups(self, keys: Sequence[str], lane: str) -> list[tuple[str, int]]:
        """Return pairs of a group with one of these keys, and a run of a lane in which one of its cases was red."""
        return self._rows(questions.RED_RUNS, lane=lane, keys=list(keys))

    def presence(self, keys: Sequence[str], nights: int = NIGHTS) -> dict[str, dict[str, list[tuple[int, bool]]]]:
        """Return, for each group and lane, the runs in which one of its cases ran, and whether the group was there."""
        by_group: dict[str, dict[str, list[tuple[int, bool]]]] = {}
        for key, lane, run, there in self._rows(questions.PRESENCE, keys=list(keys), nights=nights):
            by_group.setdefault(key, {}).setdefault(lane, []).append((run, there))
        return by_group

    def suspects(self, group: FailureGroup) -> list[Suspect]:
        """Return the facts whose change may have caused a group, the likeliest first."""
        presence = self.presence([group.key], EVER).get(group.key, {})
        return suspects(group.onsets, self.runs, [run for runs in presence.values() for run in runs])

    # ---- cases ----

    def case_number(self, case: str) -> int:
        """Return the number of a case. Raise NothingKnownError."""
        rows = self._rows('SELECT "case" FROM case_name WHERE id = $case', case=case)
        if not rows:
            like = self._rows("SELECT id FROM case_name WHERE contains(id, $case) ORDER BY id LIMIT 3", case=case)
            hint = (
                f"did you mean {', '.join(repr(name) for (name,) in like)}?" if like else "give the whole id of a case"
            )
            raise NothingKnownError(f"the history has no case {case!r}: {hint}")
        return int(rows[0][0])

    def case_numbers(self, cases: Sequence[str]) -> dict[str, int]:
        """Return the numbers of cases by id; unknown ones are left out."""
        ids = 'SELECT id, "case" FROM case_name WHERE list_contains($cases, id) ORDER BY id'
        return dict(self._rows(ids, cases=list(cases)))

    def observations(
        self, cases: Iterable[int], nights: int = EVER, lanes: Collection[str] | None = None
    ) -> dict[int, dict[str, list[Observation]]]:
        """Return the results of these cases in the last nights, by case and lane, in the order of the runs.

        `lanes`: only these lanes.
        """
        numbers, runs, newest = list(cases), self.runs, self.last_night
        wanted = {
            number
            for number, run in runs.items()
            if (newest - run["night"]).days < nights and (lanes is None or run["lane"] in lanes)
        }
        if not numbers or not wanted:
            return {}
        # Of one case, DuckDB reads only the blocks that can have it.
        alone = len(numbers) == 1
        which = '"case" = $cases' if alone else '"case" IN (SELECT unnest($cases))'
        question = questions.OBSERVATIONS.format(cases=which)
        values = {"cases": numbers[0] if alone else numbers, "first": min(wanted), "last": max(wanted)}
        by_case: dict[int, dict[str, list[Observation]]] = {}
        for case, run, outcome, *measured in self._rows(question, **values):
            if run in wanted:
                row = Observation(run, runs[run]["night"], Outcome(outcome), *measured)
                by_case.setdefault(case, {}).setdefault(runs[run]["lane"], []).append(row)
        return by_case

    def slow_cases(self, most: int = 20) -> list[SlowCase]:
        """Return the cases whose durations rise, the largest rise first.

        Candidates come from the medians of a few runs.
        """
        rises = self._rows(questions.RISES, stale=STALE, most=5 * most)
        observed = self.observations(dict.fromkeys(case for _, case, _ in rises), NIGHTS, {lane for lane, *_ in rises})
        slow = []
        for lane, case, name in rises:
            own = observed[case][lane]
            rise = slower([each.seconds for each in own if each.seconds is not None and not each.outcome.is_red])
            if rise is not None:
                slow.append(SlowCase(name, lane, rise))
        return slow[:most]

    def not_run(self, days: int = NOT_RUN, most: int = MOST) -> list[tuple[str, date, str]]:
        """Return the cases that ran at some time, but in none of the recent runs that have them.

        For each: id, last night, and the reason.
        """
        listed = [(case, night, why) for case, night, why in self._silent_cases(days) if night is not None]
        return sorted(listed, key=lambda row: (-row[1].toordinal(), row[0]))[:most]

    def never_run(self, days: int = NOT_RUN) -> list[tuple[str, int]]:
        """Return why cases of the last days ran in no run at all, with the number of cases, the largest first."""
        reasons = Counter(why for _, night, why in self._silent_cases(days) if night is None)
        return sorted(reasons.items(), key=lambda item: (-item[1], item[0]))

    def _silent_cases(self, days: int) -> list[tuple[str, date | None, str]]:
        """Return the cases that no run of the last days ran: id, last night in which they ran, and the reason."""
        if days not in self._silent:
            self._silent[days] = self._rows(questions.SILENT, nights=days)
        return self._silent[days]

    def healed_waivers(self) -> list[HistoryFailure]:
        """Return the cases of the latest runs that pass although a waiver expects them to fail."""
        return self._failures(questions.HEALED, stale=STALE)[:MOST]

    def flaky_cases(self, nights: int = 30, most: int = 50) -> list[tuple[str, int, int, int]]:
        """Return cases that were flaky or changed between good and bad in the last nights.

        For each: id, bad results, results, and the number of devices with a bad one. Cases that are red in each latest
        run are not flaky.
        """
        return self._rows(questions.FLAKY, nights=nights, most=most)

    # ---- devices ----

    def device(self, key: str) -> dict[str, Any]:
        """Return a device with its runs by night and its health events. Raise NothingKnownError."""
        names = ("device", "key", "uuid", "host", "name", "kind")
        rows = self._rows(f"SELECT {', '.join(names)} FROM device_name WHERE key = $key", key=key)
        if not rows:
            raise NothingKnownError(f"the history has no device {key!r}: see harness history sql 'FROM devices'")
        found = dict(zip(names, rows[0], strict=True))
        found["nights"] = self._rows(questions.DEVICE_NIGHTS, device=found["device"])
        found["events"] = self._rows(questions.DEVICE_EVENTS, device=found["device"])
        return found
