"""The arguments of a run that a reproduce line must repeat, because they may change the verdict of the case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from harness.configuration import arguments

#: Options of pytest and of well-known plugins that select tests, order them, stop the run, or control output. The root
#: folder, the ini file and its values are passed on separately.
_ELSEWHERE = frozenset(
    (
        *("-c", "--config-file", "--rootdir", "--confcutdir", "-o", "--override-ini", "--pyargs", "--basetemp"),
        *("--ignore", "--ignore-glob", "--deselect", "--keep-duplicates", "--collect-in-virtualenv"),
        *(
            "--lf",
            "--last-failed",
            "--ff",
            "--failed-first",
            "--nf",
            "--new-first",
            "--lfnf",
            "--last-failed-no-failures",
        ),
        *("--cache-clear", "--sw", "--stepwise", "--sw-skip", "--stepwise-skip", "--sw-reset", "--stepwise-reset"),
        *("-x", "--exitfirst", "--maxfail", "--continue-on-collection-errors"),
        *("-n", "--numprocesses", "--maxprocesses", "--dist", "--tx", "--px", "-d", "-f", "--looponfail"),
        *("--max-worker-restart", "--maxschedchunk", "--loadscope-reorder", "--no-loadscope-reorder", "--testrunuid"),
        *("-v", "--verbose", "-q", "--quiet", "--verbosity", "-r", "--tb", "-l", "--showlocals", "--no-showlocals"),
        *(
            "--no-header",
            "--no-summary",
            "--no-fold-skipped",
            "--force-short-summary",
            "--durations",
            "--durations-min",
        ),
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
    own = arguments.LONG_FORMS.keys() - frozenset(taken) | set(arguments.LONG_FORMS.values())
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
