"""Queries on snapshots as plain values: blocks, trace entries and stacks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Frames = list[dict[str, Any]]
Segments = Iterable[dict[str, Any]]

LIVE = "active_allocated"
PENDING = "active_pending_free"
FREE = "inactive"


@dataclass(frozen=True)
class Block:
    """A part of a segment. Sizes are in bytes; `requested` is 0 for a free block."""

    address: int
    size: int
    requested: int
    state: str
    frames: Frames

    @property
    def end(self) -> int:
        return self.address + self.size


def blocks(segments: Segments) -> Iterator[Block]:
    """Yield the blocks of segments in order, with addresses computed from the segments' addresses."""
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            state = block["state"]
            requested = 0 if state == FREE else block["requested_size"]
            yield Block(address, block["size"], requested, state, block.get("frames", []))
            address += block["size"]


def block_at(segments: Segments, address: int) -> Block | None:
    """Return the block that starts at an address."""
    return next((block for block in blocks(segments) if block.address == address), None)


def of_device(segments: Segments, index: int) -> list[dict[str, Any]]:
    """Return the segments of one device."""
    return [segment for segment in segments if segment["device"] == index]


def of_pool(segments: Segments, pool: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the segments of one pool."""
    return [segment for segment in segments if tuple(segment["segment_pool_id"]) == tuple(pool)]


def faults(segments: list[dict[str, Any]]) -> list[str]:
    """Return the inconsistencies of a list of segments, one line each.

    These are wrong sums, overlaps, and adjacent free blocks that were not merged.
    """
    found = []
    for segment in segments:
        name = f"segment at {segment['address']:#x}"
        inside = list(blocks([segment]))
        sums = {
            "total_size": sum(block.size for block in inside),
            "allocated_size": sum(block.size for block in inside if block.state == LIVE),
            "active_size": sum(block.size for block in inside if block.state != FREE),
        }
        for field, expected in sums.items():
            if segment[field] != expected:
                found.append(f"{name}: {field} is {segment[field]}, its blocks have {expected}")
        for given, block in zip(segment["blocks"], inside, strict=True):
            if given.get("address", block.address) != block.address:
                found.append(f"{name}: a block at {block.address:#x} says {given['address']:#x}")
            if block.size <= 0 or block.requested > block.size or block.state not in (LIVE, PENDING, FREE):
                found.append(f"{name}: a block of {block.size} for {block.requested}, {block.state}")
        for before, after in itertools.pairwise(inside):
            if before.state == after.state == FREE and not segment.get("is_expandable"):
                found.append(f"{name}: free blocks at {before.address:#x} and {after.address:#x} side by side")
    spans = sorted((segment["device"], segment["address"], segment["total_size"]) for segment in segments)
    for (device, address, size), (other, following, _) in itertools.pairwise(spans):
        if device == other and address + size > following:
            found.append(f"segments at {address:#x} and {following:#x} overlap")
    return found


# Traces


def actions(trace: Iterable[dict[str, Any]]) -> list[str]:
    """Return the actions of a trace, in order."""
    return [entry["action"] for entry in trace]


def at(trace: Iterable[dict[str, Any]], address: int) -> list[dict[str, Any]]:
    """Return the entries for a block or segment at an address."""
    return [entry for entry in trace if entry.get("addr") == address]


def is_led_to_by(frames: Frames, function: str) -> bool:
    """Return whether a stack contains a function."""
    return any(frame["name"] == function or frame["name"].endswith(f".{function}") for frame in frames)


def live_after(trace: Iterable[dict[str, Any]]) -> dict[int, int]:
    """Return the address and size of the blocks that a trace allocates and does not free.

    Raise ValueError if the trace is inconsistent.
    """
    live: dict[int, int] = {}
    requested: dict[int, int] = {}
    for number, entry in enumerate(trace):
        action, address, size = entry["action"], entry.get("addr"), entry["size"]
        if action == "alloc":
            if address in live or address in requested:
                raise ValueError(f"entry {number} allocates at {address:#x}, which is in use")
            live[address] = size
        elif action == "free_requested" and address in live:
            if live.pop(address) != size:
                raise ValueError(f"entry {number} frees {size} bytes at {address:#x}, of another size")
            requested[address] = size
        elif action == "free_completed" and address in requested:
            del requested[address]
        elif action == "free_completed" and address in live:
            raise ValueError(f"entry {number} completes a free at {address:#x} that was not requested")
    return live
