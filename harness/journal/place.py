"""The place of a case: host, devices and suite, and the known facts about them. Pure functions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.backends.table import labels
from harness.core.caseid import shard_index
from harness.journal import environment
from harness.journal.events import MergedShard, RunStarted
from harness.journal.verdicts import Verdict


class Place(NamedTuple):
    """The place of a case. If `devices` is empty, the case used none of several devices of the run.

    `shard`: the text of the shard that ran it; empty unless the run was merged.
    """

    suite: str
    host: str
    devices: tuple[str, ...]
    shard: str = ""


class Places:
    """The places of a run. `facts`: the facts of environment.json; None without the file."""

    def __init__(
        self, runs: Sequence[RunStarted], shards: Sequence[MergedShard], facts: Mapping[str, Any] | None
    ) -> None:
        self._runs = runs
        self._times = [run.t for run in runs]
        self._shards = {shard.shard: shard for shard in shards}
        self._count = max((int(text.rpartition("/")[2]) for text in self._shards if _is_shard(text)), default=0)
        self._recorded = facts or {}

    def of(self, verdict: Verdict) -> Place:
        """Return the place of a case.

        It is that of the deciding attempt, else of the latest attempt, else the planned place.
        """
        if self._shards:
            text = f"{shard_index(verdict.case, self._count)}/{self._count}" if self._count else ""
            line = self._shards.get(text)
            return self._place(verdict, text, line)
        return self._place(verdict, "", self._run_of(verdict))

    def _place(self, verdict: Verdict, shard: str, where: MergedShard | RunStarted | None) -> Place:
        if where is None:
            return Place(verdict.suite, "", verdict.devices, shard)
        only = where.devices if len(where.devices) == 1 else ()
        return Place(verdict.suite, where.host, verdict.devices or only, shard)

    def _run_of(self, verdict: Verdict) -> RunStarted | None:
        """Return the part of the run that the case belongs to. A resumed run may continue on another host."""
        if len(self._runs) < 2:
            return self._runs[0] if self._runs else None
        attempt = verdict.decided or next(reversed(verdict.finishes), None)
        if attempt is None:
            return self._runs[-1]
        return self._runs[max(0, bisect_right(self._times, attempt.t) - 1)]

    def facts(self, place: Place) -> dict[str, str]:
        """Return the known facts of a place, by name. Unknown facts are left out."""
        recorded = self._environment(place)
        run = self._runs[-1] if self._runs else None
        identity = run.identity if run is not None else {}
        versions = recorded.get("versions")
        versions = versions if isinstance(versions, dict) else {}
        facts = {
            "device": self.device(place),
            "uuid": " ".join(uuid for uuid in place.devices if uuid != "cpu"),
            "driver": recorded.get("driver") or identity.get("driver"),
            "cuda": versions.get("cuda"),
            "cuda_driver": recorded.get("cuda_driver"),
            "torch": versions.get("torch") or identity.get("torch"),
        }
        return {name: str(value) for name, value in facts.items() if value and value != "none"}

    def device(self, place: Place) -> str:
        """Return a text for the devices of a place: their label if they are not GPUs, else the known names."""
        rows = {str(row.get("uuid")): str(row.get("name")) for row in environment.devices_of(self._environment(place))}
        return labels(place.devices) or ", ".join(dict.fromkeys(rows.get(uuid, uuid) for uuid in place.devices))

    def _environment(self, place: Place) -> Mapping[str, Any]:
        recorded = self._recorded
        shards = recorded.get("shards")
        if isinstance(shards, dict):
            of_shard = shards.get(place.shard)
            return of_shard if isinstance(of_shard, dict) else {}
        # The file describes the last part of a run.
        return recorded if not place.host or recorded.get("host") in (None, place.host) else {}


def _is_shard(text: str) -> bool:
    index, slash, count = text.partition("/")
    return bool(slash) and index.isdecimal() and count.isdecimal() and int(count) > 0
