"""How well fingerprints separate faults: precision and recall of pairs of failures, on runs with known faults.

    python -m tests.breaks run --faults soft --suites suites --results-dir campaign -- -n 2
    python -m benchmarks.history.fingerprints campaign

Each folder of the campaign is a run with one fault. Of all pairs of failures in one group, precision is the share with
one fault; of all pairs with one fault, recall is the share in one group. `clean` and cases that did not run are
excluded.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from harness.core.outcome import Outcome
from harness.fleet.record import read_history_record
from harness.journal.journal import FILE_NAME


def pairs(number: int) -> int:
    return number * (number - 1) // 2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("campaign", type=Path)
    wanted = parser.parse_args()
    both: Counter[tuple[str, str]] = Counter()
    for journal in sorted(wanted.campaign.glob(f"*/{FILE_NAME}")):
        fault = journal.parent.name
        rows = read_history_record(journal.parent).rows["trouble"]
        found = [row for row in rows if row["outcome"].is_red and row["outcome"] not in (Outcome.NOT_RUN, Outcome.LOST)]
        groups = Counter(row["key"] for row in found)
        both.update({(fault, key): number for key, number in groups.items()})
        half, reached = 0, 0
        for number in sorted(groups.values(), reverse=True):
            if 10 * reached < 9 * len(found):
                reached += number
                half += 1
        print(f"{fault}: {len(found)} failures in {len(groups)} groups; 90 % of them in {half}")
    faults, keys = Counter[str](), Counter[str]()
    for (fault, key), number in both.items():
        faults[fault] += number
        keys[key] += number
    together = sum(map(pairs, both.values()))
    print(f"precision {together / max(1, sum(map(pairs, keys.values()))):.3f}")
    print(f"recall {together / max(1, sum(map(pairs, faults.values()))):.3f}")


if __name__ == "__main__":
    main()
