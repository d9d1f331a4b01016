"""The processor, and the memory that a process may use, in both layouts of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.devices import detectors

PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("own", "limits", "memory"),
    [
        ("0::/\n", {}, PHYSICAL),
        ("0::/\n", {"memory.max": "max\n"}, PHYSICAL),
        ("0::/\n", {"memory.max": "1048576\n"}, 1048576),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "4096\n"}, 4096),
        ("0::/a/b\n", {"a/c/memory.max": "4096\n"}, PHYSICAL),
        ("3:cpu:/\n2:memory:/a\n", {"memory/a/memory.limit_in_bytes": "8192\n"}, 8192),
        ("0::/\n", {"memory.max": "9" * 30}, PHYSICAL),
        ("0::/\n", {"memory.max": "no number"}, PHYSICAL),
        ("nonsense", {"memory.max": "2048"}, 2048),
        (None, {}, PHYSICAL),
    ],
)
def test_memory(tmp_path: Path, own: str | None, limits: dict[str, str], memory: int) -> None:
    file = tmp_path / "cgroup"
    if own is not None:
        file.write_text(own)
    for path, text in limits.items():
        (tmp_path / "fs" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / path).write_text(text)
    assert detectors.host_memory(tmp_path / "fs", file) == memory


def test_memory_of_this_machine() -> None:
    assert 0 < detectors.host_memory() <= PHYSICAL


AVAILABLE = 64 * 2**20
MEMINFO = "MemTotal:  131072 kB\nMemFree:  1 kB\nMemAvailable:   65536 kB\n"


@pytest.mark.parametrize(
    ("groups", "free"),
    [
        ({}, AVAILABLE),
        ({"memory.max": "max", "memory.current": "4096"}, AVAILABLE),
        ({"memory.max": "10000", "memory.current": "4096"}, 5904),
        ({"memory.max": "10000", "memory.current": "4096", "memory.stat": "anon 96\ninactive_file 4000\n"}, 9904),
        ({"memory.max": "10000", "memory.current": "12000"}, 0),
        ({"memory.max": "10000"}, AVAILABLE),
        (
            {"a/memory.max": "9000", "a/memory.current": "1000", "memory.max": "9500", "memory.current": "9000"},
            500,
        ),
        (
            {
                "memory/a/memory.limit_in_bytes": "10000",
                "memory/a/memory.usage_in_bytes": "4000",
                "memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 100\n",
            },
            6100,
        ),
    ],
)
def test_free_memory(tmp_path: Path, groups: dict[str, str], free: int) -> None:
    own, meminfo = tmp_path / "cgroup", tmp_path / "meminfo"
    own.write_text("2:memory:/a\n0::/a\n")
    meminfo.write_text(MEMINFO)
    for path, text in groups.items():
        (tmp_path / "fs" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / path).write_text(text)
    assert detectors.host_free_memory(tmp_path / "fs", own, meminfo) == free


@pytest.mark.parametrize("text", [None, "", "MemFree: 1 kB\n", "MemAvailable:\n", "MemAvailable: many kB\n"])
def test_a_kernel_that_does_not_report_the_free_memory(tmp_path: Path, text: str | None) -> None:
    meminfo = tmp_path / "meminfo"
    if text is not None:
        meminfo.write_text(text)
    assert detectors.host_free_memory(tmp_path, tmp_path / "cgroup", meminfo) is None


def test_free_memory_of_this_machine() -> None:
    free = detectors.host_free_memory()
    assert free is not None
    assert 0 < free <= detectors.host_memory()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 9454: 48-Core\n\nmodel name\t: another\n", "AMD EPYC 9454: 48-Core"),
        ("processor\t: 0\nmodel name\t:\n", None),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", None),
        ("model name\t: a\x01b\n", "a\\x01b"),
        (None, None),
    ],
)
def test_processor(tmp_path: Path, text: str | None, name: str | None) -> None:
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    assert detectors.processor_name(file) == name
