"""Cases run round after round in one process that is there for nothing else: what grows with each of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from harness.checks.meters.table import Meters, Reading, growths
from harness.checks.origins import Origins, record_history

#: Bytes of malloc's that torch.jit keeps for good of each function that it has traced: 42 to 48 KiB were measured, a
#: module being several functions. One that was scripted takes 10 to 33.
KEPT = 48 << 10


class Rounds:
    """Measures the process that it is made in. What torch.jit is known to keep is not counted as malloc's."""

    def __init__(self) -> None:
        self._meters: Meters | None = None
        self._before: Reading | None = None
        self._compiled = 0
        self._history: Sequence[str] = ()
        self._origins: Origins | None = None

    def begin(self, *, counts: bool, history: Sequence[str]) -> None:
        """A round begins; with `history` it is to be told where growth of these meters in those that count is from.

        One that does not `count` is not measured. Those that do come last.
        """
        self._history = history if counts else ()
        if counts and self._meters is None:
            self._meters = Meters("full", freeze=not history)  # origins look at all that is new
            if history:
                record_history(history)
                self._origins = Origins()
            self._before, self._compiled = self._meters.read(), _functions_of_jit()

    def before_case(self) -> None:
        """A case is about to run."""
        if self._history:
            record_history(self._history)

    def after_case(self) -> dict[str, int]:
        """By meter, what has changed since the case before; nothing in a round that does not count."""
        if self._meters is None or self._before is None:
            return {}
        before, self._before = self._before, self._meters.read()
        compiled, self._compiled = self._compiled, _functions_of_jit()
        grown = growths(before, self._before)
        if (heap := grown.get("heap_bytes", 0)) > 0:
            grown["heap_bytes"] = max(0, heap - KEPT * (self._compiled - compiled))
        return grown

    def origins(self) -> Mapping[str, Sequence[str]]:
        """By meter, where what has come in all rounds that count is from. The process cannot be used afterwards."""
        return {} if self._origins is None else self._origins.of(self._history)


def _functions_of_jit() -> int:
    """How many functions torch.jit has compiled; 0 where this torch does not tell."""
    unit = getattr(sys.modules.get("torch.jit._state"), "_python_cu", None)
    functions = getattr(unit, "get_functions", None)
    return 0 if functions is None else len(functions())
