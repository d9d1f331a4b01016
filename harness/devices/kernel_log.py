"""Lines of the kernel's log about GPUs: Xid errors and other messages of the NVIDIA driver.

The format of ``/dev/kmsg`` is in the kernel's documentation, ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KMSG = Path("/dev/kmsg")
#: Lines of the NVIDIA driver's modules, such as ``NVRM: Xid (PCI:0000:01:00): 79, …``, and of the kernel that ends a
#: process.
_WANTED = re.compile(r"\bNVRM\b|\bXid\b|\bnvidia|\bnvlink|Out of memory: Killed|oom-kill", re.IGNORECASE)
_MOST_RECORD = 1 << 13  # the kernel's own limit of a record
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class GpuLog:
    """The lines about GPUs in the kernel's log, each with its time in brackets as in dmesg.

    `begins`: the time of the oldest record that the kernel still has, in seconds since the boot; None for an empty log.
    """

    lines: tuple[str, ...]
    begins: float | None


def gpu_log_lines_since(moment: float, path: Path = KMSG) -> list[str]:
    """Return the lines about GPUs since `moment` (seconds since the boot), each with its time in brackets as in dmesg.

    Raise OSError if the log cannot be read: it may be missing in a container, or require root.
    """
    return [
        _line(seconds, text) for seconds, text in _timed_records(path) if seconds >= moment and _WANTED.search(text)
    ]


def read_gpu_log(path: Path = KMSG) -> GpuLog:
    """Return all lines about GPUs that the kernel still has. Raise OSError as `gpu_log_lines_since` does."""
    begins, lines = None, []
    for seconds, text in _timed_records(path):
        begins = seconds if begins is None else begins
        if _WANTED.search(text):
            lines.append(_line(seconds, text))
    return GpuLog(tuple(lines), begins)


def _line(seconds: float, text: str) -> str:
    return f"[{seconds:12.6f}] {text}"


def _timed_records(path: Path) -> Iterator[tuple[float, str]]:
    """Yield time (seconds since the boot) and text of each record."""
    for record in _records(path):
        head, separator, text = record.partition(";")
        fields = head.split(",")
        if separator and len(fields) >= 3 and fields[2].isascii() and fields[2].isdigit():
            yield int(fields[2]) / 1e6, text


def _records(path: Path) -> Iterator[str]:
    """Yield the first line of each record. Further lines have properties of the device and begin with a space."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # One read of a regular file returns several records, and may end within one.
        kept, seen = b"", 0
        while seen < _MOST_BYTES:
            data = b""
            with contextlib.suppress(BrokenPipeError):  # records were overwritten before they could be read
                try:
                    data = os.read(descriptor, _MOST_RECORD)
                except BlockingIOError:
                    break
                if not data:
                    break
            seen += len(data)
            *lines, kept = (kept + data).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines if not line.startswith(b" "))
        if kept and not kept.startswith(b" "):
            yield kept.decode(errors="replace")
    finally:
        os.close(descriptor)
