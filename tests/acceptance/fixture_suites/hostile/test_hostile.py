"""Ids and texts that try to break reports."""

import pytest


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "a 'b' \"c\"",
        "<a href='x'>&amp;</a>",
        "[x][",
        "one\ntwo\r\x1b[31m\x00",
        "größe\u2028\U0001f600",
        "::",
        "*?",
    ],
)
def test_größe(text: str) -> None:
    if text != "plain":  # pytest prints the texts that a comparison was of as they are
        raise AssertionError(repr(text))
