"""Cases that wait for a device that is shared in turns, drained meanwhile, or held by a worker that dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.gpu_machine import GPU, PLAIN, Machine, checked, finishes, looks, shares, sick_devices, verdicts
from tests.acceptance.project import Running


@pytest.mark.nightly
def test_cases_for_two_devices_do_not_collide_with_the_other_worker(machine: Machine) -> None:
    machine.suite(
        """
@pytest.mark.requires(device="cuda", devices=2)
@pytest.mark.parametrize("n", range(8))
def test_pair(n):
    assert torch.cuda.device_count() == 2
"""
        + PLAIN
    )
    result = machine.run("-n2", "--dist=load")  # the harness's order would give all of them to one worker
    assert result.status == 0, result.tail()
    assert set(verdicts(result).values()) == {"passed"}
    assert shares(result) == {uuid: {"gw0", "gw1"} for uuid in GPU[:2]}
    assert {tuple(sorted(line["devices"])) for line in finishes(result, "test_pair[0]")} == {tuple(GPU[:2])}


# Only in workers: records the process ids. The holding case begins after the other worker's first case, and that
# worker's second case after the holding one.
_DIRECTS = """
import os, pathlib, time, pytest

PROBE = pathlib.Path(os.environ["PROBE_DIR"])

class Director:
    seen = 0
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        awaited = "plain-is-over" if item.name == "test_holds" else "holds" if self.seen else ""
        while not (PROBE / awaited).exists():
            time.sleep(0.01)
        yield
        self.seen += 1
        if item.name != "test_holds":
            (PROBE / "plain-is-over").touch()
        return True

def pytest_configure(config):
    told = getattr(config, "workerinput", {})
    if "harness_context" in told:
        (PROBE / told["workerid"]).write_text(str(os.getpid()))
        config.pluginmanager.register(Director())
"""

_HOLDS = """
@on_gpu
def test_holds():
    mark("holds")
    await_mark("go on")
    {end}
"""


@pytest.fixture
def held(machine: Machine) -> Iterator[Callable[[str], Running]]:
    """Start two workers on one GPU; the other GPU is sick. One runs a case, the other has run some and waits.

    The case ends with `end` once it is marked "go on".
    """
    begun: list[Running] = []

    def start(end: str) -> Running:
        machine.sicken(0, "wrong")
        machine.project.write("conftest.py", _DIRECTS)
        machine.suite(_HOLDS.format(end=end), "test_a")
        machine.suite(PLAIN, "test_b")
        begun.append(machine.start("-n2", "--dist=load", "--isolation=case"))
        begun[0].started("::test_holds")
        machine.await_a_waiter(begun[0], 1)
        return begun[0]

    yield start
    for running in begun:
        running.kill_all()


@pytest.mark.nightly
def test_who_waited_for_a_device_that_was_drained_meanwhile_does_not_use_it(
    machine: Machine, held: Callable[[str], Running]
) -> None:
    running = held('sicken("crashes"); crash()')
    machine.mark("go on")
    result = checked(running.result())
    assert result.status == 1, result.tail()
    found = verdicts(result)
    assert found.pop("test_holds") == "crashed"
    assert sorted(found.values()) == ["not_run"] * 7 + ["passed"], result.tail()
    assert len(sick_devices(result)) == 2
    for name in [name for name, outcome in found.items() if outcome == "not_run"]:
        (line,) = finishes(result, name)
        assert all(f"{uuid} is drained: " in line["message"] for uuid in GPU[:2])
    assert looks(result)[-1][1:] == ("drained", "after suites/gpu/test_a.py::test_holds crashed")


@pytest.mark.nightly
def test_a_worker_that_is_killed_in_its_turn_does_not_keep_the_device(
    machine: Machine, held: Callable[[str], Running]
) -> None:
    running = held("pass")
    worker = running.started("::test_holds")["worker"]
    os.kill(int(machine.project.probe(worker)[0]), signal.SIGKILL)
    result = checked(running.result())
    assert result.status == 1, result.tail()
    found = verdicts(result)
    assert found.pop("test_holds") == "lost"
    assert set(found.values()) == {"passed"}, result.tail()
    assert {finding.kind for finding in result.ledger.findings} == {"sick_device", "worker"}


@pytest.mark.nightly
def test_a_device_that_does_not_become_free_is_not_waited_for_without_end(machine: Machine) -> None:
    """The worker's wait is reported while it lasts; then the case is not run, and the next one is."""
    machine.suite(
        """
pytestmark = pytest.mark.timeout(600_000)

@on_gpu
def test_holds():
    mark("holds")
    await_mark("over")
""",
        "test_a",
    )
    machine.suite(
        """
pytestmark = pytest.mark.timeout(600_000)

def test_first():
    await_mark("holds")

@pytest.mark.requires(device="cuda", devices=2)
def test_wants_both(): pass

def test_next():
    mark("over")
""",
        "test_b",
    )
    # The wait for a device lasts 20 times the limit of a case without a mark, which is 6 s; the cases have 600.
    running = machine.start("-n2", "--dist=loadfile", "--no-health", "--timeout-multiplier=0.001")
    result = checked(running.result())
    assert verdicts(result) == {
        "test_holds": "passed",
        "test_first": "passed",
        "test_wants_both": "not_run",
        "test_next": "passed",
    }, result.tail()
    (line,) = finishes(result, "test_wants_both")
    holder = next(line["worker"] for line in result.lines if line["event"] == "start" and "test_holds" in line["case"])
    who = f"worker {holder} (process "
    assert f"did not become free: {who}" in line["message"]
    waits = [line["message"] for line in result.lines if line["event"] == "wait"]
    assert waits
    assert all(f"which {who}" in text for text in waits)
    assert f"harness: {waits[0]}" in result.terminal
