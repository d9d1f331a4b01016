"""The words that choose jobs of a plan and how it is printed. Imports nothing, so that help texts are fast."""

from __future__ import annotations

from enum import StrEnum


class When(StrEnum):
    """How often a job runs. Something else calls ``harness matrix plan`` at that time."""

    NIGHTLY = "nightly"
    WEEKLY = "weekly"
    ON_DEMAND = "on-demand"


class System(StrEnum):
    """What runs jobs. Each value is the key of a machine that says how it is reached."""

    GITHUB = "github"
    GITLAB = "gitlab"
    SLURM = "slurm"


class PlanFormat(StrEnum):
    """Who reads the plan."""

    TABLE = "table"
    SLURM = "slurm"
    GITHUB = "github"
    GITLAB = "gitlab"
    NAMES = "names"
