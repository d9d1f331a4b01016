"""What becomes of a run when devices are sick: fake GPUs that NVML and torch both know, and that fall ill on demand."""

from __future__ import annotations

import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import psutil
import pytest

from tests import fake_nvml
from tests.acceptance.expected import check_journal, compare_junit
from tests.acceptance.project import Project, Result, Running

#: The UUIDs of the fake GPUs.
GPU = [f"GPU-{number * 4}0000-0000-4000-8000-000000000000" for number in "0123"]
FAKE_TORCH = Path(__file__).with_name("fake_torch.py")

_INI = """\
[pytest]
harness_suites = suites
harness_preload = torch
strict_markers = true
"""

# What every suite here begins with.
_PRELUDE = '''
import os, pathlib, signal, time
import pytest, torch

def gpu():
    """The UUID of our GPU."""
    return os.environ["CUDA_VISIBLE_DEVICES"]

def fares(word, number=1):
    """From now on NVML says so of our GPU."""
    with open(os.environ["FAKE_NVML_STATE"], "a") as file:
        file.write(f"{gpu()[4]} {word} {number}\\n")

def sicken(sickness):
    """From now on our GPU is sick."""
    pathlib.Path(os.environ["FAKE_TORCH"], gpu()).write_text(sickness)

def mark(word):
    pathlib.Path(os.environ["PROBE_DIR"], word).touch()

def await_mark(word):
    while not pathlib.Path(os.environ["PROBE_DIR"], word).exists():
        time.sleep(0.01)

def crash():
    os.kill(os.getpid(), signal.SIGSEGV)

def hang():
    signal.pause()

def poison():
    torch.cuda.fake_error = "CUDA error: an illegal memory access was encountered"

BREAKS = {"crashed": crash, "timeout": hang, "poisoned": poison}
on_gpu = pytest.mark.requires(device="cuda")
'''


class Machine:
    """A machine with fake GPUs, and a project whose cases run there."""

    def __init__(self, folder: Path, library: Path, gpus: int = 2) -> None:
        self.project = Project(folder / "project")
        self.project.write("pytest.ini", _INI)
        self.state = fake_nvml.State(folder / "gpus")
        self._sick = folder / "sick"
        self._sick.mkdir()
        package = folder / "fake" / "torch"
        package.mkdir(parents=True)
        shutil.copy(FAKE_TORCH, package / "__init__.py")
        made = fake_nvml.environment(library, gpus=gpus, state=self.state)
        self.environ: dict[str, str | None] = {
            **{name: made[name] for name in made if name == "LD_LIBRARY_PATH" or name.startswith("FAKE_NVML_")},
            "CUDA_VISIBLE_DEVICES": None,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")])),
            "FAKE_TORCH": str(self._sick),
            # A case that is run once more for a suspicion would make what happens to the device happen twice.
            "HARNESS_LEAK_CHECK": "off",
        }

    def sicken(self, gpu: int, sickness: str) -> None:
        """GPU number `gpu` is sick in the way of this word of fake_torch.py."""
        (self._sick / GPU[gpu]).write_text(sickness)

    def suite(self, source: str, name: str = "test_gpu") -> None:
        """Write a module of cases."""
        self.project.write(f"suites/gpu/{name}.py", _PRELUDE + source)

    def run(self, *arguments: str, **environ: str | None) -> Result:
        return checked(self.project.run(*arguments, env={**self.environ, **environ}))

    def start(self, *arguments: str) -> Running:
        return self.project.start(*arguments, env=self.environ)

    def await_a_waiter(self, running: Running, gpu: int) -> None:
        """Wait until a worker waits for its turn at this GPU."""

        def waits() -> bool:
            return any(map(_held, self.project.temp.glob(f"harness-*/turns/{GPU[gpu]}.queue")))

        running.wait_for(waits, f"a worker to wait for {GPU[gpu]}")

    def mark(self, word: str) -> None:
        """What the cases' `await_mark` waits for."""
        (self.project.folder / "probe" / word).touch()


