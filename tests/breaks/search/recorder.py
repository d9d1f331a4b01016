"""What one case reaches in torch: statements of Python, operators, C functions and attributes.

A fork of the warm process registers the plugin and runs the case once. Each process of the case writes its own file.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Generator, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

import pytest

from tests.breaks.mutants.recording import make_watch
from tests.breaks.search import generated
from tests.breaks.search.making import Making

#: The modules of torch whose statements are changed. Those of its compilers run in every compiled case, so only the two
#: whose contracts suites check belong to them.
MODULES = (
    "torch/[!_]*.py",
    "torch/__init__.py",
    "torch/_tensor.py",
    "torch/_utils.py",
    "torch/_weights_only_unpickler.py",
    "torch/_library/*.py",
    "torch/_higher_order_ops/*.py",
    "torch/_dynamo/compiled_autograd.py",
    "torch/_inductor/cudagraph_trees.py",
)
_TOOLS = ("torch/fx/", "torch/testing/", "torch/utils/_", "torch/onnx/", "torch/export/", "torch/ao/", "torch/jit/")


class Recorder:
    """Records between `start` and `stop`, or the end of the process, and then writes one line of JSON."""

    def __init__(self, making: Making, root: Path, folder: Path) -> None:
        self._folder = folder
        self._names = generated.names_of_functions(making.functions)
        self._watch = make_watch(str(root), MODULES)
        self._functions: set[str] = set()
        self._operators: set[str] = set()
        self._mode: Any = None

    def start(self) -> None:
        from suites.operators.variants import Called  # only now: pytest rewrites the assertions of suites

        self._mode = Called()
        sys.setprofile(self._on_call)
        threading.setprofile(self._on_call)
        self._watch.start()
        self._mode.__enter__()
        self._leave = os._exit
        os._exit = self._write_and_leave
        self._process = os.getpid()

    def note_types(self, words: Iterable[str]) -> None:
        """Note the C classes among the names of a function. No event tells of their calls."""
        self._functions.update(f"torch.{word}" for word in words if word in generated.TYPES)

    def stop(self, attributes: Iterable[str] = ()) -> None:
        os._exit = self._leave
        self._mode.__exit__(None, None, None)
        self._write(attributes)

    def _write_and_leave(self, status: int) -> NoReturn:
        self._write()
        self._leave(status)

    def _write(self, attributes: Iterable[str] = ()) -> None:
        self._watch.stop()
        sys.setprofile(None)
        threading.setprofile(None)
        lines = self._watch.lines()
        record = {
            "lines": {path: numbers for path, numbers in lines.items() if not path.startswith(_TOOLS)},
            "operators": sorted(name.removeprefix("aten::") for name in self._mode.names),
            "functions": sorted(self._functions),
            "attributes": sorted(attributes),
        }
        (self._folder / f"{os.getpid()}.json").write_text(json.dumps(record), encoding="utf-8")

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
            self._functions.add(name)


class ReachPlugin:
    """Records the call of a case. `attributes`: the attributes of C classes by their bare names."""

    def __init__(self, recorder: Recorder, attributes: dict[str, list[str]]) -> None:
        self._recorder = recorder
        self._attributes = attributes

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        words = _names_in(item.function.__code__)  # type: ignore[attr-defined]  # every case is a function
        self._recorder.note_types(words)
        self._recorder.start()
        try:
            return (yield)
        finally:
            self._recorder.stop(name for word in words for name in self._attributes.get(word, ()))


def _names_in(code: CodeType) -> set[str]:
    """Return the names of attributes in a function and in those inside it."""
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names |= _names_in(const)
    return names


def read_records(folder: Path) -> dict[str, Any]:
    """Return what all processes of a case have reached."""
    lines: dict[str, set[int]] = {}
    names: dict[str, set[str]] = {"operators": set(), "functions": set(), "attributes": set()}
    for file in sorted(folder.glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        for path, numbers in record["lines"].items():
            lines.setdefault(path, set()).update(numbers)
        for kind, found in names.items():
            found.update(record[kind])
    return {
        "lines": {path: sorted(numbers) for path, numbers in sorted(lines.items())},
        **{kind: sorted(found) for kind, found in names.items()},
    }
