"""Look-ups of torch's private names by their dotted paths; the suites use them in `_torch_private*.py`.

A case that needs a name that the torch release or build lacks is skipped, with the name in the reason, because the
cases test torch's behavior and not where it keeps its names.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
import torch


def reach(path: str) -> Any:
    """Return the object at an absolute path, such as `torch.cuda._memory_viz.trace_plot`; import modules on the way.

    Skip the case, with the path in the reason, if torch has no such name or its module needs another package.
    """
    found: Any = torch
    reached, *steps = path.split(".")
    for step in steps:
        reached += f".{step}"
        if not hasattr(found, step):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # warnings about torch's own imports are not under test
                    importlib.import_module(reached)
            except ImportError as error:
                if error.name and not error.name.startswith("torch"):
                    pytest.skip(f"{reached} needs {error.name}, which is not installed")
                pytest.skip(f"torch {torch.__version__} has no {path}")
        found = getattr(found, step)
    return found


def below(value: object, path: str) -> Any:
    """Return the attribute at a dotted path below an object of torch; skip the case if it does not exist."""
    found: Any = value
    for step in path.split("."):
        try:
            found = getattr(found, step)
        except AttributeError:
            pytest.skip(f"torch {torch.__version__} has no {step} in {type(found).__qualname__}")
    return found
