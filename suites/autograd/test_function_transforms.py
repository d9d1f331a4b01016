"""`torch.func` transforms, which differentiate functions instead of graphs and use the engine internally.

`grad`, `vjp` and the transforms built on them run a backward pass. `vmap` alone runs none, so each case here combines
it with one that does.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap

from suites.compiled import WRAPPED_SUITES

from .engines import Engine

#: Forward mode's decomposition table consists of `torch.jit` functions, created at the first use.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit")


def wave(x: Tensor) -> Tensor:
    return x.sin() * x


def slope(x: Tensor) -> Tensor:
    """Return the derivative of `wave`, derived by hand."""
    return x.sin() + x * x.cos()


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return torch.tensor([0.5, 1.5, -2.0], device=device, dtype=torch.float64)


@pytest.mark.covers(WRAPPED_SUITES)
def test_func_grad_of_a_function(x: Tensor, engine: Engine) -> None:
    """`func.grad` returns the derivative at a point.

    Neither the point nor the derivative has a graph or `.grad` afterwards.
    """
    found = grad(lambda at: wave(at).sum())(x)

    torch.testing.assert_close(found, slope(x))
    assert not found.requires_grad
    assert not x.requires_grad
    assert x.grad is None
    engine.still_works()


def test_func_grad_and_value_has_aux_and_argnums(x: Tensor, engine: Engine) -> None:
    """`grad_and_value` returns the gradient and the value, which with `has_aux` is a pair with the auxiliary output.

    `argnums` selects the arguments to differentiate.
    """

    def product(left: Tensor, right: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return (left * right).sum(), {"left": left * 1}

    gradients, (value, more) = grad_and_value(product, argnums=(1, 0), has_aux=True)(x, x + 1)

    assert torch.equal(gradients[0], x)
    assert torch.equal(gradients[1], x + 1)
    assert torch.equal(value, (x * (x + 1)).sum())
    assert torch.equal(more["left"], x)
    engine.still_works()


@pytest.mark.covers(WRAPPED_SUITES)
def test_func_vjp_pullback_can_be_used_often(x: Tensor, engine: Engine) -> None:
    """`vjp` returns the value and a pullback, which multiplies a cotangent by the transposed Jacobian on every call."""
    value, pullback = vjp(wave, x)
    assert torch.equal(value, wave(x))
    for cotangent in (torch.ones_like(x), torch.tensor([0.0, 2.0, -1.0]).to(x)):
        (found,) = pullback(cotangent)
        torch.testing.assert_close(found, cotangent * slope(x))
    engine.still_works()


@pytest.mark.covers(WRAPPED_SUITES)
def test_func_jacrev_and_jacfwd_agree(x: Tensor, engine: Engine) -> None:
    """`jacrev` and `jacfwd` both match the Jacobian derived by hand."""

    def turned(at: Tensor) -> Tensor:
        return torch.stack([at[0] * at[1], at[2].exp()])

    zero = torch.zeros((), device=x.device, dtype=x.dtype)
    expected = torch.stack([torch.stack([x[1], x[0], zero]), torch.stack([zero, zero, x[2].exp()])])
    torch.testing.assert_close(jacrev(turned)(x), expected)
    torch.testing.assert_close(jacfwd(turned)(x), expected)
    engine.still_works()


@pytest.mark.covers(WRAPPED_SUITES)
def test_func_grad_hessian_and_jvp_nest(x: Tensor, engine: Engine) -> None:
    """The gradient of a gradient, the Hessian, and the tangent of a gradient all match the second derivative."""
    second = 2 * x.cos() - x * x.sin()

    torch.testing.assert_close(grad(lambda at: grad(lambda inner: wave(inner).sum())(at).sum())(x), second)
    torch.testing.assert_close(hessian(lambda at: wave(at).sum())(x), second.diag())
    _, tangent = jvp(grad(lambda at: wave(at).sum()), (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, second)
    engine.still_works()


@pytest.mark.covers(WRAPPED_SUITES)
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_vmap_of_func_grad_gives_a_gradient_for_each_sample(
    chunk_size: int | None, engine: Engine, device: torch.device
) -> None:
    """`vmap` of `grad` gives per-sample gradients of a module's parameters, with or without chunks.

    The gradients match one backward pass per sample.
    """
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(device, torch.float64)
    samples = torch.randn(5, 3).to(device, torch.float64)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(given: dict[str, Tensor], sample: Tensor) -> Tensor:
        result: Tensor = functional_call(model, given, (sample,)).square().sum()
        return result

    found = vmap(grad(loss), in_dims=(None, 0), chunk_size=chunk_size)(parameters, samples)

    for index, sample in enumerate(samples):
        model.zero_grad()
        model(sample).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(found[name][index], parameter.grad)


@pytest.mark.covers(WRAPPED_SUITES)
@pytest.mark.parametrize("how", ["assigned", "in place"])
def test_functional_call_hands_back_the_buffers_that_forward_changes(
    how: str, engine: Engine, device: torch.device
) -> None:
    """A buffer that forward changes, in place or by assignment, is in the mapping after the call; the module's stays.

    After an exception, the module has its own again.
    """

    class Counter(torch.nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1, device=device))

        def forward(self, x: Tensor, fails: bool = False) -> Tensor:
            if how == "assigned":
                self.count = self.count + x.sum()
            else:
                self.count.add_(x.sum())
            if fails:
                raise LookupError
            return x * self.count

    module, x = Counter(), torch.ones(2, device=device)
    buffers = {"count": torch.full((1,), 3.0, device=device)}
    for expected in (5.0, 7.0):
        assert functional_call(module, buffers, (x,)).tolist() == [expected, expected]
        assert buffers["count"].item() == expected
        assert module.count.item() == 0
    with pytest.raises(LookupError):
        functional_call(module, buffers, (x, True))
    assert module.count.item() == 0
    engine.still_works()


@pytest.mark.parametrize("chunk_size", [None, 1, 2, 4])
def test_vmap_randomness_decides_which_rows_draw_the_same(
    chunk_size: int | None, engine: Engine, device: torch.device, request: pytest.FixtureRequest
) -> None:
    """With `randomness="same"` all rows have the same numbers, and with "different" each has its own, in any chunks.

    By default, a draw is refused.
    """
    if chunk_size is not None and device.type != "cpu":
        reason = "before each chunk, vmap restores the generator of the CPU only"
        request.applymarker(pytest.mark.xfail(reason=reason, raises=AssertionError))

    def drawn(row: Tensor) -> Tensor:
        return torch.rand(3, device=device) + row

    rows = torch.zeros(5, 3, device=device)
    for randomness, count in (("same", 1), ("different", 5)):
        found = vmap(drawn, randomness=randomness, chunk_size=chunk_size)(rows)
        assert found.shape == (5, 3)
        assert len({tuple(row) for row in found.tolist()}) == count
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(drawn, chunk_size=chunk_size)(rows)
    engine.still_works()


@pytest.mark.covers(WRAPPED_SUITES)
def test_functional_call_gives_gradients_to_the_parameters_passed(engine: Engine, device: torch.device) -> None:
    """`backward` through `functional_call` writes gradients to the passed parameters, and not to the module's."""
    layer = torch.nn.Linear(2, 2, device=device)
    other = {"weight": torch.eye(2, device=device, requires_grad=True), "bias": torch.zeros(2, device=device)}
    given = torch.tensor([[1.0, 2.0]], device=device)

    result = functional_call(layer, other, (given,))
    assert torch.equal(result, given)
    result.sum().backward()

    assert other["weight"].grad is not None
    assert other["weight"].grad.tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert layer.weight.grad is None
    assert layer.bias.grad is None


