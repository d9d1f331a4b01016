"""The report of ``harness ready``: what was read and tried on a node, what is wrong, and one verdict.

After a change here, run ``.ci/regenerate``, which also makes the JSON schema that is shipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from harness.core.structs import DocumentedStruct

#: Incremented with every change that a reader of the previous number would misread.
FORMAT = 2

#: The most that a reader accepts: a report may come from a node that is damaged.
MOST_GPUS = 1024
MOST_ENTRIES = 100_000
MOST_TEXT = 4000  # characters

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(max_length=MOST_TEXT)]
Gpu = Annotated[str, Meta(min_length=1, max_length=200)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Moment = Annotated[float, Meta(ge=0, lt=253402300800.0)]


class Verdict(StrEnum):
    """Whether work may be given to a GPU or a node."""

    READY = "ready"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"
    NOT_READY = "not_ready"

    @property
    def severity(self) -> int:
        """0 for `ready`, more for each worse verdict."""
        return list(Verdict).index(self)

    def allows_work(self, *, strict: bool = False) -> bool:
        """Return whether work may be given to the GPU or node. `strict`: to a degraded one it may not."""
        return self is Verdict.READY or (self is Verdict.DEGRADED and not strict)

    @property
    def text(self) -> str:
        """The verdict for people: ``not ready``."""
        return self.value.replace("_", " ")


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of the verdicts: `not_ready`, then `unknown`, `degraded`, `ready`. `ready` if there is none."""
    return max(verdicts, key=lambda verdict: verdict.severity, default=Verdict.READY)


class Step(StrEnum):
    """What an operator does next about a problem. The harness only names the step, and never takes it."""

    NOTHING = "nothing"
    END_PROCESSES = "end_processes"
    FIX_CONFIGURATION = "fix_configuration"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    VENDOR_TICKET = "vendor_ticket"
    LOOK = "look"

    @property
    def text(self) -> str:
        """The step for people."""
        return _STEPS[self]


_STEPS = {
    Step.NOTHING: "nothing",
    Step.END_PROCESSES: "end the leftover processes",
    Step.FIX_CONFIGURATION: "fix the configuration",
    Step.RESET_GPU: "reset the GPU",
    Step.REBOOT: "reboot the node",
    Step.VENDOR_TICKET: "open a ticket with the vendor",
    Step.LOOK: "look by hand",
}


class _Record(DocumentedStruct, frozen=True, kw_only=True, omit_defaults=False):
    """A part of a report. Every field is written."""


class Problem(_Record, frozen=True, kw_only=True):
    """One thing that is not as it should be, and what to do about it."""

    check: Name
    """The check that found it, such as ``remapped_rows`` or ``product_bf16``."""
    kind: Name
    """The kind of problem: a key of the table of next steps (`harness.ready.rules`)."""
    gpu: Gpu | None = None
    """UUID of the GPU; null for a problem of the node."""
    verdict: Verdict
    """What the problem makes of the GPU, and of the node."""
    wanted: Text
    """What was expected, without a full stop."""
    found: Text
    """What was found."""
    step: Step
    """The next step."""
    detail: Text = ""
    """What the step needs: which setting, which processes, which link."""
    source: Text = ""
    """URL of the page that the verdict and the step follow."""
    code: Text = ""
    """Number of the Xid or SXid, if the problem is one."""


class Reading(_Record, frozen=True, kw_only=True):
    """One value that was read from the driver or the host."""

    name: Name
    gpu: Gpu | None = None
    """UUID of the GPU; null for a reading of the host."""
    value: float | int | bool | Text | None = None
    """The value; null if it could not be read, or does not exist on this device. `text` has the reason."""
    unit: Text = ""
    text: Text = ""


class CheckRun(_Record, frozen=True, kw_only=True):
    """One check that ran, or that should have."""

    name: Name
    gpu: Gpu | None = None
    """UUID of the GPU; null for a check of the node, or of several GPUs together."""
    state: Literal["ok", "problem", "unknown", "skipped"]
    """unknown: the check could not run. skipped: it was not tried, since the budget was used up or the card lacks what
    it tests.
    """
    seconds: Seconds = 0.0
    text: Text = ""
    """Why the check is unknown or skipped, or what it found."""
    value: float | None = None
    """What was measured."""
    floor: float | None = None
    """The least that was accepted, or the most for a duration; in the same unit."""
    unit: Text = ""

    @property
    def left_out(self) -> bool:
        """Whether it was not reached within the budget."""
        return self.state == "skipped" and "budget" in self.text


class GpuReport(_Record, frozen=True, kw_only=True):
    """One GPU of the node, or one MIG instance."""

    uuid: Gpu
    index: Annotated[int, Meta(ge=0)] | None = None
    """NVML's index."""
    name: Text = ""
    serial: Text = ""
    pci: Text = ""
    """PCI address, as NVML gives it; that of the card for a MIG instance."""
    mig_parent: Gpu | None = None
    """UUID of the card of a MIG instance."""
    verdict: Verdict


class NodeReport(_Record, frozen=True, kw_only=True):
    """The report on one node."""

    format: Annotated[int, Meta(ge=1)] = FORMAT
    """Version of this format. A reader refuses a version above its own."""
    host: Name
    time: Moment
    """When the check began, in seconds since 1970-01-01 UTC."""
    mode: Literal["passive", "active", "deep"]
    """passive: readings only. active: readings and quick tests. deep: also a run of the suites."""
    budget: Seconds
    """Seconds that were allowed."""
    seconds: Seconds
    """Seconds that the check took."""
    verdict: Verdict
    """The worst of the problems and of the GPUs."""
    gpus: Annotated[tuple[GpuReport, ...], Meta(max_length=MOST_GPUS)] = ()
    problems: Annotated[tuple[Problem, ...], Meta(max_length=MOST_ENTRIES)] = ()
    """The worst first."""
    checks: Annotated[tuple[CheckRun, ...], Meta(max_length=MOST_ENTRIES)] = ()
    readings: Annotated[tuple[Reading, ...], Meta(max_length=MOST_ENTRIES)] = ()
    stack: dict[Name, Text] = msgspec.field(default_factory=dict)
    """Versions and limits by name: driver, vbios, cuda, torch, kernel, and so on. Nodes of a fleet should agree."""
