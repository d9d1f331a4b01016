"""`torch.cuda.memory_summary`: every cell of the table, for chosen statistics and for a device's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.requires(device="cuda")
MIB = 1 << 20

#: The name of a row, the statistic that it shows, and whether its numbers are bytes.
ROWS = (
    ("Allocated memory", "allocated_bytes", True),
    ("Active memory", "active_bytes", True),
    ("Requested memory", "requested_bytes", True),
    ("GPU reserved memory", "reserved_bytes", True),
    ("Non-releasable memory", "inactive_split_bytes", True),
    ("Allocations", "allocation", False),
    ("Active allocs", "active", False),
    ("GPU reserved segments", "segment", False),
    ("Non-releasable allocs", "inactive_split", False),
)
POOLS = (("from large pool", "large_pool"), ("from small pool", "small_pool"))
OVERSIZE = (("Oversize allocations", "oversize_allocations"), ("Oversize GPU segments", "oversize_segments"))
COLUMNS = ("current", "peak", "allocated", "freed")
ORDER = ("small_pool", "large_pool", "all")
MOST = 750 * 10**6  # for counts: there is no unit beyond millions


def cell(value: int, deciding: int, in_bytes: bool) -> str:
    """Return a number in the unit of the row of all pools: the next unit starts at 768 KiB or 750,000."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB") if in_bytes else ("", "K", "M")
    step, limit = (1024, 768 * 1024) if in_bytes else (1000, 750 * 1000)
    place = 0
    while place + 1 < len(units) and deciding >= limit * step**place:
        place += 1
    return f"{value // step**place} {units[place]}".strip()


def expected(stats: Mapping[str, int], abbreviated: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the cells of each row."""
    for name, key, in_bytes in ROWS:
        for shown, pool in ((name, "all"), *(() if abbreviated else POOLS)):
            yield (
                shown,
                [cell(stats[f"{key}.{pool}.{each}"], stats[f"{key}.all.{each}"], in_bytes) for each in COLUMNS],
            )
    for name, key in OVERSIZE:
        values = [stats[f"{key}.{each}"] for each in COLUMNS]
        yield name, [cell(value, value, in_bytes=False) for value in values]


def table(text: str) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the lines without cells, and the rows with their cells. All lines must have the same width."""
    lines = text.splitlines()
    assert text.endswith("|\n")
    assert {len(line) for line in lines} == {77}
    assert all(line[0] == line[-1] == "|" for line in lines)
    rows = [[each.strip() for each in line[1:-1].split("|")] for line in lines]
    assert rows[5] == ["Metric", "Cur Usage", "Peak Usage", "Tot Alloc", "Tot Freed"]
    beside = [row[0] for row in rows if len(row) == 1] + rows[3]
    return beside, [(row[0], row[1:]) for row in rows[6:] if len(row) == 5]


def statistics(start: int) -> dict[str, int]:
    """Return statistics that all differ, from bytes to PiB. Those of all pools are the largest of their kind."""
    in_bytes = [f"{key}.{pool}.{each}" for _, key, is_bytes in ROWS if is_bytes for pool in ORDER for each in COLUMNS]
    counts = [f"{key}.{pool}.{each}" for _, key, is_bytes in ROWS if not is_bytes for pool in ORDER for each in COLUMNS]
    counts += [f"{key}.{each}" for _, key in OVERSIZE for each in COLUMNS]
    step = start if start <= MOST else start % MOST
    return {
        **{key: start * (number + 1) + number for number, key in enumerate(in_bytes)},
        **{key: step * (number + 1) + number for number, key in enumerate(counts)},
        "num_ooms": start % 1000 + 3,
        "num_alloc_retries": start % 1000 + 7,
    }


STARTS = [0, 5, 10_000, 700 << 10, 768 << 10, 750_000, 749_999, 768 << 20, MOST, 3 << 33, 1 << 43, 1 << 52]


@pytest.mark.parametrize("abbreviated", [False, True])
@pytest.mark.parametrize("start", STARTS, ids=lambda start: f"from_{start}")
def test_memory_summary_prints_each_statistic_in_its_unit(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, start: int, abbreviated: bool
) -> None:
    """The table has one row per statistic, and one per pool unless it is abbreviated.

    A number is shown in B, KiB, MiB and so on, or in units, thousands and millions, so that it has six digits at most.
    """
    asked: list[Any] = []
    stats = statistics(start)

    def memory_stats(device: Any = None) -> dict[str, int]:
        asked.append(device)
        return stats

    monkeypatch.setattr(torch.cuda.memory, "memory_stats", memory_stats)
    beside, rows = table(torch.cuda.memory_summary(device, abbreviated=abbreviated))

    assert rows == list(expected(stats, abbreviated))
    assert asked == [device.index]
    assert beside.count("=" * 75) == 3
    assert beside.count("-" * 75) == 1 + len(ROWS) + len(OVERSIZE)
    assert f"PyTorch CUDA memory summary, device ID {device.index}" in beside
    assert [f"CUDA OOMs: {stats['num_ooms']}", f"cudaMalloc retries: {stats['num_alloc_retries']}"] == beside[-2:]


LIMITS = [768 << 10, 768 << 20, 768 << 30, 750 * 10**3, 750 * 10**6]


@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_memory_summary_changes_units_at_768_and_750_thousand(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, limit: int, offset: int
) -> None:
    """Numbers below 768 KiB, MiB and so on, or below 750 thousand and million, are shown in the smaller unit."""
    stats = dict.fromkeys(statistics(1), min(limit + offset, MOST + 1))
    stats.update({key: limit + offset for key in stats if "_bytes." in key}, num_ooms=1, num_alloc_retries=2)
    monkeypatch.setattr(torch.cuda.memory, "memory_stats", lambda device=None: stats)  # noqa: ARG005

    _, rows = table(torch.cuda.memory_summary(device))

    assert rows == list(expected(stats, abbreviated=False))


@pytest.mark.requires(devices=2)
def test_memory_summary_is_of_the_device_it_is_given() -> None:
    """The table shows the statistics of the chosen device, and without an argument those of the current one."""
    held = [torch.empty((index + 1) * 32 * MIB, dtype=torch.uint8, device=f"cuda:{index}") for index in (0, 1)]
    for current in (0, 1):
        with torch.cuda.device(current):
            for given in (0, 1, None):
                text = torch.cuda.memory_summary() if given is None else torch.cuda.memory_summary(given)
                beside, rows = table(text)
                index = current if given is None else given
                assert rows == list(expected(torch.cuda.memory_stats(index), abbreviated=False))
                assert f"PyTorch CUDA memory summary, device ID {index}" in beside
    del held
