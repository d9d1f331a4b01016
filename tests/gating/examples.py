"""Waivers and capabilities for tests of rules."""

from __future__ import annotations

from datetime import date
from functools import partial
from typing import Any

from harness.core.outcome import Outcome
from harness.devices.capabilities import Capabilities
from harness.devices.device import Detected, Value
from harness.gating.waivers import Waiver

TODAY = date(2026, 11, 21)


def waiver(case: str, **changes: Any) -> Waiver:
    """Return a waiver of a failure, on its last day."""
    fields: dict[str, Any] = {
        "when": {},
        "expect": (Outcome.FAILED,),
        "reason": "copies are not ordered",
        "link": "https://example.org/1",
        "owner": "somebody",
        "expires": TODAY,
        "source": "known.yaml:2",
        **changes,
    }
    return Waiver(case=case, **fields)


def offering(**values: Value | None) -> Capabilities:
    """Return capabilities with these values; None means absent, with a reason."""
    findings = {name: Detected(value, "not there" if value is None else "") for name, value in values.items()}
    return Capabilities({name: partial(findings.__getitem__, name) for name in findings})
