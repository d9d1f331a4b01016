"""Patterns of 64-bit words that are written to memory and checked, both on the device.

A pattern defines the word at each index for each step. The host gets one number per pass, and the wrong words if there
are any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

#: Words that are written or checked together, if a slice holds as many: 128 MiB.
SLICE = 16 << 20
#: The maximum number of wrong words in a message.
_SHOWN = 8
#: A word with alternating bits.
_ZERO_ONE = 0x5555555555555555
#: Odd multipliers for hashing a word, as signed 64-bit numbers.
_MIX = (0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64))

#: Writes the words of step `step` to `out`. `start` is the index of the first word, `address` its byte address.
Pattern = Callable[[torch.Tensor, int, int, int], None]


def _walking(*, zeros: bool) -> Pattern:
    """Return a pattern in which one bit of each word differs from the others.

    Each step moves that bit by one, and neighbouring words differ.
    """

    def write(out: torch.Tensor, step: int, start: int, address: int) -> None:
        del address
        bits = [1 << (start + step + place) % 64 for place in range(64)]
        words = [_signed(~bit if zeros else bit) for bit in bits]
        out.view(-1, 64).copy_(torch.tensor(words, device=out.device))

    return write


def _address(out: torch.Tensor, step: int, start: int, address: int) -> None:
    """Write its own address to each word, and the complement in odd steps."""
    del start
    torch.arange(address, address + 8 * out.numel(), 8, out=out)
    if step % 2:
        out.bitwise_not_()


def _random(out: torch.Tensor, step: int, start: int, address: int) -> None:
    """Write a hash of the index and the step to each word, the same on every device."""
    del address
    torch.arange(start, start + out.numel(), 1, out=out)
    out.add_(step << 40).mul_(_MIX[0])
    out.bitwise_xor_(out >> 29).mul_(_MIX[1])
    out.bitwise_xor_(out >> 32)


def _alternating(out: torch.Tensor, step: int, start: int, address: int) -> None:
    """Write 0101… to every word, and the complement in odd steps."""
    del start, address
    out.fill_(_signed(~_ZERO_ONE if step % 2 else _ZERO_ONE))


def rows(length: int) -> Pattern:
    """Return a pattern of rows of `length` words, a power of two.

    Every second row has 0101…, and the others have its complement.
    """
    shift = length.bit_length() - 1

    def write(out: torch.Tensor, step: int, start: int, address: int) -> None:
        del address
        torch.arange(start, start + out.numel(), 1, out=out)
        # The number of the row, then its lowest bit: 0 or 1, as a mask of 64 bits.
        out.bitwise_right_shift_(shift).add_(step).bitwise_and_(1).neg_()
        out.bitwise_xor_(_signed(_ZERO_ONE))

    return write


#: The patterns, and the number of steps per round of each.
PATTERNS: dict[str, tuple[Pattern, int]] = {
    "walking_ones": (_walking(zeros=False), 64),
    "walking_zeros": (_walking(zeros=True), 64),
    "address_in_address": (_address, 2),
    "random": (_random, 2),
}
#: The patterns of moving inversions: a pass goes up or down, and inverts what it has checked.
INVERTED: dict[str, Pattern] = {"alternating": _alternating, "random": _random, "address_in_address": _address}


def _signed(word: int) -> int:
    word %= 1 << 64
    return word - (1 << 64) if word >> 63 else word


@dataclass(frozen=True, slots=True)
class Memory:
    """Blocks of words on one device, with room to check one slice of them."""

    blocks: Sequence[torch.Tensor]
    scratch: torch.Tensor
    wrong: torch.Tensor

    @classmethod
    def take(cls, device: torch.device, words: int, block: int) -> Memory:
        """Allocate `words` words in blocks of at most `block`. Both are multiples of 64."""
        sizes = [min(block, words - start) for start in range(0, words, block)]
        piece = min(SLICE, max(64, sizes[0] // 2 // 64 * 64))  # small memory also has several slices
        return cls(
            [torch.empty(size // 64 * 64, dtype=torch.int64, device=device) for size in sizes],
            torch.empty(piece, dtype=torch.int64, device=device),
            torch.empty(piece, dtype=torch.bool, device=device),
        )

    def slices(self) -> list[tuple[torch.Tensor, int]]:
        """Return every slice, and the index of its first word."""
        found: list[tuple[torch.Tensor, int]] = []
        first = 0
        for block in self.blocks:
            starts = range(0, block.numel(), self.scratch.numel())
            found += [(block[start : start + self.scratch.numel()], first + start) for start in starts]
            first += block.numel()
        return found

    def write(self, pattern: Pattern, step: int) -> None:
        """Write a pattern to all words."""
        for piece, start in self.slices():
            pattern(piece, step, start, piece.data_ptr())

    def check(self, pattern: Pattern, step: int, what: str) -> None:
        """Compare every word with a pattern. Raise AssertionError, which lists wrong words."""
        pieces = self.slices()
        counts = torch.zeros(len(pieces), dtype=torch.int64, device=self.scratch.device)
        for number, (piece, start) in enumerate(pieces):
            self._count(piece, pattern, step, start, counts[number : number + 1])
        self._conclude(counts, pieces, pattern, step, what)

    def invert(self, pattern: Pattern, step: int, what: str, *, down: bool) -> None:
        """Check each slice against a pattern and write its complement, upwards or downwards."""
        pieces = self.slices()
        counts = torch.zeros(len(pieces), dtype=torch.int64, device=self.scratch.device)
        order = range(len(pieces))
        for number in reversed(order) if down else order:
            piece, start = pieces[number]
            self._count(piece, pattern, step, start, counts[number : number + 1])
            torch.bitwise_not(piece, out=piece)
        if counts.any():
            for piece, _ in pieces:
                torch.bitwise_not(piece, out=piece)  # the words as they were checked
        self._conclude(counts, pieces, pattern, step, what)

    def read_rows(self, length: int, which: int, times: int) -> None:
        """Read every second row of `length` words, from row `which`, `times` times, and do not read the others.

        Raise AssertionError if a sum of the words read differs from the first one.
        """
        for number, block in enumerate(self.blocks):
            count = block.numel() // (2 * length)
            read = block[: 2 * length * count].view(count, 2, length)[:, which]
            sums = torch.stack([read.sum() for _ in range(times)])
            wrong = int(torch.ne(sums, sums[0]).sum())
            if wrong:
                raise AssertionError(f"{wrong} of {times} reads of the same rows of block {number} found other words")

    def _count(self, piece: torch.Tensor, pattern: Pattern, step: int, start: int, count: torch.Tensor) -> None:
        expected, wrong = self.scratch[: piece.numel()], self.wrong[: piece.numel()]
        pattern(expected, step, start, piece.data_ptr())
        torch.ne(piece, expected, out=wrong)
        torch.sum(wrong, 0, keepdim=True, out=count)

    def _conclude(
        self, counts: torch.Tensor, pieces: Sequence[tuple[torch.Tensor, int]], pattern: Pattern, step: int, what: str
    ) -> None:
        found = counts.tolist()
        total = sum(found)
        if not total:
            return
        lines = []
        for (piece, start), count in zip(pieces, found, strict=True):
            if count and len(lines) < _SHOWN:
                lines += self._describe(piece, pattern, step, start, _SHOWN - len(lines))
        size = 8 * sum(block.numel() for block in self.blocks)
        raise AssertionError(f"{what}: {total} wrong words in {size} bytes:\n" + "\n".join(lines))

    def _describe(self, piece: torch.Tensor, pattern: Pattern, step: int, start: int, most: int) -> list[str]:
        """Return one line for each of the first wrong words of a slice. The words are read again."""
        expected = self.scratch[: piece.numel()]
        pattern(expected, step, start, piece.data_ptr())
        places = torch.ne(piece, expected).nonzero().flatten()[:most]
        if not places.numel():
            return [f"in the slice at byte {8 * start}: reading it again found no wrong word"]
        rows = zip(places.tolist(), piece[places].tolist(), expected[places].tolist(), strict=True)
        return [word_line(piece.data_ptr() + 8 * at, 8 * (start + at), wanted, found) for at, found, wanted in rows]


def word_line(address: int, offset: int, expected: int, found: int) -> str:
    """Return a line about one wrong word: its place, the expected and found values, and the bits that differ."""
    differ = (expected ^ found) % (1 << 64)
    bits = ", ".join(str(bit) for bit in range(64) if differ >> bit & 1)
    return (
        f"address {address:#x} (byte {offset}): expected {expected % (1 << 64):#018x}, "
        f"found {found % (1 << 64):#018x}, flipped bits {bits}"
    )
