"""A page of memory that an executor shares with its supervisor: the passed phases of the running case.

Most phases pass with nothing else to report. A write to this page takes no system call, and the page survives a crash
of the executor, as does the file of facts. All other reports are facts. On the page, the supervisor can also forbid
that a further case begins.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from harness.core import linux
from harness.protocol.wire import Message, ProtocolError

PHASES = ("setup", "call", "teardown")
#: The most phases of one case on the page. If a plugin repeats phases, further ones become facts.
MOST_PHASES = 8

# Native sizes, so that the head is written in one step: after a crash it is the old or the new one.
_HEAD = struct.Struct("Q")
_ENTRY = struct.Struct("qdddqqqq")
_HOLD = MOST_PHASES * _ENTRY.size + _HEAD.size
_SIZE = _HOLD + 1
_COUNT_BITS = 8


class PassedPhase(NamedTuple):
    """A phase that has passed.

    It has the phase's position in `PHASES`, its times as in pytest's report, the sizes of standard output and standard
    error at its end, and the peak memory of host and device in the case so far.
    """

    when: int
    duration: float
    start: float
    stop: float
    out: int
    err: int
    host: int = 0
    device: int = 0

    @property
    def message(self) -> Message:
        """The phase as a fact."""
        return {
            "op": "pass",
            "when": PHASES[self.when],
            "duration": self.duration,
            "start": self.start,
            "stop": self.stop,
            "out": [self.out, self.err],
            "memory": [self.host, self.device],
        }


class PhasePage:
    """The page. An executor and its supervisor each map the same file."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is not needed afterwards. Raise OSError."""
        self._shared = linux.SharedMapping(descriptor, _SIZE)
        self._memory = self._shared.bytes
        self._number = 0
        #: The phases of the current case that this process has written.
        self.written: list[PassedPhase] = []

    @staticmethod
    def create() -> int:
        """Return the descriptor of a new page."""
        descriptor = os.memfd_create("harness-phases", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _SIZE)
        return descriptor

    def begin(self, number: int) -> None:
        """Assign later writes to the executor's case with this number, counted from 1."""
        self._number = number
        self.written = []

    def add(self, phase: PassedPhase) -> bool:
        """Write a phase. Return False if the page is full."""
        count = len(self.written)
        if count == MOST_PHASES:
            return False
        _ENTRY.pack_into(self._memory, _HEAD.size + count * _ENTRY.size, *phase)
        _HEAD.pack_into(self._memory, 0, self._number << _COUNT_BITS | count + 1)
        self.written.append(phase)
        return True

    def read(self, number: int) -> list[PassedPhase]:
        """Return the phases of the executor's case with this number. Raise ProtocolError."""
        (head,) = _HEAD.unpack_from(self._memory)
        if head >> _COUNT_BITS != number:
            return []
        count = head & ((1 << _COUNT_BITS) - 1)
        if count > MOST_PHASES:
            raise ProtocolError(f"the page of an executor has {count} phases, expected at most {MOST_PHASES}")
        return [
            parse_passed_phase(_ENTRY.unpack_from(self._memory, _HEAD.size + place * _ENTRY.size))
            for place in range(count)
        ]

    @property
    def held(self) -> bool:
        """Whether no further case may begin."""
        return self._memory[_HOLD] != 0

    def hold(self) -> None:
        """Stop the executor from beginning a further case of its request."""
        self._memory[_HOLD] = 1

    @property
    def is_clear(self) -> bool:
        """Whether nothing was written since the page was made or cleared."""
        return _HEAD.unpack_from(self._memory) == (0,)

    def clear(self) -> None:
        """Clear the page, for another executor."""
        self._memory[:] = bytes(_SIZE)

    def close(self) -> None:
        """Unmap the page."""
        self._shared.close()


def parse_passed_phase(values: object) -> PassedPhase:
    """Return the phase that an executor has written or sent. Raise ProtocolError: a case may have damaged it."""
    match values:
        case [int() as when, float() as duration, float() as start, float() as stop, *rest]:
            sizes = [size for size in rest if isinstance(size, int) and size >= 0]
            finite = all(map(math.isfinite, (duration, start, stop)))
            if 0 <= when < len(PHASES) and finite and len(rest) == len(sizes) == 4:
                return PassedPhase(when, duration, start, stop, *sizes)
    raise ProtocolError(f"an executor sent the phase {values!r}, expected a phase, three times and four sizes")


def merge_phases_and_facts(phases: Sequence[PassedPhase], facts: Sequence[Message]) -> list[Message]:
    """Return all reports of a case, in order: the phases of the page, and facts, each ``after`` a number of phases.

    Raise ProtocolError.
    """
    messages: list[Message] = []
    taken = 0
    for fact in facts:
        after = fact.get("after", 0)
        if not isinstance(after, int) or not taken <= after <= len(phases):
            raise ProtocolError(f"an executor sent a report after {after!r} of {len(phases)} phases")
        messages += [phase.message for phase in phases[taken:after]]
        messages.append(fact)
        taken = after
    return messages + [phase.message for phase in phases[taken:]]
