"""The facts of a run that every process of it must agree on."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any


def tuples(data: dict[str, Any]) -> dict[str, Any]:
    """The same fields, lists as tuples: what JSON makes of a tuple, undone."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


@dataclass(frozen=True, slots=True)
class RunContext:
    """One run, as its controller set it up. Times in seconds; folders as absolute paths.

    `args` are the arguments pytest was started with, in `invocation_dir`, and `overrides` those that make the same
    collection one for a zygote; ids of cases are relative to `rootdir`.
    `controller` is a process id. `plugin_argument` tells that the harness was named with ``-p`` and takes every test
    as a case. `device` is ``--device``; on software devices `inject` are the faults they are to have, as they are
    written, and `library` is the file of the built backend. `health`: GPUs are examined. `leak_check`: off, fast or
    full. `start`: auto, fork or cold, see `harness.zygote.spec`; `under`: the name of the wrapper round each test.
    `policy` is `harness.gating.policy.Policy` as JSON values.
    """

    run_id: str
    run_dir: str
    temp_dir: str
    rootdir: str
    invocation_dir: str
    args: tuple[str, ...]
    overrides: tuple[str, ...]
    sys_path: tuple[str, ...]
    preload: tuple[str, ...]
    seed: int
    isolation: str
    case_timeout: float
    timeout_multiplier: float
    fail_on_flaky: bool
    plugin_argument: bool
    controller: int
    zygote: str | None
    health: bool
    leak_check: str
    policy: dict[str, Any]
    device: str = "auto"
    inject: tuple[str, ...] = ()
    library: str | None = None
    start: str = "fork"
    under: str | None = None

    @property
    def journal(self) -> Path:
        return Path(self.run_dir) / "journal.ndjson"

    def with_zygote(self, address: str | None) -> RunContext:
        """The same run, its zygote at `address`."""
        return replace(self, zygote=address)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RunContext:
        return cls(**tuples(json.loads(text)))

    def reproduce(self, case: str, environment: Mapping[str, str | None]) -> str:
        """One shell line that runs `case` again alone, with the same seed, under `environment`."""
        return self._command([case], environment, ["--isolation=case"])

    def reproduce_leak(self, cases: Sequence[str], times: int, environment: Mapping[str, str | None]) -> str:
        """One shell line that runs these cases in one process, each so many `times`, and looks for what they leak."""
        options = ["--isolation=batch", "--leak-check=full", *([f"--repeat={times}"] if times > 1 else [])]
        return self._command(cases, environment, options)

    def _command(self, cases: Sequence[str], environment: Mapping[str, str | None], options: Sequence[str]) -> str:
        words = [f"{name}={shlex.quote(value)}" for name, value in environment.items() if value is not None]
        words += ["pytest", *(shlex.quote(self._location(case)) for case in cases), *options]
        words += [] if self.device == "auto" else [f"--device={self.device}"]
        words += [f"--inject={shlex.quote(each)}" for each in self.inject]
        words += [f"--start={self.start}"] if self.start == "cold" else []
        words += [f"--under={self.under}"] if self.under else []
        words += [f"--seed={self.seed}", "-n0"]
        if self.plugin_argument:
            words[-1:-1] = ["-p", "harness.plugin"]
        return " ".join(words)

    def _location(self, case: str) -> str:
        """A case as it is named in the folder that the run was started in."""
        path, separator, rest = case.partition("::")
        return os.path.relpath(os.path.join(self.rootdir, path), self.invocation_dir) + separator + rest
