"""Which case comes next, and what follows it, from the list of a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from harness.supervisor.ahead import Ahead, RunOrder


def items(names: str) -> list[pytest.Item]:
    """Fake items of one session; those with a lower-case name are cases."""
    session = SimpleNamespace(items=[])
    session.items = [SimpleNamespace(name=name, session=session) for name in names]
    return cast("list[pytest.Item]", session.items)


def order() -> RunOrder:
    return RunOrder(lambda item: item.name.islower())


def test_each_case_is_followed_by_the_next_ones() -> None:
    a, b, c = items("abc")
    run = order()
    assert run.ahead(a, b) == Ahead(b, c)
    assert run.ahead(b, c) == Ahead(c, None)
    assert run.ahead(c, None) is None


def test_what_is_no_case_is_nothing_to_keep_fixtures_for() -> None:
    a, b, _ = items("abC")
    assert order().ahead(a, b) == Ahead(b, None)


def test_the_order_goes_on_from_any_place() -> None:
    a, b, c, d = items("abcd")
    run = order()
    assert run.ahead(c, d) == Ahead(d, None)
    assert run.ahead(a, b) == Ahead(b, c)


@pytest.mark.parametrize("asked", ["ac", "zb", "dd"])
def test_another_order_than_that_of_the_list_is_not_known(asked: str) -> None:
    known = {item.name: item for item in items("abcd")}
    (stranger,) = items("z")
    stranger.session = known["a"].session
    item, nextitem = ({**known, "z": stranger}[name] for name in asked)
    assert order().ahead(item, nextitem) is None
