"""Reads whole files of a known kind: regular files only, up to a size, with errors that name the file."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import HarnessError


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file. `noun`: its name in errors. `advice`: which file to give instead.

    `error`: the exception that every method raises. `most`: the limit in bytes; None for no limit. `shown`: formats a
    path for errors.
    """

    noun: str
    advice: str
    error: type[HarnessError]
    most: int | None = None
    shown: Callable[[Path], str] = str

    def read(self, path: Path) -> bytes:
        """Return the contents of a file."""
        descriptor = self.open(path)
        with self.errors(path), open(descriptor, "rb") as file:
            if self.most is None:
                return file.read()
            data = file.read(self.most + 1)
            self.check_size(path, len(data))
            return data

    def read_text(self, path: Path) -> str:
        """Return the text of a file in UTF-8."""
        data = self.read(path)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as problem:
            line = data.count(b"\n", 0, problem.start) + 1
            where = f"{self.shown(path)}:{line}: byte {data[problem.start]:#04x}"
            raise self.error(f"{where} is not UTF-8: {self.advice}") from None

    def check_size(self, path: Path, size: int) -> None:
        """Raise if a file of this size is too large."""
        if self.most is not None and size > self.most:
            raise self.error(f"{self.shown(path)!r} has {size} bytes, and the limit is {self.most}: {self.advice}")

    def read_if_exists(self, path: Path) -> bytes | None:
        """Return the contents of a file; None if it does not exist."""
        with self.errors(path):
            try:
                os.stat(path)
            except FileNotFoundError:
                return None
        return self.read(path)

    def open(self, path: Path) -> int:
        """Return the descriptor of a file that is open for reading."""
        with self.errors(path):
            # Without O_NONBLOCK, opening a named pipe waits for a writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            status = os.fstat(descriptor)
            try:
                if not stat.S_ISREG(status.st_mode):
                    raise self.error(f"{self.shown(path)!r} is not a regular file: {self.advice}")
                self.check_size(path, status.st_size)
            except HarnessError:
                os.close(descriptor)
                raise
            return descriptor

    @contextlib.contextmanager
    def errors(self, path: Path) -> Generator[None]:
        """Turn an OSError in the block into an error that names the file."""
        try:
            yield
        except FileNotFoundError:
            raise self.error(f"there is no {self.noun} at {self.shown(path)!r}: {self.advice}") from None
        except OSError as problem:
            raise self.error(
                f"cannot read the {self.noun} {self.shown(path)!r}: {problem.strerror or problem}"
            ) from None
