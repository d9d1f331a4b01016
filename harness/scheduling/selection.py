"""Select the cases of a run from the collected ones: a pure function over ids."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.shard import Shard
from harness.gating.policy import Policy
from harness.scheduling import order


@dataclass(frozen=True, slots=True)
class Chosen:
    """The result, as positions in the list of collected cases. `selected`: cases of all shards. `here`: cases to run.

    `here` is in the order of the run.
    """

    selected: tuple[int, ...]
    here: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """The selection by profile and options. `seed` orders a shuffled run.

    `shard`: None for all parts. `only`: None for all cases.
    """

    policy: Policy
    seed: int
    shard: Shard | None = None
    only: frozenset[str] | None = None

    @classmethod
    def of(cls, policy: Policy, seed: int, shard: str, only: frozenset[str] | None = None) -> Selection:
        """Return the selection with the shard as text; an empty text is all parts."""
        return cls(policy, seed, Shard.parse(shard) if shard else None, only)

    def choose(self, ids: Sequence[str], left_out: Container[int] = (), apart: Container[int] = ()) -> Chosen:
        """Select from the collected cases. The shard is applied last, so that all shards agree on the whole.

        `left_out`: positions of cases that their marks leave out, unless `only` has them. `apart`: positions of cases
        that run in their own process. In a random order they come last, since each of them between two others would end
        an executor that has already loaded libraries for the next cases.
        """
        candidates = order.selected_positions(self.policy, ids)
        if self.only is None:
            selected = [position for position in candidates if position not in left_out]
        else:
            selected = [position for position in candidates if ids[position] in self.only]
        here = [position for position in selected if self.shard is None or self.shard.has(ids[position])]
        if self.policy.shuffle:
            here = [here[place] for place in order.shuffled_positions([ids[position] for position in here], self.seed)]
            here.sort(key=lambda position: position in apart)
        return Chosen(tuple(selected), tuple(here))


def read_ids(path: str) -> frozenset[str] | None:
    """Return the ids that `harness.scheduling.earlier_run.EarlierRun.write` wrote; None without a path."""
    return frozenset(json.loads(Path(path).read_text(encoding="ascii"))) if path else None
