"""What the library of operators says of the operators that torch has for CUDA."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from harness.devices import software
from harness.simcuda import build, loading
from tests.simcuda.fake_runtime import run_python

_BUILT_FOR = software.cuda()
_LIST = """
import ctypes, os, torch
library = ctypes.CDLL(os.environ["SIMCUDA_OPERATORS"])
library.simcuda_list_operators.restype = ctypes.c_char_p
print("operators:", library.simcuda_list_operators().decode(), sep="\\n")
"""


@pytest.mark.skipif(_BUILT_FOR.value is None, reason=f"needs a CUDA build of torch: {_BUILT_FOR.detail}")
def test_every_operator_of_this_torch_is_in_a_class() -> None:
    """An operator of class "unknown" has a kernel for CUDA in this torch, and nobody has decided what becomes of it."""
    done = run_python(_LIST, loading.variables(build.build(), os.environ))
    assert done.returncode == 0, done.stderr
    _, _, listed = done.stdout.partition("operators:\n")
    classes: dict[str, str] = {}
    for line in filter(None, listed.splitlines()):
        name, how, _ = line.split("\t")
        classes[name] = how
    assert len(classes) > 1000, Counter(classes.values())
    assert sorted(name for name, how in classes.items() if how == "unknown") == []
