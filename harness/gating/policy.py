"""What a run is held to beyond what its cases ask for, and the rules that follow from it. Plain values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.devices.capabilities import Capabilities
from harness.gating import patterns, requirements, waivers
from harness.gating.implication import implication
from harness.gating.requirements import Condition, Unmet
from harness.gating.waivers import Waiver
from harness.outcome import AttemptResult, Outcome, Ruling

#: Of its time limit, how much a case may need that `--verify` lets pass: one that is close today is over it tomorrow.
NEAR_LIMIT = 0.8


@dataclass(frozen=True, slots=True)
class Policy:
    """What profile, hardware, waivers and options say of every case of a run.

    `promised` are the conditions, as in ``requires``, that the kind of machine named by `hardware` promises. `gates`
    are the capabilities for want of which a case may be gated, None for any; `skips`: a case may skip itself.
    `suites`, `cases` (patterns) and `exclude` (patterns) select, None meaning all. `repeat` and `retries` are numbers
    of runs, `until_fail` ends repeating at the first red one, `verify` is 0 or the number of loops of ``--verify``.
    """

    profile: str = ""
    hardware: str = ""
    promised: Mapping[str, Any] = field(default_factory=dict)
    gates: tuple[str, ...] | None = None
    skips: bool = True
    suites: tuple[str, ...] | None = None
    cases: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    shuffle: bool = False
    repeat: int = 1
    until_fail: bool = False
    retries: int = 0
    verify: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "waivers": [waiver.to_json() for waiver in self.waivers]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Policy:
        """What `to_json` returned, after JSON carried it."""
        listed = {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
        return cls(**{**data, **listed, "waivers": tuple(Waiver.from_json(entry) for entry in data["waivers"])})

    def selects(self, case_id: str, suite: str) -> bool:
        """Whether the profile wants this case of this suite."""
        wanted = self.suites is None and self.cases is None
        wanted = wanted or suite in (self.suites or ()) or any(patterns.matches(p, case_id) for p in self.cases or ())
        return wanted and not any(patterns.matches(pattern, case_id) for pattern in self.exclude)


def idle(
    policy: Policy, cases: Sequence[tuple[str, str]], arguments: Sequence[str]
) -> list[tuple[tuple[str, int], str]]:
    """Which suites and patterns of the profile name none of `cases`, given as id and suite: key, index, and words.

    Judged are those that the run, told to collect `arguments`, would have collected (`patterns.reaches`).
    """
    suites = {suite for _, suite in cases}
    everything = patterns.reaches("*", arguments)
    found = [
        (("suites", index), f"suite {name!r}")
        for index, name in enumerate(policy.suites or ())
        if name not in suites and (everything or patterns.reaches(f"suites/{name}/*", arguments))
    ]
    for key, listed in (("cases", policy.cases or ()), ("exclude", policy.exclude)):
        for index, pattern in enumerate(listed):
            if patterns.reaches(pattern, arguments) and not any(patterns.matches(pattern, each) for each, _ in cases):
                found.append(((key, index), f"pattern {pattern!r}"))
    return found


def on_gate(policy: Policy, conditions: Iterable[Condition], capabilities: Capabilities) -> Ruling | None:
    """What becomes of a case some of whose `conditions` are unmet; None when it may be gated.

    It may when one of them is neither promised by the hardware nor beyond what the profile allows to be missing.
    """
    promised = requirements.parse(policy.promised)
    objection: Ruling | None = None
    for condition in conditions:
        unmet = requirements.evaluate([condition], capabilities)
        if unmet is None:
            continue
        ruling = _objection(policy, condition, unmet, promised)
        if ruling is None:
            return None
        objection = objection or ruling
    return objection


def _objection(policy: Policy, condition: Condition, unmet: Unmet, promised: Sequence[Condition]) -> Ruling | None:
    if policy.hardware and implication([condition], promised).certain:
        text = f"gated, though hardware {policy.hardware} promises what it requires: {unmet.text}"
        return Ruling(Outcome.FAILED, text, f"hardware {policy.hardware}")
    if policy.gates is not None and not set(unmet.names) <= set(policy.gates):
        kept = ", ".join(name for name in unmet.names if name not in policy.gates)
        text = f"gated, though profile {policy.profile} lets no case be gated for want of {kept}: {unmet.text}"
        return Ruling(Outcome.FAILED, text, f"profile {policy.profile}")
    return None


def on_verdict(
    policy: Policy, settled: Outcome, finals: Sequence[AttemptResult], applying: Sequence[Waiver]
) -> Ruling | None:
    """What becomes of a case that came to `settled` by itself; None when it stays at that.

    `finals` are the attempts that count, one a repetition, and `applying` the waivers that hold for the case.
    """
    worst = max(finals, key=lambda attempt: attempt.outcome.severity)
    message = worst.message
    repeated = None
    if policy.repeat > 1 and settled is worst.outcome and settled is not Outcome.PASSED:
        times = sum(attempt.outcome is settled for attempt in finals)
        message = f"{settled} in {times} of {len(finals)} repetitions: {message}"
        repeated = Ruling(settled, message, f"repeat {policy.repeat}")
    if settled is Outcome.SKIPPED and not policy.skips:
        text = f"skipped itself, which profile {policy.profile} forbids: {message}"
        return Ruling(Outcome.FAILED, text, f"profile {policy.profile}")
    return waivers.rule(settled, message, applying) or repeated


def on_verification(together: Sequence[AttemptResult], afresh: Sequence[AttemptResult], limit: float) -> Ruling:
    """What ``--verify`` says of a case that was run several times in one process, and several times in fresh ones.

    Every attempt must have come to the same, and without haste: `limit` is the case's time limit in seconds.
    """
    source = "--verify"
    attempts = (*together, *afresh)
    first = attempts[0]
    if (
        not first.outcome.is_red
        and first.outcome is not Outcome.PASSED
        and len({each.outcome for each in attempts}) == 1
    ):
        return Ruling(first.outcome, first.message, source)
    if bad := [attempt for attempt in attempts if attempt.outcome is not Outcome.PASSED]:
        worst = max(bad, key=lambda attempt: attempt.outcome.severity)
        text = f"not verified: passed {_share(together)} in one process and {_share(afresh)} in fresh ones"
        return Ruling(Outcome.FAILED, f"{text}; {worst.outcome}: {worst.message}".removesuffix(": "), source)
    slowest = max(attempt.duration for attempt in attempts)
    if slowest > limit * NEAR_LIMIT:
        text = f"not verified: took up to {slowest:.1f} s of its limit of {limit:g} s, more than {NEAR_LIMIT:.0%}"
        return Ruling(Outcome.FAILED, text, source)
    return Ruling(Outcome.PASSED, f"verified: passed {len(attempts)} times, in {slowest:.2f} s at most", source)


def _share(attempts: Sequence[AttemptResult]) -> str:
    return f"{sum(attempt.outcome is Outcome.PASSED for attempt in attempts)} of {len(attempts)} times"
