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
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness.backends.table import BACKENDS
from harness.executor.session import CollectedSession
from harness.sim.interposer import front
from harness.sim.native import faults, provider
from harness.zygote.collecting import freeze_baseline
from tests.breaks.breaks import Break, BreakError
from tests.breaks.catalogue import catalogue
from tests.breaks.engine import Observed, Red
from tests.breaks.mutants import applying, campaign
from tests.breaks.mutants.mutant import Mutant
from tests.breaks.mutants.trial import run_in_fork
from tests.breaks.mutants.warm import collect_and_serve
from tests.breaks.search import generated
from tests.breaks.search.order import Rarity, Reach, breaks_to_try
from tests.breaks.search.recorder import ReachPlugin
from tests.breaks.search.results import Tried, read_tried

#: The least time limit of a case with a break, in seconds. One that exceeds it is red by no check.
PATIENCE = 4.0


class Search:
    """Tries breaks for the functions of a plan, in order."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._root = Path(plan["root"])
        self._backend = BACKENDS[plan["device"]]
        self._library: str = plan["library"]
        self._functions: dict[str, list[str]] = plan["functions"]
        self._others: list[str] = plan["others"]
        self._seconds: dict[str, float] = plan["seconds"]
        self._most: int = plan["most"]
        self._limit: float = plan["limit"]
        self._until: float = time.time() + plan["time"]
        self._results = Path(plan["results"])
        self._reached = Path(plan["reached"])
        self._given: dict[str, list[str]] = plan["given"]
        self._collected: CollectedSession
        self._living: applying.Functions = {}
        self._names: dict[int, str] = {}
        self._attributes: dict[str, list[str]] = {}
        self._of_functions: dict[str, list[tuple[Any, str]]] = {}
        self._of_attributes: dict[str, Any] = {}
        self._sound: dict[str, bool] = {}
        self._mutants: dict[str, list[Mutant]] = {}
        self._named: dict[str, Mutant] = {}
        self._catalogue = [
            entry for entry in catalogue().values() if entry.device == self._backend.kind and entry.apply
        ]
        self._faults = (
            list(faults.fault_catalogue(self._backend.kind))
            if self._backend.kind in faults.injectable_kinds() and self._backend.kind != "cuda"
            else []
        )
        self._useful: Counter[tuple[str, str]] = Counter()

    def serve(self, collected: CollectedSession) -> NoReturn:
        """Try breaks for all functions, and end the process."""
        gc.unfreeze()
        self._collected = collected
        self._of_functions = generated.functions()
        self._of_attributes = generated.attributes()
        self._names = generated.names_of_functions(self._of_functions)
        for name in self._of_attributes:
            self._attributes.setdefault(name.rpartition(".")[2], []).append(name)
        self._living = applying.living_functions(self._root.glob("torch/**/*.py"))
        freeze_baseline(collected)
        reaches = self._all_reached()
        rarity = Rarity(reaches.values())
        done = {tried.function for tried in read_tried(self._results)}
        for function, cases in self._functions.items():
            if function in done:
                continue
            if time.time() > self._until:
                break
            tried = self._tried(function, [case for case in cases if case in collected.items], reaches, rarity)
            with self._results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(tried.to_json()) + "\n")
        sys.stdout.flush()
        os._exit(0)

    def _all_reached(self) -> dict[str, Reach]:
        """Return what the first case of each function reaches, and the others. What is recorded already is kept."""
        reaches: dict[str, Reach] = {}
        if self._reached.exists():
            for line in self._reached.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                reaches[record["case"]] = Reach.from_json(record)
        with self._reached.open("a", encoding="utf-8") as file:
            for case in dict.fromkeys([*(cases[0] for cases in self._functions.values()), *self._others]):
                if case not in reaches and case in self._collected.items:
                    record = self._record(case)
                    reaches[case] = Reach.from_json(record)
                    file.write(json.dumps(record) + "\n")
        return reaches

    def _record(self, case: str) -> dict[str, Any]:
        """Run a case with the recorder, and return the record, which is empty if the process ended."""
        target = self._results.with_name("record.json")
        target.unlink(missing_ok=True)

        def register() -> None:
            plugin = ReachPlugin(target, str(self._root), self._names, self._attributes)
            self._collected.session.config.pluginmanager.register(plugin)

        self._run(case, register, patience=60.0)
        if target.exists():
            record: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
            return record
        return {"case": case, "lines": {}, "operators": [], "functions": [], "attributes": []}

    def _tried(self, function: str, cases: Sequence[str], reaches: dict[str, Reach], rarity: Rarity) -> Tried:
        """Try breaks for a function, with its first case that is sound."""
        begin, tries, sound = time.monotonic(), Counter[str](), False
        for case in cases:
            reach = reaches[case] if case in reaches else Reach.from_json(self._record(case))
            for name in self._breaks(function, case, reach, rarity):
                if time.monotonic() - begin > self._limit:
                    break
                red = self._red(name, case)
                tries["unfit" if red is None else "green" if not red.text else "checked" if red.checked else "red"] += 1
                if red is not None and red.checked:
                    if not self._is_sound(case):
                        break
                    self._useful[function.partition("::")[0], name] += 1
                    seconds = time.monotonic() - begin
                    return Tried(function, case, name, red.text, dict(tries), round(seconds, 2))
            sound = sound or self._is_sound(case)
            if sound:
                break
        seconds = time.monotonic() - begin
        return Tried(
            function, cases[0] if cases else "", "", "" if sound else "unsound", dict(tries), round(seconds, 2)
        )

    def _breaks(self, function: str, case: str, reach: Reach, rarity: Rarity) -> list[str]:
        if function in self._given:
            return self._given[function]
        file = function.partition("::")[0]
        made = breaks_to_try(case, reach, rarity, self._mutants_of, self._most)
        for each in made:
            if isinstance(each, Mutant):
                self._named[_name_of(each)] = each
        names = [_name_of(each) if isinstance(each, Mutant) else each for each in made]
        mine = [entry for entry in self._catalogue if any(file.startswith(suite) for suite in entry.suites)]
        written = [
            entry.name
            for entry in sorted(mine, key=lambda entry: (min(map(len, entry.suites)) < len(file), entry.name))
        ]
        injected = [f"fault {name}" for name in self._faults]
        whole = [*written[:8], *names, *written[8:40], *injected]
        return sorted(whole, key=lambda name: -self._useful[file, name] if name.startswith("fault ") else 0)

    def _mutants_of(self, path: str) -> list[Mutant]:
        if path not in self._mutants:
            try:
                self._mutants[path] = campaign.mutants_of_file(path, self._root / path, os.environ)
            except (BreakError, SyntaxError):
                self._mutants[path] = []
        return self._mutants[path]

    def _red(self, name: str, case: str) -> Red | None:
        """Run a case with a break. Return its end, with an empty text if it was green, or None if it did not run."""
        try:
            apply = self._applied(name)
        except BreakError:
            return None
        seen = self._run(case, apply, patience=PATIENCE)
        if seen.unfit:
            return None
        return seen.red.get(case, Red("passed"))

    def _applied(self, name: str) -> Callable[[], object]:
        """Return the function that makes a break. Raise BreakError."""
        kind, _, rest = name.partition(" ")
        if kind == "operator":
            return generated.operator_break(rest, self._backend.kind)
        if kind == "function":
            return generated.function_break(rest, self._of_functions)
        if kind == "attribute":
            return generated.attribute_break(rest, self._of_attributes)
        if kind == "fault":
            return lambda: self._inject(rest)
        if kind == "mutant":
            mutant = self._mutant(rest)
            return lambda: applying.apply(mutant, self._root / mutant.path, self._living)
        entry = next((entry for entry in self._catalogue if entry.name == name), None)
        if entry is None or entry.apply is None:
            raise BreakError(f"there is no break named {name!r}")
        return entry.apply

    def _mutant(self, words: str) -> Mutant:
        name = f"mutant {words}"
        if name not in self._named:
            self._named.update({_name_of(each): each for each in self._mutants_of(words.partition(":")[0])})
        if name not in self._named:
            raise BreakError(f"this release of torch has no {name!r}")
        return self._named[name]

    def _inject(self, name: str) -> None:
        if self._backend.kind == "soft":
            import torch

            torch.soft.inject(name)  # type: ignore[attr-defined]
        else:
            front.inject_into_this_process([name])

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


def _name_of(mutant: Mutant) -> str:
    return f"mutant {mutant.path}:{mutant.name}"


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    collect_and_serve(given, Search(given).serve)
