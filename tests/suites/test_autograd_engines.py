"""How cases of `suites/autograd` get their engine, and the outcome of a case that did not run with it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from suites.autograd.engines import COMPILED, EAGER, ENGINES, LIST, WHOLE, Engine, Known, as_one_graph, each, waived

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "captures", "complaint"),
    [
        (EAGER, 0, None),
        (EAGER, 2, "2 graphs were captured in a case for the eager engine"),
        (COMPILED, 1, None),
        (COMPILED, 0, "the case checked the eager engine"),
        (WHOLE, 3, None),
        (WHOLE, 0, "the case checked the eager engine"),
    ],
)
def test_a_case_must_have_run_with_its_engine(name: str, captures: int, complaint: str | None) -> None:
    engine = Engine(name, lambda: captures)

    if complaint is None:
        engine.check()
    else:
        with pytest.raises(AssertionError, match=complaint):
            engine.check()


def test_a_waiver_is_for_compiled_autograd_alone() -> None:
    (mark,) = marks(waived(Known("not yet", LIST, ValueError)))
    eager, compiled = mark.args[1]

    assert mark.kwargs == {"indirect": True}
    assert eager == EAGER
    assert compiled.values == (COMPILED,)
    (known,) = compiled.marks
    assert known.kwargs == {"raises": ValueError, "reason": f"not yet ({LIST})", "strict": True}
    assert known.args == (True,)


def test_a_waiver_of_some_values_leaves_the_others() -> None:
    (mark,) = marks(each("kind", ["a", "b"], {"b": Known("not yet", LIST, ValueError, always=False)}))
    pairs = [(*pair.values, [one.kwargs["strict"] for one in pair.marks]) for pair in mark.args[1]]

    assert mark.args[0] == ("engine", "kind")
    assert mark.kwargs == {"indirect": ["engine"]}
    assert pairs == [(EAGER, "a", []), (EAGER, "b", []), (COMPILED, "a", []), (COMPILED, "b", [False])]


def test_a_waiver_of_a_value_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such value of kind: c"):
        each("kind", ["a", "b"], {"c": Known("not yet", LIST, ValueError)})


@pytest.mark.parametrize("link", ["", "issue 5", "http://example.org/5"])
def test_a_waiver_needs_a_link(link: str) -> None:
    with pytest.raises(ValueError, match="needs an https:// link"):
        waived(Known("not yet", link, ValueError))


def test_one_graph_is_asked_for_beside_the_eager_engine() -> None:
    (mark,) = marks(as_one_graph)

    assert mark.args == ("engine", [EAGER, WHOLE])
    assert set(ENGINES) == {EAGER, COMPILED}


#: Cases that test Python functions before or after a backward pass, or choose a compiler of their own.
_BESIDE_THE_PASS = (
    "test_checkpoint_calls.py",
    "test_checkpoint_options.py",
    "test_compiled_functions.py",
    "test_compiled_refusals.py",
    "test_dual_levels.py",
    "test_forward_hooks.py",
    "test_function_classes.py",
    "test_functional.py",
    "test_functional_strict.py",
    "test_grad_mode_objects.py",
    "test_graph_utilities.py",
    "test_recomputed_draws.py",
)


def test_every_case_takes_the_engine() -> None:
    """A case without it would run once, and only seem to be checked with both engines."""
    lacking = [
        f"{path.name}: {case.name}"
        for path in sorted((ROOT / "suites" / "autograd").glob("test_*.py"))
        if path.name not in _BESIDE_THE_PASS
        for case in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(case, ast.FunctionDef) and case.name.startswith("test_")
        if "engine: Engine" not in ast.unparse(case.args)
    ]

    assert lacking == []


def marks(decorate: object) -> list[pytest.Mark]:
    """Return the marks that a decorator leaves on a case."""

    def case() -> None: ...

    assert callable(decorate)
    decorate(case)
    found: list[pytest.Mark] = case.pytestmark  # type: ignore[attr-defined]
    return found
