"""The words that select the jobs of a plan and its output format. Imports nothing, to keep help texts fast."""

from __future__ import annotations

from enum import StrEnum


class When(StrEnum):
    """How often a job runs. A scheduler outside the harness calls ``harness matrix plan`` at that time."""

    NIGHTLY = "nightly"
    WEEKLY = "weekly"
    ON_DEMAND = "on-demand"


class System(StrEnum):
    """The system that runs jobs. Each value is the key of a machine that says how to reach it."""

    GITHUB = "github"
    GITLAB = "gitlab"
    SLURM = "slurm"


class PlanFormat(StrEnum):
    """The reader of the plan."""

    TABLE = "table"
    SLURM = "slurm"
    GITHUB = "github"
    GITLAB = "gitlab"
    NAMES = "names"
