"""Texts and pages from the folder `templates`. Every text of a run is inert in them.

A line of a template ``*.txt`` is a line of the text: values are written on one line, in which nothing has an effect.
"""

from __future__ import annotations

import functools
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.core.text import format_count, inert_line, list_first, single_line
from harness.reporting.page import document, inert
from harness.reporting.page.cases import name_of

PACKAGE = "harness.fleet"
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]()#+-.!|<>~&@"})


def render_text(template: str, **values: Any) -> str:
    """Return the text of a template."""
    return _environment().get_template(template).render(**values)


def render_page(template: str, **values: Any) -> bytes:
    """Return the page of a template in UTF-8."""
    return _pages().get_template(template).render(**values).encode("utf-8", "backslashreplace")


def escape_markdown(text: str) -> str:
    """Return the text on one line, in which nothing has a meaning in Markdown."""
    return inert_line(" ".join(text.split())).translate(_MARKDOWN)


@functools.cache
def _pages() -> Environment:
    environment = document.jinja_environment(PACKAGE)
    environment.filters.update({"counted": format_count, "line": inert.inert_line, "name": name_of})
    return environment


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,  # so that the text of a macro is marked as finished
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Any] = {
        "counted": format_count,
        "first_of": list_first,
        "line": inert.inert_line,
        "single": single_line,
    }
    environment.filters.update(filters)
    return environment


def _finalize(value: object) -> object:
    """Make a value inert. Every text of a run passes through here."""
    return value if isinstance(value, Markup) else Markup(inert_line(str(value)))
