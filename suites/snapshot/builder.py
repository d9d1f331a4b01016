"""An allocator on paper: it does what it is told and writes it down in the form of torch's snapshots of memory.

Addresses and frames are the caller's to choose, so that what torch makes of a snapshot can be said beforehand.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

Frame = dict[str, Any]
Snapshot = dict[str, Any]

MIB = 1 << 20
#: Blocks are multiples of it, as those of torch's allocator are.
STEP = 512


def frame(name: str, line: int = 1, filename: str = "/code/model.py") -> Frame:
    """One call in a stack."""
    return {"filename": filename, "line": line, "name": name}


def stack(*names: str) -> list[Frame]:
    """The calls that led to something, the innermost first, at lines 1, 2, … of one file."""
    return [frame(name, line) for line, name in enumerate(names, 1)]


@dataclass
class _Block:
    address: int
    size: int
    requested: int = 0
    state: str = "inactive"
    frames: list[Frame] = field(default_factory=list)


@dataclass
class _Segment:
    address: int
    size: int
    stream: int
    pool: tuple[int, int]
    device: int
    frames: list[Frame]
    blocks: list[_Block]

    def bytes_in(self, *states: str) -> int:
        return sum(block.size for block in self.blocks if block.state in states)


class Paper:
    """The allocator of one machine, and what it has done since it was made."""

    def __init__(self, devices: int = 1) -> None:
        self._segments: list[_Segment] = []
        self._traces: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
        self._now = 0

    # What it is told to do

    def reserve(
        self,
        address: int,
        size: int,
        *frames: Frame,
        stream: int = 0,
        pool: tuple[int, int] = (0, 0),
        device: int = 0,
        noted: bool = True,
    ) -> None:
        """Take a segment from the driver. With `noted` false it was there before anything was written down."""
        segment = _Segment(address, size, stream, pool, device, list(frames), [_Block(address, size)])
        self._segments.append(segment)
        self._segments.sort(key=lambda each: each.address)
        if noted:
            self._note(segment, "segment_alloc", address, size, segment.frames)

    def take(self, segment: int, size: int, *frames: Frame, noted: bool = True) -> int:
        """Give out a block of the segment at that address, the first that is large enough; its address."""
        home = self._home(segment)
        rounded = -(-size // STEP) * STEP
        place, block = next(
            (n, each) for n, each in enumerate(home.blocks) if each.state == "inactive" and each.size >= rounded
        )
        if block.size > rounded:
            home.blocks.insert(place + 1, _Block(block.address + rounded, block.size - rounded))
        block.size, block.requested, block.state, block.frames = rounded, size, "active_allocated", list(frames)
        if noted:
            self._note(home, "alloc", block.address, size, block.frames)
        return block.address

    def give_back(self, address: int, *frames: Frame, pending: bool = False) -> None:
        """Free the block there; with `pending` another stream still has to use it."""
        home, block = self._find(address)
        self._note(home, "free_requested", address, block.requested, list(frames))
        block.state = "active_pending_free"
        if not pending:
            self.complete(address, *frames)

    def complete(self, address: int, *frames: Frame) -> None:
        """The streams are done with a block that was freed; it merges with what is free beside it."""
        home, block = self._find(address)
        self._note(home, "free_completed", address, block.requested, list(frames))
        block.requested, block.state, block.frames = 0, "inactive", []
        merged: list[_Block] = []
        for each in home.blocks:
            if merged and merged[-1].state == each.state == "inactive":
                merged[-1].size += each.size
            else:
                merged.append(each)
        home.blocks = merged

    def release(self, segment: int, *frames: Frame) -> None:
        """Give a segment back to the driver."""
        home = self._home(segment)
        assert {block.state for block in home.blocks} == {"inactive"}, f"the segment at {segment} is in use"
        self._segments.remove(home)
        self._note(home, "segment_free", segment, home.size, list(frames))

    def run_out(self, size: int, free: int, *frames: Frame, device: int = 0) -> None:
        """Refuse a request for lack of memory."""
        self._now += 1
        entry = {"action": "oom", "device_free": free, "size": size, "stream": 0, "time_us": self._now}
        self._traces[device].append(entry | {"frames": list(frames)})

    # What it says

    def snapshot(self) -> Snapshot:
        """How things stand, and what happened; a copy of its own each time."""
        segments = [
            {
                "device": each.device,
                "address": each.address,
                "total_size": each.size,
                "allocated_size": each.bytes_in("active_allocated"),
                "active_size": each.bytes_in("active_allocated", "active_pending_free"),
                "requested_size": sum(block.requested for block in each.blocks),
                "stream": each.stream,
                "segment_type": "large" if each.size > 2 * MIB else "small",
                "segment_pool_id": each.pool,
                "is_expandable": False,
                "frames": each.frames,
                "blocks": [
                    {
                        "address": block.address,
                        "size": block.size,
                        "requested_size": block.requested,
                        "state": block.state,
                        "frames": block.frames,
                    }
                    for block in each.blocks
                ],
            }
            for each in self._segments
        ]
        return copy.deepcopy({"segments": segments, "device_traces": self._traces, "allocator_settings": {}})

    def _note(self, home: _Segment, action: str, address: int, size: int, frames: list[Frame]) -> None:
        self._now += 1
        self._traces[home.device].append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": home.stream,
                "time_us": self._now,
                "frames": frames,
            }
        )

    def _home(self, segment: int) -> _Segment:
        return next(each for each in self._segments if each.address == segment)

    def _find(self, address: int) -> tuple[_Segment, _Block]:
        return next((each, block) for each in self._segments for block in each.blocks if block.address == address)


def ordinary() -> Snapshot:
    """A training step on paper: parameters that stay, activations that go, one block another stream still uses, a
    segment given back, a request refused."""
    paper = Paper()
    paper.reserve(0x7000_0000, 2 * MIB, *stack("alloc_small", "step", "main"))
    paper.reserve(0x8000_0000, 60 * MIB, *stack("alloc_large", "step", "main"), stream=3)
    weight = paper.take(0x7000_0000, 1000, *stack("linear", "step", "main"))
    paper.take(0x7000_0000, 4096, *stack("bias", "step", "main"))
    hidden = paper.take(0x8000_0000, 25 * MIB, *stack("relu", "step", "main"))
    paper.take(0x8000_0000, 30 * MIB - 100, *stack("matmul", "step", "main"))
    paper.give_back(hidden, *stack("free_hidden", "main"))
    paper.give_back(weight, *stack("free_weight", "main"), pending=True)
    paper.reserve(0x9000_0000, 20 * MIB)
    paper.release(0x9000_0000, *stack("empty_cache", "main"))
    paper.run_out(1 << 40, 5 * MIB, *stack("too_much", "main"))
    return paper.snapshot()


def two_devices() -> Snapshot:
    """Memory and traces of two devices, the second of which freed what it had."""
    paper = Paper(devices=2)
    paper.reserve(0x1000_0000, 2 * MIB, device=0)
    paper.reserve(0x2000_0000, 20 * MIB, device=1, pool=(0, 1))
    paper.take(0x1000_0000, 512, *stack("first"))
    paper.give_back(paper.take(0x2000_0000, 3 * MIB, *stack("second")), *stack("free_second"))
    return paper.snapshot()
