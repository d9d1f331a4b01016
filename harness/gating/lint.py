"""Checks waivers before a run. Pure functions.

Checks of the entry alone: expired, no link, conditions that hold nowhere, a duplicate. Checks against a catalogue of
cases: matches no case, or shares a case with another waiver. Checks against declared hardware: no declared machine
meets the conditions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

from harness.backends.table import BACKENDS
from harness.devices.capabilities import VOCABULARY, ValueKind
from harness.gating import patterns, requirements
from harness.gating.implication import implication
from harness.gating.requirements import Condition, Requirement, RequirementError
from harness.gating.waivers import Waiver, is_link

#: Number of days before the last day of a waiver at which lint begins to warn.
WARNING = timedelta(days=14)

#: Capabilities that only GPUs have, with two exceptions: a software device has `accelerator`, and a simulated GPU has
#: all of them except `silicon`.
OF_GPUS = (
    "accelerator",
    "accelerator_graphs",
    "silicon",
    "compute_capability",
    "peer_access",
    "peer_links",
    "nvlink",
    "fabric",
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
    """A remark about a waiver: its file and line, the kind of remark, and what to do. `error` is False for a note."""

    source: str
    kind: str
    text: str
    error: bool = True


def declared_conditions(declared: Mapping[str, Any]) -> tuple[Condition, ...]:
    """Return the conditions that hold on a kind of machine: those declared, and, without a GPU, no GPU features.

    Raise RequirementError for an invalid condition.
    """
    backend = BACKENDS.get(str(declared.get("device")))
    implied: dict[str, Any] = {}
    if backend is not None:
        # no condition can express that a text is absent
        absent = [name for name in OF_GPUS if VOCABULARY[name].kind is not ValueKind.TEXT] if backend.no_gpu else []
        implied = {**dict.fromkeys(absent, False), **backend.implied}
    return requirements.parse_requirements({**implied, **declared})


def lint_waivers(
    waivers: Sequence[Waiver],
    *,
    today: date,
    catalog: Mapping[str, Marks] | None = None,
    hardware: Mapping[str, Sequence[Condition]] | None = None,
) -> list[Remark]:
    """Return all remarks on the waivers, in the order of the waivers.

    `catalog` maps case ids to marks. `hardware` maps each declared kind of machine to the conditions that it meets.
    None for either skips the checks that need it. `requirements` must be able to parse all marks and conditions.
    """
    matched = [_matched(waiver, catalog) for waiver in waivers]
    remarks = [
        [*_alone(waiver, today), *_where(waiver, cases, hardware or {})]
        for waiver, cases in zip(waivers, matched, strict=True)
    ]
    for first, second in itertools.combinations(range(len(waivers)), 2):
        earlier, other = waivers[first], waivers[second]
        shared = (
            None
            if earlier.expired(today) or other.expired(today)
            else _shared(earlier, other, matched[first], matched[second])
        )
        if shared:
            text = f"applies to {shared}; the waiver in {earlier.source} does too: keep one"
            remarks[second].append(Remark(other.source, "two_waivers", text))
    return [remark for of_waiver in remarks for remark in of_waiver]


def _alone(waiver: Waiver, today: date) -> Iterator[Remark]:
    """Yield remarks that need only the entry itself."""
    if waiver.expired(today):
        text = f"expired on {waiver.expires}: renew or remove it (owner: {waiver.owner})"
        yield Remark(waiver.source, "expired", text)
    elif waiver.expires - today <= WARNING:
        text = f"expires in {(waiver.expires - today).days} days, on {waiver.expires} (owner: {waiver.owner})"
        yield Remark(waiver.source, "expires_soon", text, error=False)
    if not waiver.link:
        yield Remark(waiver.source, "no_link", "has no link: give the URL of the issue that it waits for")
    elif not is_link(waiver.link):
        yield Remark(waiver.source, "no_link", f"link {waiver.link!r} is not an http or https URL: give one")


def _matched(waiver: Waiver, catalog: Mapping[str, Marks] | None) -> dict[str, Marks] | None:
    """Return the cases that the waiver matches. None without a catalogue."""
    if catalog is None:
        return None
    return {case_id: marks for case_id, marks in catalog.items() if patterns.matches_pattern(waiver.case, case_id)}


def _where(
    waiver: Waiver, cases: Mapping[str, Marks] | None, hardware: Mapping[str, Sequence[Condition]]
) -> Iterator[Remark]:
    """Yield remarks on whether the waiver can apply to any case on any machine."""
    if not _possible([waiver.when]):
        yield Remark(waiver.source, "never_holds", "no machine meets its conditions: correct 'when'")
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
        text = "never applies, since 'when' contradicts the requirements of every case that it matches: correct 'when'"
        yield Remark(waiver.source, "never_applies", text)
    elif hardware and not any(
        _possible([waiver.when, *marks], declared) for marks in running for declared in hardware.values()
    ):
        names = ", ".join(hardware)
        text = f"no declared hardware ({names}) meets its conditions: declare the hardware, or remove the waiver"
        yield Remark(waiver.source, "no_hardware", text)


def _shared(
    first: Waiver, second: Waiver, of_first: Mapping[str, Marks] | None, of_second: Mapping[str, Marks] | None
) -> str:
    """Return a text with the cases that both waivers can apply to on one machine; "" if there is none."""
    if of_first is None or of_second is None:
        both = first.case == second.case and _possible([first.when, second.when])
        return repr(second.case) if both else ""
    fewer, more = sorted((of_first, of_second), key=len)
    shared = [
        case_id for case_id, marks in fewer.items() if case_id in more and _possible([first.when, second.when, *marks])
    ]
    return f"{shared[0]!r}{f' and {len(shared) - 1} more' if len(shared) > 1 else ''}" if shared else ""


def _possible(written: Iterable[Mapping[str, Any]], declared: Sequence[Condition] = ()) -> bool:
    """Return whether a machine on which the `declared` conditions hold can meet all `written` conditions."""
    mappings = [dict(mapping) for mapping in written if mapping]
    if not mappings:
        return True
    try:
        conditions = [_without_cpu(requirement) for requirement in requirements.parse_requirements({"all": mappings})]
    except RequirementError:  # each one can be parsed alone, but no number of devices meets them together
        return False
    # The second check declares the conditions themselves, so that ``not`` sees the others on the same capability.
    return implication(conditions, declared).can_hold and implication(conditions, conditions).can_hold


def _without_cpu(condition: Condition) -> Condition:
    """Return the condition without ``device: cpu``. It holds everywhere, but when declared, it means only the CPU."""
    if not isinstance(condition, Requirement) or condition.capability != "device":
        return condition
    return replace(condition, clauses=tuple(clause for clause in condition.clauses if clause.value != "cpu"))
