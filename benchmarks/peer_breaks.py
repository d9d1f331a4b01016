"""The breaks of operators that this suite and TorchCTS find: for `peer_operators.py --breaks`.

A break of `tests/breaks/catalogue/operators.py` names the cases that should detect it, and so an operator. On
our side these are the cases of values, gradients, sizes and variants of this operator, as ``--operators=NAME`` selects
them. On TorchCTS's side they are all nodes of its files that use torch's catalogue, for that operator: forward, with
NaN and infinities, and backward. A break is found if a test that is green without it becomes red, unless the cause is
an exception of the break itself.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from peer_plugin import BREAK, THREADS
from peer_runs import ROOT, THEIR_FILES, Way, declare, ours, their_name, theirs

#: The types requested from TorchCTS.
TYPES = ("float32", "float64", "bfloat16", "float16", "complex64", "int64", "int32")
FILES = tuple(f"suites/operators/test_{name}.py" for name in ("values", "gradients", "sizes", "variants"))

#: Runs cases once, with additional environment variables, and returns the tests that failed.
Run = Callable[[Way, Sequence[str], dict[str, str]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Found:
    """A break, its operator, and the tests that it makes red."""

    name: str
    operator: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]


def choose(number: int, seed: int) -> list[tuple[str, str]]:
    """Return breaks, each with its operator."""
    sys.path.insert(0, str(ROOT))
    from tests.breaks.catalogue.operators import broken

    every = []
    for each in broken.breaks:
        file, _, case = each.suites[0].partition("[")
        if case:
            name = case.removesuffix("]")
            every.append((each.name, name.rpartition("-")[0] if file.endswith("test_values") else name))
    return random.Random(seed).sample(every, number)


def find(
    place: Path, device: str, folder: Path, chosen: Sequence[tuple[str, str]], run: Run, *, together: bool
) -> list[Found]:
    """Try breaks on both sides, and print what found each. On the software device only the device is broken.

    `together`: all breaks at the same time, which takes minutes instead of an hour; a red test then counts for the
    break of its own operator, though another break may be the reason. Breaks not found together are not found alone
    either.
    """
    mine, yours = ours("batch", device, folder), theirs(place, device, isolated=False)

    def both(breaks: Sequence[tuple[str, str]], variables: dict[str, str]) -> tuple[set[str], set[str]]:
        names = sorted({operator for _, operator in breaks})
        declare(place, device, [their_name(each) for each in names], TYPES)
        red = run(mine, [*FILES, f"--operators={','.join(names)}"], variables)
        return {*red}, {*run(yours, THEIR_FILES, variables)}

    whole = both(chosen, {})
    print(f"red without a break: {sorted(whole[0] | whole[1]) or 'none'}", flush=True)
    found = []
    for group in [chosen] if together else [[each] for each in chosen]:
        variables = {BREAK: ",".join(name for name, _ in group), **({THREADS: "1"} if device == "soft" else {})}
        red = [now - before for now, before in zip(both(group, variables), whole, strict=True)]
        for name, operator in group:
            of_it = [tuple(sorted(each for each in some if _is_of(each, operator))) for some in red]
            found.append(Found(name, operator, *of_it))
            print(f"{name}: ours {len(of_it[0])} red, TorchCTS {len(of_it[1])}", flush=True)
    shared = sum(bool(each.ours and each.theirs) for each in found)
    print(f"\n{len(found)} breaks on {device}: ours found {sum(bool(each.ours) for each in found)}, ", end="")
    print(f"TorchCTS {sum(bool(each.theirs) for each in found)}, both {shared}")
    return found


def _is_of(test: str, operator: str) -> bool:
    """Return whether a test is for an operator, by its parameters: both suites put the operator's name first."""
    parameters = test.partition("[")[2].removesuffix("]")
    for condition in ("clean-", "has_nan-", "has_inf-"):
        parameters = parameters.removeprefix(condition)
    return parameters.partition("-")[0] in (operator, their_name(operator))
