"""Measures the growth with each case when cases run in several rounds, in a process with no other use."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from harness.checks.batch import KeptMemory
from harness.checks.keeping import Keeps
from harness.checks.meters.table import MeterReader, MeterReading, meter_growths
from harness.checks.origins import GrowthOrigins, record_allocation_history

#: Bytes of malloc memory that torch.jit keeps forever for each function that it has traced. Measured: 42 to 48 KiB,
#: where a module is several functions. A scripted function takes 10 to 33 KiB.
JIT_BYTES_PER_FUNCTION = 48 << 10


class GrowthRounds:
    """Measures the current process. Subtracts the memory that torch.jit is known to keep from the malloc memory."""

    def __init__(self) -> None:
        self._meters: MeterReader | None = None
        self._before: MeterReading | None = None
        self._compiled = 0
        self._history: Sequence[str] = ()
        self._origins: GrowthOrigins | None = None
        self._kept = KeptMemory()

    def begin(self, *, counts: bool, history: Sequence[str]) -> None:
        """Begin a round. A round that does not `count` is not measured; the rounds that count come last.

        `history`: the meters whose growth in the counted rounds `origins` must explain.
        """
        self._history = history if counts else ()
        if counts and self._meters is None:
            # The search for origins examines all new objects, so they must not be frozen.
            self._meters = MeterReader("full", freeze=not history, without_arenas=True)
            if history:
                record_allocation_history(history)
                self._origins = GrowthOrigins()
            self._before, self._compiled = self._meters.read(), _functions_of_jit()

    def before_case(self) -> None:
        """Prepare for the next case."""
        if self._history:
            record_allocation_history(self._history)

    def after_case(self, *, keeps: Keeps | None) -> dict[str, int]:
        """Return the changes since the previous case, by meter. Empty in a round that does not count.

        With `keeps`, growth that the mark allows is left out.
        """
        if self._meters is None or self._before is None:
            return {}
        before, self._before = self._before, self._meters.read()
        compiled, self._compiled = self._compiled, _functions_of_jit()
        grown = meter_growths(before, self._before)
        if (heap := grown.get("heap_bytes", 0)) > 0:
            grown["heap_bytes"] = max(0, heap - JIT_BYTES_PER_FUNCTION * (self._compiled - compiled))
        return grown if keeps is None else self._kept.beyond(grown, keeps)

    def origins(self) -> Mapping[str, Sequence[str]]:
        """Return the origins of the growth in the counted rounds, by meter. The process cannot be used afterwards."""
        return {} if self._origins is None else self._origins.of(self._history)


def _functions_of_jit() -> int:
    """Return how many functions torch.jit has compiled; 0 if this release of torch does not provide the number."""
    unit = getattr(sys.modules.get("torch.jit._state"), "_python_cu", None)
    functions = getattr(unit, "get_functions", None)
    return 0 if functions is None else len(functions())
