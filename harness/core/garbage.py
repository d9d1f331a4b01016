"""Python's garbage collector, while much is made that stays."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator

#: A number of new objects that no process reaches. Not 0, which a test file may set.
_UNREACHED_THRESHOLD = 2**31 - 1


@contextlib.contextmanager
def no_automatic_collection() -> Generator[None]:
    """Collect no garbage automatically in this context, unless the code in it sets thresholds itself.

    Nearly all objects of imported modules and collected cases live until the end of the process. Python walks all of
    them each time their number has grown by a quarter, which takes a quarter of the import of torch and its compilers.
    """
    first, *others = gc.get_threshold()
    gc.set_threshold(_UNREACHED_THRESHOLD, *others)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == _UNREACHED_THRESHOLD:
            gc.set_threshold(first, *gc.get_threshold()[1:])
