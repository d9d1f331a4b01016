"""How long the cases of slow test files take, as the suites' authors measured it: ``configs/durations.yaml``.

A run without history knows from it which cases to begin first. The figures are those of another machine: only their
ratios matter.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field

from harness.gating import configfile

FILE_NAME = "durations.yaml"
#: Seconds from which on a test file is listed.
LISTED = 0.5
_DIGITS = 2
_HEADER = f"""\
# How long one case of these test files is expected to take, in seconds: the mean of its longest and its average case.
# A run without a history of its own begins with the longest. `other`: a case of any other file.
# Made from run directories: harness durations RUN_DIR... -o configs/{FILE_NAME}
"""

Positive = Annotated[float, Field(gt=0)]


class SlowFiles(BaseModel):
    """`files`: the seconds of a case of each slow test file. `other`: those of a case of any other file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    other: Positive
    files: dict[Annotated[str, Field(min_length=1)], Positive] = Field(default_factory=dict)


def load_slow_files(configs: Path) -> SlowFiles | None:
    """The file in the folder `configs`; None if there is none. Raises ConfigError."""
    path = configs / FILE_NAME
    return configfile.load_config(path, SlowFiles).value if path.is_file() else None


def measured_slow_files(runs: Sequence[Mapping[str, float]]) -> SlowFiles:
    """The slow files of several runs, from the seconds of each case in each run. There must be at least one case.

    The first case that compiles something pays for all, and this is not the same case in every order. So the figure of
    a file is the mean of its longest and its average case, and of each case the longest time in any run counts.
    """
    longest: dict[str, float] = {}
    for run in runs:
        for case, seconds in run.items():
            longest[case] = max(seconds, longest.get(case, 0.0))
    by_file: dict[str, list[float]] = defaultdict(list)
    for case, seconds in longest.items():
        by_file[case.partition("::")[0]].append(seconds)
    figures = {name: (max(values) + statistics.fmean(values)) / 2 for name, values in by_file.items()}
    slow = {name: _rounded(figures[name]) for name in sorted(figures) if figures[name] >= LISTED}
    others = [seconds for name, values in by_file.items() if name not in slow for seconds in values]
    return SlowFiles(other=_rounded(statistics.fmean(others)) if others else LISTED, files=slow)


def slow_files_text(slow: SlowFiles) -> str:
    """The contents of the file."""
    return _HEADER + yaml.safe_dump(slow.model_dump(), sort_keys=False, allow_unicode=True, width=1000)


def _rounded(seconds: float) -> float:
    return max(float(f"{seconds:.{_DIGITS}g}"), 0.001)
