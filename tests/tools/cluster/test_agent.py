"""An agent without a head: the test speaks with it over its standard streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcome import EXIT_INTERRUPTED, EXIT_NOTHING_RAN, EXIT_RED
from harness.tools.cluster.engine import AGENT
from harness.tools.cluster.link import VERSION, Begin, End, Give, Quit, encode_message
from tests.tools.cluster.project import PATIENCE, SLOW, Project

pytestmark = pytest.mark.acceptance

RED = """
def test_it(tmp_path):
    (tmp_path / "kept").write_text("text")
    assert 1 == 2
"""


class Connection:
    """An agent whose host has another file system than its head."""

    def __init__(self, folder: Path, suite: str, orphaned_after: float = 600.0) -> None:
        project = Project(folder / "project")
        project.write("suites/some/test_some.py", suite)
        self.temp = folder / "temp"
        self.temp.mkdir()
        environ = {**os.environ, "TMPDIR": str(self.temp), "CUDA_VISIBLE_DEVICES": ""}
        self.process = subprocess.Popen(
            [sys.executable, *AGENT], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder
        )
        self.send(
            Begin(
                version=VERSION,
                token="t",
                node="n0",
                folder=str(project.folder),
                run_dir=str(folder / "elsewhere"),
                proof="proof",
                arguments=("suites", "-n1", "--harness-seed=1"),
                variables={},
                grace=0.0,
                orphaned_after=orphaned_after,
            )
        )

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def send(self, message: Begin | Give | End | Quit) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(encode_message(message))
        self.process.stdin.flush()

    def receive(self, kind: str) -> dict[str, Any]:
        """Return the next message of this kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message["say"] == kind:
                return message
        raise AssertionError(f"the agent ended without {kind!r}")

    @property
    def folders(self) -> list[Path]:
        return [*self.temp.glob("conformance-node-*")]


def give(*cases: int) -> Give:
    return Give.model_validate({"cases": tuple({"case": case} for case in cases)})


@pytest.mark.parametrize(("suite", "left"), [(SLOW.format(cases=1, seconds=0), False), (RED, True)])
def test_the_temporary_folder_stays_only_for_kept_files(suite: str, left: bool, tmp_path: Path) -> None:
    with Connection(tmp_path, suite) as agent:
        folder = agent.receive("ready")["folder"]
        assert Path(folder).is_relative_to(*agent.folders)
        agent.send(give(0))
        agent.send(Quit())
        assert agent.receive("session_over")["status"] == (EXIT_RED if left else EXIT_NOTHING_RAN)
        agent.receive("bye")
        assert agent.process.wait(PATIENCE) == 0
        assert bool(agent.folders) is left
        assert bool([*agent.temp.rglob("kept")]) is left


@pytest.mark.nightly
def test_an_agent_whose_head_is_silent_ends(tmp_path: Path) -> None:
    """The connection is open, as after the loss of a network. Its case would take ten minutes."""
    with Connection(tmp_path, SLOW.format(cases=1, seconds=600), orphaned_after=60.0) as agent:
        agent.receive("ready")
        agent.send(give(0))
        agent.send(End())
        assert agent.receive("session_over")["status"] == EXIT_INTERRUPTED
        agent.receive("bye")
        assert agent.process.wait(PATIENCE) == 0
        assert not agent.folders
