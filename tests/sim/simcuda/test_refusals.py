"""What the simulated CUDA refuses by itself, in Python, is said in its name: no reader takes it for CUDA's answer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness.sim.simcuda

_ROOT = Path(harness.sim.simcuda.__file__).parent
#: The words that name it in the source of a text: literally, or by a constant.
_NAMES = ("the simulated CUDA", "{NOUN}", "{_NOUN}", "{simcuda.BACKEND.kind}")


def _refusals() -> Iterator[tuple[str, str]]:
    """Yield the place and the source of each text with which these modules raise an error."""
    for path in sorted(_ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Raise(exc=ast.Call(args=[ast.Constant(str()) | ast.JoinedStr() as text, *_])):
                    yield f"{path.relative_to(_ROOT)}:{node.lineno}", ast.unparse(text)


@pytest.mark.parametrize(("place", "text"), [pytest.param(*each, id=each[0]) for each in _refusals()])
def test_a_refusal_names_the_simulated_cuda(place: str, text: str) -> None:
    assert any(name in text for name in _NAMES), place


def test_refusals_are_found() -> None:
    assert len(list(_refusals())) >= 10
