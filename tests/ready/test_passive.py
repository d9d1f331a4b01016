"""What the passive part says of each fault: the real programs that read, the real pynvml, a fake NVML and log."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.core import linux
from harness.gating.profiles import Hardware
from harness.ready.judge_node import judge_node
from harness.ready.model import Problem, Step, Verdict
from harness.ready.passive import NodeFacts, ReaderEnd, read_node
from harness.ready.rules import RULES, Findings
from tests import fake_nvml
from tests.fake_nvml import State

ROOT = Path(__file__).parents[2]
#: Problems of the machine that runs the tests.
OF_THIS_HOST = frozenset({"clock", "shared_memory", "disk", "open_files", "stuck_processes", "pci_bus"})
READY, DEGRADED, UNKNOWN, NOT_READY = Verdict.READY, Verdict.DEGRADED, Verdict.UNKNOWN, Verdict.NOT_READY
HANGS = 997

#: Words of the fake's state, and what they must lead to: verdict, kind of problem, next step.
FAULTS: Sequence[tuple[dict[str, int], Verdict, str, Step]] = (
    ({"recovery": 1}, NOT_READY, "recovery_reset", Step.RESET_GPU),
    ({"recovery": 2}, NOT_READY, "recovery_reboot", Step.REBOOT),
    ({"recovery": 4}, NOT_READY, "recovery_drain", Step.RESET_GPU),
    ({"recovery": 5}, NOT_READY, "recovery_imex", Step.LOOK),
    ({"recovery": 99}, NOT_READY, "recovery_reboot", Step.REBOOT),
    ({"ecc_uncorrected": 3}, NOT_READY, "ecc_uncorrected", Step.RESET_GPU),
    ({"rows_failed": 1, "rows_uncorrectable": 9}, NOT_READY, "rows_failed", Step.VENDOR_TICKET),
    ({"rows_pending": 1}, NOT_READY, "rows_pending", Step.RESET_GPU),
    ({"sram_exceeded": 1, "sram_uncorrected": 8}, NOT_READY, "sram_threshold", Step.VENDOR_TICKET),
    ({"ecc_pending": 0}, DEGRADED, "ecc_mode", Step.RESET_GPU),
    ({"mig_pending": 1}, NOT_READY, "mig", Step.FIX_CONFIGURATION),
    ({"pcie_width": 8}, DEGRADED, "pcie_width", Step.LOOK),
    ({"pcie_generation": 3}, DEGRADED, "pcie_generation", Step.LOOK),
    ({"replays": 2_000_000_000}, DEGRADED, "pcie_replays", Step.LOOK),
    ({"nvlinks": 18}, READY, "", Step.NOTHING),
    ({"nvlinks": 17, "nvlinks_down": 1}, NOT_READY, "nvlink_down", Step.RESET_GPU),
    ({"nvlinks": 18, "nvlink_recoveries": 1}, DEGRADED, "nvlink_errors", Step.LOOK),
    ({"fabric_state": 3}, READY, "", Step.NOTHING),
    ({"fabric_state": 2}, NOT_READY, "fabric", Step.FIX_CONFIGURATION),
    ({"fabric_state": 3, "fabric_status": 999}, NOT_READY, "fabric", Step.FIX_CONFIGURATION),
    ({"fabric_state": 3, "fabric_health": 0x1}, NOT_READY, "fabric_health", Step.LOOK),
    ({"throttle": 0x40, "temperature": 84}, DEGRADED, "thermal", Step.LOOK),
    ({"throttle": 0x80}, DEGRADED, "power_brake", Step.LOOK),
    ({"throttle": 0x1}, READY, "", Step.NOTHING),
    ({"temperature": 88}, DEGRADED, "temperature", Step.LOOK),
    ({"power_limit": 300_000, "power_default": 700_000}, DEGRADED, "power_limit", Step.FIX_CONFIGURATION),
    ({"graphics_clock": 900, "graphics_clock_default": 1980}, DEGRADED, "clocks", Step.FIX_CONFIGURATION),
    ({"persistence": 0}, DEGRADED, "persistence", Step.FIX_CONFIGURATION),
    ({"compute_mode": 2}, NOT_READY, "compute_mode", Step.FIX_CONFIGURATION),
    ({"compute_mode": 3}, DEGRADED, "exclusive", Step.FIX_CONFIGURATION),
    ({"process": 1}, DEGRADED, "processes", Step.END_PROCESSES),
)
#: The same where the query itself fails. 4: no permission. 999: an unknown error. 15: the GPU is lost. 16: it must be
#: reset. 3: not supported, which is no fault.
BROKEN: Sequence[tuple[dict[str, int], Verdict, str, Step]] = (
    ({"nvmlDeviceGetTotalEccErrors": 4}, UNKNOWN, "unreadable", Step.LOOK),
    ({"nvmlDeviceGetTotalEccErrors": 999}, UNKNOWN, "unreadable", Step.LOOK),
    ({"nvmlDeviceGetTotalEccErrors": 3}, READY, "", Step.NOTHING),
    ({"nvmlDeviceGetRemappedRows": 999}, UNKNOWN, "unreadable", Step.LOOK),
    ({"nvmlDeviceGetFieldValues": 4}, UNKNOWN, "unreadable", Step.LOOK),
    ({"nvmlDeviceGetCurrPcieLinkWidth": 999}, UNKNOWN, "unreadable", Step.LOOK),
    ({"nvmlDeviceGetTemperature": 999}, UNKNOWN, "unreadable", Step.LOOK),
    ({"nvmlDeviceGetPersistenceMode": 4}, UNKNOWN, "unreadable", Step.LOOK),
    ({"nvmlDeviceGetComputeRunningProcesses_v3": 999}, UNKNOWN, "unreadable", Step.LOOK),
    ({"nvmlDeviceGetComputeMode": 16}, NOT_READY, "reset_required", Step.RESET_GPU),
    ({"nvmlDeviceGetComputeMode": 15}, NOT_READY, "gpu_lost", Step.REBOOT),
    ({"lost": 1}, NOT_READY, "gpu_lost", Step.REBOOT),
    ({"lost_from": 25}, NOT_READY, "gpu_lost", Step.REBOOT),
)


@pytest.fixture
def state(tmp_path: Path) -> State:
    """Return the state of the fake's GPUs."""
    return State(tmp_path / "gpus")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a kernel's log without a line about GPUs."""
    path = tmp_path / "kmsg"
    path.write_text("6,1,1000000,-;usb 1-1: new device\n")
    return path


