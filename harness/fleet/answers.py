"""Queries of a history, with results as plain values. All SQL of reports and pages is here and in `suspicion`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from harness.core.errors import HarnessError
from harness.core.outcome import Outcome
from harness.fleet.changes import Onset, Suspect, onset, suspects
from harness.fleet.timeline import (
    END_RUNS,
    LEAST_RUNS,
    SLOWER,
    SLOWER_SECONDS,
    STEADY,
    WINDOW,
    Observation,
    Slower,
    slower,
)

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

_RUN = (
    'run, run_id, lane, begun, night, seconds, host, model, driver, cuda, torch, python, harness, "commit", '
    "dirty, suites, profile, hardware, shard, seed, argv, tool, exit_status, complete, cases, ran, passed, red, "
    "flaky, waived, gated, path, page, identity"
)
_LATEST = """
    latest AS (
        SELECT lane, arg_max(run, (begun, run)) AS run FROM run GROUP BY lane
        HAVING max(night) > (SELECT max(night) FROM run) - INTERVAL (?) DAY
    )
"""
#: Runs of the last nights. The one value is the number of nights.
_RECENT = "SELECT run FROM run WHERE night > (SELECT max(night) FROM run) - INTERVAL (?) DAY"
#: Runs in which one of the cases of some groups has a result, and whether the group was there. A lost case has no
#: result, but is a failure of its group.
_PRESENCE = f"""
    WITH own AS (SELECT DISTINCT grp, "case" FROM trouble WHERE list_contains($1, grp)),
    ran AS (
        SELECT DISTINCT grp, v.run FROM own JOIN verdict v USING ("case") JOIN outcome_name o USING (outcome)
        WHERE (o.ran OR o.name = '{Outcome.LOST}') AND v.run IN ({_RECENT.replace("?", "$2")})
    ),
    had AS (SELECT DISTINCT grp, run FROM trouble WHERE list_contains($1, grp))
    SELECT grp, lane, run, had.run IS NOT NULL FROM ran JOIN run USING (run) LEFT JOIN had USING (grp, run)
    ORDER BY grp, lane, begun, run
"""
#: Cases of the last nights that no run of them ran, with the reason, and the last night in which they ran.
_SILENT = f"""
    WITH silent AS (
        SELECT "case", coalesce(min(text), '') AS reason
        FROM verdict JOIN outcome_name o USING (outcome) LEFT JOIN reason USING (reason)
        WHERE run IN ({_RECENT}) GROUP BY "case" HAVING NOT bool_or(o.ran)
    ),
    ran AS (
        SELECT "case", max(night) AS night
        FROM verdict JOIN silent USING ("case") JOIN outcome_name o USING (outcome) JOIN run USING (run)
        WHERE o.ran GROUP BY "case"
    )
    SELECT id, night, silent.reason FROM silent JOIN case_name USING ("case") LEFT JOIN ran USING ("case")
"""
#: Cases with bad results in the last nights: how many, of how many results, and on how many devices. A case without the
#: verdict flaky needs two short spells of bad results in one lane, one that has ended, and more good results than bad
#: ones. `results` is the line of a case in a lane: `..x.xx`.
_FLAKY = f"""
    WITH line AS (
        SELECT run, dense_rank() OVER (ORDER BY lane)::INTEGER AS lane,
            row_number() OVER (ORDER BY begun, run)::INTEGER AS place
        FROM run WHERE run IN ({_RECENT})
    ),
    bad AS (
        SELECT run, "case", device, o.name = '{Outcome.FLAKY}' AS flaky
        FROM trouble JOIN line USING (run) JOIN outcome_name o USING (outcome)
        WHERE o.red AND o.ran OR o.name = '{Outcome.FLAKY}'
    ),
    own AS (
        SELECT "case", count(*) AS bad, count(DISTINCT device) AS devices, bool_or(flaky) AS flaky
        FROM bad GROUP BY "case" HAVING bool_or(flaky) OR count(*) > 1
    ),
    seen AS (
        SELECT v."case", lane, count(*) AS ran,
            string_agg(CASE WHEN bad.run IS NULL THEN '.' ELSE 'x' END, '' ORDER BY place) AS results
        FROM verdict v JOIN own USING ("case") JOIN outcome_name o USING (outcome) JOIN line USING (run)
            LEFT JOIN bad ON bad.run = v.run AND bad."case" = v."case"
        WHERE o.ran GROUP BY v."case", lane
    ),
    spells AS (
        SELECT "case", ran, ends_with(results, 'x') AS goes_on,
            list_filter(string_split(results, '.'), lambda spell: spell <> '') AS bad
        FROM seen
    ),
    whole AS (
        SELECT "case", sum(ran)::BIGINT AS ran, sum(len(bad) - goes_on::INTEGER) AS ended,
            max(len(list_filter(bad, lambda spell: len(spell) < {STEADY}))) AS short
        FROM spells GROUP BY "case"
    )
    SELECT id, own.bad, whole.ran, devices FROM whole JOIN own USING ("case") JOIN case_name USING ("case")
    WHERE flaky OR (short > 1 AND ended > 0 AND 2 * own.bad < whole.ran) ORDER BY own.bad DESC, id
