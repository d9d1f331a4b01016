"""Compare a baseline of one or more runs with a new run. Pure functions over plain values.

`run_record` makes the plain values of a run that `harness.fleet.run` has read.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from harness.core.figures import PREFIX, read_figure
from harness.core.outcome import EXIT_NOTHING_RAN, EXIT_OK, Outcome
from harness.core.text import escape_invalid_xml, format_count, list_first, single_line, truncate_middle
from harness.fleet.run import RunSummary, environment_facts
from harness.fleet.texts import escape_markdown, render_text
from harness.journal import identity
from harness.journal.events import Finding, Finish, RunStarted
from harness.journal.identity import is_same_finding
from harness.journal.verdicts import Verdict

#: A case is slower only if chance gives such durations less often than this.
SIGNIFICANCE = 0.001
#: A case is slower only if, in addition, its median duration has grown by this factor, and by this many seconds.
FACTOR = 1.3
LEAST_SECONDS = 0.02
#: Options that the environment file also has, and the seed, which differs between any two runs.
_HASHES = (identity.SUITE_FILES, identity.WAIVERS, identity.MUST_PASS)
_ELSEWHERE = ("--seed", "--isolation", "--under", "--profile")
#: Maximum characters of a hash, and of another value of an option.
_HASH, _SHOWN = 19, 200
#: The version of the JSON document.
SCHEMA = 1
#: The lists of a comparison, the most urgent first: heading, and word of a line.
_LISTS = {
    "regressions": ("regressions", "REGRESSION"),
    "lost": ("without a verdict", "NO VERDICT"),
    "flakes": ("new flakes", "FLAKE"),
    "gated": ("newly gated", "GATED"),
    "missing": ("missing", "MISSING"),
    "slower": ("slower", "SLOWER"),
    "still_red": ("still red", "STILL RED"),
    "fixes": ("fixes", "FIXED"),
    "added": ("new cases", "NEW"),
}
_FINDINGS = {
    "new_findings": ("new findings", "NEW FINDING"),
    "still_findings": ("findings as before", "STILL FINDING"),
    "gone_findings": ("findings gone", "FINDING GONE"),
}
#: Maximum entries of one list in Markdown: forges cut long texts off.
_MOST_ROWS = 100


@dataclass(frozen=True, slots=True)
class CaseRecord:
    """One case in one run. `durations`: seconds of each attempt that counts and ran.

    `figures`: the speeds that the case recorded, as texts, by name, one per attempt.
    """

    outcome: Outcome
    message: str = ""
    durations: tuple[float, ...] = ()
    reproduce: str | None = None
    figures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. `facts`: its machine, software and options, by name, as texts. `notes`: doubts about it.

    `exit_status`: the run's exit status. `fail_on_flaky`: a flaky case makes the run red.
    """

    name: str
    cases: Mapping[str, CaseRecord]
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    exit_status: int = EXIT_OK
    fail_on_flaky: bool = False

    @property
    def is_red(self) -> bool:
        """Whether the run is red, for any reason."""
        return self.exit_status not in (EXIT_OK, EXIT_NOTHING_RAN)

    @property
    def is_explained(self) -> bool:
        """Whether a case or a finding makes the run red."""
        red = (
            record.outcome.is_red or (self.fail_on_flaky and record.outcome is Outcome.FLAKY)
            for record in self.cases.values()
        )
        return bool(self.findings) or any(red)


def run_record(summary: RunSummary) -> RunRecord:
    """Return the values of a run. Raise EnvironmentFileError for a broken environment file."""
    if summary.doubt is not None:
        raise summary.doubt
    run, ledger = summary.run, summary.ledger
    return RunRecord(
        name=summary.name,
        cases={verdict.case: _case(verdict) for verdict in ledger.verdicts},
        facts=environment_facts(summary.facts or {}) | _conditions(run),
        notes=tuple(summary.doubts),
        findings=ledger.findings,
        exit_status=ledger.run_exit_status(),
        fail_on_flaky=ledger.fail_on_flaky,
    )


