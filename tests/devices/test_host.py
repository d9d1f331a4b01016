"""The memory a process may use, under both layouts of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.devices import host

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
    assert host.memory(tmp_path / "fs", file) == memory


def test_memory_of_this_machine() -> None:
    assert 0 < host.memory() <= PHYSICAL
