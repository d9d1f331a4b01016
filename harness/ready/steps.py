"""Files that replace rows of the table of verdicts and next steps.

A file (``harness ready --steps``) has fields of rows, by kind of problem:

    # before a job the GPUs must be idle
    processes: {verdict: not_ready}
    log_unreadable: {verdict: degraded, step: nothing}
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, RootModel, model_validator

from harness.core.models import StrictModel
from harness.gating import configfile
from harness.ready.model import Step, Verdict
from harness.ready.rules import RULES, Rule


class Override(StrictModel):
    """Replaces fields of a row. A field that is left out keeps the value of the table."""

    verdict: Verdict | None = None
    step: Step | None = None
    source: Annotated[str, Field(min_length=1, max_length=300)] | None = None


class StepsFile(RootModel[dict[str, Override]]):
    """A file of overrides by kind of problem."""

    @model_validator(mode="after")
    def _know_every_kind(self) -> Self:
        for kind in self.root:
            if kind not in RULES:
                near = difflib.get_close_matches(kind, RULES, n=1)
                advice = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(RULES)}"
                raise ValueError(f"{kind!r} is no kind of problem: {advice}")
        return self


def load_rules(path: Path) -> Mapping[str, Rule]:
    """Return the table, with the rows of the file `path` replaced. Raise ConfigError."""
    overrides = configfile.load_config(path, StepsFile).value.root
    return {
        kind: replace(rule, **overrides[kind].model_dump(exclude_none=True)) if kind in overrides else rule
        for kind, rule in RULES.items()
    }
