"""The page as bytes: one HTML file that loads nothing and runs no other script than its own."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from jinja2 import Template
from markupsafe import Markup

from harness.core.outcome import Outcome
from harness.core.text import format_count
from harness.journal import journal
from harness.reporting import junit
from harness.reporting.page import data, inert, shell
from harness.reporting.page.model import IN_FULL, Page, duration

_PACKAGE = "harness.reporting.page"
#: In this order in the page. The plots' library comes before the script that uses it.
_STYLES = ("uplot.min.css", "page.css")
_SCRIPTS = ("uplot.min.js", "text.js", "page.js")
#: Ids of cases that a list names.
LISTED = 20


def render(page: Page, *, beside: bool = True) -> bytes:
    """The page in UTF-8, the same for the same `page`. `beside`: it is in the run directory and links to its files."""
    in_full = page.bad[:IN_FULL]
    script_data = data.of(page, in_full)
    styles, scripts = ([shell.asset(_PACKAGE, name) for name in names] for names in (_STYLES, _SCRIPTS))
    text = template().render(
        page=page,
        in_full=in_full,
        rest=page.bad[IN_FULL:],
        listed=LISTED,
        policy=Markup(shell.policy(styles, scripts)),
        styles=[Markup(style) for style in styles],
        scripts=[Markup(script) for script in scripts],
        data=Markup(script_data.decode("ascii")),
        links=[(journal.FILE_NAME, "journal"), (junit.FILE_NAME, "JUnit")] if beside else [],
        beside=beside,
        plots=data.MOST_PLOTS,
    )
    # A lone surrogate is shown as a badge everywhere; none is left that UTF-8 could not encode.
    return text.encode("utf-8")


@functools.cache
def template() -> Template:
    """The template of the page. Reading it takes longer than making the page of a short run."""
    environment = shell.environment(_PACKAGE)
    filters: Mapping[str, Any] = {
        "duration": duration,
        "clock": _clock,
        "counted": format_count,
        "line": inert.line,
        "only": _only,
        "one_case": _one_case,
        "gated": _gated,
    }
    environment.filters.update(filters)
    environment.globals["reds"] = [outcome for outcome in Outcome if outcome.is_red]
    return environment.get_template("report.html")


def _clock(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _only(outcome: str) -> Markup:
    """The address of the cases with this outcome."""
    return _address(outcome=outcome)


def _one_case(name: str) -> Markup:
    """The address of a case."""
    return _address(case=name)


def _gated(text: str) -> Markup:
    """The address of the gated cases whose message has this text."""
    return _address(outcome=Outcome.GATED.value, q=f'"{text}"')


def _address(**parts: str) -> Markup:
    # ASCII letters, digits and percent signs only, so that it can be put into an attribute as it is.
    return Markup(
        "#" + "&amp;".join(f"{name}={quote(text, safe='', errors='replace')}" for name, text in parts.items())
    )
