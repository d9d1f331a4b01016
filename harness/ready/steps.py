"""The table of verdicts and next steps outside of the code: files that replace rows of it, and its page.

A file (``harness ready --steps``) has fields of rows, by kind of problem:

    # before a job the GPUs must be idle
    processes: {verdict: not_ready}
    log_unreadable: {verdict: degraded, step: nothing}

After a change of `harness.ready.rules.RULES`, run ``python -m harness.ready.steps > docs/ready-steps.md``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, RootModel, model_validator

from harness.core.models import StrictModel
from harness.core.text import markdown_row
from harness.gating import configfile
from harness.ready.model import Step, Verdict
from harness.ready.rules import OWN, RULES, Rule


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


_HEAD = """\
# Problems and next steps

This page is generated from `harness/ready/rules.py`. Change the code, then run `python -m harness.ready.steps > docs/ready-steps.md`.

Each problem that [`harness ready`](ready.md) reports has a kind, and the kind decides the verdict and the one next step.
The source is the document that the row follows; *own* is a rule of this project, which [ready.md](ready.md) explains.
A file replaces fields of rows, by kind:

    # steps.yaml, for harness ready --steps steps.yaml
    processes: {verdict: not_ready}
    log_unreadable: {verdict: degraded, step: nothing}

| field | values |
| --- | --- |
"""  # noqa: E501
_VERDICTS = ", ".join(f"`{verdict}`" for verdict in Verdict)
_STEPS = ", ".join(f"`{step}` ({step.text})" if step.text != step.value else f"`{step}`" for step in Step)


def steps_page() -> str:
    """Return the page."""
    lines = [
        markdown_row(("`verdict`", _VERDICTS)),
        markdown_row(("`step`", _STEPS)),
        markdown_row(("`source`", "a text for the report")),
        "",
        markdown_row(("kind", "problem", "verdict", "next step", "source")),
        markdown_row(["---"] * 5),
    ]
    for kind, rule in RULES.items():
        source = "own" if rule.source == OWN else f"[{rule.source.split('/')[2]}]({rule.source})"
        lines.append(markdown_row((f"`{kind}`", rule.text, rule.verdict.text, rule.step.text, source)))
    return _HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(steps_page(), end="")
