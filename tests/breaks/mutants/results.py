"""The results of mutants, and their file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.breaks.mutants.mutant import Mutant
from tests.breaks.table import Result, Verdict


@dataclass(frozen=True, slots=True)
class MutantResult:
    """The result of a mutant. `case` and `text`: the case that noticed it, and its failure.

    `ran` of the `reaching` cases ran.
    """

    mutant: Mutant
    verdict: Verdict
    case: str
    text: str
    ran: int
    reaching: int
    seconds: float

    @classmethod
    def of(
        cls, mutant: Mutant, result: Result, texts: Mapping[str, str], reaching: int, seconds: float
    ) -> MutantResult:
        """Return what is kept of a result. `texts`: by case, its failure."""
        case = next(iter(result.noticed_by), "")
        text = result.unusable or texts.get(case, "") or "".join([*result.stumbled.values()][-1:])
        return cls(mutant, result.verdict, case, text, len(result.ran), reaching, round(seconds, 3))

    def to_json(self) -> dict[str, Any]:
        return {
            "mutant": self.mutant.to_json(),
            "verdict": self.verdict,
            "case": self.case,
            "text": self.text,
            "ran": self.ran,
            "reaching": self.reaching,
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> MutantResult:
        return cls(**{**values, "mutant": Mutant.from_json(values["mutant"])})


def read_results(file: Path) -> list[MutantResult]:
    """Read the results. A line that a killed process did not finish is left out."""
    results = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        results.append(MutantResult.from_json(values))
    return results
