"""Variables of the zygote with its process id."""

from __future__ import annotations

import os
import types
import warnings
from pathlib import Path
from typing import Any

from harness.executor.session import PidVariable, ZygotePid, variables_with_pid


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
        assert variables_with_pid([module, "no module"], 7) == [PidVariable(module, "pid"), PidVariable(owner, "kept")]


def test_a_text_with_the_process_id_gets_that_of_the_executor() -> None:
    """The name of a file that a module makes of its process id, and what other modules make of this name."""
    module, user, other = types.ModuleType("writes"), types.ModuleType("imports"), types.ModuleType("has_the_digits")
    module.os_getpid = lambda: ZygotePid(41)  # type: ignore[attr-defined]
    source = "NAME = f'@test_{os_getpid()}_tmp'\nOTHER = '@test_' + str(os_getpid())\nPART = '1410'"
    exec(source, vars(module))
    name = vars(module)["NAME"]
    vars(user).update(
        NAME=name, INSIDE=f"{name}/41.db", BYTES=os.fsencode(name) + b"\xff", PATH=Path(name, "a"), LIST=[name]
    )
    vars(other).update(TEXT="of 41 lines")
    for variable in variables_with_pid([module, user, other], 41):
        variable.renew(52)
    assert {key: vars(module)[key] for key in ("NAME", "OTHER", "PART")} == {
        "NAME": "@test_52_tmp",
        "OTHER": "@test_52",
        "PART": "1410",
    }
    assert {key: vars(user)[key] for key in ("NAME", "INSIDE", "BYTES", "PATH", "LIST")} == {
        "NAME": "@test_52_tmp",
        "INSIDE": "@test_52_tmp/52.db",
        "BYTES": b"@test_52_tmp\xff",
        "PATH": Path("@test_52_tmp/a"),
        "LIST": ["@test_41_tmp"],
    }
    assert vars(other)["TEXT"] == "of 41 lines"
