"""The command line of a session: the owner of each short form, and the root folder that pytest derives.

pytest looks for its root folder and its ini file before it knows the options of plugins. It then takes a separate value
of an option for an argument, and if that is an existing path, pytest may find another root folder or ini file. In such
a session, and in one that resumes a run with another root folder, pytest starts again in the same process, with
unambiguous arguments.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import _compat
from harness.configuration import arguments, options
from harness.configuration.options import OPTIONS
from harness.configuration.rootdir import RootFolder, insert_options
from harness.configuration.values import OptionError

_PARSER = pytest.StashKey[pytest.Parser]()
_TAKEN = pytest.StashKey[frozenset[str]]()
_AGAIN = pytest.StashKey[tuple[str, ...]]()
#: The file name of a journal, as in `harness.journal.journal`. Only its first line is read here.
_JOURNAL = "journal.ndjson"
#: A size above that of the first line of any journal.
_FIRST_LINE = 1 << 20


class CommandLine:
    """The words of a session's command line, from before its first conftests are loaded until after that."""

    def __init__(self, config: pytest.Config, parser: pytest.Parser, words: list[str]) -> None:
        """Rewrite those short forms in `words` that no plugin has declared.

        A short form stays unchanged if a conftest may still declare it, since the next word may be the folder of that
        conftest.
        """
        self._config, self._parser, self._words = config, parser, words
        self._here = config.invocation_params.dir
        words[:] = arguments.expand_argument_files(words, self._here)
        present = arguments.short_flags_in(words)
        free = present - arguments.declared_flags(parser, present, words)
        free -= arguments.ambiguous_flags(words, free, self._here)
        words[:], self._changes = arguments.rewrite_short_flags(words, free)
        if self._changes:
            self._understand()
        config.stash[_PARSER] = parser

    def settle(self) -> None:
        """Restore the short forms that plugins and conftests have declared, and rewrite the rest.

        All plugins and conftests are loaded now.
        """
        present = arguments.short_flags_in(self._words) | {change.flag for change in self._changes}
        if present:
            taken = arguments.declared_flags(self._parser, present, self._words)
            self._words[:] = arguments.restore_short_flags(self._words, self._changes, taken)
            self._words[:], _ = arguments.rewrite_short_flags(self._words, present - taken)
            self._understand()
        again = self._root_arguments()
        if again is not None:
            self._config.stash[_AGAIN] = again
            self._words.clear()  # this session only starts the next one

    def _understand(self) -> None:
        """Store the values of the harness's options, and the other arguments, where plugins look for them."""
        namespace = self._config.known_args_namespace
        parsed = self._parser.parse_known_args(self._words, copy.copy(self._config.option))
        for name in ("file_or_dir", *(option.dest for option in OPTIONS.values())):
            setattr(namespace, name, getattr(parsed, name))

    def _root_arguments(self) -> tuple[str, ...] | None:
        """Return the arguments with which pytest finds the right root folder; None if it has found it."""
        namespace = self._config.known_args_namespace
        typed = tuple(str(word) for word in self._config.invocation_params.args)
        words = arguments.expand_argument_files(arguments.arguments_with_addopts(typed, os.environ), self._here)
        shorts = arguments.short_flags_in(words)
        taken = arguments.declared_flags(self._parser, shorts, words) if shorts else frozenset()
        wanted = () if namespace.rootdir else self._resumed_root()
        own = (shorts - taken) | set(arguments.LONG_FORMS.values())
        values = [change.words[1] for change in arguments.values_that_are_paths(words, own, self._here)]
        # This is unsafe because every later process reads the variable, and the run directory exists by then.
        unsafe = arguments.has_separate_values(arguments.arguments_with_addopts((), os.environ), own)
        if not wanted and not unsafe and not (values and self._misled(values)):
            return None
        self._config.stash[_TAKEN] = taken
        return insert_options(
            arguments.unambiguous_arguments(arguments.expand_argument_files(typed, self._here), taken), wanted
        )

    def _misled(self, values: Iterable[str]) -> bool:
        """Return whether pytest finds another root folder or ini file with the `values` as arguments than without."""
        namespace = self._config.known_args_namespace
        right = _compat.root_of(namespace, namespace.file_or_dir, self._here)
        return right != _compat.root_of(namespace, [*namespace.file_or_dir, *values], self._here)

    def _resumed_root(self) -> tuple[str, ...]:
        """Return the option with the root folder of the run to resume.

        It is empty if this session has the same root folder.
        """
        namespace = self._config.known_args_namespace
        try:
            resumed = options.resolve_option(
                "resume", namespace.harness_resume, os.environ, self._config.getini(OPTIONS["resume"].dest)
            )
        except OptionError:
            return ()  # reported later
        root = None if resumed is None else _root_of_run(self._here / resumed)
        return () if root is None or root == self._config.rootpath else (f"--rootdir={root}",)


def restart_session(config: pytest.Config) -> int | None:
    """Run the session that replaces this one, if there is one. Return its exit status, or None."""
    words = config.stash.get(_AGAIN, None)
    if words is None:
        return None
    others: frozenset[str] = config.stash[_TAKEN]
    with _variables(arguments.unambiguous_addopts(os.environ, others)):
        return int(pytest.main([*words], plugins=config.invocation_params.plugins))


def foreign_short_flags(config: pytest.Config) -> frozenset[str]:
    """Return the short forms of the harness's options that other plugins have declared in this session."""
    if _TAKEN not in config.stash:
        parser = config.stash.get(_PARSER, None)
        typed = [str(word) for word in config.invocation_params.args]
        flags = frozenset() if parser is None else arguments.declared_flags(parser, arguments.LONG_FORMS, typed)
        config.stash[_TAKEN] = flags
    return config.stash[_TAKEN]


def user_arguments(config: pytest.Config) -> list[str]:
    """Return the user's arguments: first those of the variable, then the command line, with files of arguments read."""
    typed = [str(word) for word in config.invocation_params.args]
    return arguments.expand_argument_files(
        arguments.arguments_with_addopts(typed, os.environ), config.invocation_params.dir
    )


def format_foreign_flags(flags: Iterable[str]) -> str:
    """Return a line for people about the short forms of other plugins; empty if there are none."""
    foreign = sorted(flags)
    if not foreign:
        return ""
    instead = ", ".join(arguments.LONG_FORMS[flag] for flag in foreign)
    return f"{', '.join(foreign)}: declared by another plugin or a conftest; the harness's option is {instead}"


def arguments_with_root(config: pytest.Config) -> tuple[str, ...]:
    """Return the arguments of a session with additions that make other processes find the same root and ini file."""
    typed = [str(word) for word in config.invocation_params.args]
    return RootFolder.of(config).add_to(arguments.unambiguous_arguments(typed, foreign_short_flags(config)))


@contextmanager
def _variables(more: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.update(before)


def _root_of_run(folder: Path) -> Path | None:
    """Return the root folder of the run in a run directory, if it still exists. Errors are reported later."""
    try:
        with (folder / _JOURNAL).open("rb") as file:
            line = json.loads(file.readline(_FIRST_LINE))
        root = Path(line["rootdir"])
        return root if root.is_absolute() and root.is_dir() else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
