"""The facts that distinguish the runs of one machine: options, commit, versions and variables. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.core.text import escape_invalid_xml, single_line, truncate_middle
from harness.fleet.classing import Factor
from harness.fleet.run import environment_facts
from harness.journal import identity
from harness.journal.events import RunStarted

#: A fact by its factor and name, with its values: an option such as ``--inject`` may have several.
Facts = Mapping[tuple[Factor, str], tuple[str, ...]]
#: Facts that are already properties of a place, and the seed, which differs in each run.
_ELSEWHERE = frozenset({"torch", "driver", "device", "devices", "--seed"})
_COMMIT = "commit"
#: Whether the environment of a run is known. This fact explains nothing.
_READ = (Factor.SETTING, "environment.json")
_SHOWN = 100
_MOST_VALUES = 20


def facts_of(run: RunStarted, environment: Mapping[str, Any] | None) -> Facts:
    """Return the facts of a run. `environment`: the facts of its environment.json, None without the file."""
    facts: dict[tuple[Factor, str], tuple[str, ...]] = {} if environment is None else {_READ: ("read",)}
    for name, value in {**environment_facts(environment or {}), **identity.identity_facts(run)}.items():
        if name in _ELSEWHERE:
            continue
        factor = Factor.OPTION if name.startswith("--") else Factor.COMMIT if name == _COMMIT else Factor.SETTING
        facts[factor, single_line(name, _SHOWN)] = tuple(_values(factor, value))
    return facts


def _values(factor: Factor, value: str) -> Iterator[str]:
    """Yield the values of a fact; none if it is not set."""
    parts = value.split("; ") if factor is Factor.OPTION else [value]
    for part in parts[:_MOST_VALUES]:
        if part:
            yield (
                part[:19]
                if part.startswith("sha256:")
                else " ".join(escape_invalid_xml(truncate_middle(part, _SHOWN)).split())
            )


def differing(runs: Sequence[Facts]) -> list[frozenset[tuple[Factor, str]]]:
    """Return, for each run, its values that not all runs have: ``--inject=no_wait``, ``without $CUDA_HOME``.

    A fact that a run does not record explains nothing there. Only options, and variables if the environment is known,
    count as absent if they are not recorded.
    """
    names = dict.fromkeys(name for run in runs for name in run if name != _READ)
    values_by_run: list[set[tuple[Factor, str]]] = [set() for _ in runs]
    for factor, name in names:
        every = [run.get((factor, name), ()) for run in runs]
        if len({*every}) == 1:
            continue
        common = set(every[0]).intersection(*every[1:])
        for run, mine, values in zip(runs, values_by_run, every, strict=True):
            mine.update((factor, _words(factor, name, value)) for value in values if value not in common)
            if not values and (factor is Factor.OPTION or (name.startswith("$") and _READ in run)):
                mine.add((factor, f"without {name}"))
    return list(map(frozenset, values_by_run))


def _words(factor: Factor, name: str, value: str) -> str:
    if factor is Factor.COMMIT:
        return value
    if factor is Factor.SETTING and not name.startswith("$"):
        return f"{name} {value}"
    return name if value == "True" else f"{name}={value}"
