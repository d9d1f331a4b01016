"""Names of torch that nothing promises, by their dotted paths; what suites make of them is in `_torch_private*.py`.

A release, or a build, that lacks a name makes the case *skipped*, with the name in the reason, not failed: a contract
is what torch does, not where it keeps it.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
import torch


def reach(path: str) -> Any:
    """The object at an absolute path, such as `torch.cuda._memory_viz.trace_plot`; modules on the way are imported.

    Skips the case, with the path in the reason, if torch has no such name, or its module needs another package.
    """
    found: Any = torch
    reached, *steps = path.split(".")
    for step in steps:
        reached += f".{step}"
        if not hasattr(found, step):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # what torch's own modules use is torch's affair
                    importlib.import_module(reached)
            except ImportError as error:
                if error.name and not error.name.startswith("torch"):
                    pytest.skip(f"{reached} needs {error.name}, which is not installed")
                pytest.skip(f"torch {torch.__version__} has no {path}")
        found = getattr(found, step)
    return found


def below(value: object, path: str) -> Any:
    """The attribute at a dotted path below an object of torch's; skips the case if there is none."""
    found: Any = value
    for step in path.split("."):
        try:
            found = getattr(found, step)
        except AttributeError:
            pytest.skip(f"torch {torch.__version__} has no {step} in {type(found).__qualname__}")
    return found
