"""torch's catalogue of its operators, which is private.

Its import changes the process; these changes are undone here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch

from suites import reaching


@cache
def operators() -> Mapping[str, Any]:
    """Return torch's `OpInfo` of each operator by its full name, such as ``div.floor_rounding``."""
    environment = dict(os.environ)
    changeable = not torch.backends.flags_frozen()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some come from packages that torch's tests import if they are installed
        listed = reaching.reach("torch.testing._internal.common_methods_invocations.op_db")
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    if changeable:
        # `torch.backends` is an object in the module's place; its functions read the name in the module itself.
        torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    return {full_name(each): each for each in listed}


def full_name(info: Any) -> str:
    """Return the name of an entry of the catalogue with its variant."""
    name: str = info.name
    return f"{name}.{info.variant_test_name}" if info.variant_test_name else name


def operator(name: str) -> Any:
    """Return the entry of an operator; skip the case if this release of torch has none."""
    found = operators().get(name)
    if found is None:
        pytest.skip(f"torch {torch.__version__} has no operator {name} in its catalogue")
    return found


def overload(name: str) -> Any:
    """Return an overload of aten by its name, such as `_foreach_add.List`; skip the case if torch has none."""
    return reaching.below(torch.ops.aten, name)