def read(environ: dict[str, str], log: Path, **more: Any) -> NodeFacts:
    return read_node(environ=environ, log=log, **more)


def judged(facts: NodeFacts, hardware: Hardware | None = None) -> Findings:
    return judge_node(facts, RULES, hardware)


def own(found: Findings) -> list[Problem]:
    """Return the problems that are not about the machine that runs the tests."""
    return [problem for problem in found.problems if problem.check not in OF_THIS_HOST]


@pytest.mark.parametrize("table", [FAULTS, BROKEN], ids=["readings", "queries"])
def test_each_fault_leads_to_its_verdict_and_next_step(
    nvml_folder: Path, state: State, log: Path, table: Sequence[tuple[dict[str, int], Verdict, str, Step]]
) -> None:
    """Each GPU of one machine has another fault. Only those with an even number have ECC."""
    for place, (words, *_) in enumerate(table):
        state.set(2 * place, **words)
    facts = read(fake_nvml.environment(nvml_folder, gpus=2 * len(table), state=state), log)
    problems = own(judged(facts))
    uuids = [gpu.uuid for gpu in facts.gpus]
    found = [
        [(problem.verdict, problem.kind, problem.step) for problem in problems if problem.gpu == uuids[2 * place]]
        for place in range(len(table))
    ]
    wanted = [[(verdict, kind, step)] if kind else [] for _, verdict, kind, step in table]
    # NVML answers some checks together: several of them are unknown.
    assert [list(dict.fromkeys(each)) for each in found] == wanted
    assert {problem.gpu for problem in problems} <= {uuids[2 * place] for place in range(len(table))}


