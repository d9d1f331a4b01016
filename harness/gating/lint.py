"""What is wrong with waivers before anything has run. Pure.

Alone, a waiver can be expired, have no link, hold nowhere, or stand there twice. Against a catalogue of cases it can
match none, or share a case with another. Against declared hardware it can be for a machine that nobody has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

from harness.backends.table import BACKENDS
from harness.gating import patterns, requirements
from harness.gating.implication import implication
from harness.gating.requirements import Condition, Requirement, RequirementError
from harness.gating.waivers import Waiver, is_link

#: How long before its last day a waiver is spoken of.
WARNING = timedelta(days=14)

#: What only a GPU has, or can be; `accelerator`, a software device as well.
OF_GPUS = (
    "accelerator",
    "compute_capability",
    "peer_access",
    "nvlink",
    "mig",
    "ecc",
    "bf16",
    "tf32",
    "fp8",
    "cuda_graphs",
    "cuda_malloc_async",
    "expandable_segments",
)

Marks = Sequence[Mapping[str, Any]]
"""The arguments of each ``requires`` mark on a case."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about a waiver: where it stands, a word for the kind of thing, and what to do. A note is no error."""

    source: str
    kind: str
    text: str
    error: bool = True


def known(declared: Mapping[str, Any]) -> tuple[Condition, ...]:
    """What is known of a kind of machine, given what is declared of it: where its device is no GPU, no GPU's features.

    Raises RequirementError.
    """
    backend = BACKENDS.get(str(declared.get("device")))
    implied: dict[str, Any] = {}
    if backend is not None and backend.no_gpu:
        implied = {**dict.fromkeys(OF_GPUS, False), **backend.implied}
    return requirements.parse({**implied, **declared})


def lint(
    waivers: Sequence[Waiver],
    *,
    today: date,
    catalog: Mapping[str, Marks] | None = None,
    hardware: Mapping[str, Sequence[Condition]] | None = None,
) -> list[Remark]:
    """All there is to say of the waivers, in their order.

    `catalog` has the marks of each case by id, and `hardware` the conditions that each declared kind of machine meets
    by name; None where there is no such thing to judge by. Marks and conditions are such as `requirements` can read.
    """
    matched = [_matched(waiver, catalog) for waiver in waivers]
    remarks = [
        [*_alone(waiver, today), *_where(waiver, cases, hardware or {})]
        for waiver, cases in zip(waivers, matched, strict=True)
    ]
    for first, second in itertools.combinations(range(len(waivers)), 2):
        one, other = waivers[first], waivers[second]
        shared = (
            None if one.expired(today) or other.expired(today) else _shared(one, other, matched[first], matched[second])
        )
        if shared:
            text = f"applies to {shared}, as does the waiver in {one.source}: keep one"
            remarks[second].append(Remark(other.source, "two_waivers", text))
    return [remark for each in remarks for remark in each]


def _alone(waiver: Waiver, today: date) -> Iterator[Remark]:
    """What the entry itself shows."""
    if waiver.expired(today):
        text = f"expired on {waiver.expires}: renew or remove it (owner: {waiver.owner})"
        yield Remark(waiver.source, "expired", text)
    elif waiver.expires - today <= WARNING:
        text = f"expires in {(waiver.expires - today).days} days, on {waiver.expires} (owner: {waiver.owner})"
        yield Remark(waiver.source, "expires_soon", text, error=False)
    if not waiver.link:
        yield Remark(waiver.source, "no_link", "has no link: give the one of the issue that it waits for")
    elif not is_link(waiver.link):
        yield Remark(waiver.source, "no_link", f"link {waiver.link!r} is no http or https URL: give one")


def _matched(waiver: Waiver, catalog: Mapping[str, Marks] | None) -> dict[str, Marks] | None:
    """The cases that the waiver matches, None where that is not known."""
    if catalog is None:
        return None
    return {case_id: marks for case_id, marks in catalog.items() if patterns.matches(waiver.case, case_id)}


def _where(
    waiver: Waiver, cases: Mapping[str, Marks] | None, hardware: Mapping[str, Sequence[Condition]]
) -> Iterator[Remark]:
    """Whether there is a case, and a machine, to which the waiver applies."""
    if not _possible([waiver.when]):
        yield Remark(waiver.source, "never_holds", "no machine meets its conditions: correct what 'when' says")
        return
    if cases is None:
        distinct: list[Marks] = [()]
    elif cases:
        distinct = list({repr(marks): marks for marks in cases.values()}.values())
    else:
        text = f"{waiver.case!r} matches no case: correct the pattern or remove the waiver"
        yield Remark(waiver.source, "matches_nothing", text)
        return
    running = [marks for marks in distinct if _possible([waiver.when, *marks])]
    if not running:
        text = "'when' contradicts what every case that it matches requires, so it never applies: correct it"
        yield Remark(waiver.source, "never_applies", text)
    elif hardware and not any(
        _possible([waiver.when, *marks], declared) for marks in running for declared in hardware.values()
    ):
        text = (
            f"no declared hardware ({', '.join(hardware)}) meets its conditions: declare what it is for, or remove it"
        )
        yield Remark(waiver.source, "no_hardware", text)


def _shared(
    first: Waiver, second: Waiver, of_first: Mapping[str, Marks] | None, of_second: Mapping[str, Marks] | None
) -> str:
    """What two waivers can both apply to on one machine, in words; "" where there is no such case."""
    if of_first is None or of_second is None:
        both = first.case == second.case and _possible([first.when, second.when])
        return repr(second.case) if both else ""
    fewer, more = sorted((of_first, of_second), key=len)
    shared = [
        case_id for case_id, marks in fewer.items() if case_id in more and _possible([first.when, second.when, *marks])
    ]
    return f"{shared[0]!r}{f' and {len(shared) - 1} more' if len(shared) > 1 else ''}" if shared else ""


def _possible(written: Iterable[Mapping[str, Any]], declared: Sequence[Condition] = ()) -> bool:
    """Whether some machine, on which the `declared` conditions hold, meets all that is written."""
    mappings = [dict(each) for each in written if each]
    if not mappings:
        return True
    try:
        conditions = [_without_cpu(each) for each in requirements.parse({"all": mappings})]
    except RequirementError:  # each of them can be read, so together they fit no number of devices
        return False
    # Judged with themselves as what is known, ``not`` sees what the others say of the same capability.
    return implication(conditions, declared).can_hold and implication(conditions, conditions).can_hold


def _without_cpu(condition: Condition) -> Condition:
    """The condition without ``device: cpu``, which holds everywhere; taken as known, it would mean the CPU alone."""
    if not isinstance(condition, Requirement) or condition.capability != "device":
        return condition
    return replace(condition, clauses=tuple(clause for clause in condition.clauses if clause.value != "cpu"))
