"""What a suite may use: the fixtures `device` and `case_seed`. Its markers are described in `MARKERS`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness.backends.backend import Kind
from harness.backends.table import BACKENDS
from harness.errors import HarnessError

if TYPE_CHECKING:
    import torch

MARKERS = (
    "requires(**conditions): what the case needs of device, driver and software, such as "
    "requires(device='cuda', memory='>=12GiB'); a case whose conditions are unmet is gated",
    "covers(*rows): names of the rows of the reference inventory whose behaviour the case checks",
    "leaks(reason, *, link, kind='leaked'): the case is known to leak, or with kind='contaminated' to leave state "
    "changed; a waiver like any other: red once it does not",
    "keeps(reason): what the case runs keeps memory for good, by itself and on every run, so that its growth tells "
    "nothing and is not looked at; state that it leaves changed is",
    "timeout(seconds): how long the case may take, set-up and tear-down included",
)


@dataclass(frozen=True, slots=True)
class Current:
    """What this process runs cases on: the kind of device it was given, and the seed of the running case."""

    kind: Kind
    seed: int


CURRENT = pytest.StashKey[Current]()
_NO_RUN = Current(kind="cpu", seed=0)


def kept(item: pytest.Item) -> str:
    """Why growth of memory is not looked at for this case, in the words of its mark ``keeps``; empty for most.

    Raises HarnessError where the mark has no reason.
    """
    mark = item.get_closest_marker("keeps")
    if mark is None:
        return ""
    words = [*mark.args, *mark.kwargs.values()]
    if len(words) != 1 or not set(mark.kwargs) <= {"reason"} or not isinstance(words[0], str) or not words[0].strip():
        raise HarnessError("keeps(...) takes a reason: what keeps memory, and why nobody can help it")
    return words[0]


@pytest.fixture
def device(pytestconfig: pytest.Config) -> torch.device:
    """The device the case was given, a `torch.device`: ``cuda:0``, since an executor sees only its own, or ``cpu``.

    With ``--device=soft``, ``soft:0``.
    """
    import torch

    backend = BACKENDS[pytestconfig.stash.get(CURRENT, _NO_RUN).kind]
    first: torch.device = backend.first_device(torch)
    return first


@pytest.fixture
def case_seed(pytestconfig: pytest.Config) -> int:
    """The seed of this case, in [0, 2**32). Python's, NumPy's and torch's global generators were seeded with it."""
    return pytestconfig.stash.get(CURRENT, _NO_RUN).seed
