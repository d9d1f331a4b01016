"""The format of ``matrix.json``: models, and the shipped JSON schema.

After a change here, run ``.ci/regenerate``, which also makes the schema.
"""

from __future__ import annotations

import json
from enum import StrEnum

from pydantic import Field

from harness.core.models import DocumentedModel
from harness.core.outcome import Outcome
from harness.fleet.classing import Cause, CauseClass, Sure

#: Incremented with every change that a reader of the previous number would misread.
SCHEMA = 1


class HoleKind(StrEnum):
    """Why a machine has no result for a case. Of several reasons on one machine, the first in this order counts."""

    WAIVED = "waived"
    LOST = "lost"
    NOT_RUN = "not_run"
    GATED = "gated"
    SKIPPED = "skipped"
    DESELECTED = "deselected"
    OTHER_SHARD = "other_shard"
    NOT_COLLECTED = "not_collected"


class StatedLevel(DocumentedModel):
    """A level of conformance, as the run states it (`harness conformance --keep`)."""

    level: str
    state: str
    """passed, failed, not applicable or incomplete."""
    passed: int
    """How many of its cases passed."""
    cases: int
    hash: str
    """The hash of its list of cases."""


class MatrixRun(DocumentedModel):
    """A run directory."""

    name: str
    """The path as it was given or found."""
    run_id: str
    begun: float
    """Seconds since 1970-01-01 UTC."""
    machine: int
    """Place in `machines`."""
    red: bool
    """Whether anything in the run is red: a case, a finding, an unreadable line, or that it did not finish."""
    exit_status: int
    """The exit status of the run; 1 if it did not finish."""
    findings: tuple[int, ...] = ()
    """Its findings, as places in `findings` of the matrix. At most 100 of one run."""
    notes: tuple[str, ...] = ()
    """Doubts about the run, in sentences."""
    levels: tuple[StatedLevel, ...] = ()
    """What the run states about levels of conformance; empty without a statement."""


class Machine(DocumentedModel):
    """A column: a host with its kind of device, driver and torch. Its runs count together."""

    host: str
    device: str
    """Names of its devices, each once, separated by commas."""
    driver: str
    """"none" if it has no driver."""
    torch: str
    uuids: tuple[str, ...]
    """UUIDs of its devices."""
    runs: int
    red: int
    """How many cases were red in one of its runs."""
    holes: int
    """How many cases it says nothing about."""


class Cell(DocumentedModel):
    """The result of a case on a machine. Equal cells are listed once."""

    outcomes: dict[Outcome, int]
    """The number of runs with each outcome. Empty if no run collected the case."""
    hole: int | None = None
    """Place in `holes` if no run of the machine says anything about the case."""


class Message(DocumentedModel):
    """A message of a red or flaky case."""

    text: str
    runs: int
    """How many runs said it."""


class Classed(DocumentedModel):
    """The class of a failure, or of a group of failures."""

    kind: CauseClass
    sure: Sure
    """Of a group: the surest of its failures."""
    causes: tuple[Cause, ...]
    """What the class names. Of class mixed: two causes that only do it together, or several values of one factor."""
    together: bool
    """Whether only the causes together do it."""
    also: tuple[tuple[Cause, ...], ...]
    """Explanations that fit equally well: these runs cannot distinguish them. Of a group: those of all its failures."""
    maybe_flake: bool
    """Whether a flake fits equally well."""
    text: str
    """The class in words."""
    next: str
    """What to do next."""


class Failure(Classed):
    """A case that is red or flaky somewhere, and its class."""

    chance: float
    """The probability that the bad results of one case fall so by chance; 1 if unknown. See docs/matrix.md."""
    always: bool
    """Whether every run with the causes is red."""
    red: int
    """Runs in which it is red."""
    flaky: int
    """Runs in which it is flaky."""
    ran: int
    """Runs that say something about it."""
    messages: tuple[Message, ...]
    """Its first different messages."""
    reproduce: str
    """The command that runs it again, of one of the runs. Empty if none is recorded."""


class MatrixCase(DocumentedModel):
    """A row."""

    case: str
    suite: str
    cells: tuple[int, ...]
    """For each machine a place in `cells`."""
    failure: Failure | None = None
    """Null if it is red and flaky nowhere."""


class Group(Classed):
    """Failures with the same class and causes."""

    cases: tuple[int, ...]
    """Places in `cases`."""
    machines: tuple[int, ...]
    """The machines with a red or flaky result, as places in `machines`."""


class Finding(DocumentedModel):
    """A problem that makes runs red and belongs to no single case. Its texts differ only in numbers."""

    kind: str
    message: str
    """As the first of the runs has it."""
    runs: tuple[int, ...]
    """Places in `runs`."""
    machines: tuple[int, ...]
    """Places in `machines`."""
    cases: tuple[str, ...] = ()
    """The first cases that it concerns, of all runs. At most 20."""
    concerned: int = 0
    """How many cases it concerns, in the run with most."""
    reproduce: str = ""
    """The command that reproduces it, of one of the runs. Empty if none is recorded."""


class Hole(DocumentedModel):
    """Cells without a result, for the same reason."""

    kind: HoleKind
    reason: str
    found: tuple[str, ...] = ()
    """Of gated cases: what the machines have instead. At most five."""
    cases: tuple[int, ...]
    """Places in `cases`."""
    machines: tuple[int, ...]
    """Places in `machines`."""
    cells: int
    """How many cells. Less than cases times machines if some of these machines ran some of these cases."""


class Value(DocumentedModel):
    """One value of a fact that differs."""

    value: str
    """Empty if it is not recorded."""
    runs: int
    machines: tuple[int, ...]
    """Places in `machines`."""


class Difference(DocumentedModel):
    """A fact that differs between runs, although it may change results."""

    name: str
    values: tuple[Value, ...]
    """Most runs first."""


class Matrix(DocumentedModel):
    """Many runs on many machines."""

    schema_version: int = Field(default=SCHEMA, alias="schema", ge=1)
    """Version of this schema."""
    runs: tuple[MatrixRun, ...]
    machines: tuple[Machine, ...]
    cells: tuple[Cell, ...]
    cases: tuple[MatrixCase, ...]
    groups: tuple[Group, ...]
    holes: tuple[Hole, ...]
    findings: tuple[Finding, ...]
    """Those of most runs first."""
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    """What was left out, in sentences."""

    @property
    def failures(self) -> int:
        """How many cases are red or flaky somewhere."""
        return sum(case.failure is not None for case in self.cases)


def matrix_json(matrix: Matrix) -> bytes:
    """Return the contents of ``matrix.json``: equal matrices give equal bytes. A lone surrogate becomes an escape."""
    return json.dumps(matrix.model_dump(by_alias=True), separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
