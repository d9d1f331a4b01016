"""The output formats of a plan: for GitHub, GitLab, Slurm, and people."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from harness.core.text import format_count, list_first
from harness.tools.plan import PlanError, PlanJob
from harness.tools.plan_words import PlanFormat, System

#: The maximum number of jobs that GitHub starts for one matrix.
GITHUB_MOST = 256
#: The template that GitLab's jobs extend.
GITLAB_JOBS = "ci/gitlab-jobs.yml"
#: The script that Slurm runs.
SLURM_SCRIPT = "ci/slurm/nightly.sbatch"


def github_jobs(jobs: Sequence[PlanJob]) -> str:
    """Return one line of JSON for ``strategy.matrix``."""
    if len(jobs) > GITHUB_MOST:
        raise PlanError(f"{len(jobs)} jobs, and GitHub runs {GITHUB_MOST} of one matrix: choose some with --machine")
    include = [{"job": job.name, "runs_on": job.github, "minutes": job.minutes, **job.values} for job in jobs]
    return json.dumps({"include": include}, separators=(",", ":")) + "\n"


def gitlab_pipeline(jobs: Sequence[PlanJob]) -> str:
    """Return a child pipeline as JSON, which is also YAML. Its jobs extend those of ``ci/gitlab-jobs.yml``."""
    pipeline: dict[str, Any] = {"include": [{"local": GITLAB_JOBS}]}
    for job in jobs:
        pipeline[job.name] = {
            "extends": ".job",
            "tags": job.gitlab,
            "timeout": f"{job.minutes} minutes",
            "variables": job.variables(),
        }
    return json.dumps(pipeline, indent=2) + "\n"


def slurm_commands(jobs: Sequence[PlanJob]) -> str:
    """Return one command per job, quoted for a shell."""
    return "".join(f"{shlex.join(_sbatch(job))}\n" for job in jobs)


def job_names(jobs: Sequence[PlanJob]) -> str:
    """Return ``RUN/PART`` per job, for scripts: its run and the folder of its part."""
    return "".join(f"{job.run}/{job.part}\n" for job in jobs)


def job_table(jobs: Sequence[PlanJob]) -> str:
    """Return a table for people: one line per run, with the number of its parts. Each part is a job."""
    head = ("run", "when", "machine", "driver", "torch", "python", "profile", "parts", "runs by")
    parts: dict[str, list[PlanJob]] = {}
    for job in jobs:
        parts.setdefault(job.run, []).append(job)
    rows = [
        (
            job.run,
            job.when,
            job.machine,
            job.driver or "-",
            f"{job.torch} {job.build}".strip(),
            job.python,
            job.profile,
            str(len(every)) if job.shard else "-",
            " ".join(system for system in System if getattr(job, system) is not None) or "nothing",
        )
        for job, every in ((every[0], every) for every in parts.values())
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in (head, *rows)]
    machines = Counter(job.machine for job in jobs)
    machine_count = format_count(len(machines), "machine")
    total = f"{format_count(len(jobs), 'job')} in {format_count(len(parts), 'run')} on {machine_count}"
    return "".join(f"{line.rstrip()}\n" for line in (*lines, total))


def formatted_plan(jobs: Sequence[PlanJob], form: PlanFormat, by: System | None) -> tuple[str, str]:
    """Return the plan in a format, and a note about the jobs that `by` does not reach.

    The note is empty if there are none.

    Raise PlanError if no job is left.
    """
    implied = next((system for system in System if system.value == form.value), None)
    if implied is not None:
        if by not in (None, implied):
            raise PlanError(f"--format={form} is for --by={form}, not for --by={by}")
        by = implied
    reached = [job for job in jobs if by is None or getattr(job, by) is not None]
    missing = list(dict.fromkeys(job.machine for job in jobs if job not in reached))
    note = ""
    if missing:
        left = format_count(len(jobs) - len(reached), "job")
        note = f"left out {left}: machine {list_first(missing)} has no key '{by}'"
    if not reached:
        raise PlanError(f"no job is left: {note}")
    return _WRITERS[form](reached), note


def _sbatch(job: PlanJob) -> list[str]:
    assert job.slurm is not None
    options = {
        "job-name": job.name,
        "time": str(job.minutes),
        "partition": job.slurm.partition,
        "gres": job.slurm.gres,
        "constraint": job.slurm.constraint,
        "cpus-per-task": None if job.slurm.cpus is None else str(job.slurm.cpus),
        "mem": job.slurm.memory,
    }
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    variables = [f"{name}={value}" for name, value in job.variables().items()]
    return ["env", *variables, "sbatch", "--parsable", *given, SLURM_SCRIPT, "job"]


_WRITERS: dict[PlanFormat, Callable[[Sequence[PlanJob]], str]] = {
    PlanFormat.TABLE: job_table,
    PlanFormat.SLURM: slurm_commands,
    PlanFormat.GITHUB: github_jobs,
    PlanFormat.GITLAB: gitlab_pipeline,
    PlanFormat.NAMES: job_names,
}
