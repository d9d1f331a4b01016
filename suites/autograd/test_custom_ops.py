"""Custom operators of `torch.library`: their gradients, and the checks that come with them."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from . import operators
from .engines import LIST, Engine, Known, each, waived

ROW = "test_compiled_autograd::TestCustomOpWithCompiledAutograd::*"


@pytest.mark.covers(ROW)
def test_register_autograd_formula_is_the_gradient(engine: Engine, device: torch.device) -> None:
    """Contract: the formula given to `register_autograd` is the gradient, with what its context saved; inputs that are
    no tensors have none."""
    x = torch.tensor([0.5, 2.0], device=device, requires_grad=True)

    (operators.scaled_sine(x, 3.0) * 2).sum().backward()

    assert x.grad is not None
    torch.testing.assert_close(x.grad, x.detach().cos() * 6)


@pytest.mark.covers(ROW)
def test_register_autograd_with_several_results(engine: Engine, device: torch.device) -> None:
    """Contract: each result has its gradient, zero where nobody used it; integers and what was marked have none."""
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
    """Contract: an operator of a list of tensors gives a list of gradients, one for each."""
    tensors = [torch.ones(2, device=device, requires_grad=True) for _ in range(3)]

    operators.weighted_sum(tensors, [2.0, 3.0, 5.0]).sum().backward()

    assert [None if one.grad is None else one.grad.tolist() for one in tensors] == [[2.0] * 2, [3.0] * 2, [5.0] * 2]


@pytest.mark.covers(ROW)
def test_custom_op_in_chains_with_others(engine: Engine, device: torch.device) -> None:
    """Contract: gradients flow through chains of custom and ordinary operators, and through the same one twice."""
    x = torch.tensor([0.5, 2.0], device=device, requires_grad=True)
    y = x.detach().clone().requires_grad_()

    (operators.scaled_sine(operators.scaled_sine(x * x, 2.0).exp(), 3.0) + x).sum().backward()
    (((y * y).sin() * 2).exp().sin() * 3 + y).sum().backward()

    assert x.grad is not None
    assert y.grad is not None
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.covers(ROW)
def test_custom_op_without_register_autograd_is_a_backward_error(engine: Engine, device: torch.device) -> None:
    """Contract: an operator without a formula runs forwards, and a backward pass to it is an error that names it; for
    inputs that require no gradient it is a constant."""
    x = torch.ones(2, device=device, requires_grad=True)

    assert not operators.without_formula(x.detach()).requires_grad
    y = operators.without_formula(x)
    assert y.requires_grad
    with pytest.raises(RuntimeError, match=r"without_formula.*no autograd formula"):
        y.sum().backward()
    engine.still_works()


@pytest.mark.covers(ROW)
def test_custom_op_mutates_args_counts_as_in_place(engine: Engine, device: torch.device) -> None:
    """Contract: an operator changes the inputs it declares, which counts as a change in place: a graph that saved one
    before is refused."""
    x = torch.ones(2, device=device, requires_grad=True)
    target = torch.ones(2, device=device)
    y = (x * target).sum()

    operators.add_into(target, torch.full((2,), 3.0, device=device))
    assert target.tolist() == [4.0, 4.0]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    engine.still_works()


#: Up to torch 2.13 compiled autograd does not keep two of these contracts.
BEFORE_2_14 = torch.__version__ < (2, 14)
NOT_COUNTED = Known("gradients of an operator are not counted", LIST, pytest.fail.Exception, BEFORE_2_14)

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
    """Contract: a formula that returns too few gradients or one of a wrong shape is an error, and what it raises comes
    out as it is; nothing is written."""
    error, message = ERRORS[what]
    x = torch.ones(2, device=device, requires_grad=True)

    with pytest.raises(error, match=message):
        operators.raising(x, what).sum().backward()
    assert x.grad is None
    engine.still_works()


@pytest.mark.covers(ROW)
def test_opcheck_passes_a_right_operator(engine: Engine, device: torch.device) -> None:
    """Contract: `opcheck` finds nothing wrong with schema, registration of the gradient and fake of an operator that
    keeps to the rules."""
    x = torch.tensor([0.5, 2.0], device=device, requires_grad=True)

    found = opcheck(operators.scaled_sine, (x, 3.0), test_utils=CHECKS)  # type: ignore[arg-type]

    assert found == dict.fromkeys(CHECKS, "SUCCESS")
    engine.still_works()


@pytest.mark.covers(ROW)
@waived(Known("a pass within a trace cannot be captured", LIST, Exception, BEFORE_2_14))  # OpCheckError is not public
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # 2.14, of itself
def test_opcheck_traces_a_right_operator(engine: Engine, device: torch.device) -> None:
    """Contract: `opcheck` traces forward and backward of a right operator, and finds the gradients of running it."""
    x = torch.tensor([0.5, 2.0], device=device, requires_grad=True)

    found = opcheck(operators.scaled_sine, (x, 3.0), test_utils=("test_aot_dispatch_dynamic",))  # type: ignore[arg-type]

    assert found == {"test_aot_dispatch_dynamic": "SUCCESS"}
    engine.still_works()


FOUND = {"undeclared_change": "test_schema failed.*mutated", "wrong_fake": r"test_faketensor failed(?s:.)*Shapes"}


@pytest.mark.parametrize("name", FOUND)
def test_opcheck_finds_what_is_wrong(name: str, engine: Engine, device: torch.device) -> None:
    """Contract: `opcheck` finds an input changed without being declared, and a fake that does not tell the shape."""
    operator = getattr(operators, name)
    x = torch.ones(2, 3, device=device)

    with pytest.raises(Exception, match=FOUND[name]) as caught:
        opcheck(operator, (x,), test_utils=("test_schema", "test_faketensor"))
    assert type(caught.value).__name__ in ("OpCheckError", "RuntimeError")
    engine.still_works()


def test_register_autograd_formula_sees_needs_input_grad(engine: Engine, device: torch.device) -> None:
    """Contract: of several tensors those that require gradients get them, whatever else the operator takes."""
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