def _held(path: Path) -> bool:
    try:
        with filelock.FileLock(path).acquire(blocking=False):
            return False
    except filelock.Timeout:
        return True


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.build(tmp_path_factory.mktemp("fake_nvml"))


@pytest.fixture
def machine(tmp_path: Path, library: Path) -> Machine:
    """Two GPUs."""
    return Machine(tmp_path, library)


def checked(result: Result) -> Result:
    """A run whose journal and report are valid, and in which no case began on a device that was drained."""
    check_journal(result)
    compare_junit(result, {case: (outcome, "") for case, outcome in result.verdicts.items()})
    drained: set[str] = set()
    for line in result.lines:
        if line["event"] == "device" and line["state"] == "drained":
            drained.add(line["device"])
        assert line["event"] != "start" or not drained & set(line["devices"]), f"{line}\n{result.tail()}"
    return result


def short(case: str) -> str:
    return case.split("::")[-1]


def verdicts(result: Result) -> dict[str, str]:
    return {short(case): outcome for case, outcome in result.verdicts.items()}


def looks(result: Result) -> list[tuple[str, str, str]]:
    """Of each event about a device: which, what state, and the occasion."""
    found = [line for line in result.lines if line["event"] == "device"]
    return [(line["device"], line["state"], line["moment"]) for line in found]


def sick_devices(result: Result) -> list[tuple[str, list[str]]]:
    """The message and the cases of each finding, which all are about sick devices."""
    found = result.ledger.findings
    assert {finding.kind for finding in found} <= {"sick_device"}, found
    assert all(f"FINDING sick_device: {finding.message}" in result.terminal for finding in found), result.tail()
    return [(finding.message, [short(case) for case in finding.cases]) for finding in found]


def finishes(result: Result, name: str) -> list[dict[str, Any]]:
    """The lines about ended attempts at a case."""
    return [line for line in result.lines if line["event"] == "finish" and short(line["case"]) == name]


def notes(result: Result) -> dict[str, list[str]]:
    """The notes on devices, by the case whose attempts they are on."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in result.lines:
        told = [note for note in line.get("notes", []) if note.startswith("device ")]
        if told:
            found[short(line["case"])] += told
    return dict(found)


def shares(result: Result) -> dict[str, set[str]]:
    """Which workers had executors with cases on which device. Fails if two had a device at the same time."""
    users: dict[str, str] = {}
    shared: dict[str, set[str]] = defaultdict(set)
    for line in result.lines:
        if line["event"] != "executor":
            continue
        for device in line["devices"]:
            if line["state"] == "started":
                assert device not in users, f"{line['executor']} began beside {users[device]}"
                users[device] = line["executor"]
            else:
                assert users.pop(device) == line["executor"]
                if line["cases"]:
                    shared[device].add(line["worker"])
    assert not users
    return shared


_PLAIN = """
@on_gpu
@pytest.mark.parametrize("n", range(8))
def test_plain(n, device):
    torch.zeros(1, device=device)
