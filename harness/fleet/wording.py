"""Texts for classes, causes and next steps. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from harness.core.text import format_count
from harness.fleet.classing import CONDITIONS, TIMES, Cause, CauseClass, Classing, Factor, Sure, Tally

#: The classes in the order of reports.
TITLES = {kind: kind.value.replace("_", " ") for kind in CauseClass} | {
    CauseClass.ONE_DEVICE: "one kind of device",
    CauseClass.ONE_UUID: "one device",
    CauseClass.SINCE: "since a run",
    CauseClass.UNTIL: "until a run",
}
#: The text for a class without causes.
_HEADINGS = {
    CauseClass.EVERYWHERE: "wherever it ran",
    CauseClass.FLAKE: "now and then",
    CauseClass.MIXED: "on some machines",
}
_NOUNS = {factor: factor.value for factor in Factor} | {
    Factor.UUID: "device",
    Factor.DEVICE: "kind of device",
    Factor.SETTING: "environment",
}


def cause_text(cause: Cause) -> str:
    """Return for example ``driver 580.95``, ``since results/3 (2026-11-26 10:00 UTC)``, ``without --inject``."""
    return cause.value if cause.value.startswith("without ") else f"{_NOUNS[cause.factor]} {cause.value}"


def explanation_text(causes: Sequence[Cause], *, together: bool = True) -> str:
    """Return for example ``driver 580.95 together with torch 2.13.0``."""
    if together:
        return " together with ".join(map(cause_text, causes))
    return " or ".join(map(cause_text, causes))


def title_text(kind: CauseClass, causes: Sequence[Cause], *, together: bool) -> str:
    """Return the subject of a group of failures: ``driver 580.95``, ``wherever it ran``."""
    return explanation_text(causes, together=together) if causes else _HEADINGS[kind]


def classing_text(classing: Classing) -> str:
    """Return the class of one case in a sentence."""
    total, inside, causes = classing.total, classing.inside, classing.causes
    others = total.all - inside.all
    if classing.kind is CauseClass.EVERYWHERE:
        return f"Red in {_all(total.all)} of it, on {format_count(classing.machines, 'machine')}."
    if classing.kind is CauseClass.FLAKE:
        where = "on a machine" if classing.machines == 1 else f"on {format_count(classing.machines, 'machine')}"
        return f"{_bad(total)} of {format_count(total.all, 'run')}, {where} that also passed it."
    if classing.kind is CauseClass.MIXED and not classing.together:
        if not causes:
            runs = format_count(total.all, "run")
            return f"Red in {total.red} of {runs}: neither one cause nor two together explain it."
        return f"Red in all runs with {explanation_text(causes, together=False)}, and in none of the others."
    condition = explanation_text(causes)
    condition = condition if causes[0].factor in TIMES or condition.startswith("without ") else f"with {condition}"
    sometimes = f"{_bad(inside)} of {format_count(inside.all, 'run')} {condition}"
    how = f"Red in {_all(inside.all)} {condition}" if classing.always else sometimes
    rest = f", and in none of the {format_count(others, 'other run')}" if others > 1 else ", and not in the other run"
    return f"{how}{rest}."


def _all(runs: int) -> str:
    return "the only run" if runs == 1 else f"all {runs} runs"


def _bad(tally: Tally) -> str:
    parts = [f"red in {tally.red}"] if tally.red else []
    parts += [f"flaky in {tally.flaky}"] if tally.flaky else []
    return " and ".join(parts).capitalize()


def apart_text(also: Sequence[Sequence[Cause]], *, maybe_flake: bool) -> str:
    """Return the explanations that fit equally well: ``host n3; driver 580.95; a flake``. Empty without any."""
    return "; ".join([explanation_text(explanation) for explanation in also] + (["a flake"] if maybe_flake else []))


def advice_text(classing: Classing) -> str:
    """Return the next step: the run that distinguishes explanations, or the step that follows from the class."""
    kind, causes, also, sure = classing.kind, classing.causes, classing.also, classing.sure
    if kind is CauseClass.EVERYWHERE:
        untried = _nouns([explanation[0] for explanation in also if explanation[0].factor is not Factor.UUID])
        return f"Run it elsewhere, too: no other {untried} has run it." if untried else _STEPS[kind]
    if classing.maybe_flake:
        where = f" on {cause_text(causes[0])}" if causes else ""
        return f"Run it again{where}: it was bad only once."
    singles = [explanation[0] for explanation in (causes, *also) if len(explanation) == 1]
    changed = [single for single in singles if single.factor in CONDITIONS]
    if changed and (len(singles) > 1 or sure is not Sure.STRONG):
        return f"Run it again now, {_otherwise(changed[0])}: this shows whether it is the cause."
    if singles and singles[0].factor in TIMES and sure is not Sure.STRONG:
        return "Repeat it now: pytest CASE --repeat=100. There are too few results to rule out chance."
    singles = [single for single in singles if single.factor not in TIMES]
    if len(singles) > 1:
        steps = [_separate(narrow, wide) for narrow, wide in pairwise(singles) if narrow.factor is not wide.factor]
        if steps:
            return f"To distinguish them, run it {'; or '.join(steps)}."
    if sure is Sure.WEAK and kind is not CauseClass.FLAKE and not (kind is CauseClass.MIXED and not causes):
        return "Run it on more machines: there are too few results to rule out chance."
    if kind is CauseClass.MIXED and causes:
        return "Compare with a run that has only one of these causes: harness diff."
    return _STEPS[kind]


_STEPS = {
    CauseClass.EVERYWHERE: "Look at the case and at torch first: no machine passes it.",
    CauseClass.ONE_TORCH: "Compare with a run of another torch: harness diff.",
    CauseClass.ONE_DRIVER: "Compare with a run of another driver: harness diff.",
    CauseClass.ONE_DEVICE: "Look at the case's precision, memory and launch sizes on this kind of device.",
    CauseClass.ONE_HOST: "Compare the host with one that passes: harness diff.",
    CauseClass.ONE_UUID: "Examine the device on its host: harness devices --health.",
    CauseClass.ONE_OPTION: "Compare a run with it and one without it: harness diff.",
    CauseClass.ONE_COMMIT: "Compare with a run of the commit before: harness diff.",
    CauseClass.ONE_SETTING: "Compare a run with it and one without it: harness diff.",
    CauseClass.SINCE: "Find out what changed then: harness diff of the run before and this one.",
    CauseClass.UNTIL: "Nothing, if it was fixed then: later runs pass it.",
    CauseClass.FLAKE: "Repeat it on one machine: pytest CASE --repeat=100.",
    CauseClass.MIXED: "Look at the machines where it is red, and run it again there.",
}


def _otherwise(cause: Cause) -> str:
    """Return how to make a run without the cause."""
    if cause.factor is Factor.COMMIT:
        return "at another commit"
    if cause.value.startswith("without "):
        return f"with {cause.value.removeprefix('without ')}"
    return f"without {cause.value}" if cause.factor is Factor.OPTION else f"with another {cause_text(cause)}"


def _separate(narrow: Cause, wide: Cause) -> str:
    if narrow.factor is Factor.UUID and wide.factor is Factor.UUID:
        return "on another instance of the same GPU"
    word = "of" if wide.factor is Factor.HOST else "with"
    prefix = "with" if narrow.factor in (Factor.DRIVER, Factor.TORCH) else "on"
    return f"{prefix} another {_NOUNS[narrow.factor]} {word} {cause_text(wide)}"


def _nouns(causes: Sequence[Cause]) -> str:
    *firsts, last = dict.fromkeys(_NOUNS[cause.factor] for cause in causes) or ("",)
    return f"{', '.join(firsts)} or {last}" if firsts else last
