"""Problems as the rules make them."""

from __future__ import annotations

from harness.ready.model import Problem
from harness.ready.rules import Finding, Findings


def make_problem(
    kind: str, *, check: str, wanted: str, found: str, gpu: str | None = None, detail: str = "", code: str = ""
) -> Problem:
    return Findings().problem(check, Finding(kind, wanted, found, detail, code), gpu)