@pytest.mark.parametrize(
    ("words", "kind"),
    [({"pages_pending": 1}, "pages_pending"), ({"pages_retired": 60}, "pages_retired"), ({"pages_retired": 59}, "")],
)
def test_a_gpu_that_retires_pages(nvml_folder: Path, state: State, log: Path, words: dict[str, int], kind: str) -> None:
    state.set(0, **words)
    problems = own(judged(read(fake_nvml.environment(nvml_folder, gpus=1, other=[0], state=state), log)))
    assert [problem.kind for problem in problems] == ([kind] if kind else [])


def test_healthy_gpus_have_no_problem_and_every_check(nvml_folder: Path, log: Path) -> None:
    found = judged(read(fake_nvml.environment(nvml_folder, gpus=8), log))
    assert not own(found)
    assert {run.state for run in found.checks if run.name not in OF_THIS_HOST} == {"ok", "skipped"}
    assert len({reading.gpu for reading in found.readings if reading.gpu}) == 8
    assert not [reading.name for reading in found.readings if reading.value is None and not reading.text]


def test_a_gpu_that_does_not_answer_holds_up_no_other(nvml_folder: Path, state: State, log: Path) -> None:
    state.set(1, nvmlDeviceGetRemappedRows=HANGS)
    state.set(2, rows_pending=1)
    facts = read(fake_nvml.environment(nvml_folder, gpus=4, state=state), log, limit=3.0)
    problems = own(judged(facts))
    assert [(facts.gpus.index(gpu), gpu.hang) for gpu in facts.gpus if gpu.hang] == [(1, "remapped rows within 2 s")]
    assert {(problem.gpu, problem.kind, problem.step) for problem in problems} == {
        (facts.gpus[1].uuid, "driver_hangs", Step.REBOOT),
        (facts.gpus[2].uuid, "rows_pending", Step.RESET_GPU),
    }


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_a_driver_that_does_not_answer(nvml_folder: Path, log: Path, call: str) -> None:
    facts = read(fake_nvml.environment(nvml_folder, FAKE_NVML_HANG=call), log, limit=2.0)
    (problem,) = own(judged(facts))
    assert (problem.kind, problem.verdict, problem.step) == ("driver_hangs", NOT_READY, Step.REBOOT)
    assert problem.gpu is None


def test_a_driver_that_crashes_the_reader(nvml_folder: Path, state: State, log: Path) -> None:
    state.set(1, crash_from=15)
    problems = own(judged(read(fake_nvml.environment(nvml_folder, gpus=2, state=state), log)))
    assert "driver_crashes" in {problem.kind for problem in problems}
    assert all(problem.verdict is NOT_READY for problem in problems)


@pytest.mark.parametrize(
    ("variables", "kind", "step"),
    [
        ({"FAKE_NVML_INIT": "9"}, "no_driver", Step.FIX_CONFIGURATION),
        ({"FAKE_NVML_INIT": "18"}, "driver_mismatch", Step.REBOOT),
        ({"FAKE_NVML_GPUS": "0"}, "no_gpu", Step.LOOK),
        ({"FAKE_NVML_COUNT": "999"}, "no_gpu", Step.LOOK),
        ({"CUDA_VISIBLE_DEVICES": ""}, "no_gpu", Step.LOOK),
    ],
)
def test_a_node_without_a_usable_driver_or_gpu_is_not_ready(
    nvml_folder: Path, log: Path, variables: dict[str, str], kind: str, step: Step
) -> None:
    (problem,) = own(judged(read({**fake_nvml.environment(nvml_folder, gpus=2), **variables}, log)))
    assert (problem.kind, problem.verdict, problem.step) == (kind, NOT_READY, step)


def test_a_gpu_without_a_handle(nvml_folder: Path, log: Path) -> None:
    (problem,) = own(judged(read(fake_nvml.environment(nvml_folder, gpus=2, gone=[1]), log)))
    assert (problem.kind, problem.gpu, problem.step) == ("gpu_lost", "nvml:1", Step.REBOOT)


def test_xids_belong_to_their_gpu(nvml_folder: Path, log: Path) -> None:
    log.write_text(
        "3,1,5000000,-;NVRM: Xid (PCI:0000:11:00): 48, pid=1, DBE\n"
        "3,2,6000000,-;NVRM: Xid (PCI:0000:11:00): 13, pid=1, Graphics Exception\n"
        "3,3,7000000,-;NVRM: Xid (PCI:0000:99:00): 79, GPU has fallen off the bus.\n"
    )
    facts = read(fake_nvml.environment(nvml_folder, gpus=2), log)
    assert [(problem.gpu, problem.kind, problem.step) for problem in own(judged(facts))] == [
        (facts.gpus[1].uuid, "xid_reset", Step.RESET_GPU),
        (None, "xid_reboot", Step.REBOOT),
    ]


