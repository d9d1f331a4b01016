"""Decide which tests of a session are cases: all, those under some folders, or none.

A mark of the harness on a test that is no case has no effect, and one on a case may be invalid: both are reported.
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import fixtures, marks
from harness.configuration import options, values
from harness.core.errors import HarnessError
from harness.gating import requirements, waivers
from harness.marks import NAMES, declared_by_others
from harness.protocol import worker_messages

_SCOPE = pytest.StashKey["CaseScope"]()


class CaseScope:
    """The tests of one session that are cases. Symbolic links in paths are resolved before a comparison."""

    def __init__(self, config: pytest.Config) -> None:
        self.all = is_named_by_user(config) or options.is_any_option_set(config)
        folders = () if self.all else config.getini("harness_suites")
        self._folders = tuple(_resolved(folder) for folder in folders)
        if hasattr(config, "workerinput"):
            self.any = worker_messages.CONTEXT_KEY in config.workerinput
        else:
            self.any = self.all or self._reached(config)
        self._cases: dict[Path, bool] = {}
        self._config = config
        self._arguments: list[Path] | None = None

    @classmethod
    def of(cls, config: pytest.Config) -> CaseScope:
        """Return the scope of a session, computed once."""
        if _SCOPE not in config.stash:
            config.stash[_SCOPE] = cls(config)
        return config.stash[_SCOPE]

    def has(self, path: Path) -> bool:
        """Return whether the tests of this file are cases."""
        if path not in self._cases:
            self._cases[path] = self.any and (self.all or _resolved(path).startswith(self._folders))
        return self._cases[path]

    def id_outside_root(self, path: Path) -> str | None:
        """Return the id of a test file with cases that is outside of the root folder; None for others.

        pytest's own ids of such files are relative to the argument that led to them, and empty for an argument that is
        a file: with several arguments, several files have the same id.
        """
        root = self._config.rootpath
        if root in path.parents or not self.has(path):
            return None
        if self._arguments is None:
            self._arguments = [*_argument_paths(self._config)]
        return name_outside_root(path, root, [(entry, entry.is_dir()) for entry in self._arguments])

    def _reached(self, config: pytest.Config) -> bool:
        """Return whether an argument is inside one of the folders, or contains one."""
        if not self._folders:
            return False
        wanted = [_resolved(path) for path in _argument_paths(config)]
        return any(path.startswith(f) or f.startswith(path) for path in wanted for f in self._folders)


def name_outside_root(path: Path, root: Path, arguments: Sequence[tuple[Path, bool]]) -> str | None:
    """Return the name of a file relative to the common folder of all arguments outside of the `root` folder. Pure.

    `arguments`: each with whether it is a folder. None if the file is not below that folder.
    """
    folders = [
        entry if is_folder else entry.parent
        for entry, is_folder in arguments
        if entry != root and root not in entry.parents
    ]
    if not folders:
        return None
    common = Path(os.path.commonpath(folders))
    return path.relative_to(common).as_posix() if common in path.parents else None


def is_named_by_user(config: pytest.Config) -> bool:
    """Return whether the user named the plugin with ``-p``. If so, every test is a case.

    ``-p harness`` means the same as ``-p harness.plugin``: it names the entry point, which pytest has loaded anyway.
    """
    named = config.getoption("plugins", None) or ()
    return "harness" in named or config.pluginmanager.get_plugin("harness.plugin") is not None


def _resolved(path: str | Path) -> str:
    return os.path.realpath(path) + os.sep


def _argument_paths(config: pytest.Config) -> Iterator[Path]:
    """Yield the files and folders that the arguments name: by path or, with ``--pyargs``, by module name."""
    for argument in config.args:
        name = argument.partition("::")[0]
        module = _module_path(name) if config.getoption("pyargs") else None
        # Normalised, as pytest does: `..` in a path leads out of the root folder.
        yield module or Path(os.path.normpath(config.invocation_params.dir / name))


def _module_path(name: str) -> Path | None:
    """Return the file of a module or the folder of a package. None if there is no such module."""
    try:
        spec = importlib.util.find_spec(name)
    except Exception:  # noqa: BLE001 - a parent package raises on import: the collection reports that error
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0])
    return Path(spec.origin) if spec.has_location and spec.origin else None


if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

_OUTPUT = "harness_ignored_marks"


class IgnoredMarksPlugin:
    """Counts the marks during collection. The controller prints them at the end."""

    def __init__(self) -> None:
        self._tests = 0
        self._marks: Mapping[str, int] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        scope, own = CaseScope.of(session.config), _own_marks(session.config)
        marks_by_test = [_marks(item, own) for item in session.items if not scope.has(item.path)]
        self._tests = sum(map(bool, marks_by_test))
        self._marks = Counter(name for names in marks_by_test for name in names)
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_OUTPUT] = self._tests, dict(self._marks)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Take the counts of any one worker, since all xdist workers collect the same tests."""
        self._tests, self._marks = getattr(node, "workeroutput", {}).get(_OUTPUT, (self._tests, self._marks))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._tests:
            terminalreporter.line(ignored_marks_warning(self._tests, self._marks))


