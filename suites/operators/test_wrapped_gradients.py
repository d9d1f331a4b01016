"""Gradients of each operator under hooks, checkpoints, transforms of functions and the compiler: those without them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from suites import _torch_private_compiled as private
from suites.compiled import KEEPS, KEPT

from . import _torch_private, comparison, known, samples, tolerances, types, wrappers
from .catalogue import COSTLY, by_operator
from .comparison import WrongValueError
from .references import formats

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecated and experimental features warn

#: One type of each group, since the formulas of a gradient are the same in all.
_TYPES = (("float64", "float32"), ("complex128", "complex64"))
_COMPILED = {
    name: pytest.mark.xfail(raises=WrongValueError, strict=False, reason=known.COMPILED[name])
    for name in known.COMPILED
}


def _calls(name: str, device: torch.device, count: int) -> Iterator[wrappers.Call]:
    """Yield `count` differentiable samples of each type."""
    info = _torch_private.operator(name)
    types.skip_if_lacking(name)
    declared = types.supported(info, device)
    for group in _TYPES:
        dtype = next((each for each in (getattr(torch, name) for name in group) if each in declared), None)
        for sample in () if dtype is None else samples.samples(info, dtype, count, gradient=True):
            call = wrappers.Call(info, sample, device)
            if call.weights:
                yield call


def _check(name: str, wrapper: str, call: wrappers.Call, found: wrappers.Gradients) -> None:
    """Raise WrongValueError unless the gradients are those of a plain backward pass."""
    where = f"{name}, {wrapper}: gradient"
    if len(found) != len(call.expected):
        raise WrongValueError(f"{where}s of {len(found)} inputs, expected {len(call.expected)}")
    for place, (one, two) in enumerate(zip(call.filled(found), call.expected, strict=True)):
        if (one.dtype, one.shape) != (two.dtype, two.shape):
            raise WrongValueError(
                f"{where}[{place}] is {one.dtype} of {tuple(one.shape)}, expected {two.dtype} of {tuple(two.shape)}"
            )
        actual, expected = (formats.read(comparison.on_host(each.to_dense())) for each in (one, two))
        wrong = comparison.excess(actual, expected, two.dtype, tolerances.gradient_bound(name, two.dtype))
        if wrong.any():
            raise WrongValueError(f"{where}[{place}]: {comparison.describe(actual, expected, wrong)}")


@by_operator("gradients", extended=COSTLY)
def test_wrapped_gradients(name: str, device: torch.device) -> None:
    """Saved-tensor hooks, checkpoints, `torch.func.vjp` and `torch.func.vmap` do not change a gradient.

    The gradients of two samples of each type are those of a plain backward pass, and a hook that returns a clone, an
    offload to the host and a recomputation give the same (torch, autograd mechanics; `torch.utils.checkpoint`;
    `torch.func`). `known.is_wrapped` leaves out operators that a transform has no rule for.
    """
    tried = 0
    for call in _calls(name, device, 2):
        for wrapper, run in wrappers.WRAPPERS.items():
            if known.is_wrapped(name, wrapper):
                _check(name, wrapper, call, run(call.again()))
                tried += 1
    if not tried:
        pytest.skip(f"no sample of {name} has a gradient")


@pytest.fixture
def compiler() -> Iterator[None]:
    with private.fresh_compiler():
        yield


@pytest.mark.keeps(KEEPS, **KEPT)
@pytest.mark.usefixtures("compiler")
@by_operator("gradients", extended=True, needs=_COMPILED)
def test_compiled_gradients(name: str, device: torch.device) -> None:
    """The gradients of a function that `torch.compile` traces for the back end "aot_eager" are those of eager code."""
    tried = 0
    for call in _calls(name, device, 1):
        _check(name, "compiled", call, wrappers.compiled(call.again()))
        tried += 1
    if not tried:
        pytest.skip(f"no sample of {name} has a gradient")
