"""The warm process of a search: for each test function, forks that break torch until one of its cases is red.

Command line: ``python -m tests.breaks.search.warm PLAN``, with a JSON file that `search.Plan` describes. A case is
recorded once, then runs with one break per fork. A break counts if a check of the case itself failed with it, and the
case passes in a fork without a break.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness.backends.table import BACKENDS
from harness.executor.session import CollectedSession
from harness.sim.native import faults, provider
from harness.zygote.collecting import freeze_baseline
from tests.breaks.breaks import Break, BreakError
from tests.breaks.engine import Observed, Red
from tests.breaks.mutants.trial import run_in_fork
from tests.breaks.mutants.warm import collect_and_serve
from tests.breaks.search import child
from tests.breaks.search.making import Making, names_of
from tests.breaks.search.order import Rarity, Reach, breaks_to_try, shared_words
from tests.breaks.search.recorder import ReachPlugin, Recorder, read_records
from tests.breaks.search.results import Tried, read_tried

#: So many functions are recorded before breaks are tried for them: places are rare among all recorded ones.
TOGETHER = 300
#: The least time limit of a case with a break, in seconds. One that exceeds it is red by no check.
PATIENCE = 4.0


class Search:
    """Tries breaks for the functions of a plan, in order."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._root = Path(plan["root"])
        self._backend = BACKENDS[plan["device"]]
        self._library: str = plan["library"]
        self._functions: dict[str, list[str]] = plan["functions"]
        self._seconds: dict[str, float] = plan["seconds"]
        self._most: int = plan["most"]
        self._limit: float = plan["limit"]
        self._until: float = time.time() + plan["time"]
        self._results = Path(plan["results"])
        self._reached = Path(plan["reached"])
        self._given: dict[str, list[str]] = plan["given"]
        self._collected: CollectedSession
        self._making = Making(self._backend.kind, self._root)
        self._attributes: dict[str, list[str]] = {}
        self._sound: dict[str, bool] = {}
        self._faults = (
            list(faults.fault_catalogue(self._backend.kind)) if self._backend.kind in faults.injectable_kinds() else []
        )
        self._useful: Counter[tuple[str, str]] = Counter()

    def serve(self, collected: CollectedSession) -> NoReturn:
        """Try breaks for all functions, and end the process."""
        gc.unfreeze()
        self._collected = collected
        for name in self._making.attributes:
            self._attributes.setdefault(name.rpartition(".")[2], []).append(name)
        self._making.know_living_functions()
        _ = self._making.functions, self._making.written  # once, for all forks
        freeze_baseline(collected)
        done = {tried.function for tried in read_tried(self._results)}
        known = {
            function: [case for case in cases if case in collected.items]
            for function, cases in self._functions.items()
            if function not in done
        }
        left = [function for function, cases in known.items() if cases]
        reaches = self._recorded()
        while left and time.time() < self._until:
            some, left = left[:TOGETHER], left[TOGETHER:]
            if not self._given:
                self._record_all([known[function][0] for function in some], reaches)
            rarity = Rarity(reaches.values())
            for function in some:
                if time.time() > self._until:
                    break
                tried = self._tried(function, known[function], reaches, rarity)
                with self._results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(tried.to_json()) + "\n")
        sys.stdout.flush()
        os._exit(0)

    def _recorded(self) -> dict[str, Reach]:
        """Return what an earlier call has recorded."""
        lines = self._reached.read_text(encoding="utf-8").splitlines() if self._reached.exists() else []
        records = [json.loads(line) for line in lines if line.endswith("}")]
        return {record["case"]: Reach.from_json(record) for record in records}

    def _record_all(self, cases: Sequence[str], reaches: dict[str, Reach]) -> None:
        """Record the cases that are not recorded yet."""
        with self._reached.open("a", encoding="utf-8") as file:
            for case in cases:
                if case not in reaches and time.time() < self._until:
                    record = self._record(case)
                    reaches[case] = Reach.from_json(record)
                    file.write(json.dumps(record) + "\n")
                    file.flush()

    def _record(self, case: str) -> dict[str, Any]:
        """Run a case with the recorder, and return what it reaches: nothing if its process was killed."""
        with tempfile.TemporaryDirectory(prefix="records-") as folder:

            def register() -> None:
                child.hand_down("", self._backend.kind, self._root, Path(folder))
                recorder = Recorder(self._making, self._root, Path(folder))
                self._collected.session.config.pluginmanager.register(ReachPlugin(recorder, self._attributes))

            seen = self._run(case, register, patience=60.0)
            if case in seen.passed:
                self._sound[case] = True
            return {"case": case, **read_records(Path(folder))}

    def _tried(self, function: str, cases: Sequence[str], reaches: dict[str, Reach], rarity: Rarity) -> Tried:
        """Try breaks for a function, with one of its cases after the other."""
        tries, begin = Counter[str](), time.monotonic()
        until = begin + self._limit
        for place, case in enumerate(cases, 1):
            names = self._given.get(function) or self._breaks(function, case, reaches, rarity)
            for name in names[: self._most // place]:
                if tries.total() >= self._most or time.monotonic() > until:
                    break
                red = self._red(name, case)
                tries["unfit" if red is None else "green" if not red.text else "checked" if red.checked else "red"] += 1
                if red is None or not red.checked:
                    continue
                if not self._is_sound(case):
                    break
                self._useful[function.partition("::")[0], name] += 1
                return Tried(function, case, name, red.text, dict(tries), round(time.monotonic() - begin, 2))
        text = "" if any(self._is_sound(case) for case in cases) else "red without a break"
        return Tried(function, cases[0], "", text, dict(tries), round(time.monotonic() - begin, 2))

    def _breaks(self, function: str, case: str, reaches: Mapping[str, Reach], rarity: Rarity) -> list[str]:
        """Return the breaks to try for a case, in order."""
        reach = reaches[case] if case in reaches else Reach.from_json(self._record(case))
        file = function.partition("::")[0]
        names = names_of(breaks_to_try(case, reach, rarity, self._making.mutants_of, self._most))
        mine = [each for each in self._making.written.values() if any(file.startswith(suite) for suite in each.suites)]
        written = sorted((each.name for each in mine), key=lambda name: (-shared_words(name, case), name))
        close = [name for name in written[:3] if shared_words(name, case) >= 2]
        injected = sorted((f"fault {name}" for name in self._faults), key=lambda name: -self._useful[file, name])
        half = self._most // 2
        return list(dict.fromkeys([*close, *names[:half], *injected[:half], *names[half:], *injected, *written]))

    def _red(self, name: str, case: str) -> Red | None:
        """Run a case with a break. Return its end, with an empty text if it was green, or None if it did not run."""
        try:
            make = self._making.made(name)
        except BreakError:
            return None

        def apply() -> None:
            make()
            child.hand_down(name, self._backend.kind, self._root, Path(os.devnull))

        seen = self._run(case, apply, patience=PATIENCE)
        if seen.unfit:
            return None
        return seen.red.get(case, Red("passed"))

    def _is_sound(self, case: str) -> bool:
        """Return whether a case passes here without a break. This is tried once per case."""
        if case not in self._sound:
            seen = self._run(case, None, patience=60.0)
            self._sound[case] = not (seen.red or seen.unfit)
        return self._sound[case]

    def _run(self, case: str, apply: Callable[[], object] | None, patience: float) -> Observed:
        entry = Break("", "nothing", (case,), apply, device=self._backend.kind)
        return run_in_fork(self._collected, self._backend, self._enter, entry, self._seconds, patience)

    def _enter(self) -> None:
        if self._library:
            provider.provider_of(self._backend).enter(self._library)


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    collect_and_serve(given, Search(given).serve)
