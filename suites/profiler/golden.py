"""Accepted texts of trees, stored next to the cases: `golden/<tree>.<torch minor>.txt`.

The newest file that is not newer than a release of torch applies to it: a release has its own file only if its tree
differs from that of the release before. Only the functions that read and write files have side effects.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import workloads
from .node import Node
from .normal import normal_form
from .trees import HOST, HOST_AND_CUDA, record, warm_up
from .workloads import Work

Minor = tuple[int, int]  # a torch release: (2, 13)
FOLDER = Path(__file__).parent / "golden"
COVERS = "test_profiler_tree::TestProfilerTree::test_profiler_experimental_tree"


class UnstableTreeError(Exception):
    """Two profiles of the same work gave different trees, so there is no text to accept."""


@dataclass(frozen=True, slots=True)
class Golden:
    """A tree with an accepted text: how to produce it, and the inventory rows that it covers."""

    name: str
    build: Callable[[torch.device], Work]
    options: Mapping[str, bool] = field(default_factory=dict)
    cuda: bool = False
    covers: tuple[str, ...] = ()


STACK = {"with_stack": True}
MEMORY = {"profile_memory": True}

GOLDENS = (
    Golden("forward_backward", workloads.forward_and_backward, covers=(COVERS,)),
    Golden("scopes", workloads.scopes, covers=(f"{COVERS}_with_record_function",)),
    Golden("memory", workloads.forward_and_backward, MEMORY, covers=(f"{COVERS}_with_memory",)),
    Golden(
        "memory_and_stack",
        workloads.forward_and_backward,
        MEMORY | STACK,
        covers=(f"{COVERS}_with_memory_and_stack",),
    ),
    Golden(
        "torch_function",
        workloads.on_function_tensor,
        STACK,
        covers=(f"{COVERS}_with_stack_and_torch_function",),
    ),
    Golden(
        "torch_dispatch",
        workloads.on_dispatch_tensor,
        STACK,
        covers=(f"{COVERS}_with_stack_and_torch_dispatch",),
    ),
    Golden("modules", workloads.modules, STACK, covers=(f"{COVERS}_with_stack_and_modules",)),
    Golden("training_step", workloads.training_step),
    Golden("training_step_and_stack", workloads.training_step, STACK),
    Golden("cuda_side_streams", workloads.side_streams, MEMORY, cuda=True, covers=(f"{COVERS}_cuda_with_stream",)),
    Golden("cuda_training_step", workloads.training_step, cuda=True, covers=(f"{COVERS}_cuda",)),
    Golden(
        "cuda_training_step_and_stack",
        workloads.training_step,
        MEMORY | STACK,
        cuda=True,
        covers=(f"{COVERS}_cuda_detailed",),
    ),
)


def running_minor() -> Minor:
    """Return the release of the imported torch."""
    return parse_minor(torch.__version__)


def parse_minor(version: str) -> Minor:
    """Return `(2, 13)` for `"2.13.0+cpu"`. Raise ValueError for a version that does not start with two numbers."""
    found = re.match(r"(\d+)\.(\d+)(?:\.|$)", version)
    if not found:
        raise ValueError(f"no release in the version {version!r}; expected a version such as 2.13.0")
    return int(found[1]), int(found[2])


def tree_text(golden: Golden, device: torch.device) -> str:
    """Return the current normalized text of a tree. Raise UnstableTreeError if a second profile differs."""
    first, second = (str(normal_form(tree)) + "\n" for tree in _trees(golden, device))
    if first != second:
        raise UnstableTreeError(f"two profiles of {golden.name!r} differ:\n{difference(first, second)}")
    return first


def _trees(golden: Golden, device: torch.device) -> Iterable[Node]:
    options: dict[str, Any] = {"activities": HOST_AND_CUDA if golden.cuda else HOST, **golden.options}
    work = golden.build(device)
    warm_up(work, **options)
    for _ in range(2):
        tree = record(work, **options)
        yield tree.one_frame("work") if golden.options.get("with_stack") else tree


def file_name(name: str, minor: Minor) -> str:
    """Return the name of a tree's golden file for one release."""
    return f"{name}.{minor[0]}.{minor[1]}.txt"


def stored(name: str, folder: Path = FOLDER) -> dict[Minor, str]:
    """Return the accepted texts of a tree, by release."""
    pattern = re.compile(re.escape(name) + r"\.(\d+)\.(\d+)\.txt")
    matches = ((pattern.fullmatch(file.name), file) for file in folder.glob("*.txt"))
    return {(int(m[1]), int(m[2])): file.read_text(encoding="utf-8") for m, file in matches if m}


def applicable(minors: Iterable[Minor], running: Minor) -> Minor | None:
    """Return the release whose file applies to the running release: the newest not newer than it."""
    return max((minor for minor in minors if minor <= running), default=None)


def accepted(texts: Mapping[Minor, str], running: Minor, text: str) -> dict[Minor, str]:
    """Return the texts after accepting `text` for a release, without files that repeat the one before."""
    changed = dict(sorted((dict(texts) | {running: text}).items()))
    kept: dict[Minor, str] = {}
    for minor, content in changed.items():
        if not kept or content != kept[max(kept)]:
            kept[minor] = content
    return kept


def difference(expected: str, found: str, before: str = "expected", after: str = "found") -> str:
    """Return the differing lines of two texts with preceding context; empty if they are equal."""
    lines = difflib.unified_diff(expected.splitlines(), found.splitlines(), before, after, n=8, lineterm="")
    return "\n".join(lines)
