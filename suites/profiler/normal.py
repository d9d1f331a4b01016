"""The normaliser: what makes trees of two runs, machines or releases of Python comparable. Pure.

Names are folded when a profile is read. Source lines go (`file.py(12): f` is `file.py: f`), folders go except below
`torch/`, addresses of objects go, template arguments and parameter lists of kernels go, and so does the class under
which pybind11 hides its functions.

Noise is pruned for golden files only (`normal_form`); a contract sees the whole tree.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .node import Kind, Node

_FRAME = re.compile(r"^(?P<file>.*)\(\d+\): (?P<function>[^:]*)$")
_OF_TORCH = re.compile(r"(?:^|-packages/)(torch/.+)$")
_ADDRESS = re.compile(r" object at 0x[0-9a-fA-F]+")
_PYBIND = re.compile(r"(pybind11_builtins\.)?pybind11_detail_function_record\w*|PyCapsule")

# Frames of their own up to Python 3.11, part of the function around them since.
_INLINED = (": <listcomp>", ": <setcomp>", ": <dictcomp>")


def fold_name(name: str) -> str:
    """The name of a host event without source line, folders and addresses."""
    frame = _FRAME.match(name)
    if frame:
        file = frame["file"].replace("\\", "/")
        of_torch = _OF_TORCH.search(file)
        return f"{of_torch[1] if of_torch else file.rpartition('/')[2]}: {frame['function']}"
    return _PYBIND.sub("pybind11", _ADDRESS.sub("", name))


def fold_activity(name: str) -> str:
    """The name of a device event without its template arguments and parameter list: `void f<int>(int*)` is `void f`."""
    plain, depth = [], 0
    for letter in name:
        if letter == "<":
            depth += 1
        elif letter == ">" and depth:
            depth -= 1
        elif not depth:
            plain.append(letter)
    text = "".join(plain).strip()
    # Copies and fills are named in words, "Memcpy HtoD (Pinned -> Device)": those brackets say what was copied.
    if text.startswith(("Memcpy", "Memset")):
        return text
    return re.sub(r"(?<=\w)\(.*\)$", "", text)


def normal_form(tree: Node) -> Node:
    """The tree without noise: what a golden file holds.

    Cut off: Python frames and C calls below which nothing but frames and C calls happened. Replaced by what is below
    them: frames of comprehensions.
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
