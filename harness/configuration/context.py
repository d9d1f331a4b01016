"""The facts of a run that all its processes share."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from harness.backends.table import is_file
from harness.configuration.options import long_flag
from harness.configuration.rootdir import RootFolder
from harness.core.errors import convert_to_write_error
from harness.core.secrets import mask_command
from harness.gating.policy import Policy

#: The most cases that a shell line names one by one.
MOST_NAMED_CASES = 5


@dataclass(frozen=True, slots=True)
class RunContext:
    """One run, as its controller set it up. Times are in seconds; folders are absolute paths.

    - `args`: the arguments with which pytest was started in `invocation_dir`. `root_args`: the same arguments plus root
      folder and ini file, for every later process of the run. `overrides`: extra arguments for a zygote.
    - `rootdir`: the folder that case ids are relative to. `inifile`: None if there is none. `root_given`: the user
      named one of the two. `confcutdir` and `ini_values`: the user's ``--confcutdir`` and ``-o``.
    - `controller`: a process id. `zygote`: its address. `plugin_argument`: the user named the harness with ``-p``, so
      every test is a case.
    - `device`: the value of ``--device``. For software devices, `inject` holds the faults to inject as they were
      written, `library` is the file of the built backend, and `variables` must be in the environment of every process
      that runs cases from its start on.
    - `health`: GPUs are examined. `leak_check`: off, fast or full. `race_check`: the devices check the order of
      work. `leak_search`: the seconds that each worker may search for leaks, None for a share of the run's time.
      `start`: auto, fork or cold, see `harness.zygote.spec`. `under`: the name of the wrapper in which each test is
      called. `slots`: how many cases may use one GPU at the same time.
    - `shard`: the part of the cases that runs, ``I/N``; empty for all. `only`: the file with the ids that ``--from``
      selects. `resumption`: the file with the state of the run before it was resumed. Both are empty if unused.
    - `collect_on_failure`: the items of `harness.configuration.options.DIAGNOSTICS` that are collected when a case is
      red.
    - `node`: the name of this node, if the session is one of a cluster run; else empty.
    - `taken`: the short forms of the harness's options that other plugins have declared.
    - `carried`: those of the run's arguments that a reproduce line has, see `harness.configuration.arguments`.
    - `backend`: the registrations of ``--backend``.
    - `endurance`: the seconds of ``--endurance``.
    - `echo`: what cases print is shown at once (pytest's ``-s``).
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
    root_args: tuple[str, ...]
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
    leak_search: float | None
    race_check: bool
    policy: Policy
    device: str = "auto"
    inject: tuple[str, ...] = ()
    library: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    start: str = "fork"
    under: str | None = None
    slots: int = 1
    shard: str = ""
    only: str = ""
    resumption: str = ""
    collect_on_failure: tuple[str, ...] = ()
    node: str = ""
    taken: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    endurance: float = 0.0
    backend: tuple[str, ...] = ()
    echo: bool = False

    @property
    def journal(self) -> Path:
        return Path(self.run_dir) / "journal.ndjson"

    @property
    def root(self) -> RootFolder:
        return RootFolder(self.rootdir, self.inifile)

    def with_zygote(self, address: str | None) -> RunContext:
        """Return a copy of this context with the zygote at `address`."""
        return replace(self, zygote=address)

    def to_json(self) -> str:
        return json.dumps(msgspec.to_builtins(self))

    @classmethod
    def from_json(cls, text: str) -> RunContext:
        return msgspec.convert(json.loads(text), cls)

    def reproduce(self, case: str, file: Path, environment: Mapping[str, str | None], rules: Sequence[str] = ()) -> str:
        """Return the shell line that runs `case` of `file` alone, with the same id and seed, in `environment`.

        `rules`: options whose rules decided the case's outcome.
        """
        options = [self._flag(shlex.quote(option)) for option in (*rules, "--isolation=case")]
        return self._command([(case, file)], environment, options)

    def reproduce_leak(
        self, cases: Sequence[tuple[str, Path]], times: int, environment: Mapping[str, str | None], listed: Path
    ) -> str:
        """Return the shell line that runs these cases in one process, each `times` times, with the full leak check.

        `cases` are pairs of id and file. If there are more than `MOST_NAMED_CASES`, they are written into the file
        `listed`, which the line names. Raise WriteError.
        """
        options = ["--isolation=batch", "--leak-check=full", *([f"--repeat={times}"] if times > 1 else [])]
        options = [self._flag(option) for option in options]
        if len(cases) <= MOST_NAMED_CASES:
            return self._command(cases, environment, options)
        with convert_to_write_error(str(listed)):
            listed.parent.mkdir(parents=True, exist_ok=True)
            text = "".join(f"{self._argument(*option)}\n" for option in cases)
            listed.write_text(text, encoding="utf-8", errors="surrogateescape")
        return self._command(cases, environment, options, [f"@{self._from_here(listed)}"])

    def _flag(self, word: str) -> str:
        """Return an option of the harness in its short form.

        If another plugin has the short form, return the long one.
        """
        return long_flag(word) if word.partition("=")[0] in self.taken else word

    def _command(
        self,
        cases: Sequence[tuple[str, Path]],
        environment: Mapping[str, str | None],
        options: Sequence[str],
        arguments: Sequence[str] = (),
    ) -> str:
        """Return a shell line of pytest without secrets. `arguments` name the cases; by default each case is named."""
        given = mask_command(f"{name}={value}" for name, value in environment.items() if value is not None)
        words = [f"{name}={shlex.quote(value)}" for name, _, value in (word.partition("=") for word in given)]
        words.append("pytest")
        words += map(shlex.quote, arguments or [self._argument(*injection) for injection in cases])
        path, _, _ = cases[0][0].partition("::")
        words += [*self._root_options(cases[0][1], path), *map(shlex.quote, mask_command(self.carried)), *options]
        words += [self._flag(f"--backend={shlex.quote(name)}") for name in self.backend if is_file(name)]
        words += [] if self.device == "auto" else [self._flag(f"--device={self.device}")]
        words += [self._flag(f"--inject={shlex.quote(injection)}") for injection in self.inject]
        words += [self._flag(f"--start={self.start}")] if self.start == "cold" else []
        words += [self._flag(f"--under={self.under}")] if self.under else []
        words += [self._flag(f"--seed={self.seed}"), "-n0"]
        if self.plugin_argument:
            words[-1:-1] = ["-p", "harness.plugin"]
        return " ".join(words)

    def _argument(self, case: str, file: Path) -> str:
        """Return the argument of pytest that names a case."""
        _, separator, rest = case.partition("::")
        return self._from_here(file) + separator + rest

    def _root_options(self, file: Path, path: str) -> list[str]:
        """Return the options for the run's ini file, its conftest files, and the root folder of `path`.

        For a file outside the run's root folder, `path` is relative to the argument by which the file was collected.
        """
        root, confcutdir = self.root.root_of_id(file, path), self.confcutdir
        options = []
        if root != self.root or self.root_given or not root.found_from(file, Path(self.invocation_dir)):
            options += [] if root.inifile is None else ["-c", shlex.quote(self._from_here(root.inifile))]
            options.append(f"--rootdir={shlex.quote(self._from_here(root.folder))}")
        if root != self.root and root.inifile is None and confcutdir is None:
            confcutdir = self._from_here(self.rootdir)
        if confcutdir is not None:
            options.append(f"--confcutdir={shlex.quote(confcutdir)}")
        return [*options, *(f"-o{shlex.quote(value)}" for value in mask_command(self.ini_values))]

    def _from_here(self, path: str | Path) -> str:
        return os.path.relpath(path, self.invocation_dir)