def test_a_log_that_cannot_be_read_is_unknown(nvml_folder: Path, tmp_path: Path) -> None:
    found = judged(read(fake_nvml.environment(nvml_folder, gpus=1), tmp_path / "none"))
    (problem,) = own(found)
    assert (problem.kind, problem.verdict, problem.step) == ("log_unreadable", UNKNOWN, Step.FIX_CONFIGURATION)
    assert next(run.state for run in found.checks if run.name == "kernel_log") == "unknown"


@pytest.mark.parametrize(
    ("file", "problems"),
    [
        ({"device": {"device": "cuda", "model": "Fake GPU 80GB"}, "offers": {"device_count": "==2"}}, []),
        ({"device": {"device": "cuda"}, "offers": {"device_count": "==8"}}, [(None, "gpu_missing")]),
        ({"device": {"device": "cuda", "model": "Real GPU"}}, [(0, "hardware"), (1, "hardware")]),
        ({"device": {"device": "cuda"}, "offers": {"ecc": True}}, [(1, "hardware")]),
        ({"device": {"device": "cuda", "memory": ">=90GiB"}}, [(0, "hardware"), (1, "hardware")]),
        ({"device": {"device": "cuda"}, "offers": {"cudnn": True, "cpp_compiler": True}}, []),
    ],
)
def test_the_hardware_file(
    nvml_folder: Path, log: Path, file: dict[str, Any], problems: list[tuple[int | None, str]]
) -> None:
    facts = read(fake_nvml.environment(nvml_folder, gpus=2), log)
    hardware = Hardware(description="two fakes", **file)
    numbers = {gpu.uuid: index for index, gpu in enumerate(facts.gpus)}
    found = [
        (None if each.gpu is None else numbers[each.gpu], each.kind)
        for each in own(judged(facts, hardware))
        if each.kind != "ecc_mode"
    ]
    assert found == problems


def test_mig_instances_are_judged_by_their_gpu(nvml_folder: Path, state: State, log: Path) -> None:
    state.set(0, ecc_aggregate=1, temperature=89)
    facts = read(fake_nvml.environment(nvml_folder, gpus=1, mig=[0], state=state), log)
    assert len(facts.gpus) == 1
    assert [problem.kind for problem in own(judged(facts))] == ["temperature"]


@pytest.mark.parametrize("what", ["gpus", "host"])
def test_the_programs_that_read_import_no_torch(nvml_folder: Path, what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "harness.ready.reader", what],
        env=fake_nvml.environment(nvml_folder, gpus=2),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "json" in imported
    assert not {"torch", "pytest", "pydantic"} & imported


def test_no_process_that_reads_is_left(nvml_folder: Path, state: State, log: Path) -> None:
    """Also if a thread of it does not return from the driver."""
    state.set(0, nvmlDeviceGetRemappedRows=HANGS)
    before = {*linux.child_pids()}
    facts = read(fake_nvml.environment(nvml_folder, gpus=1, state=state), log, limit=2.0)
    assert facts.gpus[0].hang
    assert {*linux.child_pids()} == before


def test_a_process_that_cannot_be_killed_needs_a_reboot() -> None:
    """A process that waits in the driver for ever cannot be made here: this is how its end is reported."""
    end = ReaderEnd("the program that reads did not end within 40 s, and cannot be killed", killable=False)
    (problem,) = own(judged(NodeFacts(gpus_end=end, host={"log": {"begins": 0.0, "lines": []}})))
    assert (problem.kind, problem.verdict, problem.step) == ("unkillable", NOT_READY, Step.REBOOT)


def test_the_readings_leave_no_process_and_no_thread(nvml_folder: Path, log: Path) -> None:
    before = {*linux.child_pids()}, {*threading.enumerate()}
    read(fake_nvml.environment(nvml_folder, gpus=2), log)
    assert ({*linux.child_pids()}, {*threading.enumerate()}) == before
