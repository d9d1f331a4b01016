"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from suites.reaching import reach


def get_sdp_priority_order() -> list[int]:
    """Return the order in which torch tries the attention backends. No documented function reads it."""
    found: list[int] = list(reach("torch._C._get_sdp_priority_order")())
    return found


@contextmanager
def assignable_flags() -> Iterator[None]:
    """Let flags of backends be assigned in the block, as in a process that has imported no test helpers of torch.

    The import of `torch.testing._internal.common_utils`, which `torch.library.opcheck` makes, refuses it from then on.
    """
    with reach("torch.backends.__allow_nonbracketed_mutation")():
        yield
