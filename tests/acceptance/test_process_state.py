"""State of a process that a case leaves otherwise is its fault, and no other case suffers of it."""

from __future__ import annotations

import os

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected

_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root may change users and groups")


@pytest.mark.parametrize("topic", ["process_state", pytest.param("process_user", marks=_ROOT)])
@pytest.mark.parametrize("mode", ["batch", "case"])
def test_verdicts(make_project: MakeProject, mode: str, topic: str) -> None:
    project = make_project(topic)
    result = project.run("-n0", f"--isolation={mode}", "--case-timeout=30")
    compare(result, expected(project, mode), alone=mode == "case")
