"""Charts as SVG for pages without a script: bars over nights, and the strip of a case's results. Pure functions."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from markupsafe import Markup, escape

from harness.core.outcome import Outcome
from harness.reporting.page.inert import inert_markup

_HEIGHT = 60
_WIDTH = 640
_CELL = 12


def bars(values: Sequence[tuple[str, int]], label: str) -> Markup:
    """Return a bar per value, each with its text as a tooltip. `label`: what the chart shows, for a screen reader."""
    top = max((value for _, value in values), default=0) or 1
    step = _WIDTH / max(1, len(values))
    parts = []
    for place, (text, value) in enumerate(values):
        height = 1 if not value else max(3.0, value / top * (_HEIGHT - 14))
        kind = "l-bad" if value else "l-life"
        parts.append(
            f'<rect class="{kind}" x="{place * step:.1f}" y="{_HEIGHT - height:.1f}" width="{max(1.0, step - 1):.1f}" '
            f'height="{height:.1f}"><title>{_title(text)}</title></rect>'
        )
    return _svg(_WIDTH, _HEIGHT, label, [*parts, f'<text class="tick" x="2" y="11">{top}</text>'])


def strip(results: Sequence[tuple[str, Outcome]], label: str) -> Markup:
    """Return a cell per result of a case, in the order of the runs, the latest on the right."""
    parts = [
        f'<rect class="{_kind(outcome)}" x="{place * _CELL}" y="1" width="{_CELL - 2}" height="{_CELL}">'
        f"<title>{_title(text)}</title></rect>"
        for place, (text, outcome) in enumerate(results)
    ]
    return _svg(_CELL * max(1, len(results)), _CELL + 2, label, parts)


def line(values: Sequence[float], label: str, unit: str) -> Markup:
    """Return a line through the values, from zero."""
    if len(values) < 2:
        return Markup("")
    top = max(values) or 1.0
    step = _WIDTH / (len(values) - 1)
    points = " ".join(
        f"{place * step:.1f},{_HEIGHT - value / top * (_HEIGHT - 14):.1f}" for place, value in enumerate(values)
    )
    text = f'<text class="tick" x="2" y="11">{top:.2f} {unit}</text>'
    return _svg(_WIDTH, _HEIGHT, label, [f'<polyline class="curve" points="{points}"/>', text])


def _kind(outcome: Outcome) -> str:
    if outcome.is_red:
        return "l-bad"
    if outcome is Outcome.PASSED:
        return "l-good"
    return "l-odd" if outcome in (Outcome.FLAKY, Outcome.WAIVED) else "l-life"


@functools.lru_cache(10_000)  # nights and outcomes repeat in every lane
def _title(text: str) -> str:
    # A title has text only: the badge of a character that does not show becomes its number.
    return str(escape(Markup(inert_markup(text)).striptags()))


def _svg(width: int, height: int, label: str, parts: Sequence[str]) -> Markup:
    head = f'<svg class="chart" role="img" aria-label="{_title(label)}" viewBox="0 0 {width} {height}"'
    return Markup(f'{head} width="{width}" height="{height}">{"".join(parts)}</svg>')
