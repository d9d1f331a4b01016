"""The normalizer, which makes trees of different runs, machines and Python releases comparable. Its functions are pure.

Names are normalized when a profile is read: source lines (`file.py(12): f` becomes `file.py: f`), directories except
below `torch/`, object addresses, kernels' template arguments and parameter lists, and the class name that pybind11 adds
to its functions are removed.

Noise is removed only for golden files (`normal_form`); the cases use the whole tree.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .node import Kind, Node

_FRAME = re.compile(r"^(?P<file>.*)\(\d+\): (?P<function>[^:]*)$")
_OF_TORCH = re.compile(r"(?:^|-packages/)(torch/.+)$")
_ADDRESS = re.compile(r" object at 0x[0-9a-fA-F]+")
_PYBIND = re.compile(r"(pybind11_builtins\.)?pybind11_detail_function_record\w*|PyCapsule")

# Separate frames up to Python 3.11, and part of the enclosing function since 3.12.
_INLINED = (": <listcomp>", ": <setcomp>", ": <dictcomp>")


def fold_name(name: str) -> str:
    """Return the name of a host event without source line, directories and addresses."""
    frame = _FRAME.match(name)
    if frame:
        file = frame["file"].replace("\\", "/")
        of_torch = _OF_TORCH.search(file)
        return f"{of_torch[1] if of_torch else file.rpartition('/')[2]}: {frame['function']}"
    return _PYBIND.sub("pybind11", _ADDRESS.sub("", name))


def fold_activity(name: str) -> str:
    """Return the name of a device event without template arguments and parameter list.

    `void f<int>(int*)` becomes `void f`.
    """
    plain, depth = [], 0
    for letter in name:
        if letter == "<":
            depth += 1
        elif letter == ">" and depth:
            depth -= 1
        elif not depth:
            plain.append(letter)
    text = "".join(plain).strip()
    # Copies and fills have names such as "Memcpy HtoD (Pinned -> Device)", whose parentheses describe the copy.
    if text.startswith(("Memcpy", "Memset")):
        return text
    return re.sub(r"(?<=\w)\(.*\)$", "", text)


def normal_form(tree: Node) -> Node:
    """Return the tree without noise, as stored in a golden file.

    Python frames and C calls with only frames and C calls below them are removed. Frames of comprehensions are replaced
    by their children.
    """
    return replace(tree, children=_quiet(tree.children))


def _quiet(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    kept: list[Node] = []
    for node in nodes:
        below = _quiet(node.children)
        if node.kind is Kind.PYTHON and node.name.endswith(_INLINED):
            kept += below
        elif below or node.kind not in (Kind.PYTHON, Kind.C_CALL):
            kept.append(replace(node, children=below))
    return tuple(kept)
