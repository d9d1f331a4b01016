"""Runs with sick devices."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest

from harness.core import linux
from tests.acceptance.gpu_machine import (
    GPU,
    PLAIN,
    Machine,
    checked,
    finishes,
    looks,
    notes,
    shares,
    sick_devices,
    verdicts,
)


@pytest.mark.ways("spread", [["-n2"], ["-n0", "--isolation=case"]], ids=["two workers", "many executors"])
def test_each_worker_has_its_device_examined_once_before_its_first_case(machine: Machine, spread: list[str]) -> None:
    machine.suite(PLAIN)
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


@pytest.mark.ways(
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


@pytest.mark.ways(("spread", "sickness"), [("-n0", "crashes"), ("-n2", "wrong")])
def test_a_device_that_is_sick_at_the_start_runs_no_case(machine: Machine, spread: str, sickness: str) -> None:
    machine.sicken(0, sickness)
    machine.suite(
        PLAIN
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


@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_without_a_healthy_device_no_case_runs_and_each_says_why(machine: Machine, spread: str) -> None:
    machine.sicken(0, "crashes")
    machine.sicken(1, "crashes")
    machine.suite(
        PLAIN
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


LEFT = """
@on_gpu
@pytest.mark.parametrize("n", range(4))
def test_uses(n, device):
    if n == 1 and os.environ["CUDA_VISIBLE_DEVICES"] == FIRST:
        fares("process", os.getpid())
        UNTIL
        crash()
