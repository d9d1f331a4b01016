"""A pytest plugin that records which inputs the cases of operators compare: `-p tests.breaks.calls.input_recorder`.

It writes to the folder that the variable `VARIABLE` names: one file per process, and a line per case. The operators are
called, and their results are compared with nothing, since the references take most of the time.
"""

from __future__ import annotations

import inspect
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils._pytree import tree_leaves

VARIABLE = "INPUTS_FOLDER"

#: By operator and argument, the properties that the argument has had. `inputs.COLUMNS` explains them.
Inputs = dict[str, dict[str, set[str]]]

_SIXTEEN_BITS = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
#: The number of elements beyond which kernels sum in parts.
MANY = 1024


def _properties(tensor: torch.Tensor) -> Iterator[str]:
    """Yield the properties of a tensor with strides."""
    if not tensor.dim() or tensor.numel() < 2:
        return
    yield "array"
    if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        yield "gaps"
    if tensor.dtype in _SIXTEEN_BITS and tensor.numel() > MANY:
        yield f"many of {_SIXTEEN_BITS[tensor.dtype]}"
    if tensor.dtype == torch.float32:
        yield "float"
        yield from _of_values(tensor.detach().to("cpu", torch.float64))


def _of_values(x: torch.Tensor) -> Iterator[str]:
    if bool(x.isnan().any()):
        yield "nan"
    if bool((x == -torch.inf).all(-1).any()):
        yield "rows of -inf"
    if bool(x.isfinite().all()) and float(x.mean().abs()) > 8 * float(x.std()):
        yield "far mean"


def _names(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments of a function in Python; none for one in C++."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]


def noted(function: Callable[..., Any], given: tuple[Any, tuple[Any, ...], Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return the properties of each argument of a call, and of each pair of options as ``one+other``.

    `given`: input, positional and named arguments. An argument without a name has its position.
    """
    first, others, named = given
    names = dict(enumerate(_names(function)))
    arguments = {names.get(place, str(place)): each for place, each in enumerate((first, *others))} | dict(named)
    found: dict[str, set[str]] = {}
    options = []
    for name, value in arguments.items():
        tensors = [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]
        strided = [each for each in tensors if each.layout == torch.strided and not each.is_quantized]
        if about := {each for tensor in strided for each in _properties(tensor)}:
            found[name] = about
        elif not tensors and name in named:
            options.append(name)
    found |= {name: {"option"} for name in options}
    for pair in combinations(sorted(options), 2):
        found["+".join(pair)] = {"pair"}
    return found


class Recorder:
    """Notes the arguments of each operator that cases call for a comparison."""

    def __init__(self) -> None:
        self._seen: Inputs = defaultdict(lambda: defaultdict(set))

    def pytest_collection_finish(self) -> None:
        """Replace what calls operators, and what compares, in the suite that the collection has imported."""
        from suites.operators import _torch_private, oracles

        call = oracles.call

        def calls(info: Any) -> Callable[[Any], Any]:
            function, name = call(info), _torch_private.full_name(info)

            def noting(given: Any) -> Any:
                for argument, found in noted(info.op, given).items():
                    self._seen[name][argument] |= found
                return function(given)

            return noting

        oracles.call = calls
        oracles.judge = lambda *_: None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Append what the case has given, whatever its outcome."""
        try:
            yield
        finally:
            with Path(os.environ[VARIABLE], f"{os.getpid()}.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(self._seen) + b"\n")
            self._seen.clear()


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder."""
    config.pluginmanager.register(Recorder())


def read(folder: Path) -> Inputs:
    """Return what the cases of all processes have given."""
    merged: Inputs = defaultdict(lambda: defaultdict(set))
    for file in folder.glob("*.jsonl"):
        for line in file.read_bytes().splitlines():
            for operator, arguments in msgspec.json.decode(line, type=Inputs).items():
                for argument, found in arguments.items():
                    merged[operator][argument] |= found
    return merged
