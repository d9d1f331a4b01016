"""Select and order the collected cases of a run, and tell which files need not be imported for that. Pure functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.caseid import Shard, suite_of
from harness.gating.patterns import literal_prefix, may_begin
from harness.gating.policy import Policy


def selected_positions(policy: Policy, ids: Sequence[str]) -> list[int]:
    """Return the positions in `ids` of the cases that the run's profile selects."""
    return [position for position, case_id in enumerate(ids) if policy.selects(case_id, suite_of(case_id))]


def shuffled_positions(ids: Sequence[str], seed: int) -> list[int]:
    """Return the positions of `ids` in a random order that `seed` determines.

    The relative order of two cases depends only on the seed and on their ids. It is the same in every worker, and also
    with fewer cases, for example during a bisection.
    """
    return sorted(range(len(ids)), key=lambda position: (_draw(seed, ids[position]), position))


def _draw(seed: int, case_id: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{case_id}".encode("utf-8", "backslashreplace")).digest()


# The selection of a run


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
        candidates = selected_positions(self.policy, ids)
        if self.only is None:
            selected = [position for position in candidates if position not in left_out]
        else:
            selected = [position for position in candidates if ids[position] in self.only]
        here = [position for position in selected if self.shard is None or self.shard.has(ids[position])]
        if self.policy.shuffle:
            here = [here[place] for place in shuffled_positions([ids[position] for position in here], self.seed)]
            here.sort(key=lambda position: position in apart)
        return Chosen(tuple(selected), tuple(here))


def read_ids(path: str) -> frozenset[str] | None:
    """Return the ids that `harness.scheduling.resume.EarlierRun.write` wrote; None without a path."""
    return frozenset(json.loads(Path(path).read_text(encoding="ascii"))) if path else None


# Which files and folders may have cases that a run selects, so that others need not be imported. Paths are those in
# case ids: with ``/``, relative to the root folder.


@dataclass(frozen=True, slots=True)
class Reach:
    """The files and folders that a profile and ``--only`` may select. In doubt, a file belongs to them.

    `beginnings`: how the ids of the cases begin that the profile's patterns match, or None for any case. `suites`: the
    profile's suites. `files`: the files of the cases of ``--only``, or None for any file.
    """

    beginnings: tuple[str, ...] | None = None
    suites: tuple[str, ...] = ()
    files: tuple[str, ...] | None = None

    @classmethod
    def of(cls, policy: Policy, only: Collection[str] | None) -> Reach:
        """Return the reach of a policy. `only`: the ids that may be selected; None for all."""
        everything = policy.suites is None and policy.cases is None
        return cls(
            None if everything else tuple(dict.fromkeys(map(literal_prefix, policy.cases or ()))),
            tuple(policy.suites or ()),
            None if only is None else tuple(sorted({case.partition("::")[0] for case in only})),
        )

    @property
    def is_everything(self) -> bool:
        return self.beginnings is None and self.files is None

    def has_file(self, path: str) -> bool:
        """Return whether a case of this file may be selected."""
        if self.files is not None and path not in self.files:
            return False
        return self.beginnings is None or suite_of(path) in self.suites or may_begin(f"{path}::", self.beginnings)

    def has_folder(self, path: str) -> bool:
        """Return whether a case below this folder may be selected."""
        folder = f"{path}/"
        if self.files is not None and not any(file.startswith(folder) for file in self.files):
            return False
        return self.beginnings is None or bool(self.suites) or may_begin(folder, self.beginnings)
