"""The rules of a head that agree with the sessions of `fake_agent`."""

from __future__ import annotations

from harness.tools.cluster.sessions import Rules
from tests.tools.cluster.fake_agent import CASES, start_of_session


def fake_rules() -> Rules:
    run, _, _ = start_of_session("", CASES)
    names = ("seed", "isolation", "fail_on_flaky")
    more = {"profile": "", "hardware": "", "minimum_cases": 0, "settings": {}}
    return Rules({**{name: run[name] for name in names}, **more}, files={"waivers": "none"})
