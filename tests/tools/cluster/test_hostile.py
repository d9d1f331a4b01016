"""A lying agent can at worst falsify its own cases, and the journal names their node."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from harness.journal import journal, reader
from harness.journal.ledger import Ledger
from harness.tools.cluster.engine import Host
from harness.tools.cluster.head import Head
from harness.tools.cluster.wanted import ClusterRequest
from tests.reporting import build

FAKE = Path(__file__).with_name("fake_agent.py")


class Ended:
    """The result of a run with one honest and one lying agent."""

    def __init__(self, run_dir: Path, *lies: str, end_limit: float = 600.0) -> None:
        run_dir.mkdir()
        hosts = [Host(f"n{at}", (sys.executable, str(FAKE), f"n{at}", lie)) for at, lie in enumerate(lies)]
        wanted = ClusterRequest((), ("harness",), "/", run_dir, "r", end_limit=end_limit, second_looks=0)
        self.said: list[str] = []
        self.head = Head(wanted, hosts, self.said.append)
        self.head.run()
        path = run_dir / journal.FILE_NAME
        self.lines = build.read_lines(path.read_bytes())
        self.ledger = Ledger.from_journal(reader.read_run_journal(path))

    def whose(self) -> dict[str, tuple[str, str]]:
        """The node and the outcome of each case."""
        found: dict[str, tuple[str, str]] = {}
        for line in self.lines:
            if line["event"] == "finish" and line["final"]:
                assert found.get(line["case"], ("n1", ""))[0] == "n1" == line["host"] or line["case"] not in found
                found[line["case"]] = (line["host"], line["outcome"])
        return found


@pytest.mark.parametrize("lie", ["foreign", "done", "events"])
def test_lies_about_the_cases_of_others(lie: str, tmp_path: Path) -> None:
    ended = Ended(tmp_path / "run", "", lie)
    whose = ended.whose()
    assert len(whose) == 6
    assert "n0" in {host for host, _ in whose.values()}
    assert {outcome for host, outcome in whose.values() if host == "n0"} == {"passed"}
    assert not [line for line in ended.lines if line["event"] in ("end", "reopened", "waiver")]
    assert sum(line["event"] == "collected" for line in ended.lines) == 1
    if lie == "foreign":
        late = {line["case"] for line in ended.lines if line["event"] == "late" and line["host"] == "n1"}
        assert late >= {case for case, (host, _) in whose.items() if host == "n0"}


def test_what_is_not_of_the_protocol_ends_the_connection(tmp_path: Path) -> None:
    ended = Ended(tmp_path / "run", "", "nonsense")
    assert [finding.kind for finding in ended.ledger.findings] == ["node_lost"]
    assert "it sent" in ended.ledger.findings[0].message
    assert {*ended.whose().values()} == {("n0", "passed")}


def test_an_end_without_a_last_word_is_a_loss(tmp_path: Path) -> None:
    """This includes exit status 0: srun can return it for a step whose node died."""
    ended = Ended(tmp_path / "run", "", "never")
    assert [finding.kind for finding in ended.ledger.findings] == ["node_lost"]
    assert "ended with exit status 0" in ended.ledger.findings[0].message
    assert {*ended.whose().values()} == {("n0", "passed")}


def test_a_node_with_another_torch_takes_no_part(tmp_path: Path) -> None:
    ended = Ended(tmp_path / "run", "", "", "other")
    assert [finding.kind for finding in ended.ledger.findings] == ["unlike_node"]
    assert "node n2 is excluded" in ended.ledger.findings[0].message
    assert "torch is '1' here and '2' in most others" in ended.ledger.findings[0].message
    assert {host for host, _ in ended.whose().values()} == {"n0", "n1"}


def test_an_agent_that_does_not_end_is_cut_off(tmp_path: Path) -> None:
    ended = Ended(tmp_path / "run", "", "stays", end_limit=1.0)
    assert len(ended.whose()) == 6
    assert "it did not end" in ended.ledger.findings[0].message


def test_times_of_an_agent_are_within_the_run(tmp_path: Path) -> None:
    """This holds even if its clock is wrong."""
    begun = time.time()
    ended = Ended(tmp_path / "run", "", "clock")
    assert all(begun - 1 <= line["t"] <= time.time() + 1 for line in ended.lines)
