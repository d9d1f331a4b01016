"""The jobs of a plan: the product of its axes, as plain values."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import product

from harness.core.errors import HarnessError
from harness.fleet.plan_file import DRIVER, Exclude, LoadedPlan, Product, Slurm
from harness.fleet.plan_words import When
from harness.gating.configfile import ConfigError, name_advice


class PlanError(HarnessError):
    """A plan has no selected job, or a system cannot run it."""


@dataclass(frozen=True, slots=True)
class PlanJob:
    """One run of pytest on one machine."""

    run: str
    """The run that it is, or is a part of. Unique in a plan, except for the parts of one run."""
    when: When
    machine: str
    hardware: str
    device: str
    driver: str
    """Empty if it is not checked."""
    torch: str
    build: str
    """Empty for the package index's own build."""
    python: str
    profile: str
    shard: str
    """``1/2``, or empty for the whole run."""
    minutes: int
    github: tuple[str, ...] | None
    """Labels of runners; None if GitHub does not reach the machine. The other systems likewise."""
    gitlab: tuple[str, ...] | None
    slurm: Slurm | None

    @property
    def part(self) -> str:
        """The folder name below the folder of the run: ``1of2``, or ``whole``."""
        return self.shard.replace("/", "of") or "whole"

    @property
    def name(self) -> str:
        """The name, unique in a plan."""
        return f"{self.run}-{self.part}" if self.shard else self.run

    def variables(self) -> dict[str, str]:
        """Return the variables that ``ci/matrix.sh job`` reads from the environment."""
        return {
            "MATRIX_RUN": self.run,
            "MATRIX_HARDWARE": self.hardware,
            "MATRIX_DEVICE": self.device,
            "MATRIX_DRIVER": self.driver,
            "MATRIX_TORCH": self.torch,
            "MATRIX_BUILD": self.build,
            "MATRIX_PYTHON_VERSION": self.python,
            "MATRIX_PROFILE": self.profile,
            "MATRIX_SHARD": self.shard,
        }


def all_jobs(plan: LoadedPlan) -> list[PlanJob]:
    """Return every job of the plan, in the order of the file.

    Raise ConfigError if two jobs are equal, or if an exclude matches no job.
    """
    file = plan.file
    problems: list[str] = []
    jobs: list[PlanJob] = []
    runs: dict[str, int] = {}
    for index, entry in enumerate(file.value.jobs):
        where = ("jobs", index)
        idle = set(range(len(entry.exclude)))
        for job in _product(plan, entry):
            excluded = [place for place, exclude in enumerate(entry.exclude) if _applies(exclude, job)]
            idle.difference_update(excluded)
            if excluded:
                continue
            first = runs.setdefault(job.run, index)
            if first != index:
                problems.append(file.problem(f"job {job.run!r} is also in jobs[{first}]: keep one", *where))
                continue
            jobs += _parts(job, entry.shards)
        problems += [file.problem("no job fits: remove it", *where, "exclude", place) for place in sorted(idle)]
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return jobs


def select(jobs: Collection[PlanJob], whens: Collection[When], machines: Collection[str]) -> list[PlanJob]:
    """Return the jobs at these times, on these machines if any are named. Raise PlanError if there are none."""
    names = list(dict.fromkeys(job.machine for job in jobs))
    for name in machines:
        if name not in names:
            raise PlanError(f"no job is on machine {name!r}; {name_advice(name, names)}")
    chosen = [job for job in jobs if job.when in whens and (not machines or job.machine in machines)]
    if not chosen:
        on = f" on {', '.join(machines)}" if machines else ""
        times = ", ".join(dict.fromkeys(job.when for job in jobs if not machines or job.machine in machines))
        raise PlanError(f"no job is {' or '.join(whens)}{on}: there are jobs for {times}; choose with --when")
    return chosen


def _product(plan: LoadedPlan, entry: Product) -> Iterator[PlanJob]:
    machines = plan.file.value.machines
    for name in entry.machines:
        machine = machines[name]
        for driver, torch, python, profile in product(
            machine.drivers or ("",), entry.torch, entry.python, entry.profiles
        ):
            yield PlanJob(
                run="-".join(filter(None, (name, driver, f"torch{torch}", f"py{python}", profile))),
                when=entry.when,
                machine=name,
                hardware=machine.hardware,
                device=plan.device(name),
                driver=driver,
                torch=torch,
                build=machine.build or "",
                python=python,
                profile=profile,
                shard="",
                minutes=entry.minutes,
                github=_filled(machine.github, driver),
                gitlab=_filled(machine.gitlab, driver),
                slurm=_filled_slurm(machine.slurm, driver),
            )


def _parts(job: PlanJob, shards: int) -> list[PlanJob]:
    if shards == 1:
        return [job]
    return [replace(job, shard=f"{number}/{shards}") for number in range(1, shards + 1)]


def _applies(exclude: Exclude, job: PlanJob) -> bool:
    wanted = exclude.model_dump(exclude_none=True)
    return all(getattr(job, key) == value for key, value in wanted.items())


def _filled(texts: tuple[str, ...] | None, driver: str) -> tuple[str, ...] | None:
    return None if texts is None else tuple(text.replace(DRIVER, driver) for text in texts)


def _filled_slurm(slurm: Slurm | None, driver: str) -> Slurm | None:
    if slurm is None:
        return None
    texts = {
        key: None if text is None else text.replace(DRIVER, driver)
        for key, text in (("partition", slurm.partition), ("gres", slurm.gres), ("constraint", slurm.constraint))
    }
    return slurm.model_copy(update=texts)
