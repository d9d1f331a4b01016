"""A caching allocator in plain Python whose memory is a list of writes, and into which one mistake can be injected.

It follows the rules of torch's allocator, and shares only its sizes with the model that is tested on it. Streams do
nothing until they are waited for: a use by another stream ends at the next `synchronize`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from suites.allocator.model import Count

MIB = 1 << 20
PAGE = 512


class Bug(Enum):
    """The possible mistakes; the value describes the mistake."""

    GIVEN_TWICE = "a block that is in use is given out again"
    OVERLAP = "a block that is split off begins before the end of the one before it"
    ROUNDS_TO_256 = "sizes are rounded to 256 bytes"
    NOT_ROUNDED = "the count of allocated bytes is of what was asked for"
    REQUESTED_ROUNDED = "the count of requested bytes is of what was given"
    NO_MERGE_AFTER = "a free block is not joined with the one behind it"
    NO_MERGE_BEFORE = "a free block is not joined with the one before it"
    MERGE_NOT_USED = "the free block that a merge made is not given out, though it is counted"
    SPLIT_NOT_COUNTED = "what a split leaves over is not counted as split"
    SPLIT_LOST = "what a split leaves over is forgotten"
    NO_SPLIT = "blocks are never split"
    STREAM_IGNORED = "a stream is given a free block of another"
    POOLS_MIXED = "large requests are served from small segments and small ones from large"
    REUSED_TOO_EARLY = "a block that another stream still uses is free at once"
    REUSED_TOO_EARLY_SILENTLY = "a block that another stream still uses is given out, though it is counted as held"
    NEVER_TAKEN_BACK = "a block that another stream used stays held"
    PEAK_NOT_KEPT = "peaks are what there is now"
    PEAK_RESET_TO_ZERO = "a reset makes peaks zero"
    PEAK_NOT_RESET = "a reset leaves peaks"
    DRIFT = "what is freed leaves a little of its bytes in the count"
    FREED_NOT_COUNTED = "the total of freed bytes stays"
    ACCUMULATED_NOT_RESET = "the totals are not reset"
    POOL_NOT_COUNTED = "large blocks are counted in all but not in their pool"
    SPLIT_OVERWRITES = "a split writes where the block before the rest ends"
    MERGE_OVERWRITES = "a merge writes at the end of the block before"
    ZERO_SIZE = "a request of no bytes is given a block"
    RESERVED_TWICE = "a segment is counted twice"
    CACHE_NOT_USED = "every request is a new segment"
    EMPTY_KEEPS = "emptying the cache leaves segments"
    EMPTY_TAKES_TOO_MUCH = "emptying the cache takes a segment whose first block is free, others in it or not"
    REFUSAL_COUNTED = "a request that was refused is counted"
    REFUSAL_KEEPS_CACHE = "a request is refused before what is cached was given back"
    SEGMENT_SIZE = "segments for blocks of 1 to 10 MiB have the block's own size"


@dataclass(eq=False)
class Block:
    address: int
    size: int
    segment: Segment
    free: bool = True
    held: bool = False
    merged: bool = False
    requested: int = 0


@dataclass(eq=False)
class Segment:
    stream: int
    large: bool
    blocks: list[Block] = field(default_factory=list)


@dataclass(eq=False)
class Use:
    address: int
    size: int
    read: int | None = None


class Toy:
    """The allocator that programs test. `bug` is None for a correct one."""

    def __init__(self, bug: Bug | None = None) -> None:
        self.bug = bug
        self._segments: list[Segment] = []
        self._next = 0x7000_0000_0000
        self._given: dict[int, list[Block]] = {}
        self._writes: list[tuple[int, int, int]] = []
        self._pending: list[tuple[Use, Block]] = []
        self._done: list[Block] = []
        self._last: Use | None = None
        kinds = ("allocation", "segment", "active", "inactive_split")
        sizes = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
        self._counts = {
            f"{name}.{pool}": Count() for name in (*kinds, *sizes) for pool in ("all", "small_pool", "large_pool")
        }

    def allocate(self, size: int, stream: int) -> int:
        self._take_back()
        if size == 0 and self.bug is not Bug.ZERO_SIZE:
            return 0
        to = 256 if self.bug is Bug.ROUNDS_TO_256 else PAGE
        wanted = max(-(-size // to) * to, to)
        large = wanted > MIB
        block = self._find(wanted, stream, large) or self._grow(wanted, stream, large)
        if block.free:
            self._take(block)
            rest = block.size - wanted
            if (rest > MIB if block.segment.large else rest >= PAGE) and self.bug is not Bug.NO_SPLIT:
                self._split(block, wanted)
        block.requested = size
        self._given.setdefault(block.address, []).append(block)
        self._count("allocation", large, 1)
        self._count("active", large, 1)
        self._count("allocated_bytes", large, size if self.bug is Bug.NOT_ROUNDED else block.size)
        self._count("active_bytes", large, block.size)
        self._count("requested_bytes", large, wanted if self.bug is Bug.REQUESTED_ROUNDED else size)
        return block.address

    def free(self, address: int) -> None:
        block = self._given[address].pop()
        large = block.size > MIB
        left = PAGE if self.bug is Bug.DRIFT and block.size > 4 * PAGE else 0
        self._count("allocation", large, -1)
        self._count("allocated_bytes", large, left - (block.requested if self.bug is Bug.NOT_ROUNDED else block.size))
        if block.held and self.bug is not Bug.REUSED_TOO_EARLY:
            return
        self._put(block)

    def write(self, address: int, value: int) -> None:
        self._paint(address, address + self._given[address][-1].requested, value)

    def holds(self, address: int, value: int) -> bool:
        return self._read(address, self._given[address][-1].requested) == value

    def use(self, address: int, stream: int) -> None:
        assert stream >= 0
        block = self._given[address][-1]
        block.held = True
        self._last = Use(address, block.requested)
        self._pending.append((self._last, block))

    def use_is_done(self) -> bool:
        return not self._pending

    def use_read(self, value: int) -> bool:
        assert self._last is not None
        return self._last.read == value

    def synchronize(self) -> None:
        for use, block in self._pending:
            use.read = self._read(use.address, use.size)
            self._done.append(block)
        self._pending = []

    def empty(self) -> None:
        self.synchronize()
        self._take_back()
        if self.bug is not Bug.EMPTY_KEEPS:
            self._release()

    def ask_too_much(self) -> None:
        self.synchronize()
        self._take_back()
        if self.bug is Bug.REFUSAL_COUNTED:
            self._count("allocation", True, 1)
        if self.bug is not Bug.REFUSAL_KEEPS_CACHE:
            self._release()

    def counters(self) -> dict[str, Count]:
        return self._counts

    def reset_peaks(self) -> None:
        if self.bug is Bug.PEAK_NOT_RESET:
            return
        for count in self._counts.values():
            count.peak = 0 if self.bug is Bug.PEAK_RESET_TO_ZERO else count.current

    def reset_accumulated(self) -> None:
        if self.bug is Bug.ACCUMULATED_NOT_RESET:
            return
        for count in self._counts.values():
            count.allocated = count.freed = 0

    def _take_back(self) -> None:
        done, self._done = self._done, []
        for block in done:
            block.held = False
            if self.bug not in (Bug.REUSED_TOO_EARLY, Bug.NEVER_TAKEN_BACK):
                self._put(block)

    def _find(self, wanted: int, stream: int, large: bool) -> Block | None:
        if self.bug is Bug.CACHE_NOT_USED:
            return None

        def fits(block: Block) -> bool:
            segment = block.segment
            return (
                block.size >= wanted
                and (segment.stream == stream or self.bug is Bug.STREAM_IGNORED)
                and (segment.large == large or self.bug is Bug.POOLS_MIXED)
            )

        blocks = [block for segment in self._segments for block in segment.blocks if fits(block)]
        if self.bug is Bug.MERGE_NOT_USED:
            blocks = [block for block in blocks if not block.merged]
        if self.bug is Bug.REUSED_TOO_EARLY_SILENTLY:
            held = [block for block in blocks if block.held and not self._given[block.address]]
            if held:
                return held[0]
        if self.bug is Bug.GIVEN_TWICE:
            in_use = [block for block in blocks if not block.free and not block.held]
            if len(in_use) > 3:
                return in_use[-1]
        return min((block for block in blocks if block.free), key=lambda each: (each.size, each.address), default=None)

    def _grow(self, wanted: int, stream: int, large: bool) -> Block:
        if not large:
            size = 2 * MIB
        elif wanted < 10 * MIB and self.bug is not Bug.SEGMENT_SIZE:
            size = 20 * MIB
        else:
            size = -(-wanted // (2 * MIB)) * 2 * MIB
        segment = Segment(stream, large)
        block = Block(self._next, size, segment)
        self._next += size
        segment.blocks.append(block)
        self._segments.append(segment)
        self._count("segment", large, 1)
        self._count("reserved_bytes", large, size * (2 if self.bug is Bug.RESERVED_TWICE else 1))
        return block

    def _split(self, block: Block, size: int) -> None:
        blocks = block.segment.blocks
        at = block.address + size
        length = block.size - size
        block.size = size
        if self.bug is Bug.SPLIT_LOST:
            return
        if self.bug is Bug.OVERLAP and len(blocks) > 1:
            at -= PAGE
            length += PAGE
        rest = Block(at, length, block.segment)
        blocks.insert(blocks.index(block) + 1, rest)
        if self.bug is Bug.SPLIT_OVERWRITES and block.address != blocks[0].address:
            self._paint(block.address - PAGE, block.address, 255)
        if self.bug is not Bug.SPLIT_NOT_COUNTED:
            self._count_split(rest, 1)

    def _take(self, block: Block) -> None:
        if len(block.segment.blocks) > 1:
            self._count_split(block, -1)
        block.free = False

    def _put(self, block: Block) -> None:
        segment = block.segment
        large = block.size > MIB
        self._count("active", large, -1)
        self._count("active_bytes", large, -block.size)
        self._count("requested_bytes", large, -block.requested)
        block.free = True
        at = segment.blocks.index(block)
        if at + 1 < len(segment.blocks) and self.bug is not Bug.NO_MERGE_AFTER:
            self._merge(block, segment.blocks[at + 1])
        if at > 0:
            before = segment.blocks[at - 1]
            if self.bug is Bug.MERGE_OVERWRITES and not before.free:
                self._paint(before.address + before.size - PAGE, before.address + before.size, 255)
            if before.free and self.bug is not Bug.NO_MERGE_BEFORE:
                self._count_split(before, -1)
                before.size += block.size
                before.merged = True
                segment.blocks.remove(block)
                block = before
        if len(segment.blocks) > 1:
            self._count_split(block, 1)

    def _merge(self, block: Block, after: Block) -> None:
        if after.free:
            self._count_split(after, -1)
            block.size += after.size
            block.merged = True
            block.segment.blocks.remove(after)

    def _release(self) -> None:
        for segment in list(self._segments):
            free = [block.free for block in segment.blocks]
            if free == [True] or (self.bug is Bug.EMPTY_TAKES_TOO_MUCH and free[0]):
                self._segments.remove(segment)
                self._count("segment", segment.large, -1)
                self._count("reserved_bytes", segment.large, -sum(block.size for block in segment.blocks))

    def _count_split(self, block: Block, sign: int) -> None:
        self._count("inactive_split", block.segment.large, sign)
        self._count("inactive_split_bytes", block.segment.large, sign * block.size)

    def _count(self, name: str, large: bool, amount: int) -> None:
        pools = ["all"]
        if not (large and self.bug is Bug.POOL_NOT_COUNTED):
            pools.append("large_pool" if large else "small_pool")
        for pool in pools:
            count = self._counts[f"{name}.{pool}"]
            count.current += amount
            count.peak = count.current if self.bug is Bug.PEAK_NOT_KEPT else max(count.peak, count.current)
            if amount > 0:
                count.allocated += amount
            elif self.bug is not Bug.FREED_NOT_COUNTED:
                count.freed -= amount

    def _paint(self, begin: int, end: int, value: int) -> None:
        kept = []
        for start, stop, old in self._writes:
            if start < begin:
                kept.append((start, min(stop, begin), old))
            if stop > end:
                kept.append((max(start, end), stop, old))
        self._writes = [*(piece for piece in kept if piece[0] < piece[1]), (begin, end, value)]

    def _read(self, address: int, size: int) -> int | None:
        """Return the value of a whole range; None if it has several values or was not written completely."""
        found = [(max(a, address), min(b, address + size), v) for a, b, v in self._writes]
        inside = [(a, b, v) for a, b, v in found if a < b]
        values = {value for _, _, value in inside}
        whole = sum(b - a for a, b, _ in inside) == size
        return values.pop() if len(values) == 1 and whole else None


def maker(bug: Bug | None) -> Callable[[], Toy]:
    return lambda: Toy(bug)
