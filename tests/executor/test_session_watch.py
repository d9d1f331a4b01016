"""The changes of an executor's session that reach pytest's own session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.executor.session import ReportRelay, SessionWatch
from harness.fixtures import SUITE_PROPERTIES


def test_properties_of_a_run_are_cut_so_that_a_message_can_be_sent() -> None:
    stash = pytest.Stash()
    session: Any = SimpleNamespace(
        shouldfail=False, shouldstop=False, testsfailed=0, config=SimpleNamespace(stash=stash)
    )
    watch = SessionWatch(session, ReportRelay())
    stash[SUITE_PROPERTIES] = [("n" * 1000, "v" * 10_000_000)] * 200
    news = watch.news()
    assert [(len(name), len(value)) for name, value in news.properties] == [(200, 2000)] * 100
    assert not watch.news(), "each is passed on once"
