"""The warm process: collects the cases once, and forks for each mutant.

Command line: ``python -m tests.breaks.mutants.warm PLAN``, with a JSON file that `campaign.Plan` describes.
The process appends one line of JSON per mutant to the file of results. Mutants that are already in the file do not run
again.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from harness.backends.table import BACKENDS
from harness.executor.session import CollectedSession
from harness.sim.native import provider
from harness.zygote.collecting import collect_cases, freeze_baseline, import_preload
from harness.zygote.spec import ZygoteSpec
from tests.breaks.breaks import Break
from tests.breaks.engine import Observed, judge
from tests.breaks.mutants.applying import Functions, apply, living_functions
from tests.breaks.mutants.mutant import Mutant
from tests.breaks.mutants.reach import NEAR, in_order
from tests.breaks.mutants.results import MutantResult, read_results
from tests.breaks.mutants.trial import run_in_fork


class Warm:
    """Runs the mutants of a plan, in order."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._root = Path(plan["root"])
        self._backend = BACKENDS[plan["device"]]
        self._library: str = plan["library"]
        self._mutants = [(Mutant.from_json(values), tuple(cases)) for values, cases in plan["mutants"]]
        self._seconds: dict[str, float] = plan["seconds"]
        self._limit: float = plan["limit"]
        self._until: float = time.time() + plan["time"]
        self._results = Path(plan["results"])
        self._sound: dict[str, bool] = {}
        self._killers: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def serve(self, collected: CollectedSession) -> NoReturn:
        """Run all mutants, and end the process."""
        for path in {mutant.path for mutant, _ in self._mutants}:
            name = Mutant(path, "", 0, 0, "", 0, 0, "", "").module
            # A module may need something that the machine lacks; its mutants are then unfit. Cases turn warnings into
            # errors.
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(name)
        gc.unfreeze()
        functions = living_functions({self._root / mutant.path for mutant, _ in self._mutants})
        freeze_baseline(collected)
        done = {result.mutant.name for result in read_results(self._results)} if self._results.exists() else set()
        with self._results.open("a", encoding="utf-8") as file:
            for mutant, cases in self._mutants:
                if time.time() > self._until:
                    break
                if mutant.name in done:
                    continue
                result = self._result(collected, functions, mutant, [case for case in cases if case in collected.items])
                file.write(json.dumps(result.to_json()) + "\n")
                file.flush()
        sys.stdout.flush()
        os._exit(0)

    def _result(
        self, collected: CollectedSession, functions: Functions, mutant: Mutant, cases: list[str]
    ) -> MutantResult:
        begin, file = time.monotonic(), self._root / mutant.path
        killers = self._killers[f"{mutant.path}:{mutant.function}"]
        while True:
            usable = [case for case in cases if self._sound.get(case, True)]
            first = [*(case for case, _ in killers.most_common(3)), *usable[:NEAR]]
            order = tuple(in_order(usable, self._seconds, first, self._limit))
            entry = Break(
                mutant.name,
                mutant.sentence,
                order,
                apply=functools.partial(apply, mutant, file, functions),
                device=self._backend.kind,
            )
            seen = self._run(collected, entry) if order else Observed(unfit="no case is sound")
            result = judge(entry, order, seen)
            if all(self._is_sound(collected, case) for case in result.noticed_by):
                break
        killers.update(result.noticed_by.keys())
        texts = {case: end.text for case, end in seen.red.items()}
        return MutantResult.of(mutant, result, texts, len(cases), time.monotonic() - begin)

    def _is_sound(self, collected: CollectedSession, case: str) -> bool:
        """Return whether a case passes here without a mutant. This is tried once per case."""
        if case not in self._sound:
            seen = self._run(collected, Break("", "nothing", (case,), device=self._backend.kind))
            self._sound[case] = not (seen.red or seen.unfit)
        return self._sound[case]

    def _run(self, collected: CollectedSession, entry: Break) -> Observed:
        return run_in_fork(collected, self._backend, self._enter, entry, self._seconds)

    def _enter(self) -> None:
        if self._library:
            provider.provider_of(self._backend).enter(self._library)


def collect_and_serve(plan: dict[str, Any], serve: Callable[[CollectedSession], NoReturn]) -> NoReturn:
    """Import torch and collect the cases of a plan in this process, which `serve` ends."""
    spec = ZygoteSpec(
        args=(),
        collection_args=tuple(plan["arguments"]),
        rootdir=plan["rootdir"],
        inifile=plan["inifile"],
        sys_path=tuple(sys.path),
        preload=("torch", "numpy.random"),
        parent=os.getppid(),
        skip_early_exit_handlers=False,
        many_forks=True,
    )
    status = collect_cases(spec, import_preload(spec), functools.partial(_serve, serve))
    raise SystemExit(f"the cases cannot be collected: pytest ended with exit status {status}")


def _serve(serve: Callable[[CollectedSession], NoReturn], collected: CollectedSession) -> NoReturn:
    try:
        serve(collected)
    except BaseException:  # noqa: BLE001 - nothing may return into pytest
        sys.excepthook(*sys.exc_info())
        os._exit(1)


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    collect_and_serve(given, Warm(given).serve)
