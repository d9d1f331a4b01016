"""Patterns in the device's memory, on a real GPU in nearly all of the free memory: each word keeps what was written.

The words are written and checked on the device. A wrong word is reported with its address, its expected and found
values, and the bits that differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ..sizes import SIZES
from .patterns import INVERTED, PATTERNS, Memory, rows, word_line
from .rounds import rounds

pytestmark = [pytest.mark.serial, pytest.mark.endurance]
FULL = pytest.mark.parametrize("full", SIZES)

#: The words of the small memory; the words of a block of the full memory, 1 GiB; the fraction of the free memory that
#: is used.
SMALL, BLOCK, PART = 1 << 16, 1 << 27, 0.9
#: The number of reads of a row before its neighbours are checked.
READS, READS_SMALL = 256, 8


@pytest.fixture
def memory(device: torch.device, full: bool) -> Iterator[Memory]:
    if full:
        torch.cuda.empty_cache()
        words = int(torch.cuda.mem_get_info(device)[0] * PART) // 8
        yield Memory.take(device, words, BLOCK)
        torch.cuda.empty_cache()
    else:
        yield Memory.take(device, SMALL, SMALL // 2)


def _patterns() -> list[Any]:
    """Return the patterns and sizes.

    Nearly all of 141 GB takes 20 to 40 s for 64 steps; no other case has the GPU then.
    """
    found = []
    for name, (_, steps) in PATTERNS.items():
        for size in SIZES:
            marks = [*size.marks, *([pytest.mark.extended] if size.values == (True,) and steps > 2 else [])]
            found.append(pytest.param(name, *size.values, id=f"{name}-{size.id}", marks=marks))
    return found


@pytest.mark.parametrize(("name", "full"), _patterns())
def test_memory_keeps_a_pattern(memory: Memory, endurance: float, name: str) -> None:
    """Every word of the memory has the value that was written, for each step of the pattern."""
    pattern, steps = PATTERNS[name]

    for number in rounds(endurance):
        for step in range(number * steps, (number + 1) * steps):
            memory.write(pattern, step)
            memory.check(pattern, step, f"{name}, step {step}")


@FULL
@pytest.mark.parametrize("name", INVERTED)
def test_memory_keeps_moving_inversions(memory: Memory, endurance: float, name: str) -> None:
    """Passes upwards and downwards find, in each slice, the complement that the previous pass wrote (van de Goor)."""
    pattern = INVERTED[name]

    def complement(out: torch.Tensor, step: int, start: int, address: int) -> None:
        pattern(out, step, start, address)
        out.bitwise_not_()

    for number in rounds(endurance):
        memory.write(pattern, number)
        memory.invert(pattern, number, f"{name}, round {number}, up", down=False)
        memory.invert(complement, number, f"{name}, round {number}, down", down=True)
        memory.check(pattern, number, f"{name}, round {number}, at the end")


@FULL
@pytest.mark.parametrize("length", [128, 256, 1024], ids=["1KiB", "2KiB", "8KiB"])
def test_memory_keeps_rows_between_rows_that_are_read(
    memory: Memory, endurance: float, full: bool, length: int
) -> None:
    """Repeated reads of the two rows next to a row change no bit of the row between them (row hammering).

    Even and odd rows are read in turn and checked. Their bits are complements, which disturb each other most. Half of a
    block of 1 GiB is read before a row is read again, so that the device's caches do not answer in place of the memory.
    The neighbours of a row on a chip are not public, so the rows have three lengths.
    """
    pattern = rows(length)

    for number in rounds(endurance):
        memory.write(pattern, number)
        for which in (0, 1):
            memory.read_rows(length, which, READS if full else READS_SMALL)
            memory.check(pattern, number, f"rows of {8 * length} bytes, round {number}, rows {which} of 2 were read")


@FULL
def test_memory_keeps_copies_within_the_device(memory: Memory, endurance: float) -> None:
    """A copy of one part of the memory to another has every word of it."""
    pattern, _ = PATTERNS["random"]
    pieces = [piece for piece, _ in memory.slices()]
    pairs = [(a, b) for a, b in zip(pieces[::2], pieces[1::2], strict=False) if a.numel() == b.numel()]
    copies = Memory([target for _, target in pairs], memory.scratch, memory.wrong)

    for number in rounds(endurance):
        first = 0
        for source, target in pairs:
            pattern(source, number, first, 0)
            target.fill_(-1)
            target.copy_(source)
            first += source.numel()
        copies.check(pattern, number, f"copies, round {number}")


@FULL
def test_memory_check_reports_a_flipped_bit(memory: Memory) -> None:
    """Control: one flipped bit in the first, a middle or the last word is reported with its address, values and bit."""
    pattern, _ = PATTERNS["random"]
    memory.write(pattern, 1)
    pieces = memory.slices()
    words = [(pieces[0], 0), (pieces[len(pieces) // 2], 77), (pieces[-1], pieces[-1][0].numel() - 1)]

    for bit, ((piece, start), place) in enumerate(words, start=5):
        piece[place] ^= 1 << bit
        was = int(piece[place]) ^ 1 << bit
        expected = word_line(piece.data_ptr() + 8 * place, 8 * (start + place), was, was ^ 1 << bit)
        with pytest.raises(AssertionError) as caught:
            memory.check(pattern, 1, "the control")
        assert str(caught.value).endswith(f":\n{expected}")
        assert "the control: 1 wrong words in" in str(caught.value)
        piece[place] ^= 1 << bit

    memory.check(pattern, 1, "the control")
