"""Which quick tests fit into a budget, and in which order. Pure functions over plain values.

What finds most faults per second comes first, so that each budget is well spent. A test without which others say
nothing, such as the creation of a context, comes before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuickTest:
    """A quick test as the planner knows it.

    `seconds`: its estimated time, on a GPU with full sizes or on a simulated one. `finds`: its weight, which is the
    number of known faults that it finds, as measured on the simulated CUDA (``docs/ready.md``), plus the kinds of
    damage that only hardware has. `after`: tests that must have passed. `group`: the test is about several GPUs
    together. `lacks`: why this kind of device cannot run it, or empty.
    """

    name: str
    seconds: float
    finds: float
    after: tuple[str, ...] = ()
    group: bool = False
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """`run`: the names of tests in order. `skipped`: those that do not fit, each with the reason."""

    run: tuple[str, ...]
    skipped: Mapping[str, str]


def plan(tests: Sequence[QuickTest], budget: float, gpus: int) -> Plan:
    """Return the tests for a budget in seconds, the most faults per second first; tests of GPUs before those of groups.

    A test that does not fit is left out, and a shorter one may still fit. With one GPU, tests of groups are skipped.

    >>> plan([QuickTest("slow", 50, 3), QuickTest("fast", 1, 2), QuickTest("tiny", 1, 9, after=("fast",))], 10, 1).run
    ('fast', 'tiny')
    """
    skipped: dict[str, str] = {}
    run: list[str] = []
    left = budget
    by_name = {test.name: test for test in tests}
    waiting = list(tests)
    while waiting:
        ready = [test for test in waiting if not {*test.after} & {each.name for each in waiting}]
        if not ready:
            names = ", ".join(test.name for test in waiting)
            raise ValueError(f"the tests {names} wait for each other, expected an order")
        test = max(ready, key=lambda each: (not each.group, _yield(each, tests), -tests.index(each)))
        waiting.remove(test)
        missing = next((name for name in test.after if name in skipped), None)
        if test.lacks:
            skipped[test.name] = test.lacks
        elif test.group and gpus < 2:
            skipped[test.name] = "it needs two whole GPUs that one process can use together"
        elif missing is not None:
            skipped[test.name] = f"it follows {missing}, which is skipped"
        elif test.seconds > left:
            skipped[test.name] = (
                f"it takes about {test.seconds:.0f} s, and {left:.0f} s of the budget of {budget:.0f} s are left"
            )
        else:
            left -= test.seconds
            run.append(test.name)
    solo = [name for name in run if not by_name[name].group]
    return Plan((*solo, *(name for name in run if by_name[name].group)), skipped)


def _yield(test: QuickTest, tests: Sequence[QuickTest]) -> float:
    """Return the faults per second of a test, or of the best one that waits for it."""
    own = test.finds / max(test.seconds, 1e-3)
    return max([own, *(_yield(other, tests) for other in tests if test.name in other.after)])
