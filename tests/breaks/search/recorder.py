"""What one case reaches in torch: statements of Python, operators, C functions and attributes.

A fork of the warm process registers the plugin and runs the case once (`warm`).
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Generator, Mapping
from pathlib import Path
from types import CodeType, FrameType

import pytest

from tests.breaks.mutants.recording import make_watch

#: The modules of torch whose statements are changed. Those of its compilers run in every compiled case.
MODULES = ("torch/*.py",)
LEFT_OUT = (
    "torch/_dynamo/",
    "torch/_inductor/",
    "torch/_functorch/",
    "torch/_subclasses/",
    "torch/_logging/",
    "torch/_refs/",
    "torch/_prims",
    "torch/_decomp/",
    "torch/fx/",
    "torch/testing/",
    "torch/utils/_sympy/",
    "torch/utils/_config_module.py",
    "torch/utils/_pytree.py",
    "torch/utils/_cxx_pytree.py",
    "torch/onnx/",
    "torch/export/",
    "torch/_export/",
)
#: The modules of the compilers whose contracts suites check.
KEPT = ("torch/_dynamo/compiled_autograd.py", "torch/_inductor/cudagraph_trees.py")


def is_changed(path: str) -> bool:
    """Return whether statements of a file of torch are changed."""
    return path in KEPT or not path.startswith(LEFT_OUT)


class ReachPlugin:
    """Writes one line of JSON when the case has run. `names`: those of C functions by identity."""

    def __init__(self, file: Path, root: str, names: Mapping[int, str], attributes: Mapping[str, list[str]]) -> None:
        self._file = file
        self._names = names
        self._attributes = attributes
        self._watch = make_watch(root, (*KEPT, "torch/[!_]*.py", "torch/_[!_]*.py"))
        self._called: set[str] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        from suites.operators.variants import Called  # only now: pytest rewrites the assertions of suites

        called = Called()
        sys.setprofile(self._on_call)
        threading.setprofile(self._on_call)
        self._watch.start()
        try:
            with called:
                return (yield)
        finally:
            self._watch.stop()
            sys.setprofile(None)
            threading.setprofile(None)
            words = _names_in(getattr(item, "function").__code__)  # noqa: B009 - every case is a function
            record = {
                "case": item.nodeid,
                "lines": {path: lines for path, lines in self._watch.lines().items() if is_changed(path)},
                "operators": sorted(name.removeprefix("aten::") for name in called.names),
                "functions": sorted(self._called),
                "attributes": sorted(name for word in words for name in self._attributes.get(word, ())),
            }
            self._file.write_text(json.dumps(record), encoding="utf-8")

    def _on_call(self, frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG002
        if event != "c_call":
            return
        name = self._names.get(id(argument))
        if name is None and (owner := getattr(argument, "__self__", None)) is not None:
            word = getattr(argument, "__name__", "")
            for base in type(owner).__mro__:
                if (value := vars(base).get(word)) is not None:
                    name = self._names.get(id(value))
                    break
        if name is not None:
            self._called.add(name)


def _names_in(code: CodeType) -> set[str]:
    """Return the names of attributes in a function and in those inside it."""
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names |= _names_in(const)
    return names
