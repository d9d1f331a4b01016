"""Must-pass lists: the ids of the cases that conformance means, in a text file with a hash of them.

A list is comment lines, which tell what it is, the number of cases and the hash, and then one id a line, sorted::

    # must-pass list, written by: harness catalog --must-pass FILE
    # description: streams and events on one GPU
    # cases: 2
    # sha256:2a1e…
    suites/streams/test_a.py::test_one
    suites/streams/test_a.py::test_two
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HarnessError

_MOST_BYTES = 64 << 20  # half a million cases
_HEADING = "# must-pass list, written by: harness catalog --must-pass FILE"
_HASH = re.compile(r"# (sha256:[0-9a-f]{64})")
_COUNT = re.compile(r"# cases: ([0-9]{1,9})")
_DESCRIPTION = "# description: "


class MustPassError(HarnessError):
    """A must-pass list that cannot be read, or ids that cannot be written as one."""


@dataclass(frozen=True, slots=True)
class MustPass:
    """A list: the name of its file, its description ("" for none), its ids in order, and their hash, ``sha256:…``."""

    name: str
    description: str
    ids: tuple[str, ...]
    hash: str


def digest(ids: Iterable[str]) -> str:
    r"""``sha256:`` and the hex digest of the ids joined by ``\n``: the hash that journals have of collected cases."""
    return "sha256:" + hashlib.sha256("\n".join(ids).encode("utf-8", "backslashreplace")).hexdigest()


def write(path: Path, ids: Iterable[str], description: str = "") -> MustPass:
    """Write the list of `ids` to `path`, over what is there, and return it.

    `description` is put on one line. Raises MustPassError for no ids, an id twice, an id that no line can hold, or a
    file that cannot be written.
    """
    ordered = sorted(ids)
    if not ordered:
        raise MustPassError(f"no cases for the must-pass list {str(path)!r}: a list of none is satisfied by every run")
    for case_id, times in Counter(ordered).items():
        if times > 1:
            raise MustPassError(
                f"{case_id!r} is there {times} times: ids on the must-pass list {str(path)!r} are unique"
            )
        if not _fits(case_id):
            raise MustPassError(f"{case_id!r} cannot stand on a line of {str(path)!r}: give its parameters plain ids")
    must_pass = MustPass(path.name, " ".join(description.split()), tuple(ordered), digest(ordered))
    header = [_HEADING, f"{_DESCRIPTION}{must_pass.description}".rstrip(), f"# cases: {len(ordered)}"]
    text = "\n".join([*header, f"# {must_pass.hash}", *ordered, ""])
    try:
        path.write_bytes(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise MustPassError(f"cannot write the must-pass list {str(path)!r}") from error
    return must_pass


def read(path: Path) -> MustPass:
    """Read a list and check it against its own header. Raises MustPassError that names file and line."""
    description, ids, numbers = "", list[str](), dict[str, int]()
    counted: tuple[int, int] | None = None  # the number in the header and its line
    hashed: tuple[str, int] | None = None
    for number, line in enumerate(_text(path).split("\n"), start=1):
        line = line.removesuffix("\r")  # a checkout on another system may have added it
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
                    f"{path}:{number}: {line!r} is there twice, first in line {numbers[line]}: remove one"
                )
            numbers[line] = number
            ids.append(line)
    anew = "write it anew with: harness catalog --must-pass FILE"
    if not ids:
        raise MustPassError(f"{path}:1: the must-pass list has no cases; {anew}")
    if hashed is None:
        raise MustPassError(f"{path}:1: the must-pass list has no line '# sha256:…' with the hash of its ids; {anew}")
    if counted is not None and counted[0] != len(ids):
        said = f"{path}:{counted[1]}: says {counted[0]} cases, and {len(ids)} follow"
        raise MustPassError(f"{said}: the list was cut or edited by hand; {anew}")
    found = digest(ids)
    if found != hashed[0]:
        raise MustPassError(
            f"{path}:{hashed[1]}: the ids that follow have the hash {found}: the list was edited by hand; {anew}"
        )
    return MustPass(path.name, description, tuple(ids), found)


def check(must_pass: MustPass, case_ids: Collection[str]) -> tuple[str, ...]:
    """The ids of the list that are not among `case_ids`, in the order of the list."""
    there = set(case_ids)
    return tuple(case_id for case_id in must_pass.ids if case_id not in there)


def _fits(case_id: str) -> bool:
    return (
        case_id == case_id.strip() and not case_id.startswith("#") and not set(case_id) & {"\n", "\r"} and bool(case_id)
    )


def _text(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise MustPassError(f"{str(path)!r} is not a regular file: give a must-pass list")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise MustPassError(f"cannot read the must-pass list {str(path)!r}") from error
    if len(data) > _MOST_BYTES:
        raise MustPassError(f"{str(path)!r} has more than {_MOST_BYTES} bytes: that is no must-pass list")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MustPassError(
            f"{path}:{line}: byte {data[error.start]:#04x} is not UTF-8: that is no must-pass list"
        ) from None
