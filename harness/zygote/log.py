"""Redirects the output of a zygote to its log. A failed write to the log must not end the zygote."""

from __future__ import annotations

import io
import sys


class LogFile(io.FileIO):
    """A file that stores the first error of a write, and discards all later output."""

    error = ""

    def write(self, data: object) -> int:
        if not self.error:
            try:
                return super().write(data)  # type: ignore[arg-type]
            except OSError as error:
                self.error = error.strerror or str(error)
        return memoryview(data).nbytes  # type: ignore[arg-type]


def redirect_output() -> tuple[LogFile, LogFile]:
    """Make `sys.stdout` and `sys.stderr` write into descriptors 1 and 2 as LogFiles, line by line."""
    files = LogFile(1, "wb", closefd=False), LogFile(2, "wb", closefd=False)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(file), encoding="utf-8", errors="backslashreplace", line_buffering=True)
        for file in files
    )
    return files
