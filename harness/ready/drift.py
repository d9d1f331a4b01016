"""What differs between the nodes of a fleet: versions and limits, and GPUs slower than the others. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.core import figures
from harness.ready.floors import judge_figures
from harness.ready.model import CheckRun

#: Facts that differ between nodes by nature: the hardware file is chosen per node.
_FREE = frozenset({"hardware"})
_ABSENT = "none"


@dataclass(frozen=True, slots=True)
class Drift:
    """A fact in which nodes differ. `usual`: the value of `count` nodes; `others`: the nodes with each other value.

    `majority`: more than half of the nodes have the usual value. Without a majority, nobody can say who is wrong.
    """

    name: str
    usual: str
    count: int
    majority: bool
    others: Mapping[str, tuple[str, ...]]


def drifts(stacks: Mapping[str, Mapping[str, str]]) -> list[Drift]:
    """Return the facts that differ, by node. A node without a fact has the value ``none``.

    Facts in which a single node differs come first: they are the most likely mistakes.
    """
    names = dict.fromkeys(name for stack in stacks.values() for name in stack if name not in _FREE)
    found = []
    for name in names:
        values = {node: stack.get(name, _ABSENT) for node, stack in stacks.items()}
        counts = Counter(values.values())
        if len(counts) < 2:
            continue
        usual, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
        others: dict[str, tuple[str, ...]] = {}
        for node, value in values.items():
            if value != usual:
                others[value] = (*others.get(value, ()), node)
        found.append(Drift(name, usual, count, 2 * count > len(stacks), others))
    return sorted(found, key=lambda drift: (not drift.majority, sum(map(len, drift.others.values())), drift.name))


@dataclass(frozen=True, slots=True)
class SlowGpu:
    """A GPU that is slower than those of its model in the fleet."""

    node: str
    gpu: str
    figure: str
    value: float
    median: float
    count: int

    @property
    def text(self) -> str:
        """The figure beside that of the others."""
        found, usual = (figures.figure_text(self.figure, value) for value in (self.value, self.median))
        return f"{self.figure} is {found}, and the median of {self.count} GPUs is {usual}"


def slow_gpus(checks: Mapping[str, Sequence[CheckRun]], models: Mapping[tuple[str, str], str]) -> list[SlowGpu]:
    """Return the GPUs with a figure that is an outlier among all of their model; see `harness.ready.floors`.

    `checks`: by node. `models`: the model of each GPU, by node and UUID.
    """
    measured: dict[tuple[str, str], dict[str, float]] = {}
    for node, runs in checks.items():
        for run in runs:
            if run.value is not None and run.gpu is not None:
                measured.setdefault((node, run.gpu), {})[run.name] = run.value
    slow = [each for each in judge_figures(measured, {}, models) if each.why]
    return [SlowGpu(*each.gpu, each.name, each.value, each.median, each.count) for each in slow]
