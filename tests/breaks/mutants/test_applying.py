"""Mutants of live functions, and the observations of a watch."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType

import pytest

pytest.importorskip("libcst")

from tests.breaks.mutants.applying import UnfitError, apply, living_functions
from tests.breaks.mutants.modules import chooser, is_wanted
from tests.breaks.mutants.recording import Watch, lines_of, make_watch, value_text
from tests.breaks.mutants.walk import mutants_of

SOURCE = """\
import contextlib
import functools


def wrapped(function):
    @functools.wraps(function)
    def call(*arguments, **named):
        return function(*arguments, **named)

    return call


@wrapped
def add(a, b=1):
    return a + b


class Box:
    size = 3

    @property
    def double(self):
        return self.size * 2

    @classmethod
    def make(cls, *, many=False):
        return [cls()] if many else cls()


def outer(n):
    def inner(x):
        return x < n

    return inner


@contextlib.contextmanager
def held(log):
    log.append("in")
    try:
        yield
    finally:
        log.append("out")
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    file = tmp_path / "mutated_box.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("mutated_box", file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    yield made
    sys.modules.pop("mutated_box", None)


def change(module: ModuleType, function: str, operator: str, new: str = "") -> None:
    file = Path(str(module.__file__))
    mutants, _ = mutants_of(file.name, file.read_bytes())
    found = [each for each in mutants if (each.function, each.operator) == (function, operator) and new in each.new]
    apply(found[0], file, living_functions([file]))


def test_a_decorated_function(module: ModuleType) -> None:
    change(module, "add", "arithmetic changed")
    assert module.add(5, 2) == 3


def test_a_default(module: ModuleType) -> None:
    change(module, "add", "default changed")
    assert module.add(5) == 7


def test_a_default_by_keyword_of_a_class_method(module: ModuleType) -> None:
    change(module, "Box.make", "default changed")
    assert len(module.Box.make()) == 1


def test_a_property(module: ModuleType) -> None:
    change(module, "Box.double", "constant changed")
    assert module.Box().double == 9


def test_a_function_in_a_function(module: ModuleType) -> None:
    change(module, "outer.<locals>.inner", "comparison changed")
    assert module.outer(3)(3)


def test_what_is_left_out_keeps_the_variables_of_the_functions_around(module: ModuleType) -> None:
    change(module, "wrapped.<locals>.call", "nothing returned")
    assert module.add(5, 2) is None


def test_finally_after_an_exception(module: ModuleType) -> None:
    change(module, "held", "finally without an exception only")
    log: list[str] = []
    with module.held(log):
        pass
    assert log == ["in", "out"]
    log.clear()
    with pytest.raises(KeyError), module.held(log):
        raise KeyError
    assert log == ["in"]


def test_a_function_that_does_not_live_is_unfit(module: ModuleType) -> None:
    file = Path(str(module.__file__))
    each = mutants_of(file.name, file.read_bytes())[0][-1]
    with pytest.raises(UnfitError, match="no living function"):
        apply(each, file, {})


def test_a_watch_sees_lines_and_arguments(module: ModuleType) -> None:
    file = Path(str(module.__file__))
    watch = make_watch(str(file.parent), (file.name,))
    before = sys.gettrace()
    watch.start()
    try:
        module.add(5, b=True)
        module.Box.make(many=module)
    finally:
        watch.stop()
        sys.settrace(before)
    lines = SOURCE.splitlines()
    seen = {lines[number - 1].strip() for number in watch.lines()[file.name]}
    assert {"return a + b", "return [cls()] if many else cls()"} <= seen
    assert "return x < n" not in seen
    assert watch.arguments[f"{file.name}:add"] == {"a": {"5"}, "b": {"True"}}
    assert watch.arguments[f"{file.name}:Box.make"]["many"] == {"module"}


def test_a_watch_passes_over_code_whose_constants_have_no_hash(module: ModuleType) -> None:
    """Dynamo generates such code."""
    file = Path(str(module.__file__))

    def unhashable(a: int) -> object:
        return module.add(a)

    unhashable.__code__ = unhashable.__code__.replace(co_consts=(*unhashable.__code__.co_consts, {}))
    with pytest.raises(TypeError, match="unhashable"):
        hash(unhashable.__code__)
    watch = make_watch(str(file.parent), (file.name,))
    before = sys.gettrace()
    watch.start()
    try:
        unhashable(5)
    finally:
        watch.stop()
        sys.settrace(before)
    assert watch.arguments[f"{file.name}:add"]["a"] == {"5"}


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def test_a_watch_calls_no_generator() -> None:
    """With `fullgraph=True`, torch's compiler refuses a generator, including one of the watch that runs with a case."""
    called = (Watch._on_call, Watch._place, Watch._note_arguments, lines_of, value_text, chooser(("torch/random.py",)))
    for function in called:
        for code in codes_of(function.__code__):
            assert not code.co_flags & inspect.CO_GENERATOR, code.co_qualname


@pytest.mark.parametrize(
    ("path", "patterns", "wanted"),
    [
        ("torch/random.py", ("torch/*.py",), True),
        ("torch/optim/adam.py", ("torch/random.py", "torch/optim/*"), True),
        ("torch/random.pyc", ("torch/random.py",), False),
        ("a/torch/random.py", ("torch/random.py",), False),
        ("torch/backends/mps/__init__.py", ("torch/backends/*.py",), False),
        ("torch/random.py", (), False),
    ],
)
def test_wanted_files_by_patterns(path: str, patterns: tuple[str, ...], wanted: bool) -> None:
    assert is_wanted(path, patterns) is wanted


@pytest.mark.parametrize(
    ("value", "text"), [(None, "None"), ("a", "'a'"), ("a" * 40, "str"), ([1], "list"), (0.5, "0.5")]
)
def test_values_as_they_are_kept(value: object, text: str) -> None:
    assert value_text(value) == text
