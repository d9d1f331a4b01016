"""The plan ``configs/matrix.yaml``: the machines, the runs on them, and the jobs that follow, as plain values.

``docs/matrix.md`` describes every key. After a change of the models, run ``.ci/regenerate``, which makes the schema.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

from harness.backends.table import BACKENDS
from harness.core.errors import HarnessError
from harness.core.models import DocumentedModel
from harness.gating import configfile, requirements
from harness.gating.configfile import ConfigError, Loaded, Where, name_advice
from harness.gating.implication import implication
from harness.gating.profiles import Hardware, Profile, load_hardware, load_profile
from harness.tools.plan_words import When

#: The supported releases of torch, oldest first.
TORCH = ("2.11", "2.12", "2.13", "2.14", "2.15")
PYTHON = ("3.11", "3.12", "3.13", "3.14")
#: Placeholder for the job's driver in labels, tags and Slurm options.
DRIVER = "{driver}"
_MOST_SHARDS = 256
_MOST_MINUTES = 7 * 24 * 60

T = TypeVar("T")


class PlanError(HarnessError):
    """A plan has no selected job, or a system cannot run it."""


def _torch(text: str) -> str:
    if text not in TORCH and text.rpartition(".")[0] not in TORCH:
        raise ValueError(f"{text!r}: expected a release from {TORCH[0]} to {TORCH[-1]}, such as '{TORCH[-1]}'")
    return text


def _python(text: str) -> str:
    if text not in PYTHON:
        raise ValueError(f"{text!r}: expected one of {', '.join(PYTHON)}")
    return text


def _each_once(values: tuple[T, ...]) -> tuple[T, ...]:
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ValueError(f"{value!r} appears twice")
    return values


# Texts that become parts of file names, shell commands and files of other systems. None of them begins like an option.
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,60}$")]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9_.:-]|\{driver\}){0,100}$")]
Driver = Annotated[str, Field(pattern=r"^[0-9]{3,4}(\.[0-9]{1,4}){0,2}$")]
SlurmText = Annotated[str, Field(pattern=r"^[A-Za-z0-9(\[](?:[A-Za-z0-9_.:,=&|*@()\[\]-]|\{driver\}){0,200}$")]
Size = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,6}[KMGT]?$")]
Torch = Annotated[str, Field(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]{1,3})?$"), AfterValidator(_torch)]
Build = Annotated[str, Field(pattern=r"^(cpu|cu[0-9]{2,4})$")]
Python = Annotated[str, AfterValidator(_python)]
Axis = Annotated[tuple[T, ...], Field(min_length=1), AfterValidator(_each_once)]


class Slurm(DocumentedModel):
    """Options of ``sbatch``. A missing option has the cluster's default."""

    partition: SlurmText | None = None
    gres: SlurmText | None = None
    constraint: SlurmText | None = None
    cpus: Annotated[int, Field(ge=1, le=4096)] | None = None
    memory: Size | None = None


class Machine(DocumentedModel):
    """A kind of machine, and how each system that runs jobs reaches one."""

    hardware: FileName
    """The hardware file that declares it: NAME is ``configs/hardware/NAME.yaml``."""
    drivers: Annotated[tuple[Driver, ...], AfterValidator(_each_once)] = ()
    """Releases of the driver that its hosts have. Each one is a job. Without any, the driver is not checked."""
    build: Build | None = None
    """The build of torch for it, such as ``cpu`` or ``cu130``. Default: that of the package index, for CUDA."""
    github: Axis[Label] | None = None
    """The labels of its GitHub runners."""
    gitlab: Axis[Label] | None = None
    """The tags of its GitLab runners."""
    slurm: Slurm | None = None
    """The options of ``sbatch`` for it."""


class Exclude(DocumentedModel):
    """Jobs to leave out: those to which all of these values apply."""

    machine: Name | None = None
    driver: Driver | None = None
    torch: Torch | None = None
    profile: FileName | None = None
    python: Python | None = None


class Product(DocumentedModel):
    """One job for each machine, each of its drivers, each torch, profile and Python."""

    when: When
    machines: Axis[Name]
    torch: Axis[Torch]
    profiles: Axis[FileName]
    python: Axis[Python] = ("3.12",)
    shards: Annotated[int, Field(ge=1, le=_MOST_SHARDS)] = 1
    """How many parts the cases of each job are split into. Each part is a job of its own."""
    minutes: Annotated[int, Field(ge=1, le=_MOST_MINUTES)] = 360
    """The time limit of a job."""
    exclude: tuple[Exclude, ...] = ()


