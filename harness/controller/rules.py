"""The rules of a run: what its options and files decide, apart from the machine. Hosts with the same files agree.

The head of a cluster run reads them with a pytest of its own, so that no node can change them: in a session with
``--collect-only`` and the variable below, pytest writes them to a file and ends.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import gc
import hashlib
import json
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.collection.cases import NarrowCollection, select_cases
from harness.configuration import options
from harness.controller import plan, preparation
from harness.controller.plan import Plan
from harness.core import clock
from harness.core.garbage import no_automatic_collection
from harness.core.outcome import EXIT_OK
from harness.journal import identity
from harness.journal.events import MustPass, Waiver
from harness.scheduling.order import Reach, Selection
from harness.scheduling.resume import EarlierRun

#: The file to write.
VARIABLE = "HARNESS_RULES_FILE"
#: Settings that the journal has under other names, or that do not describe what was run.
_TOLD_ELSEWHERE = (
    *("seed", "isolation", "fail_on_flaky", "profile", "hardware", "results_dir", "progress", "shard", "resume"),
    *("force_resume", "history"),
)


def write_if_wanted(config: pytest.Config) -> None:
    """Write the rules and end the session, if another process asks for them. Raise pytest.UsageError."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    preparation.expect_arguments(config)
    made = plan.make(config)
    isolation, _ = preparation.isolation_of(config, made.settings)
    run = run_fields(made, seed=made.settings["seed"], isolation=isolation)
    lists = [msgspec.to_builtins(line) for line in list_lines(made)]
    written = {"run": run, "files": files_identity(config, made), "lists": lists}
    Path(path).write_text(json.dumps(written), encoding="ascii")
    pytest.exit("the rules are written", returncode=EXIT_OK)


def run_fields(made: Plan, *, seed: int, isolation: str) -> dict[str, Any]:
    """Return the fields of the `run` line that the rules decide, without those of `identity`."""
    return {
        "seed": seed,
        "isolation": isolation,
        "fail_on_flaky": made.settings["fail_on_flaky"],
        "profile": made.policy.profile,
        "hardware": made.policy.hardware,
        "minimum_cases": made.minimum_cases,
        "settings": {name: _plain(name, v) for name, v in made.settings.items() if name not in _TOLD_ELSEWHERE},
    }


def files_identity(config: pytest.Config, made: Plan) -> dict[str, str]:
    """Return the facts about files that must be equal if results are combined."""
    folders, files = suite_roots(
        [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args],
        config.getini("harness_suites"),
    )
    return identity.files_identity(
        suites=suite_digest(config.rootpath, folders, files, config.getini("norecursedirs")),
        waivers=msgspec.to_builtins(made.policy.waivers, enc_hook=repr),
        lists=[(must_pass.name, must_pass.hash) for must_pass in made.lists],
    )


def list_lines(made: Plan) -> list[MustPass | Waiver]:
    """Return the journal lines of the must-pass lists and the waivers."""
    now = clock.now()
    lists = [MustPass(t=now, name=listed.name, hash=listed.hash, ids=listed.ids) for listed in made.lists]
    waivers = msgspec.to_builtins(made.policy.waivers, enc_hook=repr)
    return [*lists, *(msgspec.convert({"t": now, **waiver}, Waiver) for waiver in waivers)]


def _plain(name: str, value: Any) -> str | int | float | bool | None:
    """Return a setting as a JSON value."""
    if isinstance(value, Path):
        return str(value)
    return f"{options.OPTIONS[name].separator} ".join(value) if isinstance(value, tuple) else value


_PYTHON = ".py"
#: Files that mark a folder as a virtual environment or a run directory, whose files belong to no suite.
_FOREIGN = ("pyvenv.cfg", "journal.ndjson")


def suite_roots(arguments: Iterable[Path], suites: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the folders of suites that a run with these arguments reaches, and the arguments that are in none of them.

    `arguments` and `suites` are existing or missing files and folders. The second list may have folders, too.
    """
    wanted = [Path(os.path.realpath(path)) for path in arguments]
    folders = [Path(os.path.realpath(path)) for path in suites]
    reached = [folder for folder in folders if any(_touch(path, folder) for path in wanted)]
    return reached, [path for path in wanted if not any(_touch(path, folder) for folder in folders)]


def _touch(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder) or folder.is_relative_to(path)


def suite_digest(base: Path, suites: Iterable[Path], others: Iterable[Path], skipped: Sequence[str] = ()) -> str:
    """Return ``sha256:`` and the hex digest of the names and contents of files.

    The files are all files below `suites`, and Python files of `others`. For a single file in `others`, the Python
    files beside it count as well, since they are its conftest and its helpers. Names are relative to `base`. Hidden
    files, caches, virtual environments, run directories, and folders whose name matches one of the patterns `skipped`
    do not count.
    """
    paths = {path for folder in suites for path in _below(folder, skipped)}
    for path in others:
        files = _below(path, skipped) if path.is_dir() else path.parent.glob(f"*{_PYTHON}")
        paths |= {file for file in files if file.suffix == _PYTHON}
    names = sorted((os.path.relpath(path, os.path.realpath(base)).replace(os.sep, "/"), path) for path in paths)
    whole = hashlib.sha256()
    for name, path in names:
        content = _content(path)
        if content is not None:
            whole.update(os.fsencode(name) + b"\0" + hashlib.sha256(content).digest())
    return f"sha256:{whole.hexdigest()}"


def _below(folder: Path, skipped: Sequence[str]) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        if parent != str(folder) and any(name in files for name in _FOREIGN):
            folders.clear()
            continue
        folders[:] = [name for name in folders if not _is_skipped(name, skipped)]
        yield from (Path(parent, name) for name in files if not name.startswith("."))


def _is_skipped(name: str, patterns: Sequence[str]) -> bool:
    return name == "__pycache__" or name.startswith(".") or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _content(path: Path) -> bytes | None:
    """Return the content of a regular file; None for everything else, and for unreadable files."""
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None


class ListingHooks:
    """Keeps the cases that a run would select; with ``--seed``, in the order of that run."""

    def __init__(self, config: pytest.Config) -> None:
        made = plan.make(config)
        seed: int | None = made.settings["seed"]
        policy = made.policy if seed is not None else dataclasses.replace(made.policy, shuffle=False)
        earlier = EarlierRun.of(made.settings, config.invocation_params.dir)
        only = None if earlier is None else frozenset(earlier.ids)
        self._selection = Selection.of(policy, seed or 0, made.settings["shard"], only)
        config.pluginmanager.register(NarrowCollection(Reach.of(policy, only)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        with no_automatic_collection():
            result = yield
        gc.freeze()  # pytest collects garbage several times at the end
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        select_cases(config, items, self._selection)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        options.leave_out_idle_hypothesis(session.config)
