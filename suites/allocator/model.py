"""A model of a caching allocator in plain values, which follows a real allocator step by step.

The model receives each request and the address that the allocator chose. It keeps a map of the segments that must then
exist, and reports wrong answers: a block in use or of another stream, a new segment where a free block would have been
large enough, or counters that contradict the map. The model chooses no addresses itself, so any search order among the
free blocks is correct. Sizes and addresses are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

MIB = 1 << 20


class BrokenPromiseError(AssertionError):
    """The allocator violated a rule; the message says which."""


@dataclass(frozen=True)
class Rules:
    """The sizes of torch's allocator for accelerators (c10/core/AllocatorConfig.h), the same in each release so far."""

    rounding: int = 512
    small_limit: int = MIB
    small_segment: int = 2 * MIB
    large_segment: int = 20 * MIB
    large_limit: int = 10 * MIB
    large_rounding: int = 2 * MIB

    def rounded(self, size: int) -> int:
        """Return the minimum block size for a request of `size` bytes (at least 1)."""
        return -(-size // self.rounding) * self.rounding

    def pool(self, size: int) -> str:
        """Return the pool that serves a rounded size."""
        return "small_pool" if size <= self.small_limit else "large_pool"

    def segment(self, size: int) -> int:
        """Return the size of the segment that is allocated for a rounded size."""
        if size <= self.small_limit:
            return self.small_segment
        if size < self.large_limit:
            return self.large_segment
        return -(-size // self.large_rounding) * self.large_rounding

    def taken(self, size: int, room: int) -> int:
        """Return the bytes that a block of a rounded size takes from a free block.

        It takes all of them if the rest is too small to split off.
        """
        rest = room - size
        splits = rest >= self.rounding if size <= self.small_limit else rest > self.small_limit
        return size if splits else room


@dataclass
class Count:
    """A counter of the allocator: current value, peak, and totals since a reset."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def change(self, amount: int) -> None:
        self.current += amount
        self.peak = max(self.peak, self.current)
        if amount > 0:
            self.allocated += amount
        else:
            self.freed -= amount


#: Counters by name and pool, such as "allocated_bytes.small_pool".
Counters = Mapping[str, Count]

POOLS = ("small_pool", "large_pool")
#: Counters that the model tracks through every step, including their peaks.
KEPT = ("allocation", "segment", "active", "allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
#: Counters derived from the map: they rise and fall within one step, so the model knows only the final value.
DERIVED = ("inactive_split", "inactive_split_bytes")

FREE, LIVE, HELD = "free", "live", "held"


@dataclass
class Piece:
    """A part of a segment. A held piece was freed while another stream still uses it."""

    address: int
    size: int
    state: str = FREE
    requested: int = 0

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass
class Segment:
    stream: int
    pool: str
    pieces: list[Piece]

    @property
    def address(self) -> int:
        return self.pieces[0].address

    @property
    def end(self) -> int:
        return self.pieces[-1].end

    @property
    def size(self) -> int:
        return self.end - self.address

    def cut(self, piece: Piece, size: int) -> None:
        """Shrink a piece to `size` bytes and make the remainder a free piece."""
        if size < piece.size:
            rest = Piece(piece.address + size, piece.size - size)
            self.pieces.insert(self.pieces.index(piece) + 1, rest)
            piece.size = size

    def join(self) -> None:
        """Merge adjacent free pieces."""
        joined: list[Piece] = []
        for piece in self.pieces:
            if joined and joined[-1].state == FREE and piece.state == FREE:
                joined[-1].size += piece.size
            else:
                joined.append(piece)
        self.pieces = joined


@dataclass
class Model:
    """Follows one allocator. All of its counters must be zero at the start, or relative to a base."""

    rules: Rules = field(default_factory=Rules)
    segments: list[Segment] = field(default_factory=list)
    counts: dict[str, Count] = field(
        default_factory=lambda: {f"{name}.{pool}": Count() for name in KEPT for pool in (*POOLS, "all")}
    )
    held: tuple[Segment, Piece] | None = None
    all_done: bool = True

    def given(self, size: int, stream: int, address: int) -> None:
        """Record that a request returned a block at `address`, 0 for none. A request of 0 bytes allocates nothing."""
        if size == 0:
            if address != 0:
                raise BrokenPromiseError(f"a request of 0 bytes returned the address {address:#x}")
            return
        if self.held is not None and self.all_done:
            raise BrokenPromiseError(
                "a block whose use on another stream had ended was not reclaimed by the next allocation"
            )
        if address == 0 or address % self.rules.rounding:
            raise BrokenPromiseError(f"a block at {address:#x} is not aligned to {self.rules.rounding} bytes")
        wanted = self.rules.rounded(size)
        pool = self.rules.pool(wanted)
        segment = next((each for each in self.segments if each.address <= address < each.end), None)
        if segment is None:
            segment = self._grown(wanted, pool, stream, address)
        piece = self._free_piece(segment, address, wanted, pool, stream)
        segment.cut(piece, self.rules.taken(wanted, piece.size))
        piece.state, piece.requested = LIVE, size
        self._change("allocation", pool, 1)
        self._change("allocated_bytes", pool, piece.size)
        self._change("active", pool, 1)
        self._change("active_bytes", pool, piece.size)
        self._change("requested_bytes", pool, size)

    def _grown(self, wanted: int, pool: str, stream: int, address: int) -> Segment:
        room = self.rules.segment(wanted)
        for each in self.segments:
            if each.address < address + room and address < each.end:
                raise BrokenPromiseError(f"a new segment at {address:#x} overlaps one at {each.address:#x}")
            if (each.pool, each.stream) == (pool, stream) and any(
                piece.state == FREE and piece.size >= wanted for piece in each.pieces
            ):
                raise BrokenPromiseError(f"device memory was requested for {wanted} bytes despite a free block")
        segment = Segment(stream, pool, [Piece(address, room)])
        self.segments.append(segment)
        self._change("segment", pool, 1)
        self._change("reserved_bytes", pool, room)
        return segment

    def _free_piece(self, segment: Segment, address: int, wanted: int, pool: str, stream: int) -> Piece:
        piece = next(each for each in segment.pieces if each.address <= address < each.end)
        if piece.state != FREE:
            raise BrokenPromiseError(f"a block at {address:#x} overlaps one that is {piece.state}")
        if piece.address != address or piece.size < wanted:
            raise BrokenPromiseError(
                f"a block of {wanted} bytes at {address:#x} does not start the free block from "
                f"{piece.address:#x} to {piece.end:#x}"
            )
        if segment.stream != stream:
            raise BrokenPromiseError(f"a block for stream {stream} is in a segment of stream {segment.stream}")
        if segment.pool != pool:
            raise BrokenPromiseError(f"a block of {wanted} bytes is in the {segment.pool}")
        return piece

    def given_back(self, address: int, *, used_elsewhere: bool = False) -> None:
        """Record that a block was freed; other streams may still use it. At most one such block exists at a time."""
        segment, piece = self._live(address)
        self._change("allocation", segment.pool, -1)
        self._change("allocated_bytes", segment.pool, -piece.size)
        if used_elsewhere:
            piece.state = HELD
            self.held, self.all_done = (segment, piece), False
        else:
            self._free(segment, piece)

    def noticed(self, still_held: int, *, use_is_done: bool) -> None:
        """Record how many blocks the allocator holds for other streams after a step.

        The use is queried after that count.
        """
        if self.held is None or still_held:
            return
        if not use_is_done:
            raise BrokenPromiseError("a block was reclaimed while another stream was still using it")
        self.release()

    def release(self) -> None:
        """Free the held block. Afterwards none is held."""
        if self.held is not None:
            self._free(*self.held)
        self.held, self.all_done = None, True

    def synchronized(self) -> None:
        """Record that all streams have completed their work."""
        self.all_done = True

    def emptied(self) -> None:
        """Record that all unused memory was returned to the device, after its streams completed."""
        self.release()
        for segment in list(self.segments):
            if [piece.state for piece in segment.pieces] == [FREE]:
                self.segments.remove(segment)
                self._change("segment", segment.pool, -1)
                self._change("reserved_bytes", segment.pool, -segment.size)

    def peaks_reset(self) -> None:
        for count in self.counts.values():
            count.peak = count.current

    def accumulated_reset(self) -> None:
        for count in self.counts.values():
            count.allocated = count.freed = 0

    def agree(self, reported: Counters) -> None:
        """Raise BrokenPromiseError where counters contradict the map."""
        wrong = [
            f"{name}: {what} is {got}, not {right}"
            for name, count in self.counts.items()
            for what in ("current", "peak", "allocated", "freed")
            if (got := getattr(reported[name], what)) != (right := getattr(count, what))
        ]
        for pool in POOLS:
            split = list(self._split(pool))
            for name, right in zip(DERIVED, (len(split), sum(piece.size for piece in split)), strict=True):
                count = reported[f"{name}.{pool}"]
                if count.current != right:
                    wrong.append(f"{name}.{pool}: current is {count.current}, not {right}")
                if count.current != reported[f"{name}.all"].current - reported[f"{name}.{_other(pool)}"].current:
                    wrong.append(f"{name}: the pools do not add up to the total")
                if count.peak < count.current:
                    wrong.append(f"{name}.{pool}: the peak {count.peak} is below the current {count.current}")
        if wrong:
            raise BrokenPromiseError("; ".join(wrong))

    def consistent(self) -> None:
        """Check the model's own map: disjoint segments, contiguous pieces, no adjacent free pieces."""
        ordered = sorted(self.segments, key=lambda each: each.address)
        assert all(left.end <= right.address for left, right in pairwise(ordered))
        for segment in self.segments:
            for left, right in pairwise(segment.pieces):
                assert left.end == right.address
                assert (left.state, right.state) != (FREE, FREE)
        assert self.counts["reserved_bytes.all"].current == sum(segment.size for segment in self.segments)

    def _live(self, address: int) -> tuple[Segment, Piece]:
        for segment in self.segments:
            for piece in segment.pieces:
                if piece.address == address and piece.state == LIVE:
                    return segment, piece
        raise ValueError(f"no block is in use at {address:#x}")

    def _free(self, segment: Segment, piece: Piece) -> None:
        self._change("active", segment.pool, -1)
        self._change("active_bytes", segment.pool, -piece.size)
        self._change("requested_bytes", segment.pool, -piece.requested)
        piece.state, piece.requested = FREE, 0
        segment.join()

    def _split(self, pool: str) -> Iterator[Piece]:
        for segment in self.segments:
            if segment.pool == pool and len(segment.pieces) > 1:
                yield from (piece for piece in segment.pieces if piece.state == FREE)

    def _change(self, name: str, pool: str, amount: int) -> None:
        self.counts[f"{name}.{pool}"].change(amount)
        self.counts[f"{name}.all"].change(amount)


def _other(pool: str) -> str:
    return POOLS[1 - POOLS.index(pool)]
