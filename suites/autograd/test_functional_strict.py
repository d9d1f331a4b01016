"""`torch.autograd.functional` in strict mode, with wrong vectors, and within `no_grad`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import functional

# The first forward derivatives of a process import decompositions, which torch.jit.script compiles.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")

Tensor = torch.Tensor
NAMES = ("jacobian", "hessian", "vjp", "jvp", "vhp", "hvp")

#: Functions of two vectors to one number, named after what their derivatives depend on.
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "constant": lambda x, y: y.detach().sum() * 2,
    "of_one": lambda x, y: (x**3).sum(),
    "linear": lambda x, y: (x * 2 + y * 3).sum(),
    "quadratic": lambda x, y: (x * x + x * y + y * y).sum(),
    "cubic": lambda x, y: (x**3 + x * x * y * y + y**3).sum(),
}
NO_GRADIENT = "Output 0 of the user-provided function does not require gradients"
OF_FIRST_ONLY = "independent of input 1. This is not allowed in strict mode"
NO_JACOBIAN = (
    "found that the jacobian of the user-provided function with respect to input {} is independent of the input"
)
NO_DERIVATIVE = "independent of input 0. This is not allowed in strict mode when create_graph=True"


def refusal(name: str, function: str, create_graph: bool) -> str | None:
    """Return the message with which strict mode refuses a function, or None if it accepts the function."""
    second = name in ("hessian", "vhp", "hvp")
    if function == "constant":
        return NO_GRADIENT
    if function == "of_one":
        return NO_JACOBIAN.format(1) if name == "hessian" else OF_FIRST_ONLY
    if function == "linear" and second:
        return NO_JACOBIAN.format(0)
    if create_graph and function == ("quadratic" if second else "linear"):
        return NO_DERIVATIVE
    return None


def values(device: torch.device) -> tuple[Tensor, Tensor]:
    x = torch.arange(1, 4, dtype=torch.float64)
    return x.to(device), (x + 1).to(device)


def call(name: str, function: Callable[..., Tensor], given: tuple[Tensor, ...], **settings: Any) -> Any:
    """Call one of the functions with a vector of ones, if it takes one; return the derivative."""
    if name in ("jacobian", "hessian"):
        return getattr(functional, name)(function, given, **settings)
    ones = torch.ones_like(function(*given)) if name == "vjp" else tuple(torch.ones_like(each) for each in given)
    return getattr(functional, name)(function, given, ones, **settings)[1]


def tensors_of(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else [each for part in found for each in tensors_of(part)]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_strict_says_what_does_not_depend_on_what(device: torch.device, name: str, function: str) -> None:
    """Strict mode names the result, gradient or second derivative, and the argument on which it does not depend.

    With `create_graph`, the derivative itself must depend on the arguments. Without strict mode, all functions are
    accepted.
    """
    for create_graph in (False, True):
        wanted = refusal(name, function, create_graph)
        if wanted is None:
            call(name, FUNCTIONS[function], values(device), strict=True, create_graph=create_graph)
        else:
            with pytest.raises(RuntimeError) as caught:
                call(name, FUNCTIONS[function], values(device), strict=True, create_graph=create_graph)
            assert wanted in str(caught.value)
        call(name, FUNCTIONS[function], values(device), strict=False, create_graph=create_graph)


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_within_no_grad_are_the_same(device: torch.device, name: str) -> None:
    """Within `no_grad`, derivatives have the same values, and require gradients only with `create_graph`.

    The mode is unchanged afterwards.
    """
    function = FUNCTIONS["cubic"]
    wanted = call(name, function, values(device))
    for create_graph in (False, True):
        with torch.no_grad():
            # `create_graph` records the derivative although nothing else is recorded here.
            found = call(name, function, values(device), create_graph=create_graph)
            assert not torch.is_grad_enabled()
        torch.testing.assert_close(found, wanted)
        assert [each.requires_grad for each in tensors_of(found)] == [create_graph] * len(tensors_of(found))


@pytest.mark.parametrize("name", ["jvp", "vhp", "hvp"])
def test_vectors_must_fit_the_arguments(device: torch.device, name: str) -> None:
    """A vector needs an entry per argument, of its shape; the error has the numbers of entries, or the entry."""
    x, y = values(device)
    function, ask = FUNCTIONS["cubic"], getattr(functional, name)
    with pytest.raises(RuntimeError, match="v is a tuple of invalid length: should be 2 but got 3"):
        ask(function, (x, y), (x, y, x))
    with pytest.raises(RuntimeError, match=r"Entry 1 in v has invalid size: should be torch.Size\(\[3\]\) but got"):
        ask(function, (x, y), (x, y[:2]))
    with pytest.raises(
        RuntimeError, match=r"^v has invalid size: should be torch.Size\(\[3\]\) but got torch.Size\(\[2\]\)"
    ):
        ask(lambda x: (x**3).sum(), x, x[:2])
    with pytest.raises(RuntimeError, match=r"^The given v should contain a single Tensor"):
        ask(lambda x: (x**3).sum(), x, (x, x))


def test_vectors_of_vjp_must_fit_the_results(device: torch.device) -> None:
    """The vector of `vjp` needs an entry per result, of its shape."""
    x, y = values(device)
    with pytest.raises(RuntimeError, match="v is a tuple of invalid length: should be 2 but got 1"):
        functional.vjp(lambda x: (x * 2, x.sum()), x, (y,))
    with pytest.raises(RuntimeError, match=r"Entry 0 in v has invalid size: should be torch.Size\(\[3\]\) but got"):
        functional.vjp(lambda x: (x * 2, x.sum()), x, (y[:2], y.sum()))
    with pytest.raises(RuntimeError, match=r"^v has invalid size"):
        functional.vjp(lambda x: x * 2, x, y[:2])


@pytest.mark.parametrize("name", ["hessian", "vhp", "hvp"])
def test_second_derivatives_need_one_number(device: torch.device, name: str) -> None:
    """Second derivatives require a function whose result is one tensor with one number."""
    given = values(device)
    with pytest.raises(RuntimeError, match="should return a single Tensor"):
        call(name, lambda x, y: (x.sum(), y.sum()), given)  # type: ignore[arg-type,return-value]
    with pytest.raises(RuntimeError, match="should contain a single element"):
        call(name, lambda x, y: x * y, given)


def test_hessian_ways_agree(device: torch.device) -> None:
    """`hessian` gives the same derivatives row by row, vectorized, and with forward mode as the outer one."""
    given = values(device)
    wanted = functional.hessian(FUNCTIONS["cubic"], given)
    x, y = given
    torch.testing.assert_close(wanted[0][0], torch.diag(6 * x + 2 * y * y))
    torch.testing.assert_close(wanted[0][1], torch.diag(4 * x * y))
    for settings in ({"vectorize": True}, {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}):
        torch.testing.assert_close(functional.hessian(FUNCTIONS["cubic"], given, **settings), wanted)
    with pytest.raises(NotImplementedError, match="vectorize"):
        functional.hessian(FUNCTIONS["cubic"], given, outer_jacobian_strategy="forward-mode")
    with pytest.raises(AssertionError, match="strategy"):
        functional.hessian(FUNCTIONS["cubic"], given, outer_jacobian_strategy="sideways")
