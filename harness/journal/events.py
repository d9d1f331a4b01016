"""The journal's format: one class per kind of line, for those who write lines and those who read them.

After a change here, run ``.ci/regenerate``, which also makes the JSON schema that is shipped.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from harness.core.outcome import Outcome
from harness.core.structs import DocumentedStruct

#: Incremented with every change that a reader of the previous number would misread.
SCHEMA = 1

_END_OF_TIME = 253402300800.0  # the year 10000, which datetime cannot hold
MOST_SECONDS = 1e9
#: The latest begin of a run, so that its end is a moment of a journal too.
LATEST_BEGIN = _END_OF_TIME - 2 * MOST_SECONDS
Moment = Annotated[float, Meta(ge=0, lt=_END_OF_TIME)]
Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]
Name = Annotated[str, Meta(min_length=1)]


class _Line(DocumentedStruct, tag_field="event", frozen=True, kw_only=True):
    t: Moment
    """Time of the event, in seconds since 1970-01-01 UTC."""

    @property
    def event(self) -> str:
        """The kind of the line."""
        return str(self.__struct_config__.tag)


class _NodeLine(_Line, frozen=True, kw_only=True):
    host: str = ""
    """In a cluster run, the node that wrote the line. Empty in other runs."""


class ImportedFile(DocumentedStruct, frozen=True, kw_only=True):
    """A file that results were imported from."""

    path: Name
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    cases: Annotated[int, Meta(ge=1)]


class Imported(DocumentedStruct, frozen=True, kw_only=True):
    """Where imported results come from."""

    tool: Name
    """The tool or suite that ran the cases."""
    files: tuple[ImportedFile, ...]

    @property
    def text(self) -> str:
        """One line for people: ``by gtest, imported from a.xml (sha256:0123456789ab)``."""
        files = ", ".join(f"{file.path} (sha256:{file.sha256[:12]})" for file in self.files)
        return f"by {self.tool}, imported from {files}"


class RunStarted(_Line, tag="run", frozen=True, kw_only=True):
    """A run started. This is the first line of a journal. A run that continues an earlier one writes it again."""

    schema_version: Annotated[int, Meta(ge=1)] = msgspec.field(name="schema")
    """Version of this schema. A reader refuses a version above its own."""
    run_id: Name
    argv: tuple[str, ...]
    """The command line, program first."""
    seed: int
    """The run's seed. Each case's seed is derived from it."""
    isolation: str
    """batch, case or none."""
    host: str
    pid: int
    """Process id of the controller."""
    devices: tuple[str, ...]
    """UUIDs of the devices that the run may use."""
    label: str = ""
    """The kind of the devices if they are neither GPUs nor the CPU, such as ``simulated CUDA (no GPU)``."""
    fail_on_flaky: bool
    """Whether a flaky case makes the run red."""
    rootdir: str
    """The folder that case ids are relative to."""
    profile: str = ""
    """The run's profile; empty without one."""
    hardware: str = ""
    """The hardware file that the machine was checked against; empty without one."""
    minimum_cases: Annotated[int, Meta(ge=0)] = 0
    """The run is red if fewer cases ran. For shards, the merged run must reach the number."""
    shard: str = ""
    """Which part of the selected cases the run has, as ``I/N``. Empty if it has all of them."""
    part: Annotated[int, Meta(ge=1)] = 1
    """2 after one resumption, and so on. In a resumed run, `collected` lines of this part may precede this line."""
    forced: tuple[str, ...] = ()
    """What had changed before the run was resumed by force (``--force-resume``), one per line."""
    identity: dict[str, str] = msgspec.field(default_factory=dict)
    """Facts that must be equal where results are combined, by name: suites' files, torch, driver and so on."""
    settings: dict[str, str | int | float | bool | None] = msgspec.field(default_factory=dict)
    """The resolved value of every other option, by name."""
    imported: Imported | None = None
    """Set if another tool ran the cases. The harness has isolated, repeated and checked none of them."""


class MergedShard(_Line, tag="shard", frozen=True, kw_only=True):
    """Only in a merged run: one of the merged runs. The names of its workers begin with ``shardI-``."""

    shard: Name
    run_id: Name
    host: str
    devices: tuple[str, ...]
    exit_status: int | None = None
    """Null if the run did not finish."""