"""


@pytest.mark.parametrize("spread", [["-n2"], ["-n0", "--isolation=case"]], ids=["two workers", "many executors"])
def test_each_worker_has_its_device_examined_once_before_its_first_case(machine: Machine, spread: list[str]) -> None:
    machine.suite(_PLAIN)
    result = machine.run(*spread)
    assert result.status == 0, result.tail()
    workers = ["gw0", "gw1"] if "-n2" in spread else ["main"]
    events = [line for line in result.lines if line["event"] in ("device", "start")]
    for worker in workers:
        mine = [line for line in events if line["worker"] == worker]
        assert [line["event"] for line in mine[:2]] == ["device", "start"], mine
        assert [line["event"] for line in mine].count("device") == 1
        assert (mine[0]["state"], mine[0]["moment"]) == ("healthy", "at the start")
        assert mine[0]["seconds"] > 0
        assert {tuple(line["devices"]) for line in mine[1:]} == {(mine[0]["device"],)}
    assert sorted(device for device, _, _ in looks(result)) == GPU[: len(workers)]
    assert not notes(result)


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [(["--no-health"], {}), (["--isolation=none"], {}), ([], {"CUDA_VISIBLE_DEVICES": ""})],
    ids=["no health", "no isolation", "the cpu"],
)
def test_nothing_is_examined(machine: Machine, arguments: list[str], environ: dict[str, str]) -> None:
    machine.sicken(0, "wrong")
    machine.suite("def test_plain(): pass")
    result = machine.run("-n0", *arguments, **environ)
    assert result.status == 0, result.tail()
    assert looks(result) == []
    assert len([line for line in result.lines if line["event"] == "executor" and line["state"] == "started"]) <= 1


_SICK = {
    "wrong": "matrix product in float32: row 17 of 512 is wrong, at the start",
    "crashes": "ended with SIGSEGV during creation of a context, without a result, at the start",
}


@pytest.mark.parametrize(("spread", "sickness"), [("-n0", "crashes"), ("-n2", "wrong")])
def test_a_device_that_is_sick_at_the_start_runs_no_case(machine: Machine, spread: str, sickness: str) -> None:
    machine.sicken(0, sickness)
    machine.suite(
        _PLAIN
        + """
@pytest.mark.requires(device="cuda", devices=2)
def test_pair():
    pass
"""
    )
    result = machine.run(spread)
    assert result.status == 1, result.tail()
    cause = _SICK[sickness]
    assert sick_devices(result) == [(f"device {GPU[0]} (Fake GPU 80GB) is drained: {cause}", [])]
    plain = {name: outcome for name, outcome in verdicts(result).items() if name != "test_pair"}
    assert set(plain.values()) == {"passed"}, result.tail()
    assert verdicts(result)["test_pair"] == "not_run"
    (pair,) = finishes(result, "test_pair")
    assert pair["message"] == f"2 healthy devices wanted, 1 left; {GPU[0]} is drained: {cause}"
    assert shares(result) == {GPU[1]: {"gw0", "gw1"} if spread == "-n2" else {"main"}}


@pytest.mark.parametrize("spread", ["-n0", "-n2"])
def test_without_a_healthy_device_no_case_runs_and_each_says_why(machine: Machine, spread: str) -> None:
    machine.sicken(0, "crashes")
    machine.sicken(1, "crashes")
    machine.suite(
        _PLAIN
        + """
@pytest.mark.requires(device="cuda", memory=">=100TiB")
def test_large():
    pass

def test_anywhere():
    pass
"""
    )
    result = machine.run(spread)
    assert result.status == 1, result.tail()
    assert not [line for line in result.lines if line["event"] == "start"]
    found = verdicts(result)
    assert found.pop("test_large") == "gated"
    assert len(found) == 9
    assert set(found.values()) == {"not_run"}
    for name in found:
        (line,) = finishes(result, name)
        assert all(f"{uuid} is drained: {_SICK['crashes']}" in line["message"] for uuid in GPU[:2])
    assert sorted(message[7:47] for message, _ in sick_devices(result)) == GPU[:2]


def test_an_examination_that_hangs_is_ended(machine: Machine) -> None:
    machine.sicken(0, "hangs")
    machine.suite(_PLAIN)
    result = machine.run("-n0", "--timeout-multiplier=0.2")
    ((message, _),) = sick_devices(result)
    assert "is drained: hangs during creation of a context: did not end within 12 s" in message
    assert set(verdicts(result).values()) == {"passed"}
    assert result.status == 1
    sick = next(line for line in result.lines if line["event"] == "device" and line["state"] == "sick")
    assert 12 <= sick["seconds"] < 60


_BREAKS = """
@on_gpu
def test_before():
    pass

@on_gpu
@pytest.mark.timeout({limit})
def test_breaks(device):
    if {when}:
        {first}
        BREAKS[{how!r}]()

@on_gpu
def test_after():
    pass
