"""What tests read from HTML pages of every kind."""

from __future__ import annotations

import base64
import hashlib
import json
import tomllib
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]
#: Tags whose contents are on separate lines or in separate cells.
_APART = frozenset({"br", "li", "td", "th"})


class Read(HTMLParser):
    """The tags of a page with their attributes, its scripts and styles, and its other text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.styles: list[str] = []
        self._shown: list[str] = []
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.append((tag, attributes))
        if tag in ("script", "style"):
            self._open = tag
        elif tag in _APART:
            self._shown.append(" ")
        if tag == "script":
            self.scripts.append((attributes, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == self._open:
            self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self._open == "style":
            self.styles.append(data)
        else:
            self._shown.append(data)

    @property
    def shown(self) -> str:
        """The text outside scripts and styles, with single spaces."""
        return " ".join("".join(self._shown).split())

    @property
    def data(self) -> Any:
        """The values that the page's script draws."""
        (found,) = (text for attributes, text in self.scripts if attributes.get("id") == "data")
        return json.loads(found)

    @property
    def policy(self) -> dict[str, str]:
        """The sources that the content security policy allows, by directive."""
        (content,) = (
            attributes["content"]
            for _, attributes in self.tags
            if attributes.get("http-equiv") == "Content-Security-Policy"
        )
        return dict(part.split(" ", 1) for part in content.split("; "))


def check_policy(read: Read) -> None:
    """Check that the page's policy allows its own scripts and styles, and nothing else."""
    assert read.policy["default-src"] == "'none'"
    assert read.policy["script-src"] == _hashes([text for given, text in read.scripts if "type" not in given])
    assert read.policy["style-src"] == _hashes(read.styles)
    assert not [tag for tag, attributes in read.tags if "style" in attributes]


def _hashes(texts: list[str]) -> str:
    digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    return " ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in digests)


def check_package_data(package: str, template: str) -> None:
    """Check that the globs in pyproject.toml match all files of a package that has this template."""
    globs = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["harness"]
    shipped = {path for glob in globs for path in (_ROOT / "harness").glob(glob)}
    files = [path for path in _ROOT.joinpath(*package.split(".")).rglob("*") if path.is_file()]
    needed = [path for path in files if path.suffix not in (".py", ".pyc")]
    assert needed
    assert not [path for path in needed if path not in shipped]
    assert resources.files(package).joinpath("templates", template).is_file()
