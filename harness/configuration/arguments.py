"""The options of the harness among the arguments of a session.

pytest knows only their long form, ``--harness-device``, so that they cannot conflict with options of a plugin or a
conftest. The short form, ``--device``, is rewritten to the long one in the arguments, unless another plugin or a
conftest has declared it. pytest cannot declare an option that yields to another one.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.configuration import options
from harness.configuration.options import OPTIONS

#: By short form, the long form of every flag.
LONG_FORMS = {short: options.long_flag(short) for option in OPTIONS.values() for short in option.flags}
#: The short forms of options that take a value.
FLAGS_WITH_VALUE = frozenset(option.flag for option in OPTIONS.values() if option.takes_value)
#: By short or long form, the short form of each flag.
_SHORT = {**{flag: flag for flag in LONG_FORMS}, **{made: flag for flag, made in LONG_FORMS.items()}}
#: An option that no plugin has.
_UNUSED_FLAG = "--harness-is-this-parser-usable"


@dataclass(frozen=True, slots=True)
class RewrittenFlag:
    """Words of the arguments that belong to the harness, and their rewritten form."""

    flag: str
    words: tuple[str, ...]
    made: tuple[str, ...]


def rewrite_short_flags(arguments: Sequence[str], own: Iterable[str]) -> tuple[list[str], list[RewrittenFlag]]:
    """Return the `arguments` with the short flags in `own` replaced by long ones, and the changes.

    A value becomes part of the same word, so that pytest does not take it for a path.
    """
    own_flags = frozenset(own)
    result: list[str] = []
    changes: list[RewrittenFlag] = []
    for flag, words in _split(arguments):
        made = _long(flag, words) if flag in own_flags else words
        if made != words:
            changes.append(RewrittenFlag(flag, words, made))
        result += made
    return result, changes


def restore_short_flags(
    arguments: Sequence[str], changes: Iterable[RewrittenFlag], foreign: Iterable[str]
) -> list[str]:
    """Undo the `changes` of `rewrite_short_flags` for the `foreign` flags, and return the `arguments`."""
    foreign_flags = frozenset(foreign)
    undone = {change.made: change.words for change in changes if change.flag in foreign_flags}
    result: list[str] = []
    for word in arguments:
        result += undone.get((word,), (word,))
    return result


def short_flags_in(arguments: Sequence[str]) -> frozenset[str]:
    """Return the short forms that are among the `arguments`."""
    return frozenset(flag for flag, _ in _split(arguments) if flag in LONG_FORMS)


def expand_argument_files(arguments: Sequence[str], folder: Path) -> list[str]:
    """Return the `arguments` with each ``@FILE`` that has short forms replaced by its lines."""
    result: list[str] = []
    for position, word in enumerate(arguments):
        if word == "--":
            return [*result, *arguments[position:]]
        lines = _lines(folder / word[1:]) if word.startswith("@") else []
        result += lines if short_flags_in(lines) else [word]
    return result


def declared_flags(parser: pytest.Parser, flags: Iterable[str], arguments: Sequence[str]) -> frozenset[str]:
    """Return those of the `flags` that a plugin or a conftest has declared so far.

    `arguments`: those of the session, since a parser may need some of them before it accepts others.
    """
    if not (wanted := sorted(flags)):
        return frozenset()
    plain = [word for flag, words in _split(arguments) if not flag for word in words]
    base = next((words for words in ([], plain) if _is_unknown(parser, words, _UNUSED_FLAG)), None)
    if base is None:
        return frozenset()
    return frozenset(flag for flag in wanted if not _is_unknown(parser, base, flag))


def _is_unknown(parser: pytest.Parser, base: Sequence[str], flag: str) -> bool:
    try:
        _, unknown = parser.parse_known_and_unknown_args([*base, flag], argparse.Namespace())
    except (pytest.UsageError, argparse.ArgumentError, SystemExit):
        return False  # it requires a value
    return flag in unknown


def values_that_are_paths(arguments: Sequence[str], flags: Iterable[str], folder: Path) -> list[RewrittenFlag]:
    """Return the options in `flags` whose value is a separate word and an existing path.

    pytest takes such a word for an argument when it looks for its root folder and its ini file, since it does not know
    plugins yet.
    """
    _, changes = rewrite_short_flags(arguments, flags)
    return [change for change in changes if len(change.words) == 2 and _exists(folder, change.words[1])]


def has_separate_values(arguments: Sequence[str], flags: Iterable[str]) -> bool:
    """Return whether the value of one of the options in `flags` is a separate word."""
    return any(len(change.words) == 2 for change in rewrite_short_flags(arguments, flags)[1])


def ambiguous_flags(arguments: Sequence[str], flags: Iterable[str], folder: Path) -> frozenset[str]:
    """Return those of the `flags` that may be options without a value, of a conftest that is not loaded yet.

    They have no value among the `arguments`, or their value is a path, in which that conftest may be.
    """
    candidates = frozenset(flags)
    bare = {words[0] for flag, words in _split(arguments) if flag in candidates & FLAGS_WITH_VALUE and words == (flag,)}
    return frozenset(bare | {change.flag for change in values_that_are_paths(arguments, candidates, folder)})


def unambiguous_arguments(arguments: Sequence[str], taken: Iterable[str]) -> tuple[str, ...]:
    """Return the `arguments` in a form in which pytest cannot take a value of the harness's options for a path."""
    return tuple(rewrite_short_flags(arguments, LONG_FORMS.keys() - frozenset(taken) | set(LONG_FORMS.values()))[0])