class Collected(_Line, tag="collected", frozen=True, kw_only=True):
    """A worker or the controller collected these cases. Each of them gets a verdict."""

    worker: str
    count: Annotated[int, Meta(ge=0)]
    hash: Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
    """harness.core.caseid.digest_of_ids of the ids. All workers of a run have the same hash."""
    ids: tuple[Name, ...] = ()
    """Node ids in order. They may be left out if another line with the same hash has them."""
    deselected: tuple[Name, ...] = ()
    """Ids of the cases that were collected and then deselected by a profile or by options such as ``-k``."""
    unread: tuple[Name, ...] = ()
    """How ids begin that were not collected, since the profile or ``--only`` selects none of them: ``suites/amp/``."""
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    """The reasons of the files that skipped themselves as a whole, by the beginning of the ids of their cases."""
    pid: int | None = None
    """Process id of the worker."""
    part: Annotated[int, Meta(ge=1)] = 1
    """The part of the run, see the `run` line."""
    selection: Annotated[str, Meta(pattern="^(sha256:[0-9a-f]{64})?$")] = ""
    """Only for a shard: digest_of_ids of the sorted ids of the selected cases of all shards."""
    selected: tuple[Name, ...] = ()
    """Only for a shard: ids of all selected cases, of all shards, in collection order. May be left out like `ids`."""


class MustPass(_Line, tag="must_pass", frozen=True, kw_only=True):
    """A must-pass list of the run. The run satisfies the list if every case on it passed."""

    name: Name
    hash: Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
    """harness.core.caseid.digest_of_ids of the ids."""
    ids: tuple[Name, ...]


class Waiver(_Line, tag="waiver", frozen=True, kw_only=True):
    """A waiver of the run, whether it applies to a case or not: one line for each in its waiver files."""

    case: Name
    """The pattern for ids of cases."""
    when: dict[str, Any] = msgspec.field(default_factory=dict)
    """The conditions under which it holds. Empty if it holds everywhere."""
    expect: tuple[Outcome, ...]
    """The outcomes that it expects."""
    reason: str
    link: str = ""
    owner: str = ""
    expires: Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    """The last day on which it holds, in UTC."""
    source: Name
    """Where it is defined: file and line. The rulings that it causes have the same source."""


class Start(_NodeLine, tag="start", frozen=True, kw_only=True):
    """An attempt at a case starts. `t` is the start; the line may be written some milliseconds later."""

    case: Name
    attempt: Annotated[int, Meta(ge=1)]
    alone: bool = False
    """Whether the executor runs only this case. It does so to confirm a failure that happened after other cases."""
    worker: str = ""
    executor: str | None = None
    """The executor's name in this run; null without isolation."""
    pid: int | None = None
    """Process id of the executor."""
    devices: tuple[str, ...] = ()
    """UUIDs of the devices leased to the attempt."""
    seed: int

    def ended(self, outcome: Outcome, message: str, *, t: float, final: bool) -> Finish:
        """Return the end of this attempt, which nobody has reported."""
        same = {name: getattr(self, name) for name in _OF_ATTEMPT}
        return Finish(t=t, outcome=outcome, final=final, duration=0.0, message=message, **same)


_OF_ATTEMPT = ("host", "case", "attempt", "alone", "worker", "executor", "devices", "seed")


class Reopened(_NodeLine, tag="reopened", frozen=True, kw_only=True):
    """The run was resumed, and a case that ended as `lost` or `not_run` runs again. Its earlier attempts no longer
    count.
    """

    case: Name


class Gate(DocumentedStruct, frozen=True, kw_only=True):
    """The unmet requirement that kept the case from running."""

    capability: str
    wanted: str
    found: str

    @property
    def text(self) -> str:
        """For example ``memory: wanted >=12GiB, found 8.0GiB``."""
        return f"{self.capability}: wanted {self.wanted}, found {self.found}"


class Ruling(DocumentedStruct, frozen=True, kw_only=True):
    """The outcome that a rule of the run gives to a case. It replaces the outcomes of the case's attempts."""

    outcome: Outcome
    text: str
    """The reason, on one line."""
    source: str = ""
    """Where the rule is defined: file and line, or an option."""


