"""Durations of the cases of slow test files, measured by the suites' authors: ``configs/durations.yaml``.

A run without history uses them to decide which cases to begin first. The figures come from another machine: only their
ratios matter.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from harness.core.models import StrictModel
from harness.gating import configfile

FILE_NAME = "durations.yaml"
#: Minimum duration, in seconds, of a listed test file.
LISTED = 0.5
_DIGITS = 2
_HEADER = f"""\
# How long one case of these test files is expected to take, in seconds: the mean of its longest and its average case.
# A run without a history of its own begins with the longest. `other`: a case of any other file.
# Made from run directories: harness durations RUN_DIR... -o configs/{FILE_NAME}
"""

Positive = Annotated[float, Field(gt=0)]


class SlowFiles(StrictModel):
    """The estimates for test files. `files`: the seconds of a case of each slow file.

    `other`: the seconds of a case of any other file.
    """

    other: Positive
    files: dict[Annotated[str, Field(min_length=1)], Positive] = Field(default_factory=dict)


def load_slow_files(configs: Path) -> SlowFiles | None:
    """Return the file in the folder `configs`; None if there is none. Raise ConfigError."""
    path = configs / FILE_NAME
    return configfile.load_config(path, SlowFiles).value if path.is_file() else None


def measured_slow_files(runs: Sequence[Mapping[str, float]]) -> SlowFiles:
    """Return the slow files of several runs, from the seconds of each case in each run.

    There must be at least one case.

    The first case that compiles shared code takes the time for all, and is a different case in each order. Therefore
    the figure of a file is the mean of its longest and its average case, and the longest time in any run counts for
    each case.
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
    """Return the contents of the file."""
    return _HEADER + yaml.safe_dump(slow.model_dump(), sort_keys=False, allow_unicode=True, width=1000)


def _rounded(seconds: float) -> float:
    return max(float(f"{seconds:.{_DIGITS}g}"), 0.001)
