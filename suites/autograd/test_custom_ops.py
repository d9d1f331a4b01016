"""Custom operators of `torch.library`: their gradients, and the checks that torch provides for them."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from . import operators
from .engines import LIST, Engine, Known, each, waived

ROW = "test_compiled_autograd::TestCustomOpWithCompiledAutograd::*"


@pytest.mark.covers(ROW)
def test_register_autograd_formula_is_the_gradient(engine: Engine, device: torch.device) -> None:
    """The formula given to `register_autograd` determines the gradient, using its saved context.

    Non-tensor inputs get no gradient.
    """
    x = torch.tensor([0.5, 2.0], device=device, requires_grad=True)

    (operators.scaled_sine(x, 3.0) * 2).sum().backward()

    assert x.grad is not None
    torch.testing.assert_close(x.grad, x.detach().cos() * 6)


@pytest.mark.covers(ROW)
def test_register_autograd_with_several_results(engine: Engine, device: torch.device) -> None:
    """Each result of an operator has a gradient, zero if unused; integer and non-differentiable results have none."""
    x = torch.tensor([1.0, 3.0, 2.0], device=device, requires_grad=True)

    total, squares, greatest = operators.parts(x)
    assert not greatest.requires_grad
    assert greatest.item() == 1
    (total * 10 + squares.sum()).backward()
    operators.parts(x)[0].backward()

    assert x.grad is not None
    assert x.grad.tolist() == [13.0, 17.0, 15.0]


@pytest.mark.covers(ROW)
def test_register_autograd_with_lists_of_tensors(engine: Engine, device: torch.device) -> None:
    """An operator that takes a list of tensors returns a list of gradients, one per tensor."""
    tensors = [torch.ones(2, device=device, requires_grad=True) for _ in range(3)]

    operators.weighted_sum(tensors, [2.0, 3.0, 5.0]).sum().backward()

    assert [None if one.grad is None else one.grad.tolist() for one in tensors] == [[2.0] * 2, [3.0] * 2, [5.0] * 2]


@pytest.mark.covers(ROW)
def test_custom_op_in_chains_with_others(engine: Engine, device: torch.device) -> None:
    """Gradients propagate through chains of custom and built-in operators, also when one operator occurs twice."""
    x = torch.tensor([0.5, 2.0], device=device, requires_grad=True)
    y = x.detach().clone().requires_grad_()

    (operators.scaled_sine(operators.scaled_sine(x * x, 2.0).exp(), 3.0) + x).sum().backward()
    (((y * y).sin() * 2).exp().sin() * 3 + y).sum().backward()

    assert x.grad is not None
    assert y.grad is not None
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.covers(ROW)
def test_custom_op_without_register_autograd_is_a_backward_error(engine: Engine, device: torch.device) -> None:
    """An operator without an autograd formula runs forward, and `backward` through it raises and names the operator.

    Without inputs that require grad, its result does not require grad.
    """
    x = torch.ones(2, device=device, requires_grad=True)

    assert not operators.without_formula(x.detach()).requires_grad
    y = operators.without_formula(x)
    assert y.requires_grad
    with pytest.raises(RuntimeError, match=r"without_formula.*no autograd formula"):
        y.sum().backward()
    engine.still_works()


@pytest.mark.covers(ROW)
def test_custom_op_mutates_args_counts_as_in_place(engine: Engine, device: torch.device) -> None:
    """An in-place change of an input declared in `mutates_args` increments its version counter.

    The backward pass of a graph that saved such an input raises.
    """
    x = torch.ones(2, device=device, requires_grad=True)
    target = torch.ones(2, device=device)
    y = (x * target).sum()

    operators.add_into(target, torch.full((2,), 3.0, device=device))
    assert target.tolist() == [4.0, 4.0]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    engine.still_works()


#: Compiled autograd up to torch 2.13 does not satisfy two of these contracts.
BEFORE_2_14 = torch.__version__ < (2, 14)
NOT_COUNTED = Known("the number of gradients of an operator is not checked", LIST, pytest.fail.Exception, BEFORE_2_14)

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")

ERRORS: dict[str, tuple[type[Exception], str]] = {
    "too few": (RuntimeError, "incorrect number of gradients"),
    "wrong shape": (RuntimeError, "invalid gradient"),
    "an error": (ValueError, "asked for: an error"),
}


@pytest.mark.covers(ROW)
@each("what", ERRORS, {"too few": NOT_COUNTED})
def test_register_autograd_formula_that_returns_wrong_gradients_is_an_error(
    what: str, engine: Engine, device: torch.device
) -> None:
    """A formula that returns too few gradients, or one of the wrong shape, raises and writes no gradient.

    An exception from the formula propagates unchanged.
    """
    error, message = ERRORS[what]
    x = torch.ones(2, device=device, requires_grad=True)

    with pytest.raises(error, match=message):
        operators.raising(x, what).sum().backward()
    assert x.grad is None
    engine.still_works()


@pytest.mark.covers(ROW)
def test_opcheck_accepts_a_correct_operator(engine: Engine, device: torch.device) -> None:
    """`opcheck` accepts the schema, autograd registration and fake implementation of a correct operator.

    It refuses to check the registration for other devices than the CPU, CUDA and XPU.
    """
    x = torch.tensor([0.5, 2.0], device=device, requires_grad=True)
    left_out = set() if device.type in ("cpu", "cuda", "xpu") else {"test_autograd_registration"}
    checks = tuple(check for check in CHECKS if check not in left_out)

    found = opcheck(operators.scaled_sine, (x, 3.0), test_utils=checks)  # type: ignore[arg-type]

    assert found == dict.fromkeys(checks, "SUCCESS")
    engine.still_works()


@pytest.mark.covers(ROW)
@pytest.mark.keeps(
    "each trace with dynamic sizes keeps its graph permanently", tensors=600, host="20MiB", device="16KiB"
)
@waived(Known("a pass inside a trace cannot be captured", LIST, Exception, BEFORE_2_14))  # OpCheckError is not public
# Raised by torch 2.14 itself.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_opcheck_traces_a_correct_operator(engine: Engine, device: torch.device) -> None:
    """`opcheck` traces forward and backward of a correct operator and finds the eager gradients."""
    x = torch.tensor([0.5, 2.0], device=device, requires_grad=True)

    found = opcheck(operators.scaled_sine, (x, 3.0), test_utils=("test_aot_dispatch_dynamic",))  # type: ignore[arg-type]

    assert found == {"test_aot_dispatch_dynamic": "SUCCESS"}
    engine.still_works()


FOUND = {"undeclared_change": "test_schema failed.*mutated", "wrong_fake": r"test_faketensor failed(?s:.)*Shapes"}


@pytest.mark.parametrize("name", FOUND)
def test_opcheck_reports_an_incorrect_operator(name: str, engine: Engine, device: torch.device) -> None:
    """`opcheck` reports an undeclared in-place change, and a fake implementation that returns the wrong shape."""
    operator = getattr(operators, name)
    x = torch.ones(2, 3, device=device)

    with pytest.raises(Exception, match=FOUND[name]) as caught:
        opcheck(operator, (x,), test_utils=("test_schema", "test_faketensor"))
    assert type(caught.value).__name__ in ("OpCheckError", "RuntimeError")
    engine.still_works()


def test_register_autograd_formula_sees_needs_input_grad(engine: Engine, device: torch.device) -> None:
    """In a list of tensor inputs, only those that require grad get gradients, according to `needs_input_grad`."""
    first = torch.ones(2, device=device, requires_grad=True)
    second = torch.ones(2, device=device)

    operators.weighted_sum([first, second], [2.0, 3.0]).sum().backward()

    assert first.grad is not None
    assert first.grad.tolist() == [2.0, 2.0]
    assert second.grad is None

    first.grad = None
    operators.weighted_sum([second, first], [2.0, 3.0]).sum().backward()

    assert first.grad.tolist() == [3.0, 3.0]
    assert second.grad is None