def unambiguous_addopts(environ: Mapping[str, str], taken: Iterable[str]) -> dict[str, str]:
    """Return ``PYTEST_ADDOPTS`` in that form, if it must be changed."""
    words = _addopts(environ)
    made = unambiguous_arguments(words, taken)
    return {"PYTEST_ADDOPTS": shlex.join(made)} if list(made) != words else {}


def arguments_with_addopts(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the words that pytest reads before it has an ini file: those of the variable, then the `arguments`."""
    return [*_addopts(environ), *arguments]


def _addopts(environ: Mapping[str, str]) -> list[str]:
    try:
        return shlex.split(environ.get("PYTEST_ADDOPTS", ""))
    except ValueError:
        return []  # pytest has reported it


def _exists(folder: Path, value: str) -> bool:
    try:
        return os.path.exists(folder / value.partition("::")[0])
    except ValueError:  # a null byte
        return False


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding=None, errors="replace").splitlines()
    except OSError:
        return []  # pytest reports it


def _split(arguments: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each flag of the harness with its words, including a separate value, and other words with ""."""
    place = 0
    while place < len(arguments):
        word = arguments[place]
        if word == "--":
            yield "", tuple(arguments[place:])
            return
        flag, separator, _ = word.partition("=")
        short = _SHORT.get(flag, "")
        words = tuple(arguments[place : place + 2]) if short in FLAGS_WITH_VALUE and not separator else (word,)
        if len(words) == 2 and words[1].startswith("-"):  # a word with a dash is not a value, as in argparse
            words = (word,)
        yield (flag if short else ""), words
        place += len(words)


def _long(flag: str, words: tuple[str, ...]) -> tuple[str, ...]:
    head = LONG_FORMS.get(flag, flag) + words[0][len(flag) :]
    return (head,) if len(words) == 1 else (f"{head}={words[1]}",)


#: Options of pytest and of well-known plugins that select tests, order them, stop the run, or control output. The root
#: folder, the ini file and its values are passed on separately.
_ELSEWHERE = frozenset(
    (
        *("-c", "--config-file", "--rootdir", "--confcutdir", "-o", "--override-ini", "--pyargs", "--basetemp"),
        *("--ignore", "--ignore-glob", "--deselect", "--keep-duplicates", "--collect-in-virtualenv"),
        *("--lf", "--last-failed", "--ff", "--failed-first", "--nf", "--new-first"),
        *("--lfnf", "--last-failed-no-failures"),
        *("--cache-clear", "--sw", "--stepwise", "--sw-skip", "--stepwise-skip", "--sw-reset", "--stepwise-reset"),
        *("-x", "--exitfirst", "--maxfail", "--continue-on-collection-errors"),
        *("-n", "--numprocesses", "--maxprocesses", "--dist", "--tx", "--px", "-d", "-f", "--looponfail"),
        *("--max-worker-restart", "--maxschedchunk", "--loadscope-reorder", "--no-loadscope-reorder", "--testrunuid"),
        *("-v", "--verbose", "-q", "--quiet", "--verbosity", "-r", "--tb", "-l", "--showlocals", "--no-showlocals"),
        *("--no-header", "--no-summary", "--no-fold-skipped", "--force-short-summary"),
        *("--durations", "--durations-min"),
        *("--color", "--code-highlight", "--show-capture", "--full-trace", "--fulltrace", "--xfail-tb", "--pastebin"),
        *("--junitxml", "--junit-xml", "--junitprefix", "--junit-prefix", "--report-log", "--html", "--css"),
        *("--self-contained-html", "--cov", "--cov-report", "--cov-fail-under", "--cov-append", "--alluredir"),
        *("-s", "--capture", "--pdb", "--trace", "--pdbcls", "--setup-show", "--setup-only", "--setup-plan"),
    )
)
_GLUED = ("-n", "-r", "-v", "-q", "-o", "-c")
#: Options that select. On the command line they override the same option in the ini file, which may deselect the case.
_SELECTING = ("-m", "-k")
_OF_PLUGIN = ("no:cacheprovider", "no:terminal", "harness", "harness.plugin")


def reproduce_arguments(
    words: Sequence[str], positional: Iterable[str], addopts: Iterable[str], taken: Iterable[str]
) -> list[str]:
    """Return those of the `words` of a command line that a line for one case must repeat.

    `positional`: the files and folders among them. `addopts`: the options in the ini file. `taken`: short forms
    that belong to other plugins here.
    """
    selecting = {flag for flag in _SELECTING if any(_flag(word) == flag for word in addopts)}
    own = LONG_FORMS.keys() - frozenset(taken) | set(LONG_FORMS.values())
    result: list[str] = []
    for group in _groups(words, positional):
        flag = _flag(group[0])
        if flag in _ELSEWHERE or flag in own or (flag in _SELECTING and flag not in selecting):
            continue
        if flag == "-p" and "".join(group).removeprefix("-p") in _OF_PLUGIN:
            continue
        result += group
    return result


def _flag(word: str) -> str:
    """Return the name of an option: ``-n`` of ``-n2``, ``--tb`` of ``--tb=short``."""
    if word.startswith("--"):
        return word.partition("=")[0]
    if word.startswith(("-m", "-k", "-p", "-W")) or word[:2] in _GLUED:
        return word[:2]
    return word


def _groups(words: Sequence[str], positional: Iterable[str]) -> Iterator[list[str]]:
    """Yield each option with its values. A word is a value unless it is one of the `positional` ones."""
    left = Counter(positional)
    group: list[str] = []
    for word in words:
        if word == "--":
            break
        if word.startswith("-") and len(word) > 1:
            if group:
                yield group
            group = [word]
        elif left[word] or word.startswith("@"):  # a file of arguments that pytest has read
            left[word] -= 1
            if group:
                yield group
            group = []
        elif group:
            group.append(word)
    if group:
        yield group
