"""What may stand in a journal, one model a kind of line, and the JSON schema shipped for it.

``python -m harness.reporting.events`` writes the schema anew after a change here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from harness.outcome import Outcome

#: Raised with every change that a reader of the number before would misread.
SCHEMA = 2
SCHEMA_FILE = Path(__file__).with_name("journal.schema.json")

Moment = Annotated[float, Field(ge=0, lt=253402300800)]  # the last second of the year 9999, where calendars end
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Name = Annotated[str, Field(min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class _Line(_Model):
    t: Moment
    """When it happened, in seconds since 1970-01-01 UTC."""


class RunStarted(_Line):
    """The first line of a run, and again of each run that carries it on."""

    event: Literal["run"]
    schema_version: int = Field(alias="schema", ge=1)
    """Number of this schema; a reader refuses a number above its own."""
    run_id: Name
    argv: tuple[str, ...]
    """The command line, program first."""
    seed: int
    """The run's seed, of which each case's is derived."""
    isolation: str
    """batch, case or none."""
    host: str
    pid: int
    """Process id of the controller."""
    devices: tuple[str, ...]
    """UUIDs of the devices the run may use."""
    fail_on_flaky: bool
    """Whether a flaky case makes the run red."""
    rootdir: str
    """The folder that case ids are relative to."""
    profile: str = ""
    """The profile that says what must run, empty without one."""
    hardware: str = ""
    """The kind of machine that this one was held to, empty without one."""
    minimum_cases: int = Field(default=0, ge=0)
    """A run in which fewer cases ran is red."""
    settings: dict[str, str | int | float | bool | None] = {}
    """Every other option as it was resolved, by name."""


class Collected(_Line):
    """The list of cases that a worker, or the controller, collected and will account for."""

    event: Literal["collected"]
    worker: str
    count: int = Field(ge=0)
    hash: str = Field(pattern="^sha256:[0-9a-f]{64}$")
    """harness.reporting.journal.digest of the ids; equal for all workers of a run."""
    ids: tuple[Name, ...] = ()
    """Node ids in order. May be left out where another line with the same hash has them."""
    deselected: tuple[Name, ...] = ()
    """Ids of the cases that were collected and then left out by a profile or by options such as ``-k``."""
    pid: int | None = None
    """Process id of the worker."""


class MustPass(_Line):
    """A list of cases that the run is held to: it satisfies the list when every one of them passed."""

    event: Literal["must_pass"]
    name: Name
    hash: str = Field(pattern="^sha256:[0-9a-f]{64}$")
    """harness.reporting.journal.digest of the ids."""
    ids: tuple[Name, ...]


class Start(_Line):
    """An attempt at a case is about to begin."""

    event: Literal["start"]
    case: Name
    attempt: int = Field(ge=1)
    alone: bool = False
    """Whether the case has its executor for itself, to confirm what happened in company."""
    worker: str = ""
    executor: str | None = None
    """The executor's name in this run; null without isolation."""
    pid: int | None = None
    """Process id of the executor."""
    devices: tuple[str, ...] = ()
    """UUIDs of the devices leased to the attempt."""
    seed: int


class Gate(_Model):
    """The requirement that kept a case from running."""

    capability: str
    wanted: str
    found: str


class Ruling(_Model):
    """What a rule of the run makes of a case, whatever its attempts came to by themselves."""

    outcome: Outcome
    text: str
    """One line that says why."""
    source: str = ""
    """Where the rule stands: file and line, or an option."""


class Finish(_Line):
    """An attempt at a case has ended, by itself or not."""

    event: Literal["finish"]
    case: Name
    attempt: int = Field(ge=1)
    alone: bool = False
    worker: str = ""
    executor: str | None = None
    devices: tuple[str, ...] = ()
    seed: int
    outcome: Outcome
    """Of this attempt."""
    final: bool
    """False when the harness will try the case again, alone."""
    duration: Seconds
    """Wall time of the attempt in seconds."""
    phases: dict[str, Seconds] = {}
    """Seconds of setup, call and teardown."""
    message: str = ""
    """One line that says what happened."""
    detail: str = ""
    """Traceback or stacks."""
    stdout: str = ""
    stderr: str = ""
    log: str = ""
    exit_status: int | None = None
    """Of the executor, where it ended: its exit code, or minus the signal that killed it."""
    struck: dict[str, int] = {}
    """How often each injected fault struck while the case ran, where its process lived to tell."""
    keeps: str = ""
    """Why growth of memory was not looked at, where the case is marked so."""
    notes: tuple[str, ...] = ()
    """Further facts, a line each."""
    reproduce: str | None = None
    """The command that runs just this case with the same seed and device."""
    gate: Gate | None = None
    ruling: Ruling | None = None


