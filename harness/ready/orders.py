"""What `harness.ready.active` asks of the process with the quick tests, and the lines that come back.

The order is one JSON object in a file; the lines are JSON objects in another. Both sides are on one machine, but a
device that corrupts memory may damage a line: a reader skips what is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

#: Characters of a text.
MOST_TEXT = 2000
#: Bytes of all lines that are read: a test that writes more is broken.
MOST_BYTES = 32 << 20

Text = Annotated[str, Meta(max_length=MOST_TEXT)]
Number = Annotated[float, Meta(ge=0, le=1e18)]
Phase = Literal["solo", "group"]


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU to test. `label`: its name in texts. `masks`: the variables that show a process this GPU alone."""

    uuid: str
    label: str
    masks: dict[str, str]


_Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,255}$")]


class Fabric(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The part of this node in a test of several nodes: its GPUs are the ranks from `first` on, of `world` ranks.

    Rank 0 listens at the address. `limit`: seconds for a place of the test, and for the ranks to wait for each other.
    """

    kind: _Word
    first: Annotated[int, Meta(ge=0, le=1 << 20)]
    world: Annotated[int, Meta(ge=0, le=1 << 20)]
    gpus: Annotated[int, Meta(ge=0, le=1024)]
    address: _Word
    port: Annotated[int, Meta(ge=0, le=65535)]
    limit: Annotated[int, Meta(ge=0, le=3600)]

    @property
    def word(self) -> str:
        """The part as one word of a command."""
        return ",".join(f"{name}={getattr(self, name)}" for name in self.__struct_fields__)

    @classmethod
    def parse(cls, word: str) -> Fabric:
        """Return the part in a word. Raise msgspec.ValidationError."""
        return msgspec.convert(dict(part.partition("=")[::2] for part in word.split(",")), cls, strict=False)


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tests to run. `full`: sizes for GPUs, not for simulated ones.

    Seconds: `start_until` after the start of the process no test begins. `hang`: a test that has not ended after so
    many seconds, without those in which no processor was free, hangs. `end`: after that everything is killed.
    `fabric`: the tests of groups are with other nodes, and no others run. `whole_exit`: processes end by the whole
    exit, in which drivers may crash. `parent`: the process with whose end all ends.
    """

    kind: str
    gpus: tuple[Gpu, ...]
    solo: tuple[str, ...]
    group: tuple[str, ...]
    folder: str
    start_until: float
    hang: float
    end: float
    seed: int
    full: bool
    whole_exit: bool
    fabric: Fabric | None = None
    parent: int = 0


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What happened to a GPU, or to the process as a whole (without `gpu`).

    - ``imported``: torch is there, after `seconds`.
    - ``test``: the test `name` begins. ``place``: it has come to the place `text`.
    - ``done``: it has ended as `state` says; `figures` is what it measured.
    - ``left``: the tests `names` were not begun, since the time was used up.
    - ``complete``: all tests of the process have ended.
    - ``end``: the process has ended with `status` (None: it could not be killed). `state` is why: ``hang``, ``budget``
      (the time was used up), ``others`` (another process of the group had failed) or empty. `starved`: seconds in which
      the test in hand had no processor.
    - ``failed``: the process as a whole cannot work; `text` is why.
    """

    what: Literal["imported", "test", "place", "done", "left", "complete", "end", "failed"]
    phase: Phase = "solo"
    gpu: Annotated[str, Meta(max_length=200)] = ""
    name: Annotated[str, Meta(max_length=200)] = ""
    names: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()
    state: Annotated[str, Meta(max_length=20)] = ""
    text: Text = ""
    seconds: Number = 0.0
    starved: Number = 0.0
    status: int | None = None
    figures: Annotated[dict[str, float], Meta(max_length=100)] = {}


_decoder = msgspec.json.Decoder(Line)


def encode(line: Line) -> bytes:
    """Return the line with its end."""
    return msgspec.json.encode(line) + b"\n"


def decode(data: bytes) -> Iterator[Line]:
    """Return the lines in the bytes; whatever is no line is left out."""
    for line in data.split(b"\n"):
        try:
            yield _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
