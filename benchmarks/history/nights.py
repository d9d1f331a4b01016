"""Generated nights of many machines, entered in batches. Regressions, flakes, gates and a slower case are planted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from harness.core.outcome import Outcome
from harness.fleet.record import fingerprint
from harness.fleet.store import KINDS, SCHEMA, sql, stages

#: The columns of the staging tables, with their types.
STAGES = stages()
#: The staged rows as those of a file.
ROWS = " UNION ALL BY NAME ".join(f"SELECT '{kind}' AS part, {SCHEMA} AS schema, * FROM stage_{kind}" for kind in KINDS)
DAY = 86_400
BEGIN = datetime(2025, 1, 1, 20, tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a history. `flakes`: the rate of flaky results. `gated`: the share of cases that a machine lacks."""

    nights: int
    machines: int
    cases: int
    flakes: float = 0.001
    gated: float = 0.1
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Plant:
    """A planted regression: cases `first` to `last` fail from night `begin` to night `end` on some machines."""

    message: str
    first: int
    last: int
    begin: int
    end: int
    machines: tuple[int, ...]


def plants(shape: Shape) -> list[Plant]:
    """A big and a small regression with a driver, one with a commit everywhere, and one that was fixed."""
    n, cases = shape.nights, shape.cases
    half = tuple(range(0, shape.machines, 2))
    every = tuple(range(shape.machines))
    return [
        Plant("RuntimeError: CUDA error: an illegal memory access at 0x{:x}", 0, cases // 20, n - 12, n, half),
        Plant("RuntimeError: cuBLAS returned status {}", cases // 4, cases // 4 + 5, n - 40, n, half[:2]),
        Plant("ValueError: expected {} streams", cases // 2, cases // 2 + 20, n - 3, n, every),
        Plant("RuntimeError: graph {} was not captured", cases // 3, cases // 3 + 50, n // 3, n // 3 + 20, every[:3]),
    ]


class Generator:
    """Makes the rows of runs as columns."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._random = np.random.default_rng(shape.seed)
        self.cases = np.array(
            [f"suites/s{i % 24}/test_f{i % 300}.py::test_case[{i}]" for i in range(shape.cases)], dtype=object
        )
        self._suites = np.array([f"s{i % 24}" for i in range(shape.cases)], dtype=object)
        self._memory = self._random.lognormal(16, 1.5, shape.cases)
        self._seconds = self._random.lognormal(-3, 1.2, shape.cases)
        self._gated = self._random.random((shape.machines, shape.cases)) < shape.gated
        self._plants = plants(shape)
        self.troubles = 0

    def driver(self, night: int, machine: int) -> str:
        """Half of the machines got the new driver on the night of the first planted regression."""
        return "595.10" if machine % 2 == 0 and night >= self.shape.nights - 12 else f"580.{night // 60}"

    def columns(self, pairs: list[tuple[int, int]]) -> dict[str, dict[str, Any]]:
        verdicts: list[dict[str, Any]] = []
        troubles: dict[str, list[Any]] = {name: [] for name in STAGES["trouble"] if name != "place"}
        for night, machine in pairs:
            verdicts.append(self._verdicts(night, machine, troubles))
        names = np.array([self.run_id(*pair) for pair in pairs], dtype=object)
        self.troubles += len(troubles["run_id"])
        devices = np.array([self.device(machine) for _, machine in pairs], dtype=object)
        return {
            "run": self._runs(pairs),
            "verdict": {
                "run_id": np.repeat(names, self.shape.cases),
                "case": np.tile(self.cases, len(pairs)),
                "suite": np.tile(self._suites, len(pairs)),
                "device": np.repeat(devices, self.shape.cases),
                **{name: np.concatenate([each[name] for each in verdicts]) for name in verdicts[0]},
            },
            "trouble": {name: np.array(values, dtype=object) for name, values in troubles.items()},
            "device": {
                "run_id": names,
                "key": devices,
                "uuid": devices,
                "host": np.array([f"node{machine}" for _, machine in pairs], dtype=object),
                "name": np.array([model(machine) for _, machine in pairs], dtype=object),
                "kind": np.array(["cuda"] * len(pairs), dtype=object),
            },
            "health": _none("health"),
            "finding": _none("finding"),
        }

    def _verdicts(self, night: int, machine: int, troubles: dict[str, list[Any]]) -> dict[str, Any]:
        shape = self.shape
        outcome = np.full(shape.cases, Outcome.PASSED.value, dtype=object)
        outcome[self._random.random(shape.cases) < shape.flakes] = Outcome.FLAKY.value
        message: dict[int, str] = {int(i): f"RuntimeError: flake {i}" for i in np.flatnonzero(outcome == "flaky")}
        for plant in self._plants:
            if plant.begin <= night < plant.end and machine in plant.machines:
                outcome[plant.first : plant.last] = Outcome.FAILED.value
                message |= {i: plant.message.format(i + night) for i in range(plant.first, plant.last)}
        gated = self._gated[machine]
        outcome[gated] = Outcome.GATED.value
        seconds = self._seconds * self._random.normal(1, 0.05, shape.cases).clip(0.5)
        if night >= shape.nights - 15:
            seconds[7] += 1.0
        seconds[gated] = np.nan
        for i in np.flatnonzero(np.isin(outcome, ["failed", "flaky"])):
            self._trouble(troubles, night, machine, int(i), str(outcome[i]), message[int(i)])
        return {
            "outcome": outcome,
            "host_size": np.where(
                gated, np.nan, np.ceil(8 * np.log2(self._memory * self._random.normal(1, 0.02, shape.cases)))
            ),
            "device_size": np.where(gated, np.nan, np.ceil(8 * np.log2(self._memory))),
            "attempts": np.where(outcome == "flaky", 2, 1),
            "seconds": seconds,
            "reason": np.where(gated, "memory: wanted >=40GiB", "").astype(object),
        }

    def _trouble(
        self, troubles: dict[str, list[Any]], night: int, machine: int, case: int, outcome: str, message: str
    ) -> None:
        print_ = fingerprint(Outcome(outcome), message, "", str(self._suites[case]))
        row = {
            "run_id": self.run_id(night, machine),
            "case": self.cases[case],
            "outcome": outcome,
            "device": self.device(machine),
            "key": print_.key,
            "title": print_.title,
            "message": message,
            "stack": f"suites/test.py:{case}: RuntimeError",
            "reproduce": f"pytest '{self.cases[case]}' --seed={case}",
            "rule": "",
        }
        for name, value in row.items():
            troubles[name].append(value)

    def _runs(self, pairs: list[tuple[int, int]]) -> dict[str, Any]:
        rows = [self._run(*pair) for pair in pairs]
        numbers = {"DOUBLE": np.float64, "INTEGER": np.int64, "BOOLEAN": np.bool_}
        return {
            name: np.array([row[name] for row in rows], dtype=numbers.get(kind, object))
            for name, kind in STAGES["run"].items()
            if name in rows[0]
        }

    def _run(self, night: int, machine: int) -> dict[str, Any]:
        red = any(plant.begin <= night < plant.end and machine in plant.machines for plant in self._plants)
        texts = dict.fromkeys((name for name, kind in STAGES["run"].items() if kind == "VARCHAR"), "")
        return {
            **texts,
            "parts": "[]",
            "run_id": self.run_id(night, machine),
            "print": self.run_id(night, machine),
            "begun": BEGIN + night * DAY + machine,
            "run_seconds": 3600.0,
            "host": f"node{machine}",
            "model": model(machine),
            "driver": self.driver(night, machine),
            "cuda": "13.0",
            "torch": "2.13.0",
            "python": "3.11",
            "commit": f"{night:040x}",
            "profile": "nightly",
            "identity": json.dumps({"torch": "2.13.0", "--profile": "nightly"}),
            "exit_status": int(red),
            "dirty": False,
            "complete": True,
            "fail_on_flaky": False,
            "waivers": 0,
        }

    @staticmethod
    def run_id(night: int, machine: int) -> str:
        return f"night{night:04d}-node{machine:03d}"

    @staticmethod
    def device(machine: int) -> str:
        return f"GPU-{machine:08x}-0000-0000-0000-000000000000"


def model(machine: int) -> str:
    return ("NVIDIA H100", "NVIDIA A100", "NVIDIA L40S")[machine % 3]


def _none(name: str) -> dict[str, Any]:
    return {column: np.array([], dtype=object) for column in STAGES[name] if column != "place"}


def stage(database: Any, columns: dict[str, dict[str, Any]]) -> None:
    """Make the staging tables of runs. DuckDB scans arrays of numpy without a copy, and takes NaN as NULL."""
    database.execute(sql("stages"))
    for name, arrays in columns.items():
        database.register("staged", {**arrays, "place": np.arange(len(arrays["run_id"]))})
        database.execute(f"INSERT INTO stage_{name} BY NAME SELECT * FROM staged")
        database.unregister("staged")