"""


@pytest.mark.parametrize("how", ["crashed", "timeout", "poisoned"])
def test_a_device_is_examined_after_a_case_that_breaks(machine: Machine, how: str) -> None:
    machine.suite(_BREAKS.format(limit=2, when="True", first="pass", how=how))
    result = machine.run("-n0")
    assert verdicts(result) == {"test_before": "passed", "test_breaks": how, "test_after": "passed"}
    assert sick_devices(result) == []
    moment = f"after suites/gpu/test_gpu.py::test_breaks {'was ' if how == 'poisoned' else ''}{how}"
    assert looks(result) == [
        (GPU[0], "healthy", "at the start"),
        (GPU[0], "healthy", moment),  # of the attempt in company
        (GPU[0], "healthy", moment),  # of the attempt alone
    ]
    note = f"device {GPU[0]} examined after the case: computes and copies correctly"
    assert [note in line["notes"] for line in finishes(result, "test_breaks")] == [True, True]
    assert notes(result).keys() == {"test_breaks"}


@pytest.mark.parametrize(
    ("how", "alone"), [("crashed", False), ("timeout", False), ("poisoned", False), ("crashed", True)]
)
def test_a_case_that_broke_on_a_sick_device_is_tried_on_another(machine: Machine, how: str, alone: bool) -> None:
    source = _BREAKS.format(
        limit=2 if how == "timeout" else 60, when='gpu()[4] == "0"', first='sicken("crashes")', how=how
    )
    machine.suite(source)
    result = machine.run("-n0", *(["--isolation=case"] if alone else []))
    assert result.status == 1, result.tail()
    assert verdicts(result) == {"test_before": "passed", "test_breaks": "flaky", "test_after": "passed"}
    first, second = finishes(result, "test_breaks")
    assert (first["outcome"], first["devices"], first["final"], first["alone"]) == (how, [GPU[0]], False, alone)
    assert (second["outcome"], second["devices"], second["final"], second["alone"]) == ("passed", [GPU[1]], True, True)
    assert f"device {GPU[0]} examined after the case: ended with SIGSEGV" in "\n".join(first["notes"])
    moment = f"after suites/gpu/test_gpu.py::test_breaks {'was ' if how == 'poisoned' else ''}{how}"
    ((message, cases),) = sick_devices(result)
    assert message.endswith(f"without a result, {moment}")
    assert cases == ["test_breaks"]
    assert looks(result)[1:] == [
        (GPU[0], "sick", moment),
        (GPU[0], "drained", moment),
        (GPU[1], "healthy", "at the start"),
    ]
    assert [line["devices"] for line in finishes(result, "test_after")] == [[GPU[1]]]


def test_signs_that_need_not_worry_are_noted_on_the_case_that_ran(machine: Machine) -> None:
    machine.suite("""
pytestmark = on_gpu

def test_plain(): pass
def test_xid(): fares("xid", 13)
def test_corrected(): fares("ecc_corrected", 3)
def test_hot(): fares("throttle", 0x40)
def test_still_hot(): pass
def test_suspect(): fares("xid", 8)
def test_last(): pass
""")
    result = machine.run("-n0")
    assert result.status == 0, result.tail()
    while_it_ran = f"device {GPU[0]} while the case ran"
    assert notes(result) == {
        "test_xid": [f"{while_it_ran}: xid 13 (graphics engine exception, mostly caused by the application)"],
        "test_corrected": [f"{while_it_ran}: corrected memory errors: 0, then 3"],
        "test_hot": [f"{while_it_ran}: clocks are throttled at 40 °C: hardware thermal slowdown"],
        "test_suspect": [
            f"{while_it_ran}: xid 8 (the gpu stopped processing)",
            f"device {GPU[0]} examined after the case: computes and copies correctly",
        ],
    }
    assert sick_devices(result) == []
    assert looks(result) == [
        (GPU[0], "healthy", "at the start"),
        (GPU[0], "healthy", "after suites/gpu/test_gpu.py::test_suspect passed"),
    ]


def test_signs_that_worry_drain_the_device_and_name_the_case(tmp_path: Path, library: Path) -> None:
    machine = Machine(tmp_path, library, gpus=4)
    machine.suite("""
