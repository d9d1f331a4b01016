"""Private names of torch that suites use: each still exists.

A case whose name is gone is skipped, so the loss would go unnoticed. This test notices it.
"""

from __future__ import annotations

import ast
import functools
import importlib
import warnings
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path

import torch

SUITES = Path(__file__).parents[2] / "suites"

#: Names that only some builds or releases have, and the reason why others lack them.
NOT_EVERYWHERE = {
    "_C._rocm_is_backward_pass": "builds for ROCm",
    "_C._host_emptyCache": "builds for CUDA",
    "_C._has_Standard_Deleter": "builds for CUDA",
    "_C._set_storage_access_error_msg": "builds for CUDA",
    "_C._set_storage_data_ptr_access_error_msg": "builds for CUDA",
    "_C._clear_storage_data_ptr_access_error_msg": "builds for CUDA, from torch 2.12 on",
    "_C._accelerator_getDefaultGenerator": "torch 2.14",
    "_C._distributed_c10d._dump_nccl_trace": "builds for CUDA",
    "accelerator.empty_host_cache": "torch 2.12",
    "_dynamo.override_cudagraphs": "torch 2.12",
}


def _dotted(node: ast.expr) -> str | None:
    """Return ``a.b.c`` for an expression of only names, without its leading ``torch.``; None if it is not in torch."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id == "torch":
        return ".".join(reversed(parts))
    return None


def _text(node: ast.expr, constants: Mapping[str, str]) -> str | None:
    """Return the text of an expression that constants of its module determine; None for any other expression."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return constants.get(name)
        case ast.FormattedValue(value=value):
            return _text(value, constants)
        case ast.JoinedStr(values=values):
            parts = [_text(value, constants) for value in values]
            return None if None in parts else "".join(part for part in parts if part)
    return None


def names_in(source: str) -> Iterator[str]:
    """Yield the names, below torch, that a module looks up: by `reach("torch.a.b")`, `getattr(torch.a, "b", …)` etc.

    For a path whose end is only known when the case runs, yield the part before it.
    """
    if "reach(" not in source and "getattr(" not in source:
        return  # parsing all suites takes seconds
    tree = ast.parse(source)
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
            continue
        if node.func.id == "reach":
            path = _text(node.args[0], constants)
            if path is None and isinstance(node.args[0], ast.JoinedStr):
                known = takewhile(lambda part: part is not None, (_text(v, constants) for v in node.args[0].values))
                path = "".join(part for part in known if part).rpartition(".")[0]
            if path:
                yield path.removeprefix("torch.")
        elif node.func.id == "getattr" and len(node.args) >= 2:
            below, name = _dotted(node.args[0]), _text(node.args[1], constants)
            if below is not None and name is not None:
                yield f"{below}.{name}".lstrip(".")


def _found(path: str) -> bool:
    found: object = torch
    reached = "torch"
    for step in path.split("."):
        reached += f".{step}"
        if not hasattr(found, step):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # torch's modules may use deprecated names
                    importlib.import_module(reached)
            except ImportError:
                return False
        found = getattr(found, step)
    return True


@functools.cache
def asked() -> list[tuple[str, str]]:
    """Return the names that the suites look up, each with its file."""
    files = sorted(path for path in SUITES.rglob("*.py") if path.name != "reaching.py")
    return sorted({(name, str(path.relative_to(SUITES))) for path in files for name in names_in(path.read_text())})


def _may_be_missing(name: str) -> bool:
    return name in NOT_EVERYWHERE or (name.startswith(("cuda.", "_C._cuda_")) and torch.version.cuda is None)


def test_names_are_found_in_every_manner_of_asking() -> None:
    source = """
HERE = "torch.cuda._here"
reach("torch._dynamo.config.patch")(1)
reach(f"{HERE}.plot")
reach(f"torch._higher._{name}_ops")
reach(f"{HERE}._x.{name}")
reach(path)
getattr(torch._C, "_host_emptyCache", None)
getattr(torch, "soft", None)
getattr(tensor, "_version")
"""
    assert sorted(names_in(source)) == [
        "_C._host_emptyCache",
        "_dynamo.config.patch",
        "_higher",
        "cuda._here._x",
        "cuda._here.plot",
        "soft",
    ]
    assert _found("_dynamo.config.patch")
    assert not _found("_dynamo.config.patched_by_nobody")
    assert len(asked()) >= 60


def test_every_name_is_where_it_was() -> None:
    missing = [
        f"torch {torch.__version__} has no torch.{name}, which suites/{file} asks for"
        for name, file in asked()
        if not _found(name) and not _may_be_missing(name)
    ]
    assert not missing, "\n".join(missing)


def test_what_is_not_everywhere_is_still_asked_for() -> None:
    assert set(NOT_EVERYWHERE) <= {name for name, _ in asked()}
