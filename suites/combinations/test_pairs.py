"""Each pair of features, around a program that the case's seed draws."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from suites import _torch_private_compiled as private
from suites.compiled import KEEPS, KEPT

from . import programs
from .features import FEATURES
from .programs import Program

pytestmark = [
    # The software device only has the operators of torch's catalogue that it declares.
    pytest.mark.requires(any=[{"not_": {"accelerator": True}}, {"device": "cuda"}]),
    pytest.mark.filterwarnings("ignore"),  # experimental features warn
]
_COMPILERS = frozenset(name for name in FEATURES if name.startswith("compile_"))
#: Pairs, outer and inner, that torch refuses or that mean something else together, and the reason.
_LEFT_OUT: dict[tuple[str, str], str] = {
    ("own_function", "checkpoint_reentrant"): "a reentrant checkpoint refuses `autograd.grad`",
    ("vmap", "checkpoint_reentrant"): "torch.func refuses an autograd.Function without setup_context",
    ("vmap", "own_function"): "torch.func refuses an autograd.Function without a rule for vmap",
    ("vmap", "checkpoint"): "the backward pass after vmap computes batched tensors again",
    **dict.fromkeys(
        itertools.chain.from_iterable(
            (("subclass", each), (each, "subclass")) for each in ("compile_aot_eager", "compile_dynamic")
        ),
        "AOTAutograd refuses a subclass without __torch_dispatch__",
    ),
    ("vmap", "thread"): "a batched tensor belongs to its thread",
}


#: A fault of torch, which `autograd/test_compiled_refusals.py` checks.
_UNDEFINED_NAME = "NameError: name '__subclass_Tensor_"


def _pairs() -> Iterator[Any]:
    names = list(FEATURES)
    for outer, inner in itertools.permutations(names, 2):
        if (outer, inner) in _LEFT_OUT:
            continue
        compiles = len(_COMPILERS & {outer, inner})
        marks = [pytest.mark.keeps(KEEPS, **KEPT)] if compiles else []
        if "save_on_cpu" in (outer, inner):
            # The copy to the host of a tensor of the host is the tensor itself, whose graph then keeps itself:
            # `autograd/test_graph_utilities.py`.
            marks.append(pytest.mark.requires(accelerator=True))
        if compiles or names.index(outer) > names.index(inner):
            marks.append(pytest.mark.extended)
        yield pytest.param(outer, inner, marks=marks, id=f"{outer}-{inner}")


def _results(function: Callable[..., torch.Tensor], seed: int, device: torch.device) -> list[torch.Tensor]:
    """Return the result and the gradients by the inputs, zeros where there is none."""
    given = programs.inputs(seed, device)
    result = function(*given)
    if result.requires_grad:
        result.sum().backward()
    return [result.detach(), *(torch.zeros_like(each) if each.grad is None else each.grad for each in given)]


def _difference(program: Program, names: tuple[str, ...], seed: int, device: torch.device) -> str:
    """Return what the features change, or an empty text."""
    expected = _results(program, seed, device)
    function: Callable[..., torch.Tensor] = program
    for name in reversed(names):
        function = FEATURES[name](function)
    try:
        if _COMPILERS.intersection(names):
            private.reset_compiler()
        found = _results(function, seed, device)
    except Exception as error:  # noqa: BLE001 - the text is what the case reports
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    for what, one, two in zip(("the result", "gradient 0", "gradient 1"), found, expected, strict=True):
        if one.shape != two.shape or not torch.allclose(one, two, rtol=1e-9, atol=1e-11, equal_nan=True):
            return f"{what} is {one.flatten()[:4].tolist()}..., expected {two.flatten()[:4].tolist()}..."
    return ""


@pytest.fixture
def compiler(outer: str, inner: str) -> Iterator[None]:
    if not _COMPILERS & {outer, inner}:
        yield
        return
    with private.fresh_compiler():
        yield


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("outer", "inner"), list(_pairs()))
def test_pair_of_features_changes_no_value(outer: str, inner: str, device: torch.device, case_seed: int) -> None:
    """Two features that change no value alone change none together: a program has the values and gradients of eager.

    The seed of the case draws a program of 5 to 15 operators, views and in-place changes among them; a failure names
    the shortest program that still fails. `features.py` has the features; eager code without them is the reference.
    """
    program = programs.drawn(case_seed)
    found = _difference(program, (outer, inner), case_seed, device)
    if found.startswith(_UNDEFINED_NAME):
        pytest.xfail("Dynamo's code names a subclass that it does not define: pytorch/pytorch#193933")
    if found:
        smallest = programs.shrunk(program, lambda each: bool(_difference(each, (outer, inner), case_seed, device)))
        text = _difference(smallest, (outer, inner), case_seed, device)
        pytest.fail(f"{outer} of {inner}: {text or found}; the program: {smallest}")
