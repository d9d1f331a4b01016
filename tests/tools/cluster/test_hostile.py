"""A lying agent can at worst falsify its own cases, and the journal names their node."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

import pytest

from harness.cli.cluster import _log
from harness.core.caseid import digest_of_ids
from harness.journal import journal, reader
from harness.journal.events import MustPass
from harness.journal.ledger import Ledger
from harness.tools.cluster.engine import Host
from harness.tools.cluster.head import Head
from harness.tools.cluster.record import skew_of, skew_text
from harness.tools.cluster.sessions import ClusterRequest, Rules
from tests.reporting import build
from tests.tools.cluster.fake_agent import CASES
from tests.tools.cluster.fake_rules import fake_rules

FAKE = Path(__file__).with_name("fake_agent.py")


RULES = fake_rules()


class Ended:
    """The result of a run with one honest and one lying agent."""

    def __init__(self, run_dir: Path, *lies: str, end_limit: float = 600.0, rules: Rules = RULES) -> None:
        run_dir.mkdir()
        hosts = [Host(f"n{at}", (sys.executable, str(FAKE), f"n{at}", lie)) for at, lie in enumerate(lies)]
        wanted = ClusterRequest(
            (), ("harness",), folder="/", run_dir=run_dir, run_id="r", end_limit=end_limit, second_looks=0
        )
        self.said: list[str] = []
        self.head = Head(wanted, rules, hosts, self.said.append)
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


def test_a_clock_that_is_an_hour_behind_is_corrected(tmp_path: Path) -> None:
    """Its attempts are where they were, and not all at its first instant; the journal says why."""
    begun = time.time()
    ended = Ended(tmp_path / "run", "hour")
    times = [line["t"] for line in ended.lines if line["event"] in ("start", "finish")]
    assert len({*times}) >= 6
    assert all(begun <= moment <= time.time() for moment in times)
    (ready,) = [line for line in ended.lines if line["event"] == "node" and line["state"] == "ready"]
    assert ready["message"] == "its clock is 3600 s behind, and its times are corrected"
    assert any("its clock is 3600 s behind" in line for line in ended.said)


@pytest.mark.parametrize(
    ("clock", "skew", "text"),
    [
        (100.0, 0.0, ""),
        (96.0, 0.0, ""),
        (104.0, 0.0, ""),
        (3700.0, -3600.0, "its clock is 3600 s ahead, and its times are corrected"),
        (40.0, 60.0, "its clock is 60 s behind, and its times are corrected"),
    ],
)
def test_the_skew_of_a_clock(clock: float, skew: float, text: str) -> None:
    assert skew_of(clock, 100.0) == skew
    assert skew_text(skew) == text


@pytest.mark.parametrize(
    ("lie", "kind", "why"),
    [
        ("digits", "node_lost", "gated.1111"),
        ("short", "node_lost", "it is ready with 6 cases and 0 durations, and its journal has 6 cases"),
        ("long", "node_lost", "it is ready with 6 cases and 10000 durations, and its journal has 6 cases"),
        ("twice", "node_lost", "its journal lists a case twice"),
        ("no_run", "node_lost", "it sent no 'run' line before it was ready"),
        ("rules", "unlike_node", "--fail-on-flaky is 'True' here and not set on the head"),
        ("attempts", "node_lost", "it sent attempt 1000000000000000000000000000000 at a case"),
        ("flood", "node_lost", "lines that are about none of its cases"),
        ("ready", "node_lost", "its session was ready twice"),
        ("text", "", ""),
        ("odd_facts", "", ""),
        *((f"any-{seed}", None, "") for seed in range(6)),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_one_node_causes_ends_at_most_that_node(
    lie: str, kind: str | None, why: str, first: bool, tmp_path: Path
) -> None:
    """The first node is the one whose list of cases is the run's if it is not like the other one."""
    ended = Ended(tmp_path / "run", *((lie, "") if first else ("", lie)))
    honest = "n1" if first else "n0"
    found = [(finding.kind, finding.message) for finding in ended.ledger.findings]
    if kind:
        assert [each for each, _ in found] == [kind]
        assert why in found[0][1]
    ends = [line for line in ended.lines if line["event"] == "finish" and line["final"]]
    assert len({line["case"] for line in ends}) == 6
    assert {line["outcome"] for line in ends if line["host"] == honest} == {"passed"}
    if kind:
        assert {line["host"] for line in ends} == {honest}
    if not first:
        assert honest in {line["host"] for line in ends}


@pytest.mark.parametrize("first", [True, False])
def test_waivers_are_those_of_the_head(first: bool, tmp_path: Path) -> None:
    ended = Ended(tmp_path / "run", *(("waivers", "red") if first else ("red", "waivers")))
    assert not [line for line in ended.lines if line["event"] == "waiver"]
    assert ended.ledger.exit_status() == 1
    assert {verdict.outcome.value for verdict in ended.ledger.verdicts} == {"failed"}


@pytest.mark.parametrize("lie", ["", "fewer"])
def test_must_pass_lists_are_those_of_the_head(lie: str, tmp_path: Path) -> None:
    """They hold although no node has them, and although the list of the first node lacks a case."""
    ids = [*CASES, "suites/some/test_some.py::test_that_no_node_has"]
    line = MustPass(t=1.0, name="core", hash=digest_of_ids(ids), ids=tuple(ids))
    ended = Ended(tmp_path / "run", lie, lie, rules=dataclasses.replace(RULES, lists=(line,)))
    assert [(each["event"], each["name"]) for each in ended.lines if each["event"] == "must_pass"] == [
        ("must_pass", "core")
    ]
    assert ended.ledger.exit_status() == 1


def test_a_node_with_fewer_cases_makes_the_run_red(tmp_path: Path) -> None:
    ended = Ended(tmp_path / "run", "fewer", "")
    assert [finding.kind for finding in ended.ledger.findings] == ["unlike_node"]
    assert ended.ledger.exit_status() == 1


def test_rules_of_no_node_are_those_of_the_head(tmp_path: Path) -> None:
    """Without a node that agrees, the run does not begin."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    hosts = [Host("n0", (sys.executable, str(FAKE), "n0", "rules"))]
    head = Head(ClusterRequest((), ("harness",), folder="/", run_dir=run_dir, run_id="r"), RULES, hosts, lambda _: None)
    head.run()
    assert not head.has_begun
    assert "node n0 is excluded: " in head.refusal


def test_texts_of_a_node_are_inert_on_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = Ended(tmp_path / "run", "", "text")
    (line,) = [line for line in ended.said if "signed by the king" in line]
    _log(line)
    assert capsys.readouterr().out == r"harness: node n1: stopping: \x1b[2J\nharness: signed by the king\u202e" + "\n"
