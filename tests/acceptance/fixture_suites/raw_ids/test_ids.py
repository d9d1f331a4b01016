"""pytest escapes unusual characters in ids unless a project disables that; then control characters come through."""

import os

import pytest

EXPECTED = {
    "test_ids[\x1b[31m]": "passed",
    "test_ids[\x01]": "passed",
    "test_ids[\ufffe]": "passed",
    "test_ids[\u2028]": "passed",
    "test_crashes[\x07]": "crashed: exit status 3",
}
OPTIONS = ["-odisable_test_id_escaping_and_forfeit_all_rights_to_community_support=true"]


@pytest.mark.parametrize("text", ["\x1b[31m", "\x01", "\ufffe", "\u2028"])
def test_ids(text: str) -> None:
    assert text


@pytest.mark.parametrize("text", ["\x07"])
def test_crashes(text: str) -> None:
    assert text
    os._exit(3)
