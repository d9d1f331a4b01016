"""The description of a zygote's collection, as plain values, from which supervisors build their nodes.

The description is a file with two lines of JSON: the hash of the order, then everything.
"""

from __future__ import annotations

import contextlib
import json
import reprlib
from collections import defaultdict, deque
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.core.atomic import write_atomically
from harness.core.errors import HarnessError, convert_to_write_error
from harness.core.text import format_count

#: The name of the file, next to the zygote's socket.
DESCRIPTION_FILE = "collection.jsonl"
#: The file with the name of the test file that is being collected, in case its import ends the zygote.
_CURRENT = "collecting"
#: Marks whose arguments matter only in the process that runs the test. A warnings filter could import its category.
_ARGUMENTS_ELSEWHERE = frozenset({"filterwarnings", "parametrize", "usefixtures"})

PlainDict = dict[str, Any]
_Item = TypeVar("_Item")


class DescriptionError(HarnessError):
    """There is no usable description of the run's collection."""


@dataclass(frozen=True, slots=True)
class MarkRecord:
    """A mark on a node. Values that are not plain are `OpaqueValue`."""

    name: str
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A module, a class or an item.

    - `marks`: the node's own marks, as positions in `CollectionDescription.marks`. `keywords`: its other own keywords.
      `extra`: its extra names for ``-k``. `attributes`: the names of the attributes of an item's function, for ``-k``.
    - `types`: the types of tensors among the parameters of an item.
    - `location`: path, line and name of an item, as pytest reports them.
    - `children`: None for an item. `report`: the report of a collector that failed or skipped itself, serialised by
      pytest.
    """

    name: str
    marks: tuple[int, ...] = ()
    keywords: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    location: tuple[str, int | None, str] | None = None
    children: tuple[NodeRecord, ...] | None = None
    report: PlainDict | None = None


@dataclass(frozen=True, slots=True)
class CollectionDescription:
    """The result of a zygote's collection.

    - `hash` and `order`: the ids of all items in the order of the run.
    - `modules`: by absolute path. `warnings`: those of the collection, as `harness.protocol.reports` packs them.
    - `local`: why supervisors must collect for themselves, if they must.
    - `ended`: how pytest ended if it did not complete the collection; empty if it did.
    """

    hash: str
    order: tuple[str, ...] = ()
    marks: tuple[MarkRecord, ...] = ()
    modules: Mapping[str, NodeRecord] = field(default_factory=dict)
    warnings: tuple[PlainDict, ...] = ()
    local: tuple[str, ...] = ()
    ended: str = ""


def collection_difference(one: str, ids: Collection[str], other: str, others: Collection[str]) -> str:
    """Return how what two processes have collected differs, with examples; an empty string if it does not."""
    parts = [
        f"{format_count(len(only), 'test')} only in {name}, such as {min(only)!r}"
        for name, only in ((one, {*ids} - {*others}), (other, {*others} - {*ids}))
        if only
    ]
    counts = f"{one} collected {format_count(len({*ids}), 'test')}, {other} {len({*others})}"
    return f"{counts}: {'; '.join(parts)}" if parts else ""


def write_description(path: Path, description: CollectionDescription) -> None:
    """Write the file. A reader sees all of it or nothing. Raise WriteError."""
    lines = [json.dumps({"hash": description.hash}), json.dumps(description, separators=(",", ":"), default=_as_json)]
    write_atomically(path, "\n".join([*lines, ""]).encode("ascii"))


def read_description(path: Path) -> CollectionDescription:
    """Return the description in a file. Raise DescriptionError."""
    with _reading(path), path.open(encoding="ascii") as file:
        _, whole = file
        read = msgspec.convert(json.loads(whole), CollectionDescription)
    return replace(read, marks=tuple(map(_decoded, read.marks)))


def read_collection_hash(path: Path) -> str:
    """Return the hash of the description in a file. Raise DescriptionError."""
    with _reading(path), path.open(encoding="ascii") as file:
        return str(json.loads(file.readline())["hash"])


def note_collecting_file(path: Path, name: str) -> None:
    """Write the name of the test file that is being collected next to the description at `path`. Raise WriteError."""
    current = path.with_name(_CURRENT)
    with convert_to_write_error(repr(str(current))):
        current.write_text(name, encoding="utf-8", errors="backslashreplace")


def last_collecting_file(path: Path) -> str:
    """Return the test file that was collected last, or an empty string."""
    try:
        return path.with_name(_CURRENT).read_text(encoding="utf-8")
    except OSError:
        return ""


@contextlib.contextmanager
def _reading(path: Path) -> Generator[None]:
    """Turn an error of the file at `path` in the block into a DescriptionError."""
    try:
        yield
    except OSError as error:
        raise DescriptionError(f"the list of collected tests {str(path)!r} cannot be read") from error
    except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise DescriptionError(f"{str(path)!r} is not a list of collected tests") from error


def _as_json(value: object) -> object:
    """Return a part of a description, without empty fields: most fields of most items are empty."""
    if isinstance(value, MarkRecord):
        has_arguments = value.name not in _ARGUMENTS_ELSEWHERE
        args, kwargs = (value.args, value.kwargs) if has_arguments else ((), {})
        return {
            "name": value.name,
            "args": [encode_plain(argument) for argument in args],
            "kwargs": {name: encode_plain(argument) for name, argument in kwargs.items()},
        }
    if isinstance(value, NodeRecord | CollectionDescription):
        return {
            name: kept
            for name in value.__slots__
            if (kept := getattr(value, name)) or (name == "children" and kept is not None)
        }
    return repr(value)


def _decoded(mark: MarkRecord) -> MarkRecord:
    kwargs = {name: decode_plain(value) for name, value in mark.kwargs.items()}
    return MarkRecord(mark.name, tuple(map(decode_plain, mark.args)), kwargs)


def sort_by_order(items: Sequence[_Item], ids: Sequence[str], order: Sequence[str]) -> list[_Item]:
    """Return the items in the given order of their `ids`.

    Items whose id is not in `order` come last, in their old order.

    An id may occur several times (``--keep-duplicates``).
    """
    places: dict[str, deque[int]] = defaultdict(deque)
    for place, name in enumerate(order):
        places[name].append(place)
    last = len(order)
    keys = [places[name].popleft() if places.get(name) else last for name in ids]
    return [items[index] for index in sorted(range(len(items)), key=keys.__getitem__)]


_DEEPEST = 12
_LARGEST = 1 << 63
_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 200


@dataclass(frozen=True, slots=True)
class OpaqueValue:
    """Stands for a value that is not plain. `text` is its repr, shortened."""

    text: str

    def __repr__(self) -> str:
        return f"<not plain: {self.text}>"


def encode_plain(value: object) -> object:
    """Return a JSON value for an argument of a mark. No value is evaluated later, and no pickle is used.

    An instance of a subclass of a plain type keeps its value, not its class.
    """
    return _encode(value, 0)


def _encode(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int) and -_LARGEST <= value < _LARGEST:
        return int.__index__(value)
    if depth < _DEEPEST:
        if type(value) is list:
            return [_encode(entry, depth + 1) for entry in value]
        if type(value) is tuple:
            return {"tuple": [_encode(entry, depth + 1) for entry in value]}
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {"dict": {str.__str__(key): _encode(entry, depth + 1) for key, entry in value.items()}}
    return {"repr": _SHORT.repr(value)}


def decode_plain(value: object) -> object:
    """Return the value that was passed to `encode_plain`. Each value that is not plain is an `OpaqueValue`."""
    match value:
        case list():
            return [decode_plain(entry) for entry in value]
        case {"tuple": list(entries)}:
            return tuple(decode_plain(entry) for entry in entries)
        case {"dict": dict(entries)}:
            return {key: decode_plain(entry) for key, entry in entries.items()}
        case {"repr": str(text)}:
            return OpaqueValue(text)
        case _:
            return value