class Executor(_Line):
    """A process that runs cases was started, or is verified to have ended."""

    event: Literal["executor"]
    executor: Name
    worker: str = ""
    pid: int
    devices: tuple[str, ...] = ()
    state: Literal["started", "ended"]
    startup: Seconds | None = None
    """Seconds from the request to readiness."""
    cases: int = Field(default=0, ge=0)
    """How many attempts it ran; known at its end."""
    exit_status: int | None = None
    reason: str = ""
    """Why it was started or ended."""


class Device(_Line):
    """What was found about a device's health."""

    event: Literal["device"]
    device: Name
    """Its UUID."""
    state: Literal["healthy", "sick", "drained"]
    """sick: failed an examination or shows signs of a fault; drained: is given no more cases."""
    worker: str = ""
    moment: str = ""
    """What occasioned the look: the start of the run, or what became of which case."""
    message: str = ""
    seconds: Seconds | None = None
    """How long the examination took."""


class Confirmation(_Line):
    """A suspicion of a leak was looked into: the case ran several times in a fresh process."""

    event: Literal["confirmation"]
    case: Name
    suspicions: dict[str, int]
    """By meter, the growth that was seen."""
    growths: tuple[dict[str, int], ...]
    """By meter, the growth in each repetition."""
    leaks: tuple[str, ...]
    """What leaks, a line each; none when it does not."""
    failure: str = ""
    """Why the repetitions told nothing."""


class Levels(_Line):
    """What a process had in use after an attempt, in a run that repeats its cases."""

    event: Literal["levels"]
    case: Name
    attempt: int = Field(ge=1)
    executor: Name
    """Levels of different executors say nothing of each other."""
    values: dict[str, int]
    """By meter, bytes or things."""


class Batch(_Line):
    """A process that ran several cases had grown by more than they account for; they ran again, in fresh ones."""

    event: Literal["batch"]
    executor: Name
    """The one that had grown."""
    cases: tuple[Name, ...]
    """The ids of those that ran again, in order."""
    suspicions: dict[str, int]
    """By meter, the growth over all cases."""
    leaks: tuple[str, ...]
    """What leaks and with which cases, a line each; none when nothing does."""
    trials: int = Field(ge=0)
    """How many processes it took."""
    seconds: Seconds
    failure: str = ""
    """What was not found out, and why."""


class Activity(_Line):
    """What a worker does beside attempts at cases, for whoever watches the run. Reports make nothing of it."""

    event: Literal["activity"]
    worker: str
    what: str
    """Words that follow "is"; empty when it is over."""
    since: Moment | None = None
    """When it began: a later line may tell the same activity in other words."""


class Bisected(_Line):
    """After the run: which earlier cases a case needs to go wrong."""

    event: Literal["bisected"]
    case: Name
    outcome: Outcome
    culprits: tuple[Name, ...]
    """Ids in order; the case goes wrong after all of them in one process, and after no fewer."""
    trials: int = Field(ge=1)
    """How many runs it took to find out."""
    reproduce: str


class Finding(_Line):
    """Something that makes the run red and belongs to no single case."""

    event: Literal["finding"]
    kind: Name
    message: str
    cases: tuple[str, ...] = ()
    """Ids of the cases it concerns, where there are any."""
    reproduce: str | None = None
    """The command that shows it again, where there is one."""


class Wait(_Line):
    """A worker waits for something that it cannot go on without. Information: nothing is wrong with a case."""

    event: Literal["wait"]
    worker: str
    message: str
    """What it waits for, why, and for how long at most."""


class Stopped(_Line):
    """The run was told to stop before it had run all its cases."""

    event: Literal["stopped"]
    by: Name
    """The name of the signal."""
    grace: Seconds
    """How long cases that ran were given to end."""


class End(_Line):
    """The run came to its own end."""

    event: Literal["end"]
    exit_status: int
    duration: Seconds


Event = Annotated[
    RunStarted
    | Collected
    | MustPass
    | Start
    | Finish
    | Executor
    | Device
    | Confirmation
    | Levels
    | Batch
    | Activity
    | Bisected
    | Finding
    | Wait
    | Stopped
    | End,
    Field(discriminator="event"),
]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def schema() -> dict[str, Any]:
    """The JSON schema of one line of a journal."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of journal.ndjson",
        "description": f"Schema {SCHEMA}. Each line of a journal is one JSON object of one of these kinds.",
        **EVENT.json_schema(),
    }


def schema_text() -> str:
    """The contents of the shipped schema file."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
