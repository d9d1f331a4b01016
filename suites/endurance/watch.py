"""The comparison of each result with a known one on the device, so that the host does not slow the device down.

The host reads the outcome of a whole batch of comparisons. It then finds the comparison with the first wrong element
and the value of the element, and reads the device's temperature, power and clocks.
"""

from __future__ import annotations

import torch

from ..gpu_readings import condition

#: Comparisons per batch.
BATCH = 32
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Watch:
    """Compares results with `expected`, bit by bit."""

    def __init__(self, expected: torch.Tensor, what: str) -> None:
        """Watch results of the work `what`, its name for messages. `expected`: a contiguous tensor."""
        device = expected.device
        self._expected = expected
        self._bits = _bits(expected)
        self._what = what
        self._done = 0
        self._wrong = torch.zeros(BATCH, dtype=torch.int64, device=device)
        self._where = torch.zeros(BATCH, dtype=torch.int64, device=device)
        self._found = torch.zeros(BATCH, dtype=self._bits.dtype, device=device)

    def compare(self, result: torch.Tensor) -> None:
        """Compare one more result. Raise AssertionError at the end of a batch that has a wrong result."""
        bits = _bits(result)
        slot = slice(self._done % BATCH, self._done % BATCH + 1)
        differ = torch.ne(bits, self._bits)
        torch.sum(differ, 0, keepdim=True, out=self._wrong[slot])
        # torch.argmax returns the first of equal maxima.
        torch.argmax(differ.view(torch.uint8), 0, keepdim=True, out=self._where[slot])
        torch.index_select(bits, 0, self._where[slot], out=self._found[slot])
        self._done += 1
        if self._done % BATCH == 0:
            self.conclude(BATCH)

    def conclude(self, count: int | None = None) -> None:
        """Evaluate the last comparisons, by default those since the last batch.

        Raise AssertionError for a wrong result.
        """
        count = self._done % BATCH if count is None else count
        wrong = self._wrong[:count].tolist()
        slot = next((number for number, elements in enumerate(wrong) if elements), None)
        if slot is None:
            return
        place = int(self._where[slot])
        index = [int(part) for part in torch.unravel_index(torch.tensor(place), self._expected.shape)]
        found = self._found[slot : slot + 1].view(self._expected.dtype).item()
        raise AssertionError(
            f"{self._what}: iteration {self._done - count + slot} has {wrong[slot]} wrong elements of "
            f"{self._expected.numel()}; element {index} is {found!r}, expected "
            f"{self._expected.flatten()[place].item()!r}; the device now: {condition(self._expected.device)}"
        )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as integers, in one dimension.

    A complex tensor must be passed through `torch.view_as_real`.
    """
    return tensor.view(_BITS[tensor.element_size()]).view(-1)
