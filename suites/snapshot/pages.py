"""A parser for the pages that torch makes from snapshots: HTML structure and embedded data.

The data is treated as untrusted (`plain`): scripts never run, and pickles yield plain values or an error.
"""

from __future__ import annotations

import ast
import base64
import binascii
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from . import plain

#: Void elements, and elements whose end tag is optional in the HTML standard.
VOID = frozenset(["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"])
OPTIONAL = frozenset(("html", "head", "body"))


class PageError(ValueError):
    """The page is malformed; the message says why."""


@dataclass
class Script:
    """A script element: its attributes and its text."""

    attributes: dict[str, str | None]
    text: str = ""


@dataclass
class Page:
    """The structure of a page: its elements in document order, and its scripts."""

    elements: list[str] = field(default_factory=list)
    scripts: list[Script] = field(default_factory=list)


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self.open: list[str] = []
        self.doctype = False

    def handle_decl(self, decl: str) -> None:
        if self.page.elements or self.doctype or decl.lower() != "doctype html":
            raise PageError(f"a declaration {decl!r} is not allowed here")
        self.doctype = True

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.elements.append(tag)
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "script":
            self.page.scripts.append(Script(dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag and self.open[-1] in OPTIONAL:
            self.open.pop()
        if not self.open or self.open[-1] != tag:
            raise PageError(f"</{tag}> has no open element; open are {self.open}")
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.page.scripts[-1].text += data
        elif data.strip() and not ("body" in self.open or self.open[-1:] in (["style"], ["title"])):
            raise PageError(f"text outside the body: {data.strip()[:60]!r}")


def structure(page: str) -> Page:
    """Return the page's elements and scripts.

    Raise PageError unless it is a complete and properly nested HTML document.
    """
    parser = _Parser()
    parser.feed(page)
    parser.close()
    if not parser.doctype:
        raise PageError("no <!DOCTYPE html> at the start")
    for tag in ("html", "head", "body"):
        if parser.page.elements.count(tag) != 1:
            raise PageError(f"{parser.page.elements.count(tag)} times <{tag}>")
    if left := [tag for tag in parser.open if tag not in OPTIONAL]:
        raise PageError(f"not ended: {left}")
    return parser.page


@dataclass(frozen=True)
class Plot:
    """The content of a viewer page: the kind of plot, and the data by file name."""

    kind: str
    files: dict[str, Any]


#: The viewer's page is one module script, which imports the viewer, embeds the data, and shows it.
_MODULE = re.compile(
    r"""\s*import\s*\{\s*add_local_files\s*\}\s*from\s*"https://[^"\s]+"\s*;?
        \s*const\s+local_files\s*=\s*(?P<data>.+?)\s*;?
        \s*\n\s*add_local_files\(\s*local_files\s*,\s*(?P<kind>'[^'\n]*'|"[^"\n]*")\s*\)\s*;?\s*""",
    re.VERBOSE | re.DOTALL,
)


def plot(page: str) -> Plot:
    """Return the content of a viewer page. Raise PageError or plain.RefusedError if any of it cannot be read."""
    scripts = structure(page).scripts
    if len(scripts) != 1 or scripts[0].attributes.get("type") != "module":
        raise PageError(f"not one module: {[script.attributes for script in scripts]}")
    found = _MODULE.fullmatch(scripts[0].text)
    if found is None:
        raise PageError(f"a module of another form: {scripts[0].text[:200]!r}")
    files: dict[str, Any] = {}
    try:
        listed = json.loads(found["data"])
        for each in listed:
            if set(each) != {"name", "base64"} or each["name"] in files:
                raise PageError(f"an entry with {sorted(each)}")
            files[each["name"]] = plain.load(base64.b64decode(each["base64"], validate=True), padded=True)
    except (json.JSONDecodeError, binascii.Error, TypeError) as error:
        raise PageError(f"data that cannot be decoded: {error}") from error
    return Plot(ast.literal_eval(found["kind"]), files)
