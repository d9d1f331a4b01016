"""Unique names of cases in a JUnit report: readers drop all but the first of equal names."""

from __future__ import annotations

import functools
import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise

from harness.core.text import escape_invalid_xml

Pair = tuple[str, str]


class Names:
    """The cleaned (classname, name) of each case. `ids` returns an iterator over the ids of all cases at each call.

    ``suites/streams/test_events.py::TestX::test_y[cpu]`` gives ``suites.streams.test_events.TestX`` and
    ``test_y[cpu]``, or with `whole` its whole id. If several ids would give the same pair, a digest of the id is added
    to each.
    """

    def __init__(self, ids: Callable[[], Iterable[str]], *, whole: bool = False) -> None:
        self._whole = whole
        # Eight bytes per case: the names of a million cases would need ten times the memory.
        hashes = array("q", (hash(self._pair(case)) for case in ids()))
        twice = {first for first, second in pairwise(sorted(hashes)) if first == second}
        times = Counter(pair for case in ids() if hash(pair := self._pair(case)) in twice) if twice else Counter()
        self._clashing = frozenset(pair for pair, number in times.items() if number > 1)

    def of(self, case: str) -> Pair:
        """Return the names of a case."""
        pair = self._pair(case)
        return (pair[0], f"{pair[1]} #{_short_digest(case)}") if pair in self._clashing else pair

    def _pair(self, case: str) -> Pair:
        path, _, rest = case.partition("::")
        base, bracket, parameters = rest.partition("[")  # parameters may contain "::"
        classes, _, name = base.rpartition("::")
        return _classname(path, classes), escape_invalid_xml(
            case if self._whole else name + bracket + parameters or case
        )


@functools.lru_cache(4096)
def _classname(path: str, classes: str) -> str:
    module = re.sub(r"[/\\]+", ".", path.removesuffix(".py")).strip(".")
    return escape_invalid_xml(".".join(filter(None, [module, *classes.split("::")])))


def _short_digest(case: str) -> str:
    return hashlib.sha256(case.encode("utf-8", "surrogatepass")).hexdigest()[:12]
