"""The policy of a run: the requirements beyond those of its cases, and the rules that apply them. Plain values only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.core.outcome import AttemptResult, Outcome, Ruling
from harness.devices.capabilities import Capabilities
from harness.gating import patterns, requirements, waivers
from harness.gating.implication import implication
from harness.gating.requirements import Condition, Unmet
from harness.gating.waivers import Waiver

#: The fraction of its time limit that a case may use under `--verify`. A case closer to its limit will exceed it soon.
NEAR_LIMIT = 0.8


@dataclass(frozen=True, slots=True)
class Policy:
    """The requirements of profile, hardware, waivers and options for every case of a run.

    `promised` are the conditions, as in ``requires``, that the hardware file `hardware` promises; `floors` are those of
    that file, by figure, and `without_types` the types that its device lacks. `gates` are the capabilities that a case
    may be gated for; None means any. `skips`: whether a case may skip itself. `suites`, `cases` (patterns) and
    `exclude` (patterns) select cases; None means all. `repeat` and `retries` are numbers of runs. `extended`: whether
    cases with the mark ``extended`` are selected too. `operators`: only cases about these operators are selected; None
    means all. `until_fail` stops repeating at the first red run. `verify` is 0 or the number of loops of ``--verify``.
    """

    profile: str = ""
    hardware: str = ""
    promised: Mapping[str, Any] = field(default_factory=dict)
    floors: Mapping[str, str] = field(default_factory=dict)
    without_types: tuple[str, ...] = ()
    gates: tuple[str, ...] | None = None
    skips: bool = True
    suites: tuple[str, ...] | None = None
    cases: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    extended: bool = False
    operators: tuple[str, ...] | None = None
    waivers: tuple[Waiver, ...] = ()
    shuffle: bool = False
    repeat: int = 1
    until_fail: bool = False
    retries: int = 0
    verify: int = 0

    def selects(self, case_id: str, suite: str) -> bool:
        """Return whether the profile selects this case of this suite."""
        wanted = self.suites is None and self.cases is None
        wanted = (
            wanted
            or suite in (self.suites or ())
            or any(patterns.matches_pattern(p, case_id) for p in self.cases or ())
        )
        return wanted and not any(patterns.matches_pattern(pattern, case_id) for pattern in self.exclude)


def selects_marked(policy: Policy, *, extended: bool, operators: Sequence[str], named: bool) -> bool:
    """Return whether the marks of a case allow its selection.

    `extended`: it has the mark. `operators`: the names in its marks ``operator``. `named`: the command line names it.
    """
    if policy.operators is not None:
        return not set(policy.operators).isdisjoint(operators)
    return not extended or policy.extended or named


def idle_rules(
    policy: Policy, cases: Sequence[tuple[str, str]], arguments: Sequence[str], unread: Collection[str] = ()
) -> list[tuple[tuple[str, int], str]]:
    """Return the suites and patterns of the profile that match none of `cases`: key, index and text.

    `cases` are pairs of id and suite. Suites and patterns that a run with the collection `arguments` does not fully
    collect are ignored (see `pattern_reaches`), and so are patterns that may match what is `unread`: the beginnings of
    ids that the run has not collected, since the profile selects none of them.
    """
    suites = {suite for _, suite in cases}
    everything = patterns.pattern_reaches("*", arguments)
    idle = [
        (("suites", index), f"suite {name!r}")
        for index, name in enumerate(policy.suites or ())
        if name not in suites and (everything or patterns.pattern_reaches(f"suites/{name}/*", arguments))
    ]
    for key, listed in (("cases", policy.cases or ()), ("exclude", policy.exclude)):
        for index, pattern in enumerate(listed):
            if (
                patterns.pattern_reaches(pattern, arguments)
                and not patterns.may_begin(patterns.literal_prefix(pattern), unread)
                and not any(patterns.matches_pattern(pattern, case_id) for case_id, _ in cases)
            ):
                idle.append(((key, index), f"pattern {pattern!r}"))
    return idle


def rule_on_gate(policy: Policy, conditions: Iterable[Condition], capabilities: Capabilities) -> Ruling | None:
    """Return the ruling on a case with unmet `conditions`. None if the case may be gated.

    A case may be gated if the hardware does not promise at least one unmet condition, and either the profile allows
    gating for it, or the condition requires less than the machine has.
    """
    promised = requirements.parse_requirements(policy.promised)
    objection: Ruling | None = None
    for condition in conditions:
        unmet = requirements.first_unmet([condition], capabilities)
        if unmet is None:
            continue
        excused = requirements.asks_for_less(condition, capabilities)
        ruling = _objection(policy, condition, unmet, promised, excused=excused)
        if ruling is None:
            return None
        objection = objection or ruling
    return objection


def _objection(
    policy: Policy, condition: Condition, unmet: Unmet, promised: Sequence[Condition], *, excused: bool
) -> Ruling | None:
    if policy.hardware and implication([condition], promised).certain:
        text = f"gated, but hardware {policy.hardware} promises what the case requires: {unmet.text}"
        return Ruling(Outcome.FAILED, text, f"hardware {policy.hardware}")
    if policy.gates is not None and not excused and not set(unmet.names) <= set(policy.gates):
        required = ", ".join(name for name in unmet.names if name not in policy.gates)
        text = f"gated, but profile {policy.profile} does not allow gating for {required}: {unmet.text}"
        return Ruling(Outcome.FAILED, text, f"profile {policy.profile}")
    return None


def rule_on_verdict(
    policy: Policy, settled: Outcome, finals: Sequence[AttemptResult], applying: Sequence[Waiver]
) -> Ruling | None:
    """Return the ruling on a case with the outcome `settled`. None if the outcome stays.

    `finals` are the attempts that count, one per repetition. `applying` are the waivers that apply to the case.
    """
    worst = max(finals, key=lambda attempt: attempt.outcome.severity)
    message = worst.message
    repeated = None
    if policy.repeat > 1 and settled is worst.outcome and settled is not Outcome.PASSED:
        times = sum(attempt.outcome is settled for attempt in finals)
        message = f"{settled} in {times} of {len(finals)} repetitions: {message}"
        repeated = Ruling(settled, message, f"repeat {policy.repeat}")
    if settled is Outcome.SKIPPED and not policy.skips:
        text = f"skipped itself, but profile {policy.profile} forbids skips: {message}"
        return Ruling(Outcome.FAILED, text, f"profile {policy.profile}")
    return waivers.rule_by_waivers(settled, message, applying) or repeated


def rule_on_verification(together: Sequence[AttemptResult], in_fresh: Sequence[AttemptResult], limit: float) -> Ruling:
    """Return the ruling of ``--verify`` on a case that ran several times in one process and in fresh processes.

    All attempts must have passed, or must have the same outcome that is not red. No attempt may be near the time limit
    of the case, `limit` seconds.
    """
    source = "--verify"
    attempts = (*together, *in_fresh)
    first = attempts[0]
    if (
        not first.outcome.is_red
        and first.outcome is not Outcome.PASSED
        and len({attempt.outcome for attempt in attempts}) == 1
    ):
        return Ruling(first.outcome, first.message, source)
    if bad := [attempt for attempt in attempts if attempt.outcome is not Outcome.PASSED]:
        worst = max(bad, key=lambda attempt: attempt.outcome.severity)
        text = f"not verified: passed {_share(together)} in one process and {_share(in_fresh)} in fresh processes"
        return Ruling(Outcome.FAILED, f"{text}; {worst.outcome}: {worst.message}".removesuffix(": "), source)
    slowest = max(attempt.duration for attempt in attempts)
    if slowest > limit * NEAR_LIMIT:
        text = f"not verified: the slowest run took {slowest:.1f} s, over {NEAR_LIMIT:.0%} of the limit of {limit:g} s"
        return Ruling(Outcome.FAILED, text, source)
    return Ruling(Outcome.PASSED, f"verified: passed {len(attempts)} times, the slowest in {slowest:.2f} s", source)


def _share(attempts: Sequence[AttemptResult]) -> str:
    return f"{sum(attempt.outcome is Outcome.PASSED for attempt in attempts)} of {len(attempts)} times"