""".replace("FIRST", repr(GPU[0]))
first_pid_namespace = pytest.mark.skipif(
    not linux.sees_all_processes(), reason="in a container the driver's process ids are not those that cases have"
)


@pytest.mark.nightly
@first_pid_namespace
def test_a_device_that_the_driver_does_not_release_runs_no_other_case(machine: Machine) -> None:
    """The driver lists a process after its end. Its remains on the device could be blamed on the next case."""
    machine.suite(LEFT.replace("UNTIL", "pass"))
    result = machine.run("-n0", "--timeout-multiplier=0.1")
    ((message, cases),) = sick_devices(result)
    crashed = next(line for line in result.lines if line["event"] == "executor" and line["exit_status"] == -11)
    assert message == (
        f"device {GPU[0]} (Fake GPU 80GB) is drained: NVML lists ended processes as its users 1 s after the end of "
        f"executor {crashed['executor']}: {crashed['pid']}, after suites/gpu/test_gpu.py::test_uses[1]"
    )
    assert cases == ["test_uses[1]"]
    assert verdicts(result) == {f"test_uses[{n}]": "passed" for n in (0, 2, 3)} | {"test_uses[1]": "flaky"}
    later = [line for line in result.lines if line["event"] == "start" and line["attempt"] == 2]
    assert [line["devices"] for line in later] == [[GPU[1]]]


@pytest.mark.nightly
@first_pid_namespace
def test_a_device_that_the_driver_releases_late_is_used_again(machine: Machine) -> None:
    machine.suite(LEFT.replace("UNTIL", "fares('process_until', 3)"))
    result = machine.run("-n0")
    assert verdicts(result)["test_uses[1]"] == "crashed"
    assert sick_devices(result) == []
    assert {device for line in result.lines if line["event"] == "start" for device in line["devices"]} == {GPU[0]}


@pytest.mark.nightly
@first_pid_namespace
def test_what_was_left_on_a_device_before_the_run_is_reported_once(machine: Machine) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    machine.state.set(0, process=ended.pid)
    machine.suite(PLAIN)
    result = machine.run("-n0", "--isolation=case")
    assert set(verdicts(result).values()) == {"passed"}
    (finding,) = result.ledger.findings
    text = f"device {GPU[0]} at the start: NVML lists processes that have ended as its users: {ended.pid}"
    assert (finding.kind, finding.message) == ("device_sign", text)


@pytest.mark.nightly
def test_an_examination_that_hangs_is_ended(machine: Machine) -> None:
    machine.sicken(0, "hangs")
    machine.suite(PLAIN)
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


@pytest.mark.parametrize(
    "how", ["crashed", *(pytest.param(how, marks=pytest.mark.nightly) for how in ("timeout", "poisoned"))]
)
def test_a_device_is_examined_after_a_case_that_breaks(machine: Machine, how: str) -> None:
    machine.suite(_BREAKS.format(limit=2, when="True", first="pass", how=how))
    result = machine.run("-n0")
    assert verdicts(result) == {"test_before": "passed", "test_breaks": how, "test_after": "passed"}
    assert sick_devices(result) == []
    moment = f"after suites/gpu/test_gpu.py::test_breaks {'was ' if how == 'poisoned' else ''}{how}"
    assert looks(result) == [
        (GPU[0], "healthy", "at the start"),
        (GPU[0], "healthy", moment),  # of the attempt after other cases
        (GPU[0], "healthy", moment),  # of the attempt alone
    ]
    note = f"device {GPU[0]} examined after the case: computes and copies correctly"
    assert [note in line["notes"] for line in finishes(result, "test_breaks")] == [True, True]
    assert notes(result).keys() == {"test_breaks"}


@pytest.mark.parametrize(
    ("how", "alone"),
    [
        ("crashed", False),
        *(pytest.param(how, False, marks=pytest.mark.nightly) for how in ("timeout", "poisoned")),
        pytest.param("crashed", True, marks=pytest.mark.nightly),
    ],
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


@pytest.mark.nightly
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
        "test_xid": [f"{while_it_ran}: Xid 13 (graphics engine exception, mostly caused by the application)"],
        "test_corrected": [f"{while_it_ran}: corrected memory errors: 0, then 3"],
        "test_hot": [f"{while_it_ran}: clocks are throttled at 40 °C: hardware thermal slowdown"],
        "test_suspect": [
            f"{while_it_ran}: Xid 8 (the GPU stopped processing)",
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
        "test_off_the_bus": "Xid 79 (the GPU has fallen off the bus)",
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


@pytest.mark.nightly
def test_what_was_wrong_with_a_device_before_the_run_is_found(machine: Machine) -> None:
    machine.state.set(0, rows_failed=1)
    machine.suite(PLAIN)
    result = machine.run("-n0")
    assert result.status == 1, result.tail()
    sign = "a memory row could not be remapped: replace the GPU, at the start"
    assert sick_devices(result) == [(f"device {GPU[0]} (Fake GPU 80GB) is drained: {sign}", [])]
    assert shares(result) == {GPU[1]: {"main"}}


@pytest.mark.nightly
def test_a_last_device_that_is_drained_while_a_bad_end_is_examined_is_reported(tmp_path: Path, library: Path) -> None:
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


@pytest.mark.nightly
def test_a_zygote_that_dies_while_a_device_is_examined_is_replaced(machine: Machine) -> None:
    machine.sicken(0, "hangs")
    machine.suite(PLAIN)
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


# With 997, this call of the fake NVML does not return.
_HANGS = """
pytestmark = on_gpu

def test_before(): pass
def test_hangs_nvml():
    for call in ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"):
        fares(call, 997)
def test_after(): fares("xid", 79)
"""
#: Sets NVML's deadline to 12 s, and a health check's to 6 s.
_QUICK = "--timeout-multiplier=0.1"


@pytest.mark.nightly
def test_an_nvml_that_does_not_answer_any_more_is_reported_and_the_run_goes_on(machine: Machine) -> None:
    """The device is checked, as after any other sign of trouble; then neither it nor any other device is queried again.

    The worker ends, although its call has not returned.
    """
    machine.suite(_HANGS)
    result = machine.run("-n0", _QUICK)
    assert result.status == 1, result.tail()
    assert set(verdicts(result).values()) == {"passed"}
    hang = "NVML did not answer within 12 s (temperature); it is not called again"
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


_BROKEN_EXAMINATION = """
from harness.devices import health

def examine(*arguments, **named):
    raise LookupError("a mistake of ours")

health.examine_device = examine
"""


@pytest.mark.nightly
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