pytestmark = on_gpu

def test_uncorrected(): fares("ecc_uncorrected")
def test_off_the_bus(): fares("xid", 79)
def test_lost(): fares("lost")
def test_last(): pass
""")
    result = machine.run("-n0")
    assert result.status == 1, result.tail()
    assert set(verdicts(result).values()) == {"passed"}
    signs = {
        "test_uncorrected": "uncorrected memory errors: 0, then 1",
        "test_off_the_bus": "xid 79 (the gpu has fallen off the bus)",
        "test_lost": "the device is lost: corrected errors: GPU is lost",
    }
    assert notes(result) == {
        name: [f"device {uuid} while the case ran: {sign}"]
        for uuid, (name, sign) in zip(GPU, signs.items(), strict=False)
    }
    found = sick_devices(result)
    assert [cases for _, cases in found] == [[name] for name in signs]
    for uuid, (name, sign), (message, _) in zip(GPU, signs.items(), found, strict=False):
        case = f"suites/gpu/test_gpu.py::{name}"
        assert message == f"device {uuid} (Fake GPU 80GB) is drained: {sign}, after {case} passed"
    assert [finishes(result, name)[0]["devices"] for name in verdicts(result)] == [[uuid] for uuid in GPU]
    assert [state for _, state, _ in looks(result)] == ["healthy", "drained"] * 3 + ["healthy"]


def test_what_was_wrong_with_a_device_before_the_run_is_found(machine: Machine) -> None:
    machine.state.set(0, rows_failed=1)
    machine.suite(_PLAIN)
    result = machine.run("-n0")
    assert result.status == 1, result.tail()
    sign = "a memory row could not be remapped: replace the gpu, at the start"
    assert sick_devices(result) == [(f"device {GPU[0]} (Fake GPU 80GB) is drained: {sign}", [])]
    assert shares(result) == {GPU[1]: {"main"}}


def test_a_last_device_that_is_drained_while_a_bad_end_is_looked_into_is_told(tmp_path: Path, library: Path) -> None:
    machine = Machine(tmp_path, library, gpus=1)
    machine.suite("""
import atexit

@on_gpu
@pytest.mark.parametrize("n", range(2))
def test_ends_badly(n):
    atexit.register(crash)
    atexit.register(sicken, "crashes")
""")
    result = machine.run("-n0")
    assert result.status == 1, result.tail()
    assert verdicts(result) == {"test_ends_badly[0]": "crashed", "test_ends_badly[1]": "passed"}
    found = {finding.kind: finding.message for finding in result.ledger.findings}
    assert found.keys() == {"sick_device", "executor_exit"}
    assert "the case that causes this was not found: 1 healthy devices wanted, 0 left" in found["executor_exit"]


def test_cases_for_two_devices_do_not_collide_with_the_other_worker(machine: Machine) -> None:
    machine.suite(
        """
@pytest.mark.requires(device="cuda", devices=2)
@pytest.mark.parametrize("n", range(8))
def test_pair(n):
    assert torch.cuda.device_count() == 2
