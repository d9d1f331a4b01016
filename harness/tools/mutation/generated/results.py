"""The results of mutants, and their file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.tools.mutation.generated.mutant import Mutant
from harness.tools.mutation.generated.trial import Trial

#: `stillborn`: cases were red, but only by errors of the mutant itself. `unfit`: the mutant could not be made.
Verdict = Literal["killed", "survived", "stillborn", "unfit"]


@dataclass(frozen=True, slots=True)
class MutantResult:
    """The result of a mutant. `case` and `text`: the case that caught it, and its failure.

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
    def of(cls, mutant: Mutant, trial: Trial, reaching: int, seconds: float) -> MutantResult:
        verdict: Verdict = "survived"
        if trial.unfit:
            verdict = "unfit"
        elif trial.red:
            verdict = "killed"
        elif trial.mistakes:
            verdict = "stillborn"
        return cls(mutant, verdict, trial.red, trial.unfit or trial.text, trial.ran, reaching, round(seconds, 3))

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
