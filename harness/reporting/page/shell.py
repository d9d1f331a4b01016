"""Building blocks of every HTML page: package files, a content security policy, templates with inert texts."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.reporting.page import inert

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
