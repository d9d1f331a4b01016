"""Must-pass lists: text files with the ids of the cases that define conformance, and a hash of the ids.

A list starts with comment lines (description, number of cases, hash). The ids follow, sorted, one per line::

    # must-pass list, written by: harness catalog --must-pass FILE
    # description: streams and events on one GPU
    # cases: 2
    # sha256:2a1e…
    suites/streams/test_a.py::test_one
    suites/streams/test_a.py::test_two
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.core.caseid import digest_of_ids
from harness.core.errors import HarnessError
from harness.core.file_kind import FileKind

HEADING = "# must-pass list, written by: harness catalog --must-pass FILE"
_HASH = re.compile(r"# (sha256:[0-9a-f]{64})")
_COUNT = re.compile(r"# cases: ([0-9]{1,9})")
_DESCRIPTION = "# description: "


class MustPassError(HarnessError):
    """A must-pass list cannot be read, or ids cannot be written to one."""


#: The limit allows half a million cases.
_KIND = FileKind("must-pass list", "give a list that harness catalog --must-pass wrote", MustPassError, 64 << 20)


@dataclass(frozen=True, slots=True)
class MustPass:
    """A list: its file name, its description ("" for none), its ids in order, and their hash, ``sha256:…``."""

    name: str
    description: str
    ids: tuple[str, ...]
    hash: str


def write_must_pass(path: Path, ids: Iterable[str], description: str = "") -> MustPass:
    """Write the list of `ids` to `path` and return it. An existing file is overwritten.

    `description` is written on one line. Raise MustPassError if there are no ids, an id is a duplicate or does not fit
    on one line, or the file cannot be written.
    """
    ordered = sorted(ids)
    if not ordered:
        raise MustPassError(f"no cases for the must-pass list {str(path)!r}: every run would satisfy an empty list")
    for case_id, times in Counter(ordered).items():
        if times > 1:
            raise MustPassError(
                f"{case_id!r} appears {times} times: ids in the must-pass list {str(path)!r} must be unique"
            )
        if not _fits_on_a_line(case_id):
            raise MustPassError(f"{case_id!r} is not a valid line of {str(path)!r}: give its parameters plain ids")
    must_pass = MustPass(path.name, " ".join(description.split()), tuple(ordered), digest_of_ids(ordered))
    try:
        path.write_bytes(must_pass_bytes(must_pass))
    except OSError as error:
        raise MustPassError(f"cannot write the must-pass list {str(path)!r}") from error
    return must_pass


def must_pass_bytes(must_pass: MustPass) -> bytes:
    """Return the contents of a list's file."""
    header = [HEADING, f"{_DESCRIPTION}{must_pass.description}".rstrip(), f"# cases: {len(must_pass.ids)}"]
    return "\n".join([*header, f"# {must_pass.hash}", *must_pass.ids, ""]).encode("utf-8", "backslashreplace")


def read_must_pass(path: Path) -> MustPass:
    """Read a list and check it against its own header. Raise MustPassError with file and line."""
    description, ids, numbers = "", list[str](), dict[str, int]()
    counted: tuple[int, int] | None = None  # the number in the header and its line
    hashed: tuple[str, int] | None = None
    for number, line in enumerate(_KIND.read_text(path).split("\n"), start=1):
        line = line.removesuffix("\r")  # a checkout on Windows may add it
        if line.startswith("#"):
            if match := _COUNT.fullmatch(line):
                counted = int(match[1]), number
            elif match := _HASH.fullmatch(line):
                hashed = match[1], number
            elif line.startswith(_DESCRIPTION):
                description = line.removeprefix(_DESCRIPTION).strip()
        elif line:
            if line in numbers:
                raise MustPassError(
                    f"{path}:{number}: {line!r} appears twice, first on line {numbers[line]}: remove one"
                )
            numbers[line] = number
            ids.append(line)
    advice = "write it again with: harness catalog --must-pass FILE"
    if not ids:
        raise MustPassError(f"{path}:1: the must-pass list has no cases; {advice}")
    if hashed is None:
        raise MustPassError(f"{path}:1: the must-pass list has no line '# sha256:…' with the hash of its ids; {advice}")
    if counted is not None and counted[0] != len(ids):
        problem = f"{path}:{counted[1]}: the header says {counted[0]} cases, but the list has {len(ids)}"
        raise MustPassError(f"{problem}: the list was cut or edited by hand; {advice}")
    digest = digest_of_ids(ids)
    if digest != hashed[0]:
        raise MustPassError(
            f"{path}:{hashed[1]}: the hash of the ids is {digest}: the list was edited by hand; {advice}"
        )
    return MustPass(path.name, description, tuple(ids), digest)


def check_must_pass(must_pass: MustPass, case_ids: Collection[str]) -> tuple[str, ...]:
    """Return the ids of the list that are not among `case_ids`, in the order of the list."""
    existing = set(case_ids)
    return tuple(case_id for case_id in must_pass.ids if case_id not in existing)


def _fits_on_a_line(case_id: str) -> bool:
    return (
        case_id == case_id.strip() and not case_id.startswith("#") and not set(case_id) & {"\n", "\r"} and bool(case_id)
    )
