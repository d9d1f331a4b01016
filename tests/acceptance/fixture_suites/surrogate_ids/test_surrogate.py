"""A lone surrogate in an id, which xdist cannot transfer."""

import pytest

EXPECTED = {"test_ids[\\udc80]": "passed"}
OPTIONS = ["-odisable_test_id_escaping_and_forfeit_all_rights_to_community_support=true"]


@pytest.mark.parametrize("text", ["\udc80"])
def test_ids(text: str) -> None:
    assert text