def _conditions(run: RunStarted) -> dict[str, str]:
    """Return other facts that can explain a difference, by name: profile, hashes of suites and waivers, options."""
    facts = {"profile": run.profile or "none"}
    for name, value in identity.identity_facts(run).items():
        if name in _HASHES or (name.startswith("--") and name not in _ELSEWHERE):
            shown = value[:_HASH] if value.startswith("sha256:") else truncate_middle(value, _SHOWN)
            facts[name] = escape_invalid_xml(shown) or "not set"
    return facts


def _case(verdict: Verdict) -> CaseRecord:
    counting = [finish for finish in verdict.finishes if finish.final and finish.outcome.ran]
    return CaseRecord(
        outcome=verdict.outcome,
        message=single_line(verdict.message),
        durations=tuple(finish.duration for finish in counting),
        reproduce=verdict.reproduce,
        figures=_figures(counting),
    )


def _figures(counting: Sequence[Finish]) -> dict[str, tuple[str, ...]]:
    """Return the recorded properties that are figures of speed."""
    figures: dict[str, tuple[str, ...]] = {}
    for finish in counting:
        for name, text in finish.properties:
            if name.startswith(PREFIX) and read_figure(text) is not None:
                name = escape_invalid_xml(name.removeprefix(PREFIX))
                figures[name] = (*figures.get(name, ()), text)
    return figures


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact of machine or software that differs. `old`: the values in the baseline, without duplicates."""

    name: str
    old: tuple[str, ...]
    new: str | None

    @property
    def row(self) -> tuple[str, ...]:
        return self.name, ", ".join(self.old) or "not known", "not known" if self.new is None else self.new


@dataclass(frozen=True, slots=True)
class Change:
    """A case whose result changed. `old`: the outcomes in the runs of the baseline that had the case, in order.

    `text`: the change, on one line.
    """

    case: str
    old: tuple[Outcome, ...]
    new: Outcome | None
    text: str
    reproduce: str | None = None

    @property
    def row(self) -> tuple[str, ...]:
        return self.case, self.text


@dataclass(frozen=True, slots=True)
class FindingChange:
    """A finding, and a text with the number of baseline runs that have it. `cases`: the cases that it concerns."""

    kind: str
    message: str
    cases: tuple[str, ...]
    text: str
    reproduce: str | None = None

    @property
    def row(self) -> tuple[str, ...]:
        cases = f" [{format_count(len(self.cases), 'case')}: {list_first(self.cases)}]" if self.cases else ""
        return self.kind, f"{single_line(self.message)}{cases}", self.text


@dataclass(frozen=True, slots=True)
class FigureChange:
    """A figure of speed that a case recorded in both runs. `old` and `new`: the medians, as texts.

    `text`: their ratio.
    """

    name: str
    case: str
    old: str
    new: str
    text: str

    @property
    def row(self) -> tuple[str, ...]:
        return self.name, self.old, self.new, self.text


_Listed = Fact | Change | FindingChange | FigureChange


@dataclass(frozen=True, slots=True)
class Comparison:
    """A new run against a baseline. Each case is in at most one of the lists, except that it may also be `slower`.

    - `regressions`: red now, and not in every run of the baseline that ran it. `still_red`: in every one.
    - `fixes`: passed or waived now, and red in the last run of the baseline that ran it.
    - `lost`: not run now, or lost by the harness, so that nothing is known about the case.
    - `flakes`: flaky now, and never before.
    - `gated`: gated or skipped now, and ran in some run of the baseline. `missing`: in the last run of the baseline
      and not in the new one. `added`: in no run of the baseline.
    - `slower`: see `is_slower`.
    - `figures`: the speeds that cases of both runs recorded; they are information and make nothing worse.
    - `new_findings`: findings that not every run of the baseline has. `still_findings`: those that every one has.
      `gone_findings`: those of the last run of the baseline that the new run does not have.
    - `unexplained`: how the new run ended, if it is red without a red case or a finding, and some run of the baseline
      was not red. Otherwise empty.
    - `fail_on_flaky`: the new run counts a flaky case as red.
    """

    baseline: tuple[str, ...]
    new: str
    facts: tuple[Fact, ...]
    notes: tuple[str, ...]
    regressions: tuple[Change, ...]
    fixes: tuple[Change, ...]
    still_red: tuple[Change, ...]
    flakes: tuple[Change, ...]
    gated: tuple[Change, ...]
    lost: tuple[Change, ...]
    missing: tuple[Change, ...]
    added: tuple[Change, ...]
    slower: tuple[Change, ...]
    same: int
    new_findings: tuple[FindingChange, ...] = ()
    still_findings: tuple[FindingChange, ...] = ()
    gone_findings: tuple[FindingChange, ...] = ()
    unexplained: str = ""
    figures: tuple[FigureChange, ...] = ()
    fail_on_flaky: bool = False

    def is_worse(self, *, strict: bool) -> bool:
        """Return whether the new run is worse than the baseline.

        `strict`: new flakes, newly gated, missing and slower cases count too.
        """
        reasons: list[object] = [self.regressions, self.lost, self.new_findings, self.unexplained]
        reasons += [self.flakes] if strict or self.fail_on_flaky else []
        reasons += [self.gated, self.missing, self.slower] if strict else []
        return any(reasons)

    @property
    def headline(self) -> str:
        """What is compared with what."""
        last = self.baseline[-1]
        number = len(self.baseline)
        return f"{self.new} compared with {last if number == 1 else f'{number} runs, the last {last}'}"

    @property
    def findings(self) -> list[tuple[str, str, tuple[FindingChange, ...]]]:
        """The lists of findings with heading and word of a line, the most urgent first."""
        return [(heading, word, getattr(self, name)) for name, (heading, word) in _FINDINGS.items()]

    @property
    def lists(self) -> list[tuple[str, str, tuple[Change, ...]]]:
        """The lists of cases with heading and word of a line, the most urgent first."""
        return [(heading, word, getattr(self, name)) for name, (heading, word) in _LISTS.items()]


def compare_runs(baseline: Sequence[RunRecord], new: RunRecord) -> Comparison:
    """Compare `new` with the runs of `baseline`, the oldest first. Raise ValueError without a baseline."""
    if not baseline:
        raise ValueError("a comparison needs a baseline")
    lists: dict[str, list[Change]] = {name: [] for name in _LISTS}
    unchanged = 0
    for case, now in new.cases.items():
        before = [run.cases[case] for run in baseline if case in run.cases]
        old = tuple(earlier.outcome for earlier in before)
        kind = _kind(old, now.outcome)
        if kind is None:
            unchanged += 1
        else:
            lists[kind].append(Change(case, old, now.outcome, _text(kind, old, now), now.reproduce))
        durations = [seconds for earlier in before for seconds in earlier.durations]
        if now.outcome is Outcome.PASSED and is_slower(durations, now.durations):
            lists["slower"].append(Change(case, old, now.outcome, _slower(durations, now.durations)))
    lists["missing"] = [
        Change(case, (was.outcome,), None, f"was {was.outcome}, and is not in the new run")
        for case, was in baseline[-1].cases.items()
        if case not in new.cases
    ]
    counted, whole = [(finding, _times(finding, baseline)) for finding in new.findings], len(baseline)
    return Comparison(
        baseline=tuple(run.name for run in baseline),
        new=new.name,
        facts=_changed_facts(baseline, new),
        notes=tuple(f"{run.name}: {note}" for run in (*baseline, new) for note in run.notes),
        same=unchanged,
        new_findings=tuple(
            _finding(finding, _in_baseline(times, whole)) for finding, times in counted if times < whole
        ),
        still_findings=tuple(
            _finding(finding, _in_baseline(times, whole)) for finding, times in counted if times == whole
        ),
        gone_findings=tuple(
            _finding(finding, "not in the new run") for finding in baseline[-1].findings if not _times(finding, [new])
        ),
        unexplained=_unexplained(baseline, new),
        figures=_changed_figures(baseline, new),
        fail_on_flaky=new.fail_on_flaky,
        **{name: tuple(changes) for name, changes in lists.items()},
    )


def _times(finding: Finding, runs: Sequence[RunRecord]) -> int:
    """Return how many of the runs have the finding."""
    named = (finding.kind, finding.message, finding.cases)
    return sum(any(is_same_finding(*named, (o.kind, o.message, o.cases)) for o in run.findings) for run in runs)


def _in_baseline(times: int, runs: int) -> str:
    if runs == 1:
        return "in the baseline, too" if times else "not in the baseline"
    return f"in {times} of {format_count(runs, 'run')} of the baseline"


def _finding(finding: Finding, text: str) -> FindingChange:
    return FindingChange(finding.kind, finding.message, finding.cases, text, finding.reproduce)


def _unexplained(baseline: Sequence[RunRecord], new: RunRecord) -> str:
    if not new.is_red or new.is_explained or all(run.is_red for run in baseline):
        return ""
    old = ", ".join(str(status) for status in dict.fromkeys(run.exit_status for run in baseline))
    return (
        f"the new run ended with exit status {new.exit_status}, the baseline with {old}; no case or finding explains "
        "it: read the output of pytest"
    )


def _changed_figures(baseline: Sequence[RunRecord], new: RunRecord) -> tuple[FigureChange, ...]:
    """Return each figure of the new run that some run of the baseline has too, with the medians over all attempts."""
    changes = []
    for case, now in new.cases.items():
        for name, texts in now.figures.items():
            before = [
                figure for run in baseline if case in run.cases for figure in run.cases[case].figures.get(name, ())
            ]
            if before:
                (old, was), (text, value) = _median_figure(before), _median_figure(texts)
                ratio = f"{value / was:.2f} times" if was else "from nothing"
                changes.append(FigureChange(name, case, old, text, ratio))
    return tuple(changes)


def _median_figure(texts: Sequence[str]) -> tuple[str, float]:
    """Return the text whose value is the median, the lower one of two, and the value."""
    ordered = sorted((read_figure(text) or 0.0, text) for text in texts)
    value, text = ordered[(len(ordered) - 1) // 2]
    return text, value


def is_slower(old: Sequence[float], new: Sequence[float]) -> bool:
    """Return whether a case takes longer now, from the durations of its repetitions in seconds.

    Every new duration must be above every old one, and there must be enough durations that this occurs by chance in
    less than one of 1,000 cases (an exact permutation test: one of ``comb(len(old) + len(new), len(new))``
    arrangements). Six and seven repetitions are enough, or thirty and three. The medians must also differ by `FACTOR`
    and `LEAST_SECONDS`, since a small difference is irrelevant.
    """
    if not old or not new or min(new) <= max(old):
        return False
    if 1 / math.comb(len(old) + len(new), len(new)) >= SIGNIFICANCE:
        return False
    before, now = statistics.median(old), statistics.median(new)
    return now >= FACTOR * before and now - before >= LEAST_SECONDS


def _kind(old: Sequence[Outcome], now: Outcome) -> str | None:
    """Return the list for a case. None if nothing has changed."""
    if not old:
        return "added"
    ran = [outcome for outcome in old if outcome.ran]
    if now in (Outcome.NOT_RUN, Outcome.LOST):
        return "lost"
    if now.is_red:
        return "still_red" if ran and all(outcome.is_red for outcome in ran) else "regressions"
    if now is Outcome.FLAKY:
        return None if Outcome.FLAKY in old else "flakes"
    if now in (Outcome.GATED, Outcome.SKIPPED):
        return "gated" if ran else None
    return "fixes" if ran and ran[-1].is_red else None


def _text(kind: str, old: Sequence[Outcome], now: CaseRecord) -> str:
    """Return the change of a case in a list, on one line."""
    said = f"{now.outcome}: {now.message}" if now.message else str(now.outcome)
    ran = [outcome for outcome in old if outcome.ran]
    if kind == "added":
        return said
    if kind == "still_red":
        earlier = str(ran[0]) if len({*ran}) == 1 else "red"
        return said if earlier == now.outcome else f"was {earlier}, now {said}"
    if kind == "regressions" and not ran:
        return f"{said}; it did not run before ({old[-1]})"
    if kind == "regressions" and len(old) > 1:
        return f"red in {sum(outcome.is_red for outcome in ran)} of {format_count(len(ran), 'run')}, now {said}"
    return f"was {old[-1]}, now {said}"


def _slower(old: Sequence[float], new: Sequence[float]) -> str:
    before, now = statistics.median(old), statistics.median(new)
    return (
        f"{now / before:.1f} times as long: a median of {now:.3g} s over {format_count(len(new), 'repetition')}, "
        f"{before:.3g} s over {len(old)} before"
    )


def _changed_facts(baseline: Sequence[RunRecord], new: RunRecord) -> tuple[Fact, ...]:
    """Return the facts that changed since the last run of the baseline, or that differ within it."""
    if not new.facts or not any(run.facts for run in baseline):
        return ()
    changed = []
    for name in dict.fromkeys(name for run in (new, *baseline) for name in run.facts):
        old = tuple(dict.fromkeys(run.facts[name] for run in baseline if name in run.facts))
        if old != (new.facts.get(name),):
            changed.append(Fact(name, old, new.facts.get(name)))
    return tuple(changed)


# ---- formats ----


def comparison_text(comparison: Comparison) -> str:
    """Return one line per case, the most urgent first, and the counts at the end."""
    return render_text("comparison.txt", comparison=comparison)


def comparison_json(comparison: Comparison) -> str:
    """Return all lists as JSON, one list per key."""
    return json.dumps({"schema": SCHEMA, **asdict(comparison)}, indent=2, ensure_ascii=True) + "\n"


def comparison_markdown(comparison: Comparison) -> str:
    """Return tables for a job summary of a forge. All texts of the runs are escaped."""
    new = len(comparison.new_findings)
    title = format_count(len(comparison.regressions), "regression")
    title += f", {format_count(new, 'new finding')}" if new else ""
    parts = [f"## {title}", escape_markdown(comparison.headline)]
    if comparison.facts:
        parts.append(_table("Machine and software", ("", "baseline", "new"), comparison.facts))
    notes = (*comparison.notes, *([comparison.unexplained] if comparison.unexplained else []))
    parts += [f"- {escape_markdown(note)}" for note in notes]
    for heading, _, findings in comparison.findings:
        parts += _section(heading, ("finding", "what", "where"), findings, "more finding")
    parts += _section("figures of speed", ("", "baseline", "new", ""), comparison.figures, "more figure")
    for heading, _, changes in comparison.lists:
        parts += _section(heading, ("case", "what"), changes, "more case")
    return "\n\n".join(parts) + "\n"


def _section(heading: str, head: Sequence[str], listed: Sequence[_Listed], more: str) -> list[str]:
    """Return a table whose title has the number of entries, of which the first are listed; nothing without entries."""
    left = len(listed) - _MOST_ROWS
    last = f"… and {format_count(left, more)}" if left > 0 else ""
    title = f"{heading[0].upper()}{heading[1:]} ({len(listed)})"
    return [_table(title, head, listed[:_MOST_ROWS], last)] if listed else []


def _table(title: str, head: Sequence[str], listed: Sequence[_Listed], last: str = "") -> str:
    rows = [head, ["---"] * len(head), *([*map(escape_markdown, each.row)] for each in listed)]
    rows += [[last, *[""] * (len(head) - 1)]] if last else []
    lines = ("|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in rows)
    return "\n".join([f"### {title}", "", *lines])