"""
#: The cases whose median duration rose most from the first to the last runs of a lane's window, the largest rise first.
_RISES = f"""
    WITH line AS (
        SELECT run, lane, row_number() OVER (PARTITION BY lane ORDER BY begun DESC, run DESC) - 1 AS age,
            least({WINDOW}, count(*) OVER (PARTITION BY lane)) AS length
        FROM run WHERE list_contains($1, lane)
    ),
    measured AS (
        SELECT lane, "case", median(seconds) FILTER (age >= length - {END_RUNS}) AS early,
            median(seconds) FILTER (age < {END_RUNS}) AS late
        FROM verdict JOIN line USING (run)
        WHERE length >= {LEAST_RUNS} AND age < length AND (age < {END_RUNS} OR age >= length - {END_RUNS})
            AND seconds IS NOT NULL
        GROUP BY lane, "case"
    )
    SELECT lane, "case" FROM measured WHERE late > {SLOWER} * early AND late > early + {SLOWER_SECONDS}
    ORDER BY late - early DESC, lane, "case" LIMIT $2
"""


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

    number: int
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

    def __init__(self, database: DuckDBPyConnection, runs: Mapping[int, Mapping[str, Any]] | None = None) -> None:
        """`runs`: the value of `runs` for the same state of the history, if known."""
        self.database = database
        self._runs = runs
        self._silent: dict[int, list[tuple[str, date | None, str]]] = {}

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.database.execute(query, list(values)).fetchall()

    # ---- runs ----

    @property
    def runs(self) -> Mapping[int, Mapping[str, Any]]:
        """All runs by number, in the order of their begin. Raise NothingKnownError without any."""
        if self._runs is None:
            names = [name.strip('" ') for name in _RUN.split(",")]
            devices: dict[int, str] = dict(
                self._rows(
                    "SELECT run, string_agg(key, ', ' ORDER BY key) FROM run_device JOIN device_name USING (device) "
                    "GROUP BY run"
                )
            )
            by_number: dict[int, dict[str, Any]] = {}
            for row in self._rows(f"SELECT {_RUN} FROM run ORDER BY begun, run"):
                by_number[row[0]] = run = dict(zip(names, row, strict=True))
                run["devices"] = devices.get(row[0], "")
            self._runs = by_number
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
        rows = self._rows(
            "SELECT night, count(*), count(*) FILTER (exit_status NOT IN (0, 5)), sum(ran)::BIGINT, sum(red)::BIGINT, "
            "sum(flaky)::BIGINT FROM run WHERE night > (SELECT max(night) FROM run) - INTERVAL (?) DAY "
            "GROUP BY night ORDER BY night",
            [most],
        )
        return [Night(*row) for row in rows]

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
        if not pairs:
            return {}
        red = (
            'SELECT run, "case" FROM trouble JOIN outcome_name USING (outcome) WHERE red AND run IN (SELECT unnest(?))'
        )
        rows = self._rows(red, [[*pairs, *pairs.values()]])
        of: dict[int, set[int]] = {}
        for run, case in rows:
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
        fixed = self._rows(
            'SELECT c.id FROM trouble t JOIN outcome_name p USING (outcome) JOIN verdict v USING ("case") '
            'JOIN outcome_name o ON o.outcome = v.outcome JOIN case_name c USING ("case") '
            "WHERE t.run = ? AND p.red AND v.run = ? AND o.ran AND NOT o.red ORDER BY c.id",
            [before, run],
        )
        gated = self._rows(
            'SELECT c.id FROM verdict v JOIN outcome_name o USING (outcome) JOIN verdict w USING ("case") '
            'JOIN outcome_name p ON p.outcome = w.outcome JOIN case_name c USING ("case") '
            "WHERE v.run = ? AND o.name = 'gated' AND w.run = ? AND p.ran ORDER BY c.id",
            [run, before],
        )
        titles = {title for _, _, title in self.findings(before)}
        return News(
            run=run,
            previous=before,
            new=tuple(failure for failure in red if (failure.case, failure.group) not in red_before),
            fixed=tuple(case for (case,) in fixed),
            gated=tuple(case for (case,) in gated),
            findings=tuple((kind, text) for kind, text, title in findings if title not in titles),
        )

    def findings(self, run: int) -> list[tuple[str, str, str]]:
        """Return kind, message and title of the findings of a run."""
        return [*self._rows("SELECT kind, message, title FROM run_finding WHERE run = ? ORDER BY kind, message", [run])]

    def failures(self, run: int) -> list[HistoryFailure]:
        """Return the red, flaky and waived verdicts of a run."""
        return self._failures("t.run = ?", [run])

    def recent_failures(self, since: date, most: int = 20_000) -> list[HistoryFailure]:
        """Return the red, flaky and waived verdicts after a night, the latest first."""
        return self._failures("r.night > ?", [since], f"r.begun DESC, c.id LIMIT {most}")

    def failures_of_case(self, case: int) -> list[HistoryFailure]:
        """Return the red, flaky and waived verdicts on a case, the latest first."""
        return self._failures('t."case" = ?', [case], "r.begun DESC")

    def failures_on(self, device: str, most: int = MOST) -> list[HistoryFailure]:
        """Return the latest red, flaky and waived verdicts on a device."""
        return self._failures("d.key = ?", [device], f"r.begun DESC, c.id LIMIT {most}")

    def _failures(self, where: str, values: Sequence[Any], order: str = "r.begun, c.id") -> list[HistoryFailure]:
        rows = self._rows(
            "SELECT t.run, r.night, r.lane, c.id, o.name, d.key, g.key, g.title, t.message, t.reproduce FROM trouble t "
            'JOIN run r USING (run) JOIN case_name c USING ("case") JOIN outcome_name o USING (outcome) '
            f"JOIN failure_group g USING (grp) LEFT JOIN device_name d USING (device) WHERE {where} ORDER BY {order}",
            values,
        )
        return [_failure(row) for row in rows]

    # ---- groups ----

    def groups(
        self, *, only_open: bool = True, most: int = MOST, key: str = "", nights: int = NIGHTS
    ) -> list[FailureGroup]:
        """Return groups of red verdicts in the latest runs and, if wanted, other groups.

        Groups with most cases come first.

        `key`: only the group with this key. `nights`: the nights in which onsets are searched.
        """
        rows = self._rows(
            f"""
            WITH {_LATEST},
            red AS (SELECT t.* FROM trouble t JOIN outcome_name o USING (outcome) WHERE o.red),
            now AS (
                SELECT grp, count(DISTINCT "case") AS cases, count(DISTINCT lane) AS lanes
                FROM red JOIN latest USING (run) GROUP BY grp
            ),
            chosen AS (
                SELECT DISTINCT grp FROM red JOIN failure_group g USING (grp) LEFT JOIN now USING (grp)
                WHERE (now.grp IS NOT NULL OR ?) AND (? = '' OR g.key = ?)
            )
            SELECT g.grp, g.key, any_value(g.title), min(r.night), max(r.night), count(*), count(DISTINCT t."case"),
                count(DISTINCT t.run), list(DISTINCT d.key ORDER BY d.key) FILTER (d.key IS NOT NULL),
                list(DISTINCT r.driver ORDER BY r.driver), list(DISTINCT r.lane ORDER BY r.lane),
                arg_max(c.id, r.begun), arg_max(t.message, r.begun), arg_max(t.reproduce, r.begun),
                arg_max(t.stack, r.begun),
                coalesce(any_value(now.cases), 0), coalesce(any_value(now.lanes), 0)
            FROM red t JOIN chosen USING (grp) JOIN failure_group g USING (grp) JOIN run r USING (run)
                JOIN case_name c USING ("case") LEFT JOIN device_name d USING (device) LEFT JOIN now USING (grp)
            GROUP BY g.grp, g.key
            ORDER BY coalesce(any_value(now.lanes), 0) = 0, coalesce(any_value(now.cases), 0) DESC,
                max(r.night) DESC, count(*) DESC, g.key
            LIMIT {most}
            """,
            [STALE, not only_open, key, key],
        )
        return self._with_onsets([_group(row) for row in rows], nights)

    def group(self, key: str) -> FailureGroup:
        """Return a group by its key, or by the begin of the key. Raise NothingKnownError."""
        keys = [
            full_key for (full_key,) in self._rows("SELECT key FROM failure_group WHERE starts_with(key, ?)", [key])
        ]
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
        return [
            *self._rows(
                "SELECT DISTINCT g.key, t.run FROM trouble t JOIN failure_group g USING (grp) JOIN run r USING (run) "
                "JOIN outcome_name o USING (outcome) WHERE o.red AND r.lane = ? AND g.key IN (SELECT unnest(?)) "
                "ORDER BY g.key, t.run",
                [lane, list(keys)],
            )
        ]

    def presence(self, groups: Sequence[int], nights: int = NIGHTS) -> dict[int, dict[str, list[tuple[int, bool]]]]:
        """Return, for each group and lane, the runs in which one of its cases ran, and whether the group was there."""
        by_group: dict[int, dict[str, list[tuple[int, bool]]]] = {}
        for number, lane, run, there in self._rows(_PRESENCE, [list(groups), nights]):
            by_group.setdefault(number, {}).setdefault(lane, []).append((run, there))
        return by_group

    def suspects(self, group: FailureGroup) -> list[Suspect]:
        """Return the facts whose change may have caused a group, the likeliest first."""
        presence = self.presence([group.number], EVER).get(group.number, {})
        return suspects(group.onsets, self.runs, [run for runs in presence.values() for run in runs])

    def _with_onsets(self, groups: Sequence[FailureGroup], nights: int) -> list[FailureGroup]:
        presence = self.presence([group.number for group in groups], nights)
        made = []
        for group in groups:
            onsets = [onset(lane, runs) for lane, runs in presence.get(group.number, {}).items()]
            made.append(replace(group, onsets=tuple(begin for begin in onsets if begin is not None)))
        return made

    # ---- cases ----

    def case_number(self, case: str) -> int:
        """Return the number of a case. Raise NothingKnownError."""
        rows = self._rows('SELECT "case" FROM case_name WHERE id = ?', [case])
        if not rows:
            like = self._rows("SELECT id FROM case_name WHERE contains(id, ?) ORDER BY id LIMIT 3", [case])
            hint = (
                f"did you mean {', '.join(repr(name) for (name,) in like)}?" if like else "give the whole id of a case"
            )
            raise NothingKnownError(f"the history has no case {case!r}: {hint}")
        return int(rows[0][0])

    def case_numbers(self, cases: Sequence[str]) -> dict[str, int]:
        """Return the numbers of cases by id; unknown ones are left out."""
        rows = self._rows('SELECT id, "case" FROM case_name WHERE id IN (SELECT unnest(?)) ORDER BY id', [list(cases)])
        return dict(rows)

    def observations(
        self, cases: Iterable[int], nights: int = EVER, lanes: Collection[str] | None = None
    ) -> dict[int, dict[str, list[Observation]]]:
        """Return the results of these cases in the last nights, by case and lane, in the order of the runs.

        `lanes`: only these lanes.
        """
        numbers, runs, newest = list(cases), self.runs, self.last_night
        wanted = [
            number
            for number, run in runs.items()
            if (newest - run["night"]).days < nights and (lanes is None or run["lane"] in lanes)
        ]
        if not numbers or not wanted:
            return {}
        rows = self._rows(
            'SELECT v."case", v.run, o.name, d.key, v.seconds, '
            "pow(2, v.host_size / 8 - 20), pow(2, v.device_size / 8 - 20) "
            "FROM verdict v JOIN outcome_name o USING (outcome) "
            "LEFT JOIN device_name d USING (device) "
            f'WHERE v."case" {"= ?" if len(numbers) == 1 else "IN (SELECT unnest(?))"} AND v.run BETWEEN ? AND ?',
            [numbers[0] if len(numbers) == 1 else numbers, min(wanted), max(wanted)],
        )
        outcomes = {member.value: member for member in Outcome}
        made: dict[tuple[int, int], Observation] = {}
        for case, run, outcome, device, *measured in rows:
            made[case, run] = Observation(run, runs[run]["night"], outcomes[outcome], device or "", *measured)
        by_case: dict[int, dict[str, list[Observation]]] = {}
        for case in sorted(numbers):
            for run in sorted(wanted, key=lambda run: runs[run]["lane"]):
                if (case, run) in made:
                    by_case.setdefault(case, {}).setdefault(runs[run]["lane"], []).append(made[case, run])
        return by_case

    def slow_cases(self, most: int = 20) -> list[SlowCase]:
        """Return the cases whose durations rise, the largest rise first.

        Candidates come from the medians of a few runs.
        """
        newest = self.last_night
        present = {run["lane"] for run in self.runs.values() if (newest - run["night"]).days < STALE}
        rises = self._rows(_RISES, [sorted(present), 5 * most])
        observed = self.observations(dict.fromkeys(case for _, case in rises), NIGHTS, {lane for lane, _ in rises})
        names = self.case_names([case for _, case in rises])
        slow = []
        for lane, case in rises:
            own = observed[case][lane]
            rise = slower(
                [
                    observation.seconds
                    for observation in own
                    if observation.seconds is not None and not observation.outcome.is_red
                ]
            )
            if rise is not None:
                slow.append(SlowCase(names[case], lane, rise))
        return slow[:most]

    def case_names(self, cases: Sequence[int]) -> dict[int, str]:
        """Return the ids of cases by number."""
        return dict(self._rows('SELECT "case", id FROM case_name WHERE list_contains(?, "case")', [list(cases)]))

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
            self._silent[days] = [*self._rows(_SILENT, [days])]
        return self._silent[days]

    def healed_waivers(self) -> list[HistoryFailure]:
        """Return the cases of the latest runs that pass although a waiver expects them to fail."""
        runs = [run for (run,) in self._rows(f"WITH {_LATEST} SELECT run FROM latest", [STALE])]
        failures = self._failures("list_contains(?, t.run) AND o.name = 'unexpected_pass'", [runs])
        return failures[:MOST]

    def flaky_cases(self, nights: int = 30, most: int = 50) -> list[tuple[str, int, int, int]]:
        """Return cases that were flaky or changed between good and bad in the last nights.

        For each: id, bad results, results, and the number of devices with a bad one. Cases that are red in each latest
        run are not flaky.
        """
        return [*self._rows(f"{_FLAKY} LIMIT {most}", [nights])]

    # ---- devices ----

    def device(self, key: str) -> dict[str, Any]:
        """Return a device with its runs by night and its health events. Raise NothingKnownError."""
        rows = self._rows("SELECT device, key, uuid, host, name, kind FROM device_name WHERE key = ?", [key])
        if not rows:
            raise NothingKnownError(f"the history has no device {key!r}: see harness history sql 'FROM devices'")
        number = rows[0][0]
        bad = self._rows(
            "WITH bad AS (SELECT run, count(*) AS bad FROM trouble JOIN outcome_name o USING (outcome) "
            "WHERE device = $1 AND (o.red AND o.ran OR o.name = 'flaky') GROUP BY run) "
            "SELECT r.night, sum(n.ran)::BIGINT, coalesce(sum(bad), 0)::BIGINT FROM (SELECT run, count(*) AS ran "
            "FROM verdict JOIN outcome_name o USING (outcome) WHERE device = $1 AND o.ran GROUP BY run) n "
            "JOIN run r USING (run) LEFT JOIN bad USING (run) GROUP BY r.night ORDER BY r.night",
            [number],
        )
        events = self._rows(
            "SELECT r.night, r.run, h.state, h.xid, h.message FROM health_event h JOIN run r USING (run) "
            "WHERE h.device = ? ORDER BY r.begun DESC LIMIT 100",
            [number],
        )
        names = ("device", "key", "uuid", "host", "name", "kind")
        return {**dict(zip(names, rows[0], strict=True)), "nights": bad, "events": events}


def _failure(row: Sequence[Any]) -> HistoryFailure:
    run, night, lane, case, outcome, device, group, title, message, reproduce = row
    return HistoryFailure(run, night, lane, case, Outcome(outcome), device or "", group, title, message, reproduce)


def _group(row: Sequence[Any]) -> FailureGroup:
    number, key, title, first, last, failures, cases, runs, devices, drivers, lanes, *rest = row
    case, message, reproduce, stack, open_cases, open_lanes = rest
    return FailureGroup(
        number=number,
        key=key,
        title=title,
        first=first,
        last=last,
        failures=failures,
        cases=cases,
        runs=runs,
        devices=tuple(devices or ()),
        drivers=tuple(drivers or ()),
        lanes=tuple(lanes or ()),
        case=case,
        message=message,
        reproduce=reproduce,
        stack=stack,
        open_cases=open_cases,
        open_lanes=open_lanes,
    )


def clock(moment: datetime) -> str:
    """Return a time in UTC as text for people."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"
