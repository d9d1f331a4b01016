"""A simulated allocator, which records its calls in the format of torch's memory snapshots.

The caller chooses addresses and frames, so that the expected output of torch for a snapshot is known in advance.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

Frame = dict[str, Any]
Snapshot = dict[str, Any]

MIB = 1 << 20
#: Block sizes are multiples of this, as in torch's allocator.
STEP = 512


def frame(name: str, line: int = 1, filename: str = "/code/model.py") -> Frame:
    """Return one frame of a stack."""
    return {"filename": filename, "line": line, "name": name}


def stack(*names: str) -> list[Frame]:
    """Return a call stack, innermost call first, at lines 1, 2, … of one file."""
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
    """The allocator of one machine, and its history since its creation."""

    def __init__(self, devices: int = 1) -> None:
        self._segments: list[_Segment] = []
        self._traces: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
        self._now = 0

    # Calls

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
        """Allocate a segment from the driver. With `noted=False`, it existed before recording started."""
        segment = _Segment(address, size, stream, pool, device, list(frames), [_Block(address, size)])
        self._segments.append(segment)
        self._segments.sort(key=lambda each: each.address)
        if noted:
            self._note(segment, "segment_alloc", address, size, segment.frames)

    def take(self, segment: int, size: int, *frames: Frame, noted: bool = True) -> int:
        """Allocate the first block that is large enough in the segment at that address, and return its address."""
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
        """Free the block at an address; with `pending`, another stream has not used it yet."""
        home, block = self._find(address)
        self._note(home, "free_requested", address, block.requested, list(frames))
        block.state = "active_pending_free"
        if not pending:
            self.complete(address, *frames)

    def complete(self, address: int, *frames: Frame) -> None:
        """Complete the free of a block after its streams are done, and merge it with adjacent free blocks."""
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
        """Return a segment to the driver."""
        home = self._home(segment)
        assert {block.state for block in home.blocks} == {"inactive"}, f"the segment at {segment} is in use"
        self._segments.remove(home)
        self._note(home, "segment_free", segment, home.size, list(frames))

    def run_out(self, size: int, free: int, *frames: Frame, device: int = 0) -> None:
        """Record a request that failed for lack of memory."""
        self._now += 1
        entry = {"action": "oom", "device_free": free, "size": size, "stream": 0, "time_us": self._now}
        self._traces[device].append(entry | {"frames": list(frames)})

    # Results

    def snapshot(self) -> Snapshot:
        """Return the current state and the history, copied each time."""
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
    """Return a simulated training step.

    Parameters stay allocated, activations are freed, one block is still in use by another stream, a segment is
    released, and a request fails.
    """
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
    """Return memory and traces of two devices; the second one's block has been freed."""
    paper = Paper(devices=2)
    paper.reserve(0x1000_0000, 2 * MIB, device=0)
    paper.reserve(0x2000_0000, 20 * MIB, device=1, pool=(0, 1))
    paper.take(0x1000_0000, 512, *stack("first"))
    paper.give_back(paper.take(0x2000_0000, 3 * MIB, *stack("second")), *stack("free_second"))
    return paper.snapshot()
