"""Static pages: each link leads to a page, hostile texts are inert, and only the pages' own scripts are loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.fleet.answers import Answers
from harness.fleet.pages import export_site
from harness.fleet.store import HistoryError, Store
from tests.fleet.history import nights
from tests.reporting.page.reading import Read


def addresses(read: Read) -> Iterator[str]:
    """Yield the addresses of links and scripts; "" for an inline script."""
    yield from (attributes["href"] for tag, attributes in read.tags if tag == "a")
    yield from (attributes.get("src", "") for tag, attributes in read.tags if tag == "script")


def export(store: Store, out: Path) -> dict[str, str]:
    with store.reading() as database:
        export_site(Answers(database), out)
    return {str(path.relative_to(out)): path.read_text() for path in out.rglob("*.html")}


@pytest.fixture
def pages(tmp_path: Path) -> dict[str, str]:
    return export(nights.history(tmp_path, nights.hostile(tmp_path)), tmp_path / "site")


def test_every_link_leads_to_a_page(pages: dict[str, str], tmp_path: Path) -> None:
    for name, text in pages.items():
        for link in addresses(Read(text)):
            target = ((tmp_path / "site" / name).parent / link.partition("#")[0]).resolve()
            assert link.startswith("#") or target.is_file(), (name, link)


def test_no_page_has_an_inline_script_a_handler_or_another_origin(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        read = Read(text)
        tags = read.tags
        assert not {tag for tag, _ in tags} & {"img", "iframe", "object", "embed", "form", "b", "i"}, name
        sources = [tag for tag, attrs in tags if "src" in attrs]
        assert sources == [tag for tag, _ in tags if tag == "script"], name
        assert not [attr for _, attrs in tags for attr in attrs if attr.startswith("on") or attr == "style"], name
        assert not re.search(r'(?:href|src)="(?:https?:)?//', text), name
        assert read.policy["default-src"] == "'none'"
        assert "unsafe" not in str(read.policy)
        assert "\u202e" not in text
        assert "\x1b" not in text


def test_the_pages_say_what_happened(pages: dict[str, str]) -> None:
    front = pages["index.html"]
    assert "1 case in 1 group, new" in front
    assert "n1 · H100" in front
    (case,) = [text for name, text in pages.items() if name.startswith("cases/")]
    assert "regressed since night1-n1" in case
    runs = [text for name, text in pages.items() if name.startswith("runs/")]
    assert any("Newly red" in text and "Newly gated" in text for text in runs)
    (group,) = [text for name, text in pages.items() if name.startswith("groups/")]
    assert "Where it began" in group


def test_a_later_export_replaces_its_pages_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "site"
    store = nights.regression(tmp_path)
    before = export(store, out)
    (out / "mine.txt").write_text("mine")
    for file in store.files()[1:]:
        file.unlink()
    after = export(store, out)
    assert {*before} > {*after}
    assert (out / "mine.txt").read_text() == "mine"


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "thesis.html").write_text("mine")
    with pytest.raises(HistoryError, match="has files that are no pages of a history"):
        export(nights.regression(tmp_path), tmp_path / "site")


def test_equal_histories_have_equal_pages(tmp_path: Path) -> None:
    store = nights.regression(tmp_path)
    assert export(store, tmp_path / "a") == export(store, tmp_path / "b")
