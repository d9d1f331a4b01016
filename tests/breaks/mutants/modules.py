"""The modules of torch whose contracts the suites claim to check, by patterns. Only these are mutated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import translate
from pathlib import Path

#: Patterns of files below the folder that contains torch, with forward slashes.
MODULES = (
    "torch/accelerator/*.py",
    "torch/amp/*.py",
    "torch/autograd/forward_ad.py",
    "torch/autograd/function.py",
    "torch/autograd/functional.py",
    "torch/autograd/grad_mode.py",
    "torch/autograd/graph.py",
    "torch/autograd/profiler.py",
    "torch/autograd/profiler_legacy.py",
    "torch/autograd/profiler_util.py",
    "torch/backends/*.py",
    "torch/cuda/__init__.py",
    "torch/cuda/_memory_viz.py",
    "torch/cuda/_utils.py",
    "torch/cuda/graphs.py",
    "torch/cuda/memory.py",
    "torch/cuda/nvtx.py",
    "torch/cuda/random.py",
    "torch/cuda/streams.py",
    "torch/nn/attention/*.py",
    "torch/optim/*.py",
    "torch/profiler/*.py",
    "torch/random.py",
    "torch/serialization.py",
    "torch/storage.py",
    "torch/utils/checkpoint.py",
    "torch/_dynamo/compiled_autograd.py",
    "torch/_inductor/cudagraph_trees.py",
)
#: Files that match the patterns but make no promise: other devices, experiments, tools of torch's developers.
EXCLUDED = (
    "torch/backends/_coreml/*",
    "torch/backends/_nnapi/*",
    "torch/backends/mps/*",
    "torch/backends/miopen/*",
    "torch/backends/python_native/*",
    "torch/backends/xeon/*",
    "torch/backends/xnnpack/*",
    "torch/nn/attention/_[!_]*",
    "torch/optim/_functional.py",
    "torch/optim/_multi_tensor/*",
    "torch/profiler/_cupti_monitor*",
    "torch/profiler/_pattern_matcher.py",
    "torch/profiler/_trace_validator.py",
    "torch/nn/attention/experimental/*",
)


def is_wanted(path: str, patterns: Iterable[str] = MODULES) -> bool:
    """Return whether a file is mutated.

    `path`: relative to the folder that contains torch, such as ``torch/random.py``.

    A star also matches folders.
    """
    return chooser(patterns)(path)


def chooser(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return `is_wanted` for these patterns.

    The function runs no generator and compiles no pattern, because torch's compiler may be active when it is called,
    and takes each Python function for one of the case.
    """
    wanted, excluded = (re.compile("|".join(map(translate, names)) or "(?!)") for names in (patterns, EXCLUDED))

    def is_chosen(path: str) -> bool:
        return wanted.match(path) is not None and excluded.match(path) is None

    return is_chosen


def wanted_files(root: Path, patterns: Iterable[str] = MODULES) -> list[str]:
    """Return the wanted files below the folder that contains torch, or another package, in order."""
    patterns = tuple(patterns)
    tops = sorted({pattern.partition("/")[0] for pattern in patterns})
    files = [path.relative_to(root).as_posix() for top in tops for path in sorted((root / top).rglob("*.py"))]
    return list(filter(chooser(patterns), files))
