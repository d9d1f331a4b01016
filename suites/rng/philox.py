"""The numbers that torch draws on a GPU, computed in NumPy: Philox4x32-10, and the assignment of threads to elements.

The algorithm is by Salmon, Moraes, Dror and Shaw (2011), who published test vectors; see `tests/suites/test_philox.py`.
The headers of torch and cuRAND document how a kernel's threads share the work and convert their numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_BLOCK = 256

Words = np.ndarray[Any, np.dtype[np.uint64]]


def philox4x32(counter: Words, key: tuple[int, int], rounds: int = 10) -> Words:
    """Return four 32-bit numbers per counter. `counter` and the result have the shape (n, 4)."""
    words = [counter[:, i].astype(np.uint64) for i in range(4)]
    first, second = key
    for _ in range(rounds):
        low, high = (words[2 * i] * np.uint64(_MULTIPLIERS[i]) for i in range(2))
        words = [
            (high >> np.uint64(32)) ^ words[1] ^ np.uint64(first),
            high & np.uint64(_WORD),
            (low >> np.uint64(32)) ^ words[3] ^ np.uint64(second),
            low & np.uint64(_WORD),
        ]
        first, second = (first + _STEPS[0]) & _WORD, (second + _STEPS[1]) & _WORD
    return np.stack(words, axis=1)


def calls(device: torch.device, seed: int, offset: int, elements: int, per_call: int) -> Words:
    """Return the numbers that the threads of a kernel draw, in the shape (calls per thread, threads, 4).

    `per_call` is the number of elements that a thread makes from four numbers: 4 or 2. `offset` is the generator's
    offset before the call.
    """
    properties = torch.cuda.get_device_properties(device)
    resident = properties.multi_processor_count * (properties.max_threads_per_multi_processor // _BLOCK)
    threads = _BLOCK * min(-(-elements // _BLOCK), resident)
    count = -(-elements // (threads * per_call))
    counter = np.zeros((count, threads, 4), np.uint64)
    counter[:, :, 0] = (np.arange(count, dtype=np.uint64) + np.uint64(offset // 4))[:, None]
    counter[:, :, 2] = np.arange(threads, dtype=np.uint64)
    return philox4x32(counter.reshape(-1, 4), (seed & _WORD, seed >> 32)).reshape(counter.shape)


def by_element(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Reorder numbers of the shape (calls, threads, elements per call) by element: those of a call are a grid apart."""
    return numbers.transpose(0, 2, 1).reshape(-1)


def words(device: torch.device, seed: int, offset: int, elements: int, per_call: int) -> Words:
    """Return the number for each element: 32 bits, or 64 bits if a thread makes two elements from four numbers."""
    drawn = calls(device, seed, offset, elements, per_call)
    if per_call == 2:
        drawn = (drawn[:, :, 0::2] << np.uint64(32)) | drawn[:, :, 1::2]
    return by_element(drawn)[:elements]


def uniform(word: Words) -> torch.Tensor:
    """Return float32 numbers in (0, 1] from 32-bit numbers, before torch reverses the interval."""
    return torch.from_numpy(word.astype(np.float32)) * 2.0**-32 + 2.0**-33


def uniform_double(word: Words) -> torch.Tensor:
    """Return float64 numbers in (0, 1] from 64-bit numbers whose upper half was drawn first."""
    high, low = word >> np.uint64(32), word & np.uint64(_WORD)
    return torch.from_numpy((high ^ (low << np.uint64(21))).astype(np.float64)) * 2.0**-53 + 2.0**-54


def normal(drawn: Words) -> torch.Tensor:
    """Return normally distributed float64 numbers from the result of `calls`: each pair is a distance and an angle."""
    distance = np.sqrt(-2 * np.log(drawn[:, :, 0::2] * 2.0**-32 + 2.0**-33))
    angle = 2 * np.pi * (drawn[:, :, 1::2] * 2.0**-32 + 2.0**-33)
    made = np.stack([np.sin(angle) * distance, np.cos(angle) * distance], axis=3)
    return torch.from_numpy(by_element(made.reshape(drawn.shape)))