def test_func_grad_is_part_of_the_graph(x: Tensor, engine: Engine) -> None:
    """The result of `func.grad` at a point that requires grad has a graph.

    A backward pass gives the second derivative.
    """
    point = x.clone().requires_grad_()
    grad(lambda at: wave(at).sum())(point).sum().backward()

    assert point.grad is not None
    torch.testing.assert_close(point.grad, 2 * x.cos() - x * x.sin())


class Cube(torch.autograd.Function):
    """x³, with its derivative scaled by 10 so that its use is visible."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * 30 * x**2


@pytest.mark.covers(WRAPPED_SUITES)
def test_func_grad_and_vmap_transform_a_custom_function(x: Tensor, engine: Engine) -> None:
    """A custom function uses its own backward under `grad`, and with `generate_vmap_rule` under `vmap`.

    It must have `setup_context`.
    """
    torch.testing.assert_close(grad(lambda at: Cube.apply(at).sum())(x), 30 * x**2)
    torch.testing.assert_close(vmap(grad(Cube.apply))(x), 30 * x**2)
    engine.still_works()


@pytest.mark.covers(WRAPPED_SUITES)
def test_vmap_randomness_different_and_same(x: Tensor, engine: Engine) -> None:
    """`vmap` raises on random operators unless `randomness` is `different` (per sample) or `same` (shared).

    Gradients use the numbers drawn.
    """

    def loss(at: Tensor) -> Tensor:
        return at * torch.rand_like(at)

    alike = torch.ones(20, device=x.device, dtype=x.dtype)
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(grad(loss))(alike)
    torch.manual_seed(3)
    own = vmap(grad(loss), randomness="different")(alike)
    assert own.unique().numel() == 20
    assert vmap(grad(loss), randomness="same")(alike).unique().numel() == 1
    engine.still_works()


class Scaled(torch.autograd.Function):
    """The first argument times the second; `seen` records the arguments of its `vmap` rule."""

    seen: ClassVar[list[Any]] = []

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, factor: float) -> tuple[Tensor, int]:
        Scaled.seen.append((info.batch_size, info.randomness, tuple(in_dims)))
        return Scaled.apply(x.movedim(in_dims[0], 0) + 1, factor), 0


def test_vmap_of_a_function_uses_its_own_rule(device: torch.device, engine: Engine) -> None:
    """A function's `vmap` gets the size of the batch, the randomness and the batch dimensions, and its result is used.

    A gradient within the batch uses it too. A function without a rule, or with two rules, raises.
    """
    x = torch.arange(6.0, device=device).reshape(2, 3)
    Scaled.seen.clear()

    found = vmap(lambda column: Scaled.apply(column, 3.0), in_dims=1, randomness="same")(x)
    torch.testing.assert_close(found, 3 * (x.T + 1))
    assert Scaled.seen == [(3, "same", (1, None))]
    torch.testing.assert_close(vmap(grad(lambda row: (Scaled.apply(row, 3.0) ** 2).sum()))(x), 18 * (x + 1))

    class Bare(torch.autograd.Function):
        forward, setup_context, backward = Scaled.forward, Scaled.setup_context, Scaled.backward

    with pytest.raises(RuntimeError, match="does not have vmap support"):
        vmap(lambda row: Bare.apply(row, 3.0))(x)
    both = type("Both", (Scaled,), {"generate_vmap_rule": True})
    with pytest.raises(RuntimeError, match="generate_vmap_rule"):
        vmap(lambda row: both.apply(row, 3.0))(x)
    engine.still_works()
