"""The facts of a run that every process of it must agree on."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.rootdir import Root


def tuples(data: dict[str, Any]) -> dict[str, Any]:
    """The same fields, lists as tuples: what JSON makes of a tuple, undone."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


@dataclass(frozen=True, slots=True)
class RunContext:
    """One run, as its controller set it up. Times in seconds; folders as absolute paths.

    `args` are the arguments pytest was started with, in `invocation_dir`; `told_args` are the same with the root folder
    and the ini file said, which every later process of the run takes; `overrides` make the same collection one for a
    zygote. Ids of cases are relative to `rootdir`; `inifile` is None where there is none. `root_given`: the user named
    one of the two; `confcutdir` and `ini_values`: what the user gave with ``--confcutdir`` and ``-o``.
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
    inifile: str | None
    root_given: bool
    confcutdir: str | None
    ini_values: tuple[str, ...]
    invocation_dir: str
    args: tuple[str, ...]
    told_args: tuple[str, ...]
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

    @property
    def root(self) -> Root:
        return Root(self.rootdir, self.inifile)

    def with_zygote(self, address: str | None) -> RunContext:
        """The same run, its zygote at `address`."""
        return replace(self, zygote=address)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RunContext:
        return cls(**tuples(json.loads(text)))

    def reproduce(self, case: str, file: Path, environment: Mapping[str, str | None]) -> str:
        """One shell line that runs `case` of `file` again alone, with the same id and seed, under `environment`."""
        return self._command([(case, file)], environment, ["--isolation=case"])

    def reproduce_leak(
        self, cases: Sequence[tuple[str, Path]], times: int, environment: Mapping[str, str | None]
    ) -> str:
        """One shell line that runs these cases in one process, each so many `times`, and looks for what they leak.

        `cases` are pairs of id and file.
        """
        options = ["--isolation=batch", "--leak-check=full", *([f"--repeat={times}"] if times > 1 else [])]
        return self._command(cases, environment, options)

    def _command(
        self, cases: Sequence[tuple[str, Path]], environment: Mapping[str, str | None], options: Sequence[str]
    ) -> str:
        words = [f"{name}={shlex.quote(value)}" for name, value in environment.items() if value is not None]
        words.append("pytest")
        for case, file in cases:
            path, separator, rest = case.partition("::")
            words.append(shlex.quote(self._from_here(file) + separator + rest))
        path, _, _ = cases[0][0].partition("::")
        words += [*self._root_options(cases[0][1], path), *options]
        words += [] if self.device == "auto" else [f"--device={self.device}"]
        words += [f"--inject={shlex.quote(each)}" for each in self.inject]
        words += [f"--start={self.start}"] if self.start == "cold" else []
        words += [f"--under={self.under}"] if self.under else []
        words += [f"--seed={self.seed}", "-n0"]
        if self.plugin_argument:
            words[-1:-1] = ["-p", "harness.plugin"]
        return " ".join(words)

    def _root_options(self, file: Path, path: str) -> list[str]:
        """The options that bring the run's ini file and conftest files, and the root folder that `path` leads from.

        That of a file outside the run's root folder leads from the argument it was collected by.
        """
        root, confcutdir = self.root.told_from(file, path), self.confcutdir
        options = []
        if root != self.root or self.root_given or not root.found_from(file, Path(self.invocation_dir)):
            options += [] if root.inifile is None else ["-c", shlex.quote(self._from_here(root.inifile))]
            options.append(f"--rootdir={shlex.quote(self._from_here(root.folder))}")
        if root != self.root and root.inifile is None and confcutdir is None:
            confcutdir = self._from_here(self.rootdir)
        if confcutdir is not None:
            options.append(f"--confcutdir={shlex.quote(confcutdir)}")
        return [*options, *(f"-o{shlex.quote(value)}" for value in self.ini_values)]

    def _from_here(self, path: str | Path) -> str:
        return os.path.relpath(path, self.invocation_dir)
