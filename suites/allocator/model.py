"""What a caching allocator may do, in plain values: a model that follows a real one step by step.

The model is told what was asked and where the allocator put it. It holds a map of the segments that must then exist,
and says what is wrong with an answer: a place that is in use, or another stream's; a new segment where a free range
would have done; counters that are not what the map says. It chooses no places itself, so that any order of search in
the free ranges is right. Sizes and addresses are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

MIB = 1 << 20


class BrokenPromiseError(AssertionError):
    """The allocator broke a promise; the text says which."""


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
        """What a request of `size` bytes, at least 1, takes at least."""
        return -(-size // self.rounding) * self.rounding

    def pool(self, size: int) -> str:
        """The pool that serves a rounded size."""
        return "small_pool" if size <= self.small_limit else "large_pool"

    def segment(self, size: int) -> int:
        """The size of a segment that is made for a rounded size."""
        if size <= self.small_limit:
            return self.small_segment
        if size < self.large_limit:
            return self.large_segment
        return -(-size // self.large_rounding) * self.large_rounding

    def taken(self, size: int, room: int) -> int:
        """What a block of a rounded size takes of a free range: all of it where the rest is too small to split off."""
        rest = room - size
        splits = rest >= self.rounding if size <= self.small_limit else rest > self.small_limit
        return size if splits else room


@dataclass
class Count:
    """A counter of the allocator's: what there is, the most there was, and all that came and went since a reset."""

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


#: By name and pool, such as "allocated_bytes.small_pool".
Counters = Mapping[str, Count]

POOLS = ("small_pool", "large_pool")
#: Counters that the model keeps through every step, with their peaks.
KEPT = ("allocation", "segment", "active", "allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
#: Counters that it works out from its map: they go up and down within one step, so that only the outcome is told.
DERIVED = ("inactive_split", "inactive_split_bytes")

FREE, LIVE, HELD = "free", "live", "held"


@dataclass
class Piece:
    """A stretch of a segment. Held: given back while another stream uses it."""

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
        """Leave `size` bytes to a piece, and make what is behind them a free one."""
        if size < piece.size:
            rest = Piece(piece.address + size, piece.size - size)
            self.pieces.insert(self.pieces.index(piece) + 1, rest)
            piece.size = size

    def join(self) -> None:
        """Make one of free pieces that touch."""
        joined: list[Piece] = []
        for piece in self.pieces:
            if joined and joined[-1].state == FREE and piece.state == FREE:
                joined[-1].size += piece.size
            else:
                joined.append(piece)
        self.pieces = joined


@dataclass
class Model:
    """Follows one allocator, whose counters were all zero when it began (or are told from a base)."""

    rules: Rules = field(default_factory=Rules)
    segments: list[Segment] = field(default_factory=list)
    counts: dict[str, Count] = field(
        default_factory=lambda: {f"{name}.{pool}": Count() for name in KEPT for pool in (*POOLS, "all")}
    )
    held: tuple[Segment, Piece] | None = None
    all_done: bool = True

    def given(self, size: int, stream: int, address: int) -> None:
        """A request was answered with a block at `address`, 0 for none. A request of 0 bytes allocates nothing."""
        if size == 0:
            if address != 0:
                raise BrokenPromiseError(f"a request of 0 bytes was given the address {address:#x}")
            return
        if self.held is not None and self.all_done:
            raise BrokenPromiseError(
                "a block that another stream was through with was not taken back by the next allocation"
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
                raise BrokenPromiseError(f"memory was asked of the device for {wanted} bytes, though so much was free")
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
                f"a block of {wanted} bytes at {address:#x} is not the front of the free range from "
                f"{piece.address:#x} to {piece.end:#x}"
            )
        if segment.stream != stream:
            raise BrokenPromiseError(f"a block for stream {stream} is memory of stream {segment.stream}")
        if segment.pool != pool:
            raise BrokenPromiseError(f"a block of {wanted} bytes is of the {segment.pool}")
        return piece

    def given_back(self, address: int, *, used_elsewhere: bool = False) -> None:
        """A block was given back; other streams may still use it. There is one such block at most at a time."""
        segment, piece = self._live(address)
        self._change("allocation", segment.pool, -1)
        self._change("allocated_bytes", segment.pool, -piece.size)
        if used_elsewhere:
            piece.state = HELD
            self.held, self.all_done = (segment, piece), False
        else:
            self._free(segment, piece)

    def noticed(self, still_held: int, *, use_is_done: bool) -> None:
        """The allocator said after a step how many blocks it holds for other streams; then the use was looked at."""
        if self.held is None or still_held:
            return
        if not use_is_done:
            raise BrokenPromiseError("a block was taken back before the other stream that uses it was through with it")
        self.release()

    def release(self) -> None:
        """The block that is held is free now; none is held after it."""
        if self.held is not None:
            self._free(*self.held)
        self.held, self.all_done = None, True

    def synchronized(self) -> None:
        """All streams have come to the end of their work."""
        self.all_done = True

    def emptied(self) -> None:
        """Everything that is not in use went back to the device, whose streams had ended for it."""
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

    def agree(self, told: Counters) -> None:
        """Raise BrokenPromiseError where counters are not what the map says."""
        wrong = [
            f"{name}: {what} is {got}, not {right}"
            for name, count in self.counts.items()
            for what in ("current", "peak", "allocated", "freed")
            if (got := getattr(told[name], what)) != (right := getattr(count, what))
        ]
        for pool in POOLS:
            split = list(self._split(pool))
            for name, right in zip(DERIVED, (len(split), sum(piece.size for piece in split)), strict=True):
                count = told[f"{name}.{pool}"]
                if count.current != right:
                    wrong.append(f"{name}.{pool}: current is {count.current}, not {right}")
                if count.current != told[f"{name}.all"].current - told[f"{name}.{_other(pool)}"].current:
                    wrong.append(f"{name}: the pools do not add up")
                if count.peak < count.current:
                    wrong.append(f"{name}.{pool}: the peak {count.peak} is below the current {count.current}")
        if wrong:
            raise BrokenPromiseError("; ".join(wrong))

    def consistent(self) -> None:
        """The model's own map: segments apart from each other, pieces in a row, no two free ones side by side."""
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
