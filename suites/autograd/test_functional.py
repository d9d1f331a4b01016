"""`torch.autograd.functional`: Jacobians, Hessians and their products, compared with formulas of known derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import functional

# The first forward derivatives of a process import decompositions, which torch.jit.script compiles.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")

Tensor = torch.Tensor


def made(device: torch.device, *shape: int, offset: float = 0.0) -> Tensor:
    """Return different values of a shape, none of them zero."""
    count = int(torch.tensor(shape).prod()) if shape else 1
    return (torch.arange(1, count + 1, dtype=torch.float64) * 0.37 + offset).reshape(shape).to(device)


def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return two results of two arguments: x²·y, and the sum of sin x with y alone."""
    return x * x * y, x.sin().sum() + y * 3


def jacobians_of_mixed(x: Tensor, y: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    eye = torch.eye(len(x), dtype=x.dtype, device=x.device)
    return (
        (torch.diag(2 * x * y), torch.diag(x * x)),
        (x.cos().expand(len(x), -1), 3 * eye),
    )


def energy(x: Tensor, y: Tensor) -> Tensor:
    """Return a scalar with mixed second derivatives: Σ x³ + Σ x·y²."""
    return (x**3).sum() + (x * y * y).sum()


def hessians_of_energy(x: Tensor, y: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return (torch.diag(6 * x), torch.diag(2 * y)), (torch.diag(2 * y), torch.diag(2 * x))


def same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "vectorized": {"vectorize": True},
    "forward": {"vectorize": True, "strategy": "forward-mode"},
}
WAY = pytest.mark.parametrize("way", WAYS)


@WAY
def test_jacobian_of_two_results_by_two_arguments(device: torch.device, way: str) -> None:
    """`jacobian` returns, per result, a tuple of Jacobians per argument, in the shape of result and argument."""
    x, y = made(device, 3), made(device, 3, offset=1.0)
    found = functional.jacobian(mixed, (x, y), **WAYS[way])
    same(found, jacobians_of_mixed(x, y))
    assert not x.requires_grad


@WAY
def test_jacobian_of_one_result_by_one_argument(device: torch.device, way: str) -> None:
    """For a tensor as result and argument, `jacobian` returns a tensor, whose shape is that of both."""
    x = made(device, 2, 3)
    found = functional.jacobian(lambda x: (x * x).sum(1), x, **WAYS[way])
    wanted = torch.zeros(2, 2, 3, dtype=x.dtype, device=device)
    for row in range(2):
        wanted[row, row] = 2 * x[row]
    assert isinstance(found, Tensor)
    same(found, wanted)


@WAY
def test_jacobian_of_what_does_not_depend_on_an_argument_is_zero(device: torch.device, way: str) -> None:
    """A result that does not depend on an argument has a zero Jacobian in the shape of both."""
    x, y = made(device, 3), made(device, 2)
    found = functional.jacobian(lambda x, y: x * 2, (x, y), **WAYS[way])
    same(found, (2 * torch.eye(3, dtype=x.dtype, device=device), torch.zeros(3, 2, dtype=x.dtype, device=device)))


@pytest.mark.parametrize("vectorize", [False, True])
def test_jacobian_create_graph_is_differentiable(device: torch.device, vectorize: bool) -> None:
    """With `create_graph`, a Jacobian can be differentiated; without it, it does not require a gradient."""
    x = made(device, 3).requires_grad_()
    plain = functional.jacobian(lambda x: x**3, x, vectorize=vectorize)
    assert not plain.requires_grad
    found = functional.jacobian(lambda x: x**3, x, create_graph=True, vectorize=vectorize)
    found.sum().backward()
    same(x.grad, 6 * x.detach())


def test_jacobian_of_outer_arguments_is_connected_with_create_graph(device: torch.device) -> None:
    """With `create_graph`, the Jacobian depends on tensors that the function captures."""
    x, scale = made(device, 3), made(device).requires_grad_()
    functional.jacobian(lambda x: x * x * scale, x, create_graph=True).sum().backward()
    same(scale.grad, (2 * x).sum().reshape(()))


@WAY
def test_hessian_of_two_arguments(device: torch.device, way: str) -> None:
    """`hessian` returns a tuple of tuples with the second derivatives by each pair of arguments."""
    x, y = made(device, 3), made(device, 3, offset=1.0)
    settings: dict[str, Any] = {"vectorize": "vectorize" in WAYS[way]}
    if way == "forward":
        settings["outer_jacobian_strategy"] = "forward-mode"
    same(functional.hessian(energy, (x, y), **settings), hessians_of_energy(x, y))


def test_hessian_of_one_argument_is_a_tensor(device: torch.device) -> None:
    """For a tensor as argument, `hessian` returns a tensor; with `create_graph` it can be differentiated."""
    x = made(device, 3).requires_grad_()
    found = functional.hessian(lambda x: (x**3).sum(), x)
    same(found, torch.diag(6 * x.detach()))
    assert not found.requires_grad
    functional.hessian(lambda x: (x**4).sum(), x, create_graph=True).sum().backward()
    same(x.grad, 24 * x.detach())


def test_vjp_and_jvp_multiply_the_jacobian_from_both_sides(device: torch.device) -> None:
    """`vjp` returns the results and vᵀJ per argument, `jvp` the results and Jv per result."""
    x, y = made(device, 3), made(device, 3, offset=1.0)
    (first, second), jacobian = mixed(x, y), jacobians_of_mixed(x, y)
    left = made(device, 3, offset=2.0), made(device, 3, offset=-3.0)
    right = made(device, 3, offset=4.0), made(device, 3, offset=-5.0)

    results, products = functional.vjp(mixed, (x, y), left)
    same(results, (first, second))
    same(products, tuple(left[0] @ jacobian[0][i] + left[1] @ jacobian[1][i] for i in range(2)))

    results, products = functional.jvp(mixed, (x, y), right)
    same(results, (first, second))
    same(products, tuple(jacobian[i][0] @ right[0] + jacobian[i][1] @ right[1] for i in range(2)))
    assert not any(each.requires_grad for each in (*results, *products))


def test_hvp_and_vhp_multiply_the_hessian(device: torch.device) -> None:
    """`vhp` and `hvp` return the result and the product of the Hessian with a vector, per argument."""
    x, y = made(device, 3), made(device, 3, offset=1.0)
    v = made(device, 3, offset=2.0), made(device, 3, offset=-3.0)
    hessian = hessians_of_energy(x, y)
    wanted = tuple(hessian[i][0] @ v[0] + hessian[i][1] @ v[1] for i in range(2))
    for product in (functional.vhp, functional.hvp):
        result, found = product(energy, (x, y), v)
        same(result, energy(x, y))
        same(found, wanted)
        assert not result.requires_grad
        assert not any(each.requires_grad for each in found)


PRODUCTS: dict[str, Callable[..., Any]] = {
    "vjp": functional.vjp,
    "jvp": functional.jvp,
    "vhp": functional.vhp,
    "hvp": functional.hvp,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_one_number_need_no_vector(device: torch.device, name: str) -> None:
    """For one number as result or argument, the vector may be omitted, and is 1."""
    x = made(device).reshape(())
    result, found = PRODUCTS[name](lambda x: x**3, x)
    same(result, x**3)
    same(found, 3 * x**2 if name in ("vjp", "jvp") else 6 * x)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_without_a_vector_are_refused_for_many_numbers(device: torch.device, name: str) -> None:
    """A vector is required if there is more than one number, and must have the shapes of what it multiplies."""
    x = made(device, 3)

    def function(x: Tensor) -> Tensor:
        return x**3 if name in ("vjp", "jvp") else (x**3).sum()

    with pytest.raises(RuntimeError, match="vector v"):
        PRODUCTS[name](function, x)
    with pytest.raises(RuntimeError, match="v has invalid size"):
        PRODUCTS[name](function, x, made(device, 2))
    with pytest.raises(RuntimeError, match="single Tensor"):
        PRODUCTS[name](function, x, (made(device, 3), made(device, 3)))


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_create_graph_is_differentiable(device: torch.device, name: str) -> None:
    """With `create_graph`, results and products can be differentiated, also by the vector."""
    x, v = made(device, 3).requires_grad_(), made(device, 3, offset=2.0).requires_grad_()
    whole = name in ("vhp", "hvp")
    result, found = PRODUCTS[name](lambda x: (x**3).sum() if whole else x**3, x, v, create_graph=True)
    assert result.requires_grad
    found.sum().backward()
    values, weights = x.detach(), v.detach()
    same(x.grad, 6 * weights if whole else 6 * values * weights)
    same(v.grad, 6 * values if whole else 3 * values**2)


STRICT: dict[str, Callable[..., Any]] = {
    "jacobian": lambda function, x, **settings: functional.jacobian(function, x, **settings),
    "hessian": lambda function, x, **settings: functional.hessian(function, x, **settings),
    **{
        name: lambda function, x, name=name, **settings: PRODUCTS[name](function, x, torch.ones_like(x), **settings)
        for name in ("jvp", "vhp", "hvp")
    },
    "vjp": lambda function, x, **settings: functional.vjp(function, x, torch.ones_like(function(x)), **settings),
}


@pytest.mark.parametrize("name", STRICT)
def test_strict_refuses_what_does_not_depend_on_its_arguments(device: torch.device, name: str) -> None:
    """With `strict`, a result that does not depend on an argument is refused; without it, its derivative is zero."""
    x, other = made(device, 3), made(device).reshape(())
    with pytest.raises(RuntimeError, match=r"strict mode|independent of"):
        STRICT[name](lambda x: other * 2, x, strict=True)
    result = STRICT[name](lambda x: other * 2, x, strict=False)
    derivative = result if name in ("jacobian", "hessian") else result[1]
    assert not derivative.any()


@pytest.mark.parametrize("name", ["hessian", "vhp", "hvp"])
def test_strict_refuses_a_linear_function_for_second_derivatives(device: torch.device, name: str) -> None:
    """With `strict`, second derivatives of a linear function are refused, since its gradient is constant."""
    x = made(device, 3)
    with pytest.raises(RuntimeError, match=r"independent of|strict mode"):
        STRICT[name](lambda x: (x * 2).sum(), x, strict=True)
    result = STRICT[name](lambda x: (x * 2).sum(), x)
    assert not (result if name == "hessian" else result[1]).any()


def test_functions_of_what_is_no_tensor_are_refused(device: torch.device) -> None:
    """Arguments and results must be tensors or tuples of them, and `hessian` needs one number as result."""
    x = made(device, 3)
    with pytest.raises(TypeError, match="inputs"):
        functional.jacobian(lambda x: x, 3.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="outputs"):
        functional.jacobian(lambda x: 3.0, x)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="index 1"):
        functional.jacobian(lambda x: x, (x, 3.0))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="single element"):
        functional.hessian(lambda x: x, x)
    with pytest.raises(RuntimeError, match="single Tensor"):
        functional.vhp(lambda x: (x.sum(), x.sum()), x, x)  # type: ignore[arg-type,return-value]
    with pytest.raises(NotImplementedError, match="vectorize"):
        functional.jacobian(lambda x: x, x, strategy="forward-mode")
    with pytest.raises(RuntimeError, match="strict"):
        functional.jacobian(lambda x: x, x, strict=True, vectorize=True)


def test_jacobian_refuses_what_forward_mode_cannot_do(device: torch.device) -> None:
    """`jacobian` accepts two strategies, and refuses `create_graph` with forward mode."""
    x = torch.ones(2, device=device)
    with pytest.raises(AssertionError, match='either "forward-mode" or "reverse-mode"'):
        torch.autograd.functional.jacobian(torch.sin, x, strategy="sideways")
    with pytest.raises(NotImplementedError, match="are not supported together"):
        torch.autograd.functional.jacobian(torch.sin, x, strategy="forward-mode", vectorize=True, create_graph=True)
