"""The task of a cluster run, and its state before an interruption: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import HarnessError
from harness.journal.events import Event
from harness.scheduling.workers import Resumption


class ClusterError(HarnessError):
    """A cluster run cannot begin."""


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """The user's request.

    `silence`: a node without a message for this many seconds is lost. `orphaned_after`: a node stops after this many
    seconds without a message from the head. Others: `CaseQueue`.
    """

    arguments: tuple[str, ...]
    argv: tuple[str, ...]
    folder: str
    run_dir: Path
    run_id: str
    variables: Mapping[str, str] = field(default_factory=dict)
    grace: float = 10.0
    silence: float = 10.0
    orphaned_after: float = 120.0
    start_limit: float = 120.0
    stuck: float = 7200.0
    end_limit: float = 600.0
    second_looks: int = 20


@dataclass(frozen=True, slots=True)
class Earlier:
    """The state of a resumed run.

    `facts`: what must not have changed. `lines`: about attempts that were in flight. `suspects`: the cases that may
    have ended a node, each with its node.
    """

    resumption: Resumption
    run_id: str
    facts: Mapping[str, str]
    lines: tuple[Event, ...] = ()
    suspects: Mapping[str, str] = field(default_factory=dict)
    force: bool = False