def ignored_marks_warning(tests: int, marks: Mapping[str, int]) -> str:
    """Return the warning line. `tests`: the number of tests with marks; `marks`: the number of tests with each mark."""
    on = ", ".join(f"{name} on {marks[name]}" for name in NAMES if marks.get(name))
    return (
        f"harness: not active for {tests} tests with its marks, so the marks had no effect: {on}; "
        "to activate it, use -p harness.plugin, or add the folder of these tests to the ini value harness_suites"
    )


def _own_marks(config: pytest.Config) -> frozenset[str]:
    """Return the marks that only the harness has declared."""
    return frozenset(NAMES) - declared_by_others(config.getini("markers"))


def _marks(item: pytest.Item, own: frozenset[str]) -> set[str]:
    """Return the harness's marks that a test has, among `own`.

    A ``requires`` with positional arguments belongs to another plugin: the harness's mark has keywords only.
    """
    marks = (mark for mark in item.iter_markers() if mark.name in own)
    return {mark.name for mark in marks if mark.name != "requires" or (mark.kwargs and not mark.args)}


def find_mark_errors(items: Iterable[pytest.Item]) -> list[str]:
    """Return a sentence, with the id of the case, for each invalid mark of these cases."""
    errors: list[str] = []
    sound: set[tuple[int | str, ...]] = set()  # most parametrized cases of a function have the same marks
    for item in items:
        read = tuple(id(mark) if mark.name in _READ else mark.name for mark in item.iter_markers())
        if read not in sound:
            found = _mark_errors(item)
            errors += found
            if not found:
                sound.add(read)
    return errors


def _mark_errors(item: pytest.Item) -> list[str]:
    foreign = is_named_by_user(item.config)
    # The user cannot change the marks of other suites.
    errors = [] if foreign else [f"{item.nodeid}: {error}" for error in marks.misspelt_marks(item)]
    for name, check in _CHECKS:
        try:
            check(item)
        except HarnessError as error:
            advice = f"; if it is a mark of your own, declare {name!r} in pytest's ini value 'markers'"
            errors.append(f"{item.nodeid}: {error}{advice if foreign else ''}")
    return errors


def _check_leaks(item: pytest.Item) -> None:
    for mark in marks.marks_of(item, "leaks"):
        waivers.waiver_from_mark(mark, item.nodeid, "")


#: Functions that read a mark, and raise HarnessError if it is invalid.
_CHECKS: tuple[tuple[str, Callable[[pytest.Item], object]], ...] = (
    ("requires", lambda item: requirements.requirements_from_marks(marks.marks_of(item, "requires"))),
    ("types", lambda item: requirements.types_needed((), marks.marks_of(item, "types"))),
    ("timeout", lambda item: values.case_time_limit(marks.marks_of(item, "timeout"), 1.0, 1.0)),
    ("leaks", _check_leaks),
    ("keeps", fixtures.kept),
    ("races", marks.reason_for_races),
)
_READ = frozenset(name for name, _ in _CHECKS)
