"""The number of workers for `-n auto`."""

from __future__ import annotations

import pytest

from harness.scheduling.workers import available_memory, usable_cores, worker_count

GIB = 1 << 30


@pytest.mark.parametrize(
    ("gpus", "cores", "memory", "expected"),
    [
        (8, 64, 100 * GIB, 8),
        (1, 64, 100 * GIB, 1),
        (8, 2, GIB, 8),  # devices decide, whatever the host has
        (0, 16, 100 * GIB, 16),
        (0, 16, 4 * GIB + 5, 4),
        (0, 16, GIB // 2, 1),
        (0, 1, 0, 1),
    ],
)
def test_worker_count(gpus: int, cores: int, memory: int, expected: int) -> None:
    assert worker_count(gpus, cores, memory) == expected


@pytest.mark.parametrize(
    ("software", "cores", "memory", "expected"),
    [(2, 16, 100 * GIB, 2), (8, 2, 100 * GIB, 2), (4, 16, GIB // 2, 4), (1, 1, 0, 1)],
)
def test_a_worker_a_software_device_but_not_more_than_cores(
    software: int, cores: int, memory: int, expected: int
) -> None:
    assert worker_count(0, cores, memory, software=software) == expected


def test_this_machine_has_some_of_both() -> None:
    assert usable_cores() >= 1
    assert available_memory() > 0
