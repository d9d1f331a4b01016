"""Runs each case that draws random numbers with many seeds.

    python -m tests.ci.new_seeds suites/ --seeds 20 --seed 20261122 --workers 2 --results DIR
    python -m tests.ci.new_seeds suites/ --seeds 200 --seconds 30 --seed 20261122 --results DIR

The first run notes which cases draw: they use the fixture `case_seed`, or change a generator of Python, NumPy or
torch's CPU. Further runs have as many copies of these cases as `--seeds` says, or fewer if the copies of one file would
take longer than `--seconds`, by the times of the first run. The last parameter of a copy is `seed0` to `seedN`, and its
seed follows from its id and the run's, as that of any case. `copies.json` in the folder of the results has the number
of seeds by file.

Cases are not isolated, except that each suite has processes of its own. Those that need a process of their own, or
ranks, are left out. What is red in the first run does not count: cases run there that do not draw, and may disturb each
other.

Exit status: 0 if no copy is red, 1 if one is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The most cases of one run, since each takes memory in each worker.
MOST_CASES = 50_000
_DRAWN, _COPIES = "NEW_SEEDS_DRAWN", "NEW_SEEDS_COPIES"


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
    """Appends a line per case that draws to a file: the path of its file, the id of its function, and its seconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seeded: tuple[object, ...] = ()
        self._begun = 0.0

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left = [item for item in items if _needs_processes(item)]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not _needs_processes(item)]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        """Read the states when the harness has seeded the generators, and no fixture has run."""
        self._seeded, self._begun = _states(), time.monotonic()
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        yield
        if "case_seed" in getattr(item, "fixturenames", ()) or _states() != self._seeded:
            with self._path.open("a") as file:
                file.write(json.dumps([str(item.path), _function(item), time.monotonic() - self._begun]) + "\n")


class SeedCopies:
    """Keeps the functions that draw, with one case per seed. `functions`: the number of seeds by id."""

    def __init__(self, functions: Mapping[str, int]) -> None:
        self._functions = functions

    @pytest.hookimpl(trylast=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if seeds := self._functions.get(metafunc.definition.nodeid, 0):
            metafunc.fixturenames.append("new_seed")
            metafunc.parametrize("new_seed", range(seeds), ids=[f"seed{each}" for each in range(seeds)])

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = [item for item in items if _function(item) in self._functions]
        left = [item for item in items if _function(item) not in self._functions]
        config.hook.pytest_deselected(items=left)
        items[:] = kept

    @pytest.fixture
    def new_seed(self, request: pytest.FixtureRequest) -> int:
        return int(request.param)


def _needs_processes(item: pytest.Item) -> bool:
    """Return whether a case needs its own process, or several."""
    ranks = any("ranks" in mark.kwargs for mark in item.iter_markers("requires"))
    return ranks or item.get_closest_marker("own_process") is not None


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A function whose cases draw: its file, how many cases it has, and the seconds of all of them."""

    file: str
    cases: int
    seconds: float


def drawn(path: Path) -> dict[str, Drawing]:
    """Return the functions whose cases draw, by id, from the file of a recorder."""
    found: dict[str, Drawing] = {}
    for file, name, seconds in map(json.loads, path.read_text().splitlines() if path.exists() else []):
        before = found.get(name, Drawing(file, 0, 0.0))
        found[name] = Drawing(file, before.cases + 1, before.seconds + seconds)
    return found


def seeds_of_files(functions: Iterable[Drawing], seeds: int, seconds: float) -> dict[str, int]:
    """Return the number of seeds by file: at most `seeds`, at least one, and as many as fit in `seconds`."""
    taken: dict[str, float] = {}
    for function in functions:
        taken[function.file] = taken.get(function.file, 0.0) + function.seconds
    return {file: max(1, int(min(seeds, seconds / max(took, 1e-9)))) for file, took in taken.items()}


def by_folder(functions: Mapping[str, Drawing]) -> dict[Path, dict[str, Drawing]]:
    """Return the functions by the folder of their file: each suite has processes of its own."""
    found: dict[Path, dict[str, Drawing]] = {}
    for name, function in functions.items():
        found.setdefault(Path(function.file).parent, {})[name] = function
    return found


def rounds(functions: Mapping[str, Drawing], seeds: Mapping[str, int], most: int = MOST_CASES) -> list[dict[str, int]]:
    """Return the number of seeds by function of each run, so that no run has more than `most` cases.

    A run of one seed may have more.
    """
    left = {name: seeds[function.file] for name, function in functions.items()}
    found = []
    while left:
        each = max(1, most // sum(functions[name].cases for name in left))
        found.append({name: min(each, count) for name, count in left.items()})
        left = {name: count - each for name, count in left.items() if count > each}
    return found


def pytest_configure(config: pytest.Config) -> None:
    if _COPIES in os.environ:
        config.pluginmanager.register(SeedCopies(json.loads(Path(os.environ[_COPIES]).read_text())))
    else:
        config.pluginmanager.register(DrawingRecorder(Path(os.environ[_DRAWN])))


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
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--workers", default="auto")
    parser.add_argument("--results", type=Path, required=True)
    arguments = parser.parse_args()
    results = arguments.results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    noted = results / "drawn.ndjson"
    _run(arguments.paths, arguments, "first", arguments.seed, **{_DRAWN: str(noted)})
    red = []
    functions = drawn(noted)
    seeds = seeds_of_files(functions.values(), arguments.seeds, arguments.seconds)
    (results / "copies.json").write_text(json.dumps(seeds, indent=1))
    for folder, part in by_folder(functions).items():
        for place, copies in enumerate(rounds(part, seeds)):
            name = f"{folder.name}-round{place}"
            listed = results / f"{name}.json"
            listed.write_text(json.dumps(copies))
            files = list(dict.fromkeys(part[function].file for function in copies))
            red.append(_run(files, arguments, name, arguments.seed + place, **{_COPIES: str(listed)}))
    cases = sum(function.cases for function in functions.values())
    least, most = min(seeds.values(), default=0), max(seeds.values(), default=0)
    text = f"{most} seeds each" if least == most else f"{least} to {most} seeds each"
    print(f"new_seeds: {cases} cases of {len(seeds)} files draw; {text}; {sum(red)} red runs")
    return int(any(red))


if __name__ == "__main__":
    sys.exit(main())
