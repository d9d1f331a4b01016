"""What ``harness ready`` is asked to check, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.ready.rules import RULES, Rule

if TYPE_CHECKING:
    from harness.gating.hardware import Hardware

#: A budget of so many seconds or more is enough for a run of the suites.
DEEP = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to check. `budget` is in seconds; `hardware` is a name and the content of a hardware file.

    `folder`: below which a deep check keeps its run directory. `suites`: makes all arguments of pytest from the
    options of such a run.
    """

    budget: float = 60.0
    passive: bool = False
    device: str = "auto"
    hardware: tuple[str, Hardware] | None = None
    inject: tuple[str, ...] = ()
    rules: Mapping[str, Rule] = field(default_factory=lambda: RULES)
    folder: Path = Path("results")
    suites: Callable[[Sequence[str]], list[str]] = list

    @property
    def mode(self) -> str:
        """passive, active or deep."""
        return "passive" if self.passive else "deep" if self.budget >= DEEP else "active"
