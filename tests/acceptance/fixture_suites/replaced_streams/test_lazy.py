"""Globals that are loaded on first access, as dask's and flask's are, at the end of a process."""

import sys
import types
from typing import Any

EXPECTED = {"test_lazy_module": "passed"}


class Lazy:
    def __init__(self, module: types.ModuleType) -> None:
        self.module = module

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        if hasattr(self.module, "loaded"):
            raise RuntimeError("it is used outside of its context")
        self.module.__dict__.update({f"loaded{number}": number for number in range(100)})
        return object


def test_lazy_module() -> None:
    module = types.ModuleType("lazy_module")
    module.__dict__.update({f"name{number}": Lazy(module) for number in range(3)})
    sys.modules["lazy_module"] = module
