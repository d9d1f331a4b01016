"""Names of torch that suites reach for and that nothing promises: each is still where it was.

A case whose name is gone is skipped, so that nobody would see what is no longer checked. This sees it.
"""

from __future__ import annotations

import ast
import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

SUITES = Path(__file__).parents[2] / "suites"

#: What only some builds or releases have, and why the others lack it.
NOT_EVERYWHERE = {
    "_C._rocm_is_backward_pass": "builds for ROCm",
    "_C._host_emptyCache": "builds for CUDA",
    "accelerator.empty_host_cache": "torch 2.12",
    "_dynamo.override_cudagraphs": "torch 2.12",
}


def _dotted(node: ast.expr) -> str | None:
    """``a.b.c`` of an expression that is nothing else, without its leading ``torch.``; None for what is not torch's."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id == "torch":
        return ".".join(reversed(parts))
    return None


def names_in(source: str) -> Iterator[str]:
    """The names, below torch, that a module asks for: by `_reach("a.b")`, `getattr(torch.a, "b", …)` and the like."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        texts = [
            arg.value if isinstance(arg, ast.Constant) and isinstance(arg.value, str) else None for arg in node.args
        ]
        if node.func.id == "_reach" and texts and texts[0] is not None:
            yield texts[0]
        elif node.func.id in ("getattr", "reach") and len(texts) >= 2 and texts[1] is not None:
            below = texts[0].removeprefix("torch.") if texts[0] is not None else _dotted(node.args[0])
            if below is not None:
                yield f"{below}.{texts[1]}".lstrip(".")


def _found(path: str) -> bool:
    found: object = torch
    reached = "torch"
    for step in path.split("."):
        reached += f".{step}"
        if not hasattr(found, step):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter(
                        "ignore", DeprecationWarning
                    )  # what torch's modules use is torch's own affair
                    importlib.import_module(reached)
            except ImportError:
                return False
        found = getattr(found, step)
    return True


FILES = sorted(SUITES.rglob("_torch_private*.py"))
ASKED = sorted({(name, str(path.relative_to(SUITES))) for path in FILES for name in names_in(path.read_text())})


def test_names_are_found_in_every_manner_of_asking() -> None:
    source = """
_reach("_dynamo.config.patch")(1)
getattr(torch._C, "_host_emptyCache", None)
getattr(torch, "soft", None)
reach(torch, "Tensor._make", "torch")
reach("torch._inductor.utils", "run_and_get_code")
getattr(tensor, "_version")
_reach(f"x.{y}")
"""
    assert sorted(names_in(source)) == [
        "Tensor._make",
        "_C._host_emptyCache",
        "_dynamo.config.patch",
        "_inductor.utils.run_and_get_code",
        "soft",
    ]
    assert _found("_dynamo.config.patch")
    assert not _found("_dynamo.config.patched_by_nobody")
    assert len(FILES) >= 8
    assert len(ASKED) >= 20


@pytest.mark.parametrize(("name", "file"), ASKED)
def test_a_name_is_where_it_was(name: str, file: str) -> None:
    if name in NOT_EVERYWHERE and not _found(name):
        pytest.skip(f"torch.{name}: {NOT_EVERYWHERE[name]}")
    if name.startswith("cuda.") and torch.version.cuda is None and not _found(name):
        pytest.skip(f"torch.{name}: builds for CUDA")
    assert _found(name), f"torch {torch.__version__} has no torch.{name}, which suites/{file} asks for"


def test_what_is_not_everywhere_is_still_asked_for() -> None:
    assert set(NOT_EVERYWHERE) <= {name for name, _ in ASKED}
