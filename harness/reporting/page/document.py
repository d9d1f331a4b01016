"""Pages as bytes: one HTML file that loads no other file and runs only its own scripts."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from harness.core.outcome import Outcome
from harness.core.text import format_count
from harness.journal import journal
from harness.reporting import junit
from harness.reporting.junit_case import MOST_TEXT
from harness.reporting.page import data, inert
from harness.reporting.page.model import IN_FULL, Page, duration_text

#: The package with the styles and scripts that all pages share.
PACKAGE = "harness.reporting.page"


@functools.cache
def asset(package: str, name: str) -> str:
    """Return a style or script of the package, from its folder ``assets``."""
    return resources.files(package).joinpath("assets", name).read_text(encoding="utf-8").strip()


def content_policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """Return the content security policy: no external sources, and only these styles and scripts."""
    allowed = {"script-src": scripts, "style-src": styles}
    hashes = [f"{kind} {' '.join(map(_hash, texts))}" for kind, texts in allowed.items()]
    return "; ".join(["default-src 'none'", *hashes, "img-src data:", "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def jinja_environment(package: str) -> Environment:
    """Return the jinja2 environment for the templates of the package. Every text is escaped and made inert."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _finalize(value: object) -> object:
    """Make a value inert. Every text of the run passes through here into the page."""
    return inert.inert_markup(str(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


#: In page order: the plot library comes before the script that uses it.
_STYLES = ("uplot.min.css", "page.css")
_SCRIPTS = ("uplot.min.js", "shared.js", "page.js")
#: The most ids of cases that a list names.
LISTED = 20


def render_report(page: Page, *, beside: bool = True) -> bytes:
    """Return the page in UTF-8; equal pages give equal bytes.

    `beside`: the file is in the run directory and links to its files.
    """
    in_full = page.bad[:IN_FULL]
    script_data = data.page_data(page, in_full)
    styles, scripts = ([asset(PACKAGE, name) for name in names] for names in (_STYLES, _SCRIPTS))
    text = template().render(
        page=page,
        in_full=in_full,
        rest=page.bad[IN_FULL:],
        listed=LISTED,
        policy=Markup(content_policy(styles, scripts)),
        styles=[Markup(style) for style in styles],
        scripts=[Markup(script) for script in scripts],
        data=Markup(script_data.decode("ascii")),
        links=[(journal.FILE_NAME, "journal"), (junit.FILE_NAME, "JUnit")] if beside else [],
        beside=beside,
        plots=data.MOST_PLOTS,
        most_text=MOST_TEXT,
    )
    # Lone surrogates are shown as badges everywhere, so UTF-8 can encode the text.
    return text.encode("utf-8")


@functools.cache
def template() -> Template:
    """Return the template of the page, cached: reading it takes longer than rendering a short run."""
    environment = jinja_environment(PACKAGE)
    filters: Mapping[str, Any] = {
        "duration": duration_text,
        "clock": _clock,
        "counted": format_count,
        "line": inert.inert_line,
        "only": lambda outcome: _address(outcome=outcome),
        "one_case": lambda name: _address(case=name),
        "gated": _gated,
    }
    environment.filters.update(filters)
    environment.globals["reds"] = [outcome for outcome in Outcome if outcome.is_red]
    return environment.get_template("report.html")


def _clock(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _gated(text: str) -> Markup:
    """Return the address of the gated cases whose message has this text."""
    return _address(outcome=Outcome.GATED.value, q=f'"{text}"')


def _address(**parts: str) -> Markup:
    # Only ASCII letters, digits and percent signs: safe in an attribute without escaping.
    return Markup(
        "#" + "&amp;".join(f"{name}={quote(text, safe='', errors='replace')}" for name, text in parts.items())
    )
