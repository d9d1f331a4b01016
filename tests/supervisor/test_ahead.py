"""The next cases, and the case after each, from the list of a session."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from harness.collection.cases import CASE_ID
from harness.scheduling.workers import HandedOut, HandedOutList
from harness.supervisor.lookahead import Ahead, RunOrder


def items(names: str) -> list[pytest.Item]:
    """Return fake items of one session; those with a lower-case name are cases."""
    session = SimpleNamespace(items=[])
    session.items = [
        SimpleNamespace(name=name, session=session, stash={CASE_ID: name} if name.islower() else {}) for name in names
    ]
    return cast("list[pytest.Item]", session.items)


def order() -> RunOrder:
    return RunOrder()


def test_each_case_is_followed_by_the_next_ones() -> None:
    a, b, c = items("abc")
    run = order()
    run.at(a, b)
    assert run.ahead(0, 1) == [Ahead(b, c)]
    assert run.ahead(0, 9) == [Ahead(b, c), Ahead(c, None)]
    assert run.ahead(1, 9) == [Ahead(c, None)]
    run.at(b, c)
    assert run.ahead(0, 9) == [Ahead(c, None)]
    run.at(c, None)
    assert run.ahead(0, 9) == []


def test_what_is_no_case_is_nothing_to_keep_fixtures_for() -> None:
    a, b, _, _ = items("abCd")
    run = order()
    run.at(a, b)
    assert run.ahead(0, 9) == [Ahead(b, None)]


def test_the_order_goes_on_from_any_place() -> None:
    a, b, c, d = items("abcd")
    run = order()
    run.at(c, d)
    assert run.ahead(0, 1) == [Ahead(d, None)]
    run.at(a, b)
    assert run.ahead(0, 1) == [Ahead(b, c)]


@pytest.mark.parametrize("asked", ["ac", "zb", "dd"])
def test_another_order_than_that_of_the_list_is_not_known(asked: str) -> None:
    known = {item.name: item for item in items("abcd")}
    (stranger,) = items("z")
    stranger.session = known["a"].session
    item, nextitem = ({**known, "z": stranger}[name] for name in asked)
    run = order()
    run.at(item, nextitem)
    assert run.ahead(0, 9) == []


def test_a_worker_of_xdist_gets_what_is_handed_out(tmp_path: Path) -> None:
    """The last known case may be followed by another one, until the controller says that it is the last."""
    a, b, c, d, e = items("abcde")
    controller, worker = HandedOut(tmp_path), HandedOutList(tmp_path, "gw0")
    run = RunOrder(worker)
    run.at(a, c)
    assert run.ahead(0, 9) == []
    controller.add("gw0", [0, 2])
    controller.add("gw1", [1])
    run.at(a, c)
    assert run.ahead(0, 9) == []
    controller.add("gw0", [4, 3])
    assert run.ahead(0, 9) == [Ahead(c, e), Ahead(e, d)]
    run.at(c, e)
    controller.end("gw0")
    assert run.ahead(0, 9) == [Ahead(e, d), Ahead(d, None)]
    assert run.ahead(1, 9) == [Ahead(d, None)]
    run.at(d, None)
    assert run.ahead(0, 9) == []
    run.at(b, d)
    assert run.ahead(0, 9) == []
    worker.close()


def test_a_list_with_a_gap_is_never_read(tmp_path: Path) -> None:
    """A failed write ends the list, and nothing is written after it."""
    controller, worker = HandedOut(tmp_path), HandedOutList(tmp_path, "gw0")
    controller.add("gw0", [0, 2])
    file = tmp_path / "handed-out" / "gw0"
    file.rename(tmp_path / "kept")
    file.mkdir()  # a file cannot be opened there
    controller.add("gw0", [3])
    file.rmdir()
    (tmp_path / "kept").rename(file)
    controller.add("gw0", [1])
    worker.refresh()
    assert worker.positions == [0, 2]
    worker.close()


def test_a_worker_starves_that_knows_only_its_next_case(tmp_path: Path) -> None:
    """pytest begins a case once it knows the next one, or that there is none."""
    a, b, c = items("abc")
    reported = HandedOut(tmp_path)
    run = RunOrder(HandedOutList(tmp_path, "gw0"))
    reported.add("gw0", [0, 1])
    run.at(a, b)
    assert run.starves
    reported.add("gw0", [2])
    assert not run.starves
    run.at(b, c)
    assert run.starves
    reported.end("gw0")
    assert not run.starves


def test_a_session_that_goes_by_its_list_does_not_starve() -> None:
    a, b = items("ab")
    run = order()
    run.at(a, b)
    assert not run.starves