class Finish(_NodeLine, tag="finish", frozen=True, kw_only=True):
    """An attempt at a case ended, normally or not."""

    case: Name
    attempt: Annotated[int, Meta(ge=1)]
    alone: bool = False
    worker: str = ""
    executor: str | None = None
    devices: tuple[str, ...] = ()
    seed: int
    outcome: Outcome
    """The outcome of this attempt."""
    final: bool
    """False if the harness will run the case again, alone."""
    duration: Seconds
    """Wall time of the attempt in seconds."""
    phases: dict[str, Seconds] = msgspec.field(default_factory=dict)
    """Seconds that setup, call and teardown took."""
    message: str = ""
    """What happened, on one line."""
    detail: str = ""
    """Traceback or stacks."""
    stdout: str = ""
    stderr: str = ""
    log: str = ""
    exit_status: int | None = None
    """The executor's exit status if it ended: its exit code, or minus the number of the signal that killed it."""
    struck: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of occurrences of each injected fault during the case. Empty if the process died before it reported."""
    memory: dict[str, int] = msgspec.field(default_factory=dict)
    """The most bytes that the case had in use: of the `host`, above what the process had before; of one `device`, by
    torch's allocator. A figure of 0, and an unknown one, is left out.
    """
    keeps: str = ""
    """The reason in the case's ``keeps`` mark, and the limits. Growth up to them, and no other, is not checked."""
    notes: tuple[str, ...] = ()
    """Further facts, one per line."""
    properties: tuple[tuple[str, str], ...] = ()
    """What the case recorded with pytest's ``record_property``: names and values, as texts, in order."""
    reproduce: str | None = None
    """The command that runs only this case, with the same seed and device."""
    gate: Gate | None = None
    ruling: Ruling | None = None


class Executor(_NodeLine, tag="executor", frozen=True, kw_only=True):
    """An executor (a process that runs cases) started, or has certainly ended."""

    executor: Name
    worker: str = ""
    pid: int
    devices: tuple[str, ...] = ()
    state: Literal["started", "ended"]
    startup: Seconds | None = None
    """Seconds from the request until the executor was ready."""
    cases: Annotated[int, Meta(ge=0)] = 0
    """How many attempts the executor ran. Known when it ended."""
    exit_status: int | None = None
    reason: str = ""
    """Why the executor started or ended."""


class Device(_NodeLine, tag="device", frozen=True, kw_only=True):
    """The health of a device, after an examination or a reading."""

    device: Name
    """UUID of the device."""
    state: Literal["healthy", "sick", "drained"]
    """sick: the device failed an examination or shows a fault. drained: the device gets no more cases."""
    worker: str = ""
    moment: str = ""
    """Why the device was examined: the start of the run, or the outcome of a case."""
    message: str = ""
    seconds: Seconds | None = None
    """How long the examination took."""


class Confirmation(_NodeLine, tag="confirmation", frozen=True, kw_only=True):
    """A suspected leak was checked: the case ran several times in a fresh process."""

    case: Name
    suspicions: dict[str, int]
    """The growth that raised the suspicion, by meter."""
    growths: tuple[dict[str, int], ...]
    """The growth in each repetition, by meter."""
    leaks: tuple[str, ...]
    """What leaks, one per line. Empty if nothing leaks."""
    failure: str = ""
    """Why the repetitions gave no result."""


class Levels(_NodeLine, tag="levels", frozen=True, kw_only=True):
    """The resources that a process had in use after an attempt. Only in a run that repeats its cases."""

    case: Name
    attempt: Annotated[int, Meta(ge=1)]
    executor: Name
    """Name of the process. Levels of different executors cannot be compared."""
    values: dict[str, int]
    """Bytes or counts, by meter."""


class Batch(_NodeLine, tag="batch", frozen=True, kw_only=True):
    """A process grew by more than its cases account for. As far as time allowed, cases ran again in fresh processes."""

    executor: Name
    """The process that grew."""
    cases: tuple[Name, ...]
    """Ids of its cases, in order."""
    suspicions: dict[str, int]
    """The growth over all cases, by meter."""
    leaks: tuple[str, ...]
    """What leaks and with which cases, one per line. Empty if nothing is shown to leak."""
    unproven: tuple[str, ...] = ()
    """What may leak, one per line: the search ended before it was known."""
    tried: Annotated[int, Meta(ge=0)]
    """How many of the cases ran again."""
    trials: Annotated[int, Meta(ge=0)]
    """How many fresh processes were used."""
    seconds: Seconds
    failure: str = ""
    """What remains unknown, with the reason."""


class Activity(_Line, tag="activity", frozen=True, kw_only=True):
    """What a worker does between attempts at cases. The progress line shows it; reports do not use it."""

    worker: str
    what: str
    """The text after "WORKER is". Empty when the activity is over."""
    since: Moment | None = None
    """When the activity began. A later line may describe the same activity in other words."""


