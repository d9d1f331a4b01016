"""Changelog fragments have names that towncrier accepts, and go to a section of the changelog."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
TYPES = [each["directory"] for each in SETTINGS["type"]]
NAME = re.compile(rf"(\d+|\+[\w-]+)\.({'|'.join(TYPES)})(\.\d+)?\.md")


def test_the_fragments_have_an_issue_or_words_and_a_type() -> None:
    names = [path.name for path in (ROOT / SETTINGS["directory"]).iterdir() if path.name not in SETTINGS["ignore"]]
    assert [name for name in names if not NAME.fullmatch(name)] == [], f"expected ISSUE.TYPE.md, of {', '.join(TYPES)}"


@pytest.mark.parametrize("name", ["43.feature.md", "+leak-search.bugfix.md", "43.doc.2.md"])
def test_names_of_fragments_that_are_right(name: str) -> None:
    assert NAME.fullmatch(name)


@pytest.mark.parametrize("name", ["43.md", "feature.md", "43.misc.md", "43.feature.rst", "leak.bugfix.md"])
def test_names_of_fragments_that_are_wrong(name: str) -> None:
    assert not NAME.fullmatch(name)


def test_the_changelog_has_the_place_for_new_releases_once() -> None:
    assert (ROOT / SETTINGS["filename"]).read_text(encoding="utf-8").count(SETTINGS["start_string"]) == 1


def test_the_readme_of_the_fragments_names_each_type() -> None:
    text = (ROOT / SETTINGS["directory"] / "README.md").read_text(encoding="utf-8")
    assert [name for name in TYPES if f"`{name}`" not in text] == []