class PlanFile(DocumentedModel):
    """``configs/matrix.yaml``."""

    machines: Annotated[dict[Name, Machine], Field(min_length=1)]
    jobs: Annotated[tuple[Product, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class LoadedPlan:
    """A plan whose machines, profiles and hardware files exist and match."""

    file: Loaded[PlanFile]
    hardware: Mapping[str, Hardware]
    """By the name of the machine."""

    def device(self, machine: str) -> str:
        """Return the kind of device that a machine's cases run on, as ``--device`` names it."""
        return str(self.hardware[machine].device["device"])


def load_plan(path: Path, configs: Path, base: Path) -> LoadedPlan:
    """Read a plan, and check it against the hardware files and profiles below `configs`.

    Raise ConfigError with one line per problem.
    """
    loaded = configfile.load_config(path, PlanFile)
    problems: list[str] = []
    hardware: dict[str, Hardware] = {}
    for name, machine in loaded.value.machines.items():
        where = ("machines", name)
        try:
            configfile.find_config(machine.hardware, configs / "hardware", "hardware", base)
        except ConfigError as error:
            problems.append(loaded.problem(f"no hardware file declares this machine: {error}", *where, "hardware"))
            continue
        try:
            hardware[name] = load_hardware(machine.hardware, configs, base).value
        except ConfigError as error:
            problems += str(error).splitlines()
            continue
        problems += [loaded.problem(text, *where, key) for key, text in _of_machine(machine, hardware[name])]

    @functools.cache
    def profile_of(name: str) -> Profile | ConfigError:
        try:
            return load_profile(name, configs, base).value
        except ConfigError as error:
            return error

    for index, entry in enumerate(loaded.value.jobs):
        profiles = {name: profile_of(name) for name in entry.profiles}
        for place, text in _of_product(entry, hardware, loaded.value.machines, profiles):
            problems.append(loaded.problem(text, "jobs", index, *place))
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return LoadedPlan(loaded, hardware)


def _of_machine(machine: Machine, hardware: Hardware) -> Iterator[tuple[str, str]]:
    """Yield the problems of a machine, each with its key."""
    device = str(hardware.device["device"])
    backend = BACKENDS.get(device)
    if machine.drivers and backend is not None and not backend.nvml:
        yield "drivers", f"hardware {machine.hardware!r} is {device} and has no driver: remove 'drivers'"
    for key, texts in _places(machine).items():
        named = any(DRIVER in text for text in texts)
        if named and not machine.drivers:
            yield key, f"'{DRIVER}' stands for a driver, and the machine has no 'drivers': list them"
        if not named and len(machine.drivers) > 1:
            yield key, f"hosts with another driver would get the same jobs: put '{DRIVER}' into one of these texts"


def _places(machine: Machine) -> dict[str, tuple[str, ...]]:
    """Return the texts that select a host, for each system that reaches the machine."""
    slurm = machine.slurm
    places = {
        "github": machine.github,
        "gitlab": machine.gitlab,
        "slurm": None if slurm is None else tuple(filter(None, (slurm.partition, slurm.gres, slurm.constraint))),
    }
    return {key: texts for key, texts in places.items() if texts is not None}


def _of_product(
    entry: Product,
    hardware: Mapping[str, Hardware],
    machines: Mapping[str, Machine],
    profiles: Mapping[str, Profile | ConfigError],
) -> Iterator[tuple[Where, str]]:
    """Yield the problems of an entry of `jobs`, each with its place."""
    for place, name in enumerate(entry.machines):
        if name not in machines:
            advice = name_advice(name, list(machines))
            yield ("machines", place), f"there is no machine {name!r} in 'machines'; {advice}"
    for place, (name, profile) in enumerate(profiles.items()):
        if isinstance(profile, ConfigError):
            yield ("profiles", place), str(profile)
            continue
        for machine in entry.machines:
            if machine in hardware and (misfit := _misfit(profile, hardware[machine], machines[machine].hardware)):
                yield ("profiles", place), f"profile {name!r} cannot run on machine {machine!r}: {misfit}"


def _misfit(profile: Profile, hardware: Hardware, name: str) -> str:
    """Return why a run with this profile cannot start on this hardware; empty if it can."""
    device = str(hardware.device["device"])
    if profile.device not in (None, "auto", device):
        return f"the profile is for {profile.device}, hardware {name!r} is {device}"
    if profile.hardware not in (None, name):
        return f"the profile is for hardware {profile.hardware!r}, the machine has {name!r}"
    promised = requirements.parse_requirements({**hardware.device, **hardware.offers})
    for condition in requirements.parse_requirements(profile.requires):
        if not implication([condition], promised).can_hold:
            return f"the profile requires {condition}, which hardware {name!r} never meets"
    return ""


# ---- jobs ----


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

    @property
    def values(self) -> dict[str, str]:
        """What the job runs, by name, for the systems that start it."""
        names = ("run", "hardware", "device", "driver", "torch", "build", "python", "profile", "shard")
        return {name: getattr(self, name) for name in names}

    def variables(self) -> dict[str, str]:
        """Return the variables that ``ci/matrix.sh job`` reads from the environment."""
        names = {"python": "PYTHON_VERSION"}
        return {f"MATRIX_{names.get(name, name.upper())}": value for name, value in self.values.items()}


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
            shards = [f"{number}/{entry.shards}" for number in range(1, entry.shards + 1)]
            jobs += [replace(job, shard=shard) for shard in shards] if entry.shards > 1 else [job]
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
    for name in entry.machines:
        machine = plan.file.value.machines[name]
        axes = (machine.drivers or ("",), entry.torch, entry.python, entry.profiles)
        for driver, torch, python, profile in product(*axes):
            reached = Machine.model_validate_json(machine.model_dump_json().replace(DRIVER, driver))
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
                github=reached.github,
                gitlab=reached.gitlab,
                slurm=reached.slurm,
            )


def _applies(exclude: Exclude, job: PlanJob) -> bool:
    wanted = exclude.model_dump(exclude_none=True)
    return all(getattr(job, key) == value for key, value in wanted.items())
