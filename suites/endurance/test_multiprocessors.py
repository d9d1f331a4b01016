"""Each multiprocessor reads and computes the same values. An error is reported with the number of the multiprocessor.

Products and copies of a library use as many multiprocessors as the library chooses, and a wrong element does not
identify the one that computed it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .multiprocessors import COMPUTE, READ, Multiprocessors, written
from .rounds import rounds

pytestmark = [
    pytest.mark.serial,
    pytest.mark.endurance,
    pytest.mark.requires(device="cuda", silicon=True, not_={"rocm": True}, cuda_toolkit=True, platform="linux-*"),
]

#: 64 MiB, more than the caches of a multiprocessor.
WORDS = 1 << 23
STEPS = 1 << 16


def test_each_multiprocessor_reads_what_was_written(
    device: torch.device, endurance: float, record_property: Callable[[str, object], None]
) -> None:
    """Blocks on each multiprocessor read every word of 64 MiB as it was written.

    Control: each of them finds a bit that is flipped afterwards, at its place.
    """
    processors = Multiprocessors(device, READ, "read_words")
    record_property("endurance.multiprocessors", processors.count)
    for number in rounds(endurance):
        words = written(device, WORDS, number)
        found = processors.run(words, WORDS, number)
        assert not found.lines(), "\n".join(found.lines())
        assert found.seen >= processors.count, f"{found.seen} of {processors.count} multiprocessors ran a block"

    words[WORDS // 3] ^= 1 << 40
    found = processors.run(words, WORDS, number)
    assert found.wrong == found.blocks
    assert {first for first, count in zip(found.first, found.wrong, strict=True) if count} == {WORDS // 3}


def test_each_multiprocessor_computes_alike_in_integers_and_floating_point(
    device: torch.device, endurance: float
) -> None:
    """A sequence that int32, float32 and float64 hold exactly is the same in each type, on each multiprocessor."""
    processors = Multiprocessors(device, COMPUTE, "compute")
    for number in rounds(endurance):
        found = processors.run(STEPS, number)
        assert not found.lines(), "\n".join(found.lines())
        assert found.seen >= processors.count, f"{found.seen} of {processors.count} multiprocessors ran a block"
