"""A safe reader for snapshots in files and pages, which yields plain values or an error.

A pickle is a program. The reader first checks its opcodes and accepts only those that create plain values, so that
nothing is imported or called; then it checks the values.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

#: The opcodes that create, fill and share dictionaries, lists, tuples, strings, numbers, booleans and None.
_CONTENTS = (
    ["NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"],
    ["BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"],
    ["EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"],
    ["MARK", "APPEND", "APPENDS", "SETITEM", "SETITEMS"],
    ["MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"],
)
PLAIN = frozenset(["PROTO", "FRAME", "STOP"]).union(*_CONTENTS)
DEEPEST = 50

#: The exceptions of Python's unpickler for inconsistent opcodes.
_UNREADABLE = (
    *(pickle.UnpicklingError, EOFError, MemoryError),
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
)


class RefusedError(ValueError):
    """The bytes are not a pickle of plain values; the message says why."""


class _Unpickler(pickle.Unpickler):
    """An unpickler that imports nothing, even if an opcode that imports were to pass the check."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise RefusedError(f"it refers to {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise RefusedError(f"it has a persistent id: {pid!r}")


def load(data: bytes, *, padded: bool = False) -> Any:
    """Return the value in a pickle of plain values. With `padded`, zero bytes may follow it.

    Raise RefusedError for anything else: other opcodes, truncated data, recursive values.
    """
    count, end = 0, None
    try:
        for code, argument, position in pickletools.genops(data):
            count += 1
            if code.name not in PLAIN:
                raise RefusedError(f"instruction {code.name} at byte {position} does not create a plain value")
            if code.name in ("BINPUT", "LONG_BINPUT") and argument > count:
                raise RefusedError(f"memo index {argument} is larger than the number of opcodes, {count}")
            end = (position or 0) + 1
    except RefusedError:
        raise
    except (ValueError, KeyError) as error:  # the exceptions of pickletools for bytes that are not a pickle
        raise RefusedError(f"it cannot be read: {error}") from error
    rest = data[end:]
    if rest.strip(b"\x00") or (rest and not padded):
        raise RefusedError(f"{len(rest)} bytes follow the end")
    try:
        value = _Unpickler(io.BytesIO(data)).load()
    except RefusedError:
        raise
    except _UNREADABLE as error:
        raise RefusedError(f"it cannot be loaded: {error}") from error
    check(value)
    return value


def check(value: object) -> None:
    """Raise RefusedError unless the value consists of plain values and is not recursive."""
    done: set[int] = set()
    within: set[int] = set()

    def look(value: object) -> None:
        if value is None or type(value) in (bool, int, float, str) or id(value) in done:
            return
        if id(value) in within:
            raise RefusedError("a value is within itself")
        if len(within) >= DEEPEST:
            raise RefusedError(f"values are nested more than {DEEPEST} deep")
        within.add(id(value))
        if type(value) is dict:
            for key, entry in value.items():
                look(key)
                look(entry)
        elif type(value) in (list, tuple):
            for entry in value:  # type: ignore[attr-defined]
                look(entry)
        else:
            raise RefusedError(f"a {type(value).__name__} is no plain value")
        within.remove(id(value))
        done.add(id(value))

    look(value)
