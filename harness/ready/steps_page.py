"""The table of problems and next steps as a page of the documentation.

After a change of `harness.ready.rules.RULES`, run ``python -m harness.ready.steps_page > docs/ready-steps.md``.
"""

from __future__ import annotations

from harness.core.text import markdown_row
from harness.ready.model import Step, Verdict
from harness.ready.rules import OWN, RULES

_HEAD = """\
# Problems and next steps

This page is generated from `harness/ready/rules.py`. Change the code, then run `python -m harness.ready.steps_page > docs/ready-steps.md`.

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
