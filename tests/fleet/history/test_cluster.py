"""A cluster run in a history: a single run with the nodes' devices; the nodes' sessions are not runs of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.fleet import record
from harness.fleet import run as folders
from harness.fleet.run import NoRunError
from harness.fleet.store import Store
from tests.tools.cluster.project import Project

pytestmark = pytest.mark.acceptance

SUITE = """
import pytest

@pytest.mark.parametrize("number", range(8))
def test_it(number):
    assert number != 5, f"value {number} at 0x7f{number}"
"""


@pytest.mark.nightly
def test_a_cluster_run_is_one_run_with_the_devices_of_its_nodes(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.write("suites/some/test_some.py", SUITE)
    running = project.run("--engine=local", "--nodes=2")
    assert running.wait() == 1, running.output
    run = running.run_dir
    sessions = sorted(path.parent for path in (run / "nodes").rglob("journal.ndjson"))
    assert len(sessions) >= 2

    for given in ([run], [run, *sessions], [run, run / "nodes"], [tmp_path]):
        assert [path.resolve() for path in folders.find_runs_and_archives(given).paths] == [run.resolve()]
    with pytest.raises(NoRunError, match=r"left out \d+ sessions of nodes of '.*/run', which has their results"):
        folders.find_runs_and_archives([run / "nodes"])

    store = Store(tmp_path / "h.duckdb")
    store.add(record.read_history_record(run))
    with store.reading() as database:
        assert database.execute("SELECT cases, red, passed FROM runs").fetchall() == [(8, 1, 7)]
        hosts = database.execute("SELECT DISTINCT host FROM devices ORDER BY host").fetchall()
        assert {("local0",), ("local1",)} <= {*hosts}
        ((device, message),) = database.execute("SELECT device, message FROM failures").fetchall()
        assert device in ("cpu on local0", "cpu on local1")
        assert message == "AssertionError: value 5 at 0x7f5"
        (ran,) = database.execute("SELECT DISTINCT device FROM results ORDER BY device").fetchall()[:1]
        assert ran[0].startswith("cpu on local")
