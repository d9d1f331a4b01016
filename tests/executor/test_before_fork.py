"""Variables of the zygote with its process id."""

from __future__ import annotations

import types
import warnings
from typing import Any

from harness.executor.before_fork import ZygotePid, variables_with_pid


class Deprecated:
    """An old name of a library, which warns when it is used, also by `isinstance`."""

    def __getattribute__(self, name: str) -> Any:
        warnings.warn(f"{name} of a deprecated name", FutureWarning, stacklevel=2)
        return object.__getattribute__(self, name)


def test_a_deprecated_name_of_a_module_is_not_used() -> None:
    """torch.distributed has such a name, and the zygote of a run with strict warnings must not end by it."""
    module = types.ModuleType("module_of_a_test")
    owner = type("Owner", (), {"__module__": module.__name__, "kept": ZygotePid(7)})
    vars(module).update(old=Deprecated(), Owner=owner, pid=ZygotePid(7), other=7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert variables_with_pid([module, "no module"]) == [(module, "pid"), (owner, "kept")]
