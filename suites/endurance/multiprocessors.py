"""Kernels whose blocks report the multiprocessor on which they ran, and the errors that they found there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..kernels import _torch_private as private

#: The multiplier of a word's index. A word is the product plus the seed, modulo 2^64.
FACTOR = 0x9E3779B97F4A7C15
#: More multiprocessors than any GPU has.
ROOM = 1024
#: A block with this much shared memory shares its multiprocessor with few others, so that all multiprocessors get
#: blocks.
_SHARED = 40 << 10
_THREADS = 256

_COMMON = """
#ifdef __CUDA_ARCH__
__device__ unsigned multiprocessor() {
  unsigned number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}
#endif

// Per multiprocessor: the blocks that ran, the errors of their threads, and the first place with one.
__device__ void record(int room, unsigned errors, int place, unsigned* blocks, unsigned* wrong, int* first) {
  unsigned number = multiprocessor();
  if (number >= room) number = room - 1;
  if (threadIdx.x == 0) atomicAdd(&blocks[number], 1u);
  if (errors) {
    atomicAdd(&wrong[number], errors);
    atomicMin(&first[number], place);
  }
}
"""

READ = (
    _COMMON
    + """
// Each block reads all words.
extern "C" __global__ void read_words(const unsigned long long* words, int count, int seed, int room,
                                      unsigned* blocks, unsigned* wrong, int* first) {
  unsigned errors = 0;
  int place = count;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    if (words[i] == i * 0x9E3779B97F4A7C15ull + seed) continue;
    ++errors;
    if (i < place) place = i;
  }
  record(room, errors, place, blocks, wrong, first);
}
"""
)

COMPUTE = (
    _COMMON
    + """
// Integers and both types of floating point compute one sequence, all of whose terms each of them holds exactly.
extern "C" __global__ void compute(int steps, int seed, int room, unsigned* blocks, unsigned* wrong, int* first) {
  int whole = (threadIdx.x * 37 + seed) % 4096;
  float single = whole;
  double twice = whole;
  unsigned errors = 0;
  int place = steps;
  for (int i = 0; i < steps; ++i) {
    whole = (whole * 1021 + 17) % 4096;
    single = single * 1021.0f + 17.0f;
    single -= floorf(single * (1.0f / 4096.0f)) * 4096.0f;
    twice = twice * 1021.0 + 17.0;
    twice -= floor(twice * (1.0 / 4096.0)) * 4096.0;
    if (single == whole && twice == whole) continue;
    ++errors;
    if (i < place) place = i;
    single = twice = whole;
  }
  record(room, errors, place, blocks, wrong, first);
}
"""
)


@dataclass(frozen=True, slots=True)
class Found:
    """The records of the blocks of all launches so far, by multiprocessor number."""

    blocks: list[int]
    wrong: list[int]
    first: list[int]

    @property
    def seen(self) -> int:
        """Return the number of multiprocessors that ran a block."""
        return sum(count > 0 for count in self.blocks)

    def lines(self) -> list[str]:
        """Return one line per multiprocessor with an error."""
        return [
            f"multiprocessor {number}: {errors} errors in {blocks} blocks, the first at {first}"
            for number, (blocks, errors, first) in enumerate(zip(self.blocks, self.wrong, self.first, strict=True))
            if errors
        ]


class Multiprocessors:
    """Launches a kernel until each multiprocessor of the device has run a block of it."""

    def __init__(self, device: torch.device, source: str, name: str) -> None:
        self.device = device
        self.count = torch.cuda.get_device_properties(device).multi_processor_count
        self._kernel = private.compiled(source, name)

    def run(self, *arguments: Any, launches: int = 20) -> Found:
        """Launch at least once and at most `launches` times. The kernel's own arguments come first."""
        blocks, wrong = (torch.zeros(ROOM, dtype=torch.int32, device=self.device) for _ in range(2))
        first = torch.full((ROOM,), torch.iinfo(torch.int32).max, dtype=torch.int32, device=self.device)
        for _ in range(launches):
            self._kernel(
                grid=(4 * self.count, 1, 1),
                block=(_THREADS, 1, 1),
                args=[*arguments, ROOM, blocks, wrong, first],
                shared_mem=_SHARED,
            )
            found = Found(blocks.tolist(), wrong.tolist(), first.tolist())
            if found.seen >= self.count:
                break
        return found


def written(device: torch.device, count: int, seed: int) -> torch.Tensor:
    """Return the words that `read_words` expects. They are generated on the host, and copied."""
    signed = FACTOR - (1 << 64)
    return (torch.arange(count, dtype=torch.int64) * signed + seed).to(device)