class Bisected(_Line, tag="bisected", frozen=True, kw_only=True):
    """Result of ``harness bisect``, after the run: the earlier cases that make a case fail."""

    case: Name
    outcome: Outcome
    culprits: tuple[Name, ...]
    """Ids in order. The case fails after all of them in one process, and not after fewer of them."""
    trials: Annotated[int, Meta(ge=1)]
    """How many runs the search used."""
    reproduce: str


class Finding(_NodeLine, tag="finding", frozen=True, kw_only=True):
    """A problem that makes the run red and belongs to no single case."""

    kind: Name
    message: str
    cases: tuple[str, ...] = ()
    """Ids of the cases concerned, if any."""
    reproduce: str | None = None
    """The command that reproduces the problem, if there is one."""


class Wait(_NodeLine, tag="wait", frozen=True, kw_only=True):
    """A worker must wait before it can continue. This is information; no case is at fault."""

    worker: str
    message: str
    """What the worker waits for, why, and the time limit."""


class SessionProperty(_NodeLine, tag="session_property", frozen=True, kw_only=True):
    """A property of the run as a whole, recorded with pytest's ``record_testsuite_property``.

    A line may occur several times: each executor sets up the fixtures of the session for itself.
    """

    name: str
    value: str


class Stopped(_Line, tag="stopped", frozen=True, kw_only=True):
    """A signal stopped the run before all cases had run."""

    by: Name
    """The name of the signal."""
    grace: Seconds
    """Seconds that running cases got to end."""


StateOfNode = Literal["ready", "refused", "lost", "stopping", "ended"]


class Node(_Line, tag="node", frozen=True, kw_only=True):
    """Only in a cluster run: the state of one of its nodes."""

    host: Name
    """The name of the node."""
    state: StateOfNode
    """refused: the node differs from the others. lost: it is gone, or silent. ended: it sent its last message."""
    message: str = ""
    session: Annotated[int, Meta(ge=0)] = 0
    """The number of the pytest session on this node, from 1."""
    folder: str = ""
    """The run directory of that session, on the node."""
    devices: tuple[str, ...] = ()
    gres: str = ""
    """The generic resources of the node, as Slurm writes them."""
    features: tuple[str, ...] = ()
    """The node's features in Slurm."""


class Late(_Line, tag="late", frozen=True, kw_only=True):
    """Only in a cluster run: a node reported a case that it did not or no longer have. The report does not count."""

    host: Name
    case: str = ""
    what: Name
    """The kind of the line."""
    outcome: str = ""
    message: str = ""


class Suspect(_Line, tag="suspect", frozen=True, kw_only=True):
    """Only in a cluster run: a case may have ended its node, session or worker. It runs alone, after all other cases.

    A case that was leased to a lost node is a suspect, even without a `start` line: the node may not have sent it.
    """

    case: Name
    host: Name
    """The name of the node."""


class SecondStart(_NodeLine, tag="second_start", frozen=True, kw_only=True):
    """Only in a cluster run: an attempt at a red case on a second device starts. It decides nothing.

    A `second_device` line has its result. Without one, the attempt ended without a verdict: its node was lost, or the
    run was stopped.
    """

    case: Name
    attempt: Annotated[int, Meta(ge=1)]
    """Counted anew on the second device."""
    worker: str = ""
    executor: str | None = None
    devices: tuple[str, ...] = ()
    seed: int


class SecondDevice(_Line, tag="second_device", frozen=True, kw_only=True):
    """Only in a cluster run: a red case ran again, on another device of the same kind. The verdict is unchanged."""

    case: Name
    first: str
    """UUID of the device on which the case was red."""
    second: str
    """UUID of the other device."""
    host: Name
    """The node of the other device."""
    outcome: Outcome
    """The outcome of the case on the other device."""
    finding: Literal["red on this device only", "red on both"]
    message: str = ""

    @property
    def text(self) -> str:
        """The finding and the two devices, as every report words it."""
        return f"{self.finding} ({self.first}; on {self.second} of {self.host}: {self.outcome})"


class End(_Line, tag="end", frozen=True, kw_only=True):
    """The run finished and was not cut off."""

    exit_status: int
    duration: Seconds


Event = (
    RunStarted
    | MergedShard
    | Collected
    | MustPass
    | Waiver
    | Start
    | Reopened
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
    | SessionProperty
    | Stopped
    | Node
    | Late
    | Suspect
    | SecondStart
    | SecondDevice
    | End
)
#: The kinds of lines that this version knows.
KINDS = frozenset(str(kind.__struct_config__.tag) for kind in Event.__args__)
