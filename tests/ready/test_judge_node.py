"""The judges of the readings of one GPU and of the host, as tables over plain values."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.devices.nvml import QUERY_OF
from harness.ready import reader as host_readings
from harness.ready.judge_gpu import CHECKS, GpuFacts, judge_gpu
from harness.ready.judge_node import HOST_CHECKS, Xid, by_gpu, judge_driver, judge_host, open_xids, pci_slot
from harness.ready.model import CheckRun, Problem
from harness.ready.rules import RULES, Findings

HEALTHY: dict[str, Any] = {
    name: value
    for names, value in {
        "recovery_action ecc_uncorrected ecc_corrected pages_retired pcie_replays throttle_reasons compute_mode": 0,
        "rows_correctable rows_uncorrectable processes nvlink_replays nvlink_recoveries performance_state": 0,
        "rows_pending rows_failed pages_pending mig_mode mig_mode_pending sram_threshold_exceeded": False,
        "ecc_mode ecc_mode_pending persistence": True,
        "pcie_generation pcie_generation_max": 5,
        "pcie_width pcie_width_max": 16,
        "nvlinks_active nvlinks_most": 18,
        "fabric_state": 3,
        "fabric_status fabric_health memory_used": 0,
        "temperature": 40,
        "temperature_limit": 87,
        "power_limit power_limit_default": 700,
        "application_clock application_clock_default": 1980,
        "uptime_minutes": 600,
        "all_processes": True,
        "process_ids": "",
    }.items()
    for name in names.split()
}


def judged(judge: Callable[..., None], *facts: object) -> tuple[list[CheckRun], list[Problem]]:
    """Return the checks and problems that a judge adds."""
    found = Findings()
    judge(*facts, found)
    return found.checks, found.problems


def kinds(change: dict[str, Any], **facts: Any) -> list[str]:
    _, problems = judged(judge_gpu, GpuFacts("GPU-a", {**HEALTHY, **change}, **facts))
    return [problem.kind for problem in problems]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        # A GPU that saves power slows its link; one in state P0 does not. Without the state nothing is known.
        ({"pcie_generation": 1, "performance_state": 8}, []),
        ({"pcie_generation": 1, "performance_state": 0}, ["pcie_generation"]),
        ({"pcie_generation": 1, "performance_state": None}, []),
        ({"pcie_replays": 8 * 600}, []),
        ({"pcie_replays": 8 * 600 + 1}, ["pcie_replays"]),
        ({"pcie_replays": 8, "uptime_minutes": 0}, []),
        ({"nvlinks_active": 0, "nvlinks_most": 0}, []),
        ({"nvlinks_active": 17}, ["nvlink_down"]),
        ({"fabric_state": 0}, []),
        ({"fabric_state": 1}, ["fabric"]),
        ({"fabric_health": 0x51AA}, []),
        ({"fabric_health": 0x010}, ["fabric_health"]),
        ({"fabric_health": 0x100}, []),
        ({"fabric_health": 0x500}, ["fabric_health"]),
        ({"temperature": 82}, []),
        ({"temperature": 83}, ["temperature"]),
        ({"temperature_limit": 0}, []),
        ({"throttle_reasons": 0x1 | 0x2 | 0x4}, []),
        ({"throttle_reasons": 0x20 | 0x08}, ["thermal", "power_brake"]),
        ({"power_limit": 710}, []),
        ({"processes": 2, "process_ids": "7 8"}, ["processes"]),
        ({"memory_used": 513 << 20}, ["memory_left"]),
        ({"memory_used": 513 << 20, "all_processes": False}, []),
        ({"memory_used": 513 << 20, "processes": 1, "process_ids": "7"}, ["processes"]),
        ({"pages_retired": 60}, ["pages_retired"]),
    ],
)
def test_readings_and_what_they_mean(change: dict[str, Any], found: list[str]) -> None:
    assert kinds(change) == found


@pytest.mark.parametrize("name", sorted({name for check in CHECKS for name in check.reads}))
@pytest.mark.parametrize("error", ["denied", "failed"])
def test_a_reading_that_fails_is_unknown_and_never_green(name: str, error: str) -> None:
    first = QUERY_OF[name].names[0]
    answers = {key: value for key, value in HEALTHY.items() if key not in QUERY_OF[name].names}
    runs, problems = judged(judge_gpu, GpuFacts("GPU-a", answers, {first: (error, "label: why")}))
    unknown = {run.name for run in runs if run.state == "unknown"}
    assert unknown == {check.name for check in CHECKS if {*check.reads} & {*QUERY_OF[name].names}}
    assert {(problem.kind, problem.verdict.value) for problem in problems} == {("unreadable", "unknown")}
    assert all(problem.found == "label: why" for problem in problems)


@pytest.mark.parametrize("name", sorted({name for check in CHECKS for name in check.reads}))
def test_a_reading_that_a_card_does_not_have_is_skipped(name: str) -> None:
    first = QUERY_OF[name].names[0]
    answers = {key: value for key, value in HEALTHY.items() if key not in QUERY_OF[name].names}
    runs, problems = judged(judge_gpu, GpuFacts("GPU-a", answers, {first: ("absent", "Not Supported")}))
    assert not problems
    assert [run for run in runs if run.state == "skipped"]


def test_a_hang_is_one_problem_and_the_rest_is_unknown() -> None:
    runs, problems = judged(judge_gpu, GpuFacts("GPU-a", {"recovery_action": 0}, hang="remapped rows within 10 s"))
    assert [problem.kind for problem in problems] == ["driver_hangs"]
    states = {run.name: run.state for run in runs}
    assert (states["device"], states["recovery"], states["temperature"]) == ("problem", "ok", "unknown")


def test_processes_have_names() -> None:
    facts = GpuFacts("GPU-a", {**HEALTHY, "processes": 2, "process_ids": "7 8"}, names={"7": "python", "8": ""})
    _, (problem,) = judged(judge_gpu, facts)
    assert problem.detail == "processes 7 (python), 8"


HOST: dict[str, Any] = {
    "pci": [{"address": "0000:3b:00.0", "driver": "nvidia", "answers": True}],
    "stuck": [],
    "shared_memory": {"folder": "/dev/shm", "size": 64 << 30, "free": 64 << 30, "writable": True},
    "limits": {"open_files": [1024, 1048576]},
    "disk": {"folder": "/tmp", "size": 1 << 40, "free": 1 << 39, "writable": True},
    "clock": {"synchronised": True, "error_us": 20, "time": 1.8e9},
}


def space(**more: Any) -> dict[str, Any]:
    return {"folder": "/x", "size": 64 << 30, "free": 64 << 30, "writable": True, **more}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({"pci": []}, []),
        ({"pci": [*HOST["pci"], {"address": "0000:5e:00.0", "driver": "", "answers": True}]}, ["gpu_missing"]),
        ({"pci": [*HOST["pci"], {"address": "0000:5e:00.0", "driver": "vfio-pci", "answers": True}]}, []),
        ({"pci": [{"address": "0000:5e:00.0", "driver": "", "answers": True}]}, []),
        ({"pci": [{"address": "0000:5e:00.0", "driver": "nvidia", "answers": False}]}, ["gpu_missing"]),
        ({"stuck": [{"pid": 7, "name": "python", "killed": True, "where": ""}]}, ["unkillable"]),
        ({"stuck": [{"pid": 7, "name": "dd", "killed": False, "where": "nfs_wait"}]}, ["stuck_process"]),
        ({"shared_memory": space(size=64 << 20)}, ["shared_memory"]),
        ({"shared_memory": space(free=1 << 20)}, ["shared_memory"]),
        ({"limits": {"open_files": [256, None]}}, ["open_files"]),
        ({"limits": {"open_files": [None, None]}}, []),
        ({"disk": space(free=255 << 20)}, ["disk_full"]),
        ({"disk": space(free=1 << 30)}, ["disk_low"]),
        ({"disk": space(writable=False)}, ["disk_full"]),
        ({"clock": {"synchronised": False, "error_us": 16000000, "time": 1.8e9}}, []),
        ({"clock": {"synchronised": True, "error_us": 1000001, "time": 1.8e9}}, ["clock"]),
    ],
)
def test_the_host(change: dict[str, Any], found: list[str]) -> None:
    _, problems = judged(judge_host, {**HOST, **change}, "")
    assert [problem.kind for problem in problems] == found


@pytest.mark.parametrize("reading", sorted({reading for reading, _ in HOST_CHECKS.values()}))
def test_a_reading_of_the_host_that_fails_is_unknown(reading: str) -> None:
    for value, why in (({"error": "Permission denied"}, "Permission denied"), (None, "ended with SIGKILL")):
        host = {**HOST, reading: value} if value else {name: HOST[name] for name in HOST if name != reading}
        runs, problems = judged(judge_host, host, "ended with SIGKILL")
        assert [(problem.kind, problem.found) for problem in problems] == [("unreadable", why)]
        assert [run.text for run in runs if run.state == "unknown"] == [why]


def test_gpus_on_the_bus_without_a_driver_are_counted() -> None:
    (found,) = judge_driver(12, "NVML Shared Library Not Found", None, HOST)
    assert (found.kind, found.found) == ("no_driver", "NVML Shared Library Not Found; 1 NVIDIA GPU on the PCI bus")


@pytest.mark.parametrize(
    ("status", "flags", "killed"),
    [
        ({"State": "S (sleeping)"}, 0, None),
        ({"State": "D (disk sleep)"}, 0, False),
        ({"State": "D (disk sleep)"}, 0x200000, None),  # a thread of the kernel
        ({"State": "D (disk sleep)", "ShdPnd": "0000000000000100"}, 0, True),
        ({"State": "R (running)", "SigPnd": "0000000000000100"}, 0, True),
        ({"State": "Z (zombie)", "Threads": "1"}, 0, None),
        ({"State": "Z (zombie)", "Threads": "3"}, 0, True),  # a thread does not go
    ],
)
def test_which_processes_may_be_stuck(status: dict[str, str], flags: int, killed: bool | None) -> None:
    found = host_readings.suspicion(status, flags, 1)
    assert (None if found is None else found["killed"]) is killed


def test_a_process_that_waits_in_the_kernel_is_found(tmp_path: Path) -> None:
    """The parent of a vfork waits in the kernel until its child ends."""
    source = tmp_path / "wait.c"
    source.write_text(
        '#include <unistd.h>\nint main(void) { if (vfork() == 0) { write(1, "x", 1); pause(); } return 0; }\n'
    )
    program = tmp_path / "waits"
    subprocess.run(["cc", "-o", str(program), str(source)], check=True)
    with subprocess.Popen([str(program)], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.read(1)
            found = [group["stuck"] for group in host_readings.host_readings(tmp_path, tmp_path) if "stuck" in group]
            assert process.pid in {each["pid"] for each in found[0]}
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the child of the vfork too


def line(xid: int, seconds: float = 5.0, pci: str = "0000:3b:00", rest: str = "pid=1, name=python") -> str:
    return f"[{seconds:12.6f}] NVRM: Xid (PCI:{pci}): {xid}, {rest}"


LOADED = "[    9.000000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15"
ASKS = line(154, 6.0, rest="GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
ASKS_REBOOT = line(154, 6.0, rest="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
SWITCH = "[    5.000000] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, {}, Link 34 sourcetrack timeout error"
ASKS_NOTHING = line(154, 8.0, rest="GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        ([], []),
        ([line(13)], [None]),
        ([line(31)], [None]),
        ([line(43)], [None]),
        ([line(48)], ["xid_reset"]),
        ([line(62)], ["xid_reset"]),
        ([line(63)], ["xid_look"]),
        ([line(64)], ["xid_reset"]),
        ([line(74)], ["xid_reset"]),
        ([line(79)], ["xid_reboot"]),
        ([line(94)], ["xid_look"]),
        ([line(95)], ["xid_reset"]),
        ([line(109)], ["xid_look"]),
        ([line(119)], ["xid_reset"]),
        ([line(999)], ["xid_look"]),
        ([line(54)], ["xid_vendor"]),
        ([ASKS], ["xid_reset"]),
        ([ASKS_REBOOT], ["xid_reboot"]),
        ([line(48), ASKS, ASKS_NOTHING], []),
        ([line(48), LOADED], []),
        ([LOADED, line(48, 10.0)], ["xid_reset"]),
        ([line(48), line(79, pci="0000:5e:00"), ASKS, ASKS_NOTHING], ["xid_reboot"]),
        ([SWITCH.format("Non-fatal")], []),
        ([SWITCH.format("Fatal")], ["sxid"]),
        ([SWITCH.format("Fatal"), LOADED], []),
        (["[ 1.000000] NVRM: Xid 79 without an address", "no line of the log at all"], []),
    ],
)
def test_what_an_xid_says_about_the_gpu(lines: Sequence[str], kinds: Sequence[str | None]) -> None:
    assert [xid.kind for xid in open_xids(lines)] == kinds


def test_every_kind_has_a_row() -> None:
    kinds = {xid.kind for number in range(1, 200) for xid in open_xids([line(number)])} - {None}
    assert kinds <= {*RULES}
    assert {"xid_reset", "xid_reboot", "xid_vendor", "xid_look"} <= kinds


def test_equal_xids_are_counted() -> None:
    (xid,) = open_xids([line(48, 5.0), line(48, 7.0, rest="again")])
    assert xid == Xid("0000:3b:00", 48, 2, 5.0, 7.0, "again")
    assert xid.meaning == "Xid 48 (uncorrected memory error), 2 times"


@pytest.mark.parametrize(
    ("address", "slot"),
    [("00000000:3B:00.0", "0000:3b:00"), ("0000:3b:00", "0000:3b:00"), ("00010000:01:00.0", "0000:01:00")],
)
def test_the_address_of_nvml_in_the_form_of_the_log(address: str, slot: str) -> None:
    assert pci_slot(address) == slot


def test_xids_by_gpu() -> None:
    xids = open_xids([line(48), line(79, pci="0000:5e:00")])
    known, others = by_gpu(xids, {"GPU-a": "00000000:3B:00.0", "GPU-b": "00000000:01:00.0"})
    assert ([xid.number for xid in known["GPU-a"]], [xid.number for xid in others]) == ([48], [79])
