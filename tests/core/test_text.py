"""Text from cases is cleaned, cut and shortened without surprises."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.text import escape_invalid_xml, inert_line, last_error_line, list_first, single_line, truncate_middle

ANY_TEXT = st.text(st.characters())  # includes lone surrogates and control characters


@pytest.mark.parametrize(
    ("dirty", "cleaned"),
    [
        ("plain, é, 日本, 😀", "plain, é, 日本, 😀"),
        ("tab\tline\nreturn\r", "tab\tline\nreturn\r"),
        ("\x00\x1b[31m\x0b", "\\x00\\x1b[31m\\x0b"),
        ("\udc80\ud83d", "\\udc80\\ud83d"),
        ("\ufffe\uffff\ufffd", "\\ufffe\\uffff\ufffd"),
        ("\x7f\x85\u2028", "\x7f\x85\u2028"),
    ],
)
def test_clean(dirty: str, cleaned: str) -> None:
    assert escape_invalid_xml(dirty) == cleaned


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain\ttext, é, 日本, 👩\u200d🔬", "plain\ttext, é, 日本, 👩\u200d🔬"),
        ("a\nb\r\nc\x0b\x0c\x85\u2028", "a\\nb\\r\\nc\\x0b\\x0c\\x85\\u2028"),
        ("\x1b[31m\x9b2J\x07\x7f\0", "\\x1b[31m\\x9b2J\\x07\\x7f\\x00"),
        ("\u202e\u2066\udc80\ufffe", "\\u202e\\u2066\\udc80\\ufffe"),
    ],
)
def test_inert_line(text: str, line: str) -> None:
    assert inert_line(text) == line


@given(ANY_TEXT)
def test_an_inert_line_is_one_line_in_every_encoding(text: str) -> None:
    line = inert_line(text)
    assert len(line.splitlines()) == bool(line)
    assert inert_line(line) == line
    line.encode()


@given(ANY_TEXT)
def test_cleaned_text_survives_xml(text: str) -> None:
    element = ElementTree.Element("e")
    element.text = escape_invalid_xml(text)
    read = ElementTree.fromstring(ElementTree.tostring(element, encoding="utf-8")).text or ""
    assert read == escape_invalid_xml(text).replace("\r\n", "\n").replace("\r", "\n")
    assert escape_invalid_xml(escape_invalid_xml(text)) == escape_invalid_xml(text)


@pytest.mark.parametrize(
    ("text", "limit", "capped"),
    [
        ("", 0, ""),
        ("abcd", 4, "abcd"),
        ("abcdefgh", 4, "ab\n[... 4 of 8 characters cut ...]\ngh"),
        ("abcdefgh", 3, "a\n[... 5 of 8 characters cut ...]\ngh"),
        ("abcdefgh", 1, "\n[... 7 of 8 characters cut ...]\nh"),
        ("abcdefgh", 0, "\n[... 8 of 8 characters cut ...]\n"),
    ],
)
def test_cap(text: str, limit: int, capped: str) -> None:
    assert truncate_middle(text, limit) == capped


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        (" \n\n  first \x00\nsecond", "first \\x00"),
        ("x" * 2000, "x" * 9 + "…"),
    ],
)
def test_one_line(text: str, line: str) -> None:
    assert single_line(text, limit=10 if len(text) > 100 else 1000) == line


@given(ANY_TEXT)
def test_one_line_is_one_bounded_line(text: str) -> None:
    line = single_line(text, limit=5)
    assert len(line) <= 5
    assert len(line.splitlines()) <= 1


@pytest.mark.parametrize(
    ("names", "text"), [([], ""), (["a"], "a"), (["a", "b", "c"], "a, b, c"), (["a\nx", "b", "c", "d"], "a, b, c, …")]
)
def test_the_first_of_some_names(names: list[str], text: str) -> None:
    assert list_first(names) == text


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        ("E   ModuleNotFoundError: no x\n1 error\n", "ModuleNotFoundError: no x"),
        ("ERROR - harness: cannot write: no space\nlast\n", "ERROR - harness: cannot write: no space"),
        ("Every line\nEnd\n", "End"),
    ],
)
def test_the_last_line_about_an_error(output: str, line: str) -> None:
    assert last_error_line(output) == line
