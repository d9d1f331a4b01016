"""Texts of reports for a terminal or a forge, from the templates ``templates/*.txt``. Every text of a run is inert.

A line of a template is a line of the text: values are written on one line, in which nothing has an effect.
"""

from __future__ import annotations

import functools
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.core.text import format_count, inert_line, list_first, single_line
from harness.reporting.page import inert


def render_text(template: str, **values: Any) -> str:
    """Return the text of a template."""
    return _environment().get_template(template).render(**values)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("harness.fleet"),
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