"""
        + _PLAIN
    )
    result = machine.run("-n2")
    assert result.status == 0, result.tail()
    assert set(verdicts(result).values()) == {"passed"}
    assert shares(result) == {uuid: {"gw0", "gw1"} for uuid in GPU[:2]}
    assert {tuple(sorted(line["devices"])) for line in finishes(result, "test_pair[0]")} == {tuple(GPU[:2])}


# In the workers alone: tells the test their process ids, and has the case that holds begin after the other worker's
# first, and that worker's second after it.
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
    """Starts two workers on one GPU, the other being sick. One runs a case, the other has run some and waits its turn.

    The case ends by `end` once it is marked "go on".
    """
    begun: list[Running] = []

    def start(end: str) -> Running:
        machine.sicken(0, "wrong")
        machine.project.write("conftest.py", _DIRECTS)
        machine.suite(_HOLDS.format(end=end), "test_a")
        machine.suite(_PLAIN, "test_b")
        begun.append(machine.start("-n2", "--dist=load", "--isolation=case"))
        begun[0].started("::test_holds")
        machine.await_a_waiter(begun[0], 1)
        return begun[0]

    yield start
    for running in begun:
        running.kill_all()


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


def test_a_zygote_that_dies_while_a_device_is_examined_is_replaced(machine: Machine) -> None:
    machine.sicken(0, "hangs")
    machine.suite(_PLAIN)
    running = machine.start("-n0", "--timeout-multiplier=0.2")
    try:
        running.wait_for(
            lambda: any(line["event"] == "executor" for line in running.lines()), "the examination to begin"
        )
        executor = next(line["pid"] for line in running.lines() if line["event"] == "executor")
        zygote = psutil.Process(executor).parent()
        assert zygote is not None
        zygote.kill()
        result = checked(running.result())
    except BaseException:
        running.kill_all()
        raise
    assert set(verdicts(result).values()) == {"passed"}, result.tail()
    assert [state for _, state, _ in looks(result)] == ["sick", "drained", "healthy"]


# 997: this call of the fake NVML does not return.
_HANGS = """
pytestmark = on_gpu

def test_before(): pass
def test_hangs_nvml():
    for call in ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"):
        fares(call, 997)
def test_after(): fares("xid", 79)
"""
#: Makes NVML's deadline 12 s, and an examination's 6.
_QUICK = "--timeout-multiplier=0.1"


def test_an_nvml_that_does_not_answer_any_more_is_told_and_the_run_goes_on(machine: Machine) -> None:
    """The device is examined, as is one with any other sign that worries; nothing more is heard of it, and of no other.

    The worker ends, though a call of its has not returned.
    """
    machine.suite(_HANGS)
    result = machine.run("-n0", _QUICK)
    assert result.status == 1, result.tail()
    assert set(verdicts(result).values()) == {"passed"}
    hang = "nvml did not answer within 12 s (temperature); it is not called again"
    case = "suites/gpu/test_gpu.py::test_hangs_nvml"
    assert len(result.ledger.findings) == 1, result.tail()
    (finding,) = result.ledger.findings
    assert (finding.kind, finding.cases) == ("device_sign", (case,))
    assert finding.message == f"device {GPU[0]} after {case} passed: {hang}"
    assert notes(result)["test_hangs_nvml"] == [
        f"device {GPU[0]} while the case ran: {hang}",
        f"device {GPU[0]} examined after the case: computes and copies correctly",
    ]
    assert "test_after" not in notes(result)


def test_a_device_that_does_not_become_free_is_not_waited_for_without_end(machine: Machine) -> None:
    """What the worker waits for is told while it waits; then the case is not run, and the next one is."""
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
    # A device is waited for for 20 times the limit of a case that names none, which makes 6 s; the cases have 600.
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


_BROKEN_EXAMINATION = """
from harness.devices import health

def examine(*arguments, **named):
    raise LookupError("a mistake of ours")

health.examine = examine
"""


def test_an_examination_that_fails_by_our_own_fault_drains_no_device(machine: Machine) -> None:
    machine.project.write("suites/gpu/conftest.py", _BROKEN_EXAMINATION)
    machine.suite("""
@on_gpu
def test_crashes():
    crash()

@on_gpu
def test_after(): pass
""")
    result = machine.run("-n0")
    assert verdicts(result) == {"test_crashes": "crashed", "test_after": "passed"}, result.tail()
    found = [(finding.kind, finding.message.splitlines()[0]) for finding in result.ledger.findings]
    result_text = "not known, because the harness failed: LookupError: a mistake of ours"
    assert [kind for kind, _ in found] == ["harness_error", "unexamined_device", "unexamined_device"]
    assert found[1][1] == f"device {GPU[0]} at the start: {result_text}; the device is used without an examination"
    assert looks(result) == []
