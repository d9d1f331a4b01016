"""Runs each case that draws random numbers with many seeds.

    python -m tests.ci.new_seeds suites/ --seeds 20 --seed 20261122 --workers 2 --results DIR

The first run notes which cases draw: they use the fixture `case_seed`, or change a generator of Python, NumPy or
torch's CPU. Further runs have as many copies of these cases as `--seeds` says. The last parameter of a copy is `seed0`
to `seedN`, and its seed follows from its id and the run's, as that of any case. Cases are not isolated.

This module is the script, and the plugin of pytest that it loads.

Exit status: 0 if no case is red, 1 if one is.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The most cases of one run, since each takes memory in each worker.
MOST_CASES = 50_000
_DRAWN, _SEEDS = "NEW_SEEDS_DRAWN", "NEW_SEEDS_COUNT"


def _states() -> tuple[object, ...]:
    """Return the states of the generators that the harness seeds for a case on the CPU."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    state = numpy.random.get_state() if numpy else None
    return (
        random.getstate(),
        state and (state[1].tobytes(), *state[2:]),
        torch and torch.default_generator.get_state().numpy().tobytes(),
    )


class DrawingRecorder:
    """Appends a line per case that draws to a file: the path of its file, and the id of its function."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seeded: tuple[object, ...] = ()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        """Read the states when the harness has seeded the generators, and no fixture has run."""
        self._seeded = _states()
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        yield
        if "case_seed" in getattr(item, "fixturenames", ()) or _states() != self._seeded:
            with self._path.open("a") as file:
                file.write(json.dumps([str(item.path), _function(item)]) + "\n")


class SeedCopies:
    """Keeps the functions that draw, with one case per seed."""

    def __init__(self, path: Path, seeds: int) -> None:
        self._functions, self._seeds = {name for _, name in drawn(path)}, seeds

    @pytest.hookimpl(trylast=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if metafunc.definition.nodeid in self._functions:
            metafunc.fixturenames.append("new_seed")
            metafunc.parametrize("new_seed", range(self._seeds), ids=[f"seed{each}" for each in range(self._seeds)])

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = [item for item in items if _function(item) in self._functions]
        left = [item for item in items if _function(item) not in self._functions]
        config.hook.pytest_deselected(items=left)
        items[:] = kept

    @pytest.fixture
    def new_seed(self, request: pytest.FixtureRequest) -> int:
        return int(request.param)


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def drawn(path: Path) -> Counter[tuple[str, str]]:
    """Return how many cases draw, by path and id of their function, from the file of a recorder."""
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter((file, name) for file, name in map(json.loads, lines))


def rounds(cases: int, seeds: int, most: int = MOST_CASES) -> list[int]:
    """Return the seeds of each run, so that no run has more than `most` cases, except for those of one seed."""
    each = max(1, most // max(1, cases))
    return [min(each, seeds - begun) for begun in range(0, seeds, each)]


def pytest_configure(config: pytest.Config) -> None:
    path = Path(os.environ[_DRAWN])
    seeds = int(os.environ.get(_SEEDS, 0))
    config.pluginmanager.register(SeedCopies(path, seeds) if seeds else DrawingRecorder(path))


def _run(paths: list[str], arguments: argparse.Namespace, name: str, seed: int, **named: str) -> bool:
    """Run pytest, and return whether a case is red."""
    results = arguments.results / name
    command = [sys.executable, "-m", "pytest", *paths, "-p", __spec__.name, "--isolation=none", f"--seed={seed}"]
    command += [f"-n{arguments.workers}", f"--results-dir={results}", "-q"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **named}, check=False).returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--workers", default="auto")
    parser.add_argument("--results", type=Path, required=True)
    arguments = parser.parse_args()
    noted = arguments.results.resolve() / "drawn.ndjson"
    noted.parent.mkdir(parents=True, exist_ok=True)
    named = {_DRAWN: str(noted)}
    red = [_run(arguments.paths, arguments, "first", arguments.seed, **named)]
    functions = drawn(noted)
    files = list(dict.fromkeys(file for file, _ in functions))
    cases = functions.total()
    for place, seeds in enumerate(rounds(cases, arguments.seeds)):
        if files:
            named = {_DRAWN: str(noted), _SEEDS: str(seeds)}
            red.append(_run(files, arguments, f"round{place}", arguments.seed + place, **named))
    print(f"new_seeds: {cases} cases of {len(files)} files draw; {arguments.seeds} seeds each; {sum(red)} red runs")
    return int(any(red))


if __name__ == "__main__":
    sys.exit(main())
