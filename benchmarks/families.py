"""The cases of `suites/operators` in runs, by family of operators: passed cases, red cases, and time.

    pytest suites/operators --profile default --device soft -n2 --results-dir results/soft
    python benchmarks/families.py results/soft results/cpu

A case whose id names an operator of torch's catalogue belongs to the family of that name, or else to the class of its
entry; other cases belong to their file. The time includes set-up, call, teardown and the harness's checks.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.core.outcome import Outcome
from harness.journal.stored_run import StoredRun

_BY_CLASS = {
    "UnaryUfuncInfo": "elementwise, one tensor",
    "BinaryUfuncInfo": "elementwise, two tensors",
    "ReductionOpInfo": "reductions",
    "SpectralFuncInfo": "Fourier transforms",
}
#: The first match applies; it takes precedence over the class of an entry.
_BY_NAME = (
    ("neural networks", re.compile(r"nn\.")),
    (
        "linear algebra",
        re.compile(r"linalg\.|cholesky|lu|qr|svd|.*mm|.*mv|v?dot|matmul|einsum|tensordot|outer|inner"),
    ),
    ("Fourier transforms", re.compile(r"fft\.|stft|istft")),
    ("special functions", re.compile(r"special\.|polygamma|mvlgamma|igamma")),
    ("masked reductions", re.compile(r"masked\.")),
    ("windows", re.compile(r"signal\.|.*_window")),
    ("lists of tensors", re.compile(r"_foreach|_fused|_amp_foreach")),
    ("sparse tensors", re.compile(r"sparse|to_sparse")),
)
_OTHERS = "indexing, shapes, random numbers and others"
_CASE = re.compile(r"suites/operators/test_(?:values|gradients|sizes|variants|overloads|deviations)\.py::\w+\[(.+)\]$")


@dataclass(slots=True)
class Count:
    """Cases of a family in a run, and the seconds of all of them."""

    passed: int = 0
    red: int = 0
    seconds: float = 0.0


def _classes() -> Mapping[str, str]:
    """Return the class of each entry of torch's catalogue, by its name in case ids."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for entry in op_db:
        name = f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name
        found[name] = type(entry).__name__
    return found


def family(case: str, classes: Mapping[str, str]) -> str:
    """Return the family of a case; the name of its file if the case is not for a single operator of the catalogue."""
    match = _CASE.match(case)
    if match is None:
        file = case.partition("::")[0].rpartition("/")[2]
        return "lists of tensors" if file.startswith(("test_foreach", "test_fused")) else "other files of the suite"
    name = match[1]
    while name not in classes and "-" in name:  # a group of types, an aspect or a size follows the name
        name = name.rpartition("-")[0]
    for title, pattern in _BY_NAME:
        if pattern.match(name):
            return title
    return _BY_CLASS.get(classes.get(name, ""), _OTHERS)


def main() -> None:
    """Print a table with a line per family."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    runs: list[Path] = parser.parse_args().runs
    classes = _classes()
    counts: dict[str, list[Count]] = defaultdict(lambda: [Count() for _ in runs])
    for place, folder in enumerate(runs):
        with StoredRun.of(folder) as run:
            for verdict, _ in run.cases():
                if not verdict.case.startswith("suites/operators/"):
                    continue
                count = counts[family(verdict.case, classes)][place]
                count.passed += verdict.outcome is Outcome.PASSED
                count.red += verdict.outcome.is_red
                count.seconds += sum(finish.duration for finish in verdict.finishes)
    print("| family |", " | ".join(f"{folder.name}: passed | red | s" for folder in runs), "|")
    print("| --- |", " | ".join(["--- | --- | ---"] * len(runs)), "|")
    for title, each in sorted(counts.items(), key=lambda item: -item[1][0].passed):
        print(f"| {title} |", " | ".join(f"{n.passed:,} | {n.red} | {n.seconds:.0f}" for n in each), "|")


if __name__ == "__main__":
    main()
