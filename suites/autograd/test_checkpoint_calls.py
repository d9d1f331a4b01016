"""Arguments, results, modes and generators of checkpoints, and the changes that a second run may not make.

All backward passes here run in the eager engine.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import (
    CheckpointError,
    CheckpointPolicy,
    DefaultDeviceType,
    GraphExecGroup,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    detach_variable,
    set_checkpoint_debug_enabled,
    set_checkpoint_early_stop,
)

from . import _torch_private as private
from .functions import apply

SIN = torch.ops.aten.sin.default
KINDS = pytest.mark.parametrize("reentrant", [False, True], ids=["kept_graph", "reentrant"])


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return torch.tensor([0.5, 1.5], device=device, requires_grad=True)


@KINDS
def test_checkpoint_passes_any_arguments_and_results(reentrant: bool, x: Tensor) -> None:
    """Non-tensor arguments reach the function in both runs, and non-tensor results are returned.

    A result that does not require grad in the second run has no part in the pass.
    """
    seen: list[tuple[float, str, None, bool]] = []

    def forward(factor: float, given: Tensor, name: str, nothing: None) -> tuple[Tensor, Tensor, str, Tensor]:
        seen.append((factor, name, nothing, torch.is_grad_enabled()))
        return given * factor, given.detach() * 2, name.upper(), given.sin()

    first, constant, name, last = checkpoint(forward, 3.0, x, "name", None, use_reentrant=reentrant)
    assert name == "NAME"
    assert torch.equal(constant, x.detach() * 2)
    (first.sum() + last.sum() * 10).backward()
    assert seen == [(3.0, "name", None, not reentrant), (3.0, "name", None, True)]
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 3 + 10 * x.detach().cos())


def test_checkpoint_passes_keywords_without_use_reentrant(x: Tensor) -> None:
    """A checkpoint with `use_reentrant=False` passes keywords to both runs."""
    seen: list[float] = []

    def forward(given: Tensor, *, factor: float = 1.0) -> Tensor:
        seen.append(factor)
        return given.sin() * factor

    with set_checkpoint_early_stop(False):
        checkpoint(forward, x, factor=4.0, use_reentrant=False).sum().backward()
    assert seen == [4.0, 4.0]
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 4 * x.detach().cos())


@KINDS
def test_checkpoint_refuses_an_argument_that_has_changed(reentrant: bool, x: Tensor) -> None:
    """An in-place change of an argument between the two runs makes the pass raise, as for any saved tensor."""
    given = x * 1
    result = checkpoint(torch.sin, given, use_reentrant=reentrant)
    with torch.no_grad():
        given.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_checkpoint_use_reentrant_is_the_default_and_warns(x: Tensor) -> None:
    """Without `use_reentrant`, both functions warn and are reentrant: the first run has no graph."""
    modes: list[bool] = []

    def forward(given: Tensor) -> Tensor:
        modes.append(torch.is_grad_enabled())
        return given.sin()

    with pytest.warns(UserWarning, match="use_reentrant parameter should be passed explicitly"):
        result = checkpoint(forward, x)
    with pytest.warns(UserWarning, match="checkpoint_sequential: the use_reentrant parameter should be passed"):
        result = checkpoint_sequential([forward, torch.cos], 2, result)
    assert modes == [False, False]
    assert result.requires_grad


def test_checkpoint_use_reentrant_needs_a_result_that_requires_grad(x: Tensor) -> None:
    """If no result of the second run requires grad, the pass of a reentrant checkpoint raises."""
    result = checkpoint(lambda given: given.detach() * 2, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="none of output has requires_grad=True"):
        result.sum().backward()


@KINDS
@pytest.mark.parametrize("as_list", [False, True], ids=["sequential", "list"])
def test_checkpoint_sequential_runs_all_but_the_last_segment_twice(reentrant: bool, as_list: bool, x: Tensor) -> None:
    """7 functions in 3 segments form two checkpoints of 2 functions, and the last 3 functions run once."""
    runs: Counter[int] = Counter()

    class Step(torch.nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def forward(self, given: Tensor) -> Tensor:
            runs[self.number] += 1
            return (given * (self.number + 1)).sin()

    steps = [Step(number) for number in range(7)]
    wanted = x
    for step in steps:
        wanted = step(wanted)
    (gradient,) = torch.autograd.grad(wanted.sum(), x)
    runs.clear()

    with set_checkpoint_early_stop(False):
        functions = steps if as_list else torch.nn.Sequential(*steps)
        found = checkpoint_sequential(functions, 3, x, use_reentrant=reentrant)
    assert torch.equal(found, wanted)
    found.sum().backward()
    assert [runs[number] for number in range(7)] == [2, 2, 2, 2, 1, 1, 1]
    assert x.grad is not None
    torch.testing.assert_close(x.grad, gradient)
    runs.clear()
    assert torch.equal(checkpoint_sequential(functions, 1, x, use_reentrant=reentrant), wanted)
    assert [runs[number] for number in range(7)] == [1] * 7
    with pytest.raises(ValueError, match="Unexpected keyword arguments: other"):
        checkpoint_sequential(functions, 3, x, use_reentrant=reentrant, other=1)


@KINDS
@pytest.mark.parametrize("preserve", [None, False], ids=["default", "not_preserved"])
@pytest.mark.parametrize("sequential", [False, True], ids=["checkpoint", "checkpoint_sequential"])
def test_preserve_rng_state_decides_whether_the_generator_moves_on(
    sequential: bool, preserve: bool | None, reentrant: bool, x: Tensor
) -> None:
    """By default, a pass draws the numbers of the first run, and leaves the generator as it was.

    With `preserve_rng_state=False`, it draws new numbers and advances the generator.
    """
    drawn: list[float] = []

    def forward(given: Tensor) -> Tensor:
        drawn.append(torch.rand(()).item())
        return (given * drawn[-1]).sin()

    options: dict[str, Any] = {} if preserve is None else {"preserve_rng_state": preserve}
    with set_checkpoint_early_stop(False):
        if sequential:
            result = checkpoint_sequential([forward, torch.neg], 2, x, use_reentrant=reentrant, **options)
        else:
            result = checkpoint(forward, x, use_reentrant=reentrant, **options)
    torch.rand(3)
    before = torch.get_rng_state()
    result.sum().backward()
    assert len(drawn) == 2
    assert (drawn[0] == drawn[1]) == (preserve is not False)
    assert torch.equal(torch.get_rng_state(), before) == (preserve is not False)


@KINDS
@pytest.mark.requires(autocast=True)
def test_checkpoint_runs_again_under_the_autocast_of_the_first_run(
    reentrant: bool, x: Tensor, device: torch.device
) -> None:
    """The second run has the autocast state of the first, for device and CPU, whatever the pass runs under."""
    kinds = sorted({device.type, "cpu"})
    seen: list[list[Any]] = []

    def forward(given: Tensor) -> Tensor:
        state = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]
        seen.append([*state, torch.is_autocast_cache_enabled()])
        return given.sin()

    for inside in (True, False):
        seen.clear()
        with (
            torch.autocast("cpu", dtype=torch.float16, enabled=inside),
            torch.autocast(device.type, dtype=torch.bfloat16, enabled=inside, cache_enabled=False),
            set_checkpoint_early_stop(False),
        ):
            result = checkpoint(forward, x, use_reentrant=reentrant)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=not inside):
            result.sum().backward()
        assert len(seen) == 2
        assert seen[0] == seen[1]
        assert seen[0][0][0] is inside
        assert seen[0][-1] is False


def test_checkpoint_runs_again_with_the_default_device_of_the_first_run() -> None:
    """New tensors of the second run are on the default device of the first run; meta tensors can have checkpoints."""
    x = torch.ones(2, device="meta", requires_grad=True)
    made: list[str] = []

    def forward(given: Tensor) -> Tensor:
        factor = torch.ones(2)
        made.append(factor.device.type)
        return (given * factor).sin()

    with torch.device("meta"):
        result = checkpoint(forward, x, use_reentrant=False)
    result.sum().backward()
    checkpoint(torch.sin, x, use_reentrant=True).sum().backward()
    assert made == ["meta", "meta"]
    assert x.grad is not None
    assert x.grad.shape == (2,)


def test_detach_variable_keeps_what_requires_grad(x: Tensor) -> None:
    """`detach_variable` returns leaves with the same values and `requires_grad`, and other values unchanged."""
    y = x * 2
    of_y, constant, number = detach_variable((y, y.detach(), 3))  # type: ignore[misc]
    assert of_y.is_leaf
    assert of_y.requires_grad
    assert torch.equal(of_y, y)
    assert not constant.requires_grad
    assert number == 3  # type: ignore[comparison-overlap]
    with pytest.raises(RuntimeError, match="Only tuple of tensors is supported"):
        detach_variable([y])  # type: ignore[arg-type]


def test_defaultdevicetype_is_the_accelerator_until_it_is_set() -> None:
    """The default is the type of the accelerator in use, or the CPU; `set_device_type` sets another one."""
    before = DefaultDeviceType.get_device_type()
    found = torch.accelerator.current_accelerator(check_available=True)
    assert before == ("cpu" if found is None else found.type)
    DefaultDeviceType.set_device_type("meta")
    try:
        assert DefaultDeviceType.get_device_type() == "meta"
    finally:
        DefaultDeviceType.set_device_type(before)
    assert DefaultDeviceType.get_device_type() == before


def test_set_checkpoint_blocks_end_with_an_exception_too(x: Tensor) -> None:
    """The blocks for early stop and for debugging nest, and restore the previous setting, also after an exception."""
    runs: list[int] = []

    def forward(given: Tensor) -> Tensor:
        result = given.sin() + 1
        runs.append(1)
        return result

    def counted(**options: Any) -> int:
        runs.clear()
        checkpoint(forward, x, use_reentrant=False, **options).sum().backward()
        return len(runs)

    assert counted() == 1
    assert counted(early_stop=False) == 2
    with pytest.raises(KeyError), set_checkpoint_early_stop(False), set_checkpoint_debug_enabled(True):
        raise KeyError
    assert counted() == 1
    with set_checkpoint_early_stop(False):
        with set_checkpoint_early_stop(True):
            assert counted(early_stop=False) == 1
        assert counted() == 2
    contexts: Callable[[], Any] = lambda: create_selective_checkpoint_contexts([SIN])  # noqa: E731
    assert counted(context_fn=contexts) == 1
    with pytest.raises(ValueError, match="incompatible with non-default context_fn"):
        counted(context_fn=contexts, debug=True)


def test_checkpointerror_when_the_second_run_saves_more(x: Tensor) -> None:
    """Without early stop, a second run that saves more tensors than the first is refused."""
    runs: list[int] = []

    def forward(given: Tensor) -> Tensor:
        runs.append(1)
        return given.sin() if len(runs) == 1 else given.sin().cos()

    with pytest.raises(CheckpointError, match="trying to save more tensors during recomputation"):
        checkpoint(forward, x, use_reentrant=False, early_stop=False).sum().backward()
    assert x.grad is None


def test_checkpointerror_for_what_is_left_of_a_graph(x: Tensor) -> None:
    """After a pass over some of the results, a later pass recomputes and compares the other saved tensors."""
    runs: list[int] = []

    def forward(given: Tensor) -> tuple[Tensor, Tensor]:
        runs.append(1)
        return given.sin(), given[: 2 if len(runs) < 3 else 1].cos()

    first, second = checkpoint(forward, x, use_reentrant=False)
    first.sum().backward()
    with pytest.raises(CheckpointError, match="different metadata") as error:
        second.sum().backward()
    assert len(runs) == 3
    assert "tensor at position 1" in str(error.value)
    assert "position 0" not in str(error.value)


def test_checkpoint_under_no_grad_does_without_its_contexts(x: Tensor) -> None:
    """Without grad, a checkpoint calls its function once and enters no context."""
    asked: list[Any] = []

    def choose(context: Any, operator: Any, *args: Any, **kwargs: Any) -> bool:
        asked.append(operator)
        return True

    with torch.no_grad():
        found = checkpoint(
            torch.sin, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(choose)
        )
    assert torch.equal(found, x.detach().sin())
    assert not found.requires_grad
    assert asked == []


@pytest.mark.parametrize("early_stop", [True, False])
def test_checkpoint_with_a_backward_pass_within(early_stop: bool, x: Tensor) -> None:
    """A function may run backward passes over its own graph, with and without early stop."""

    def forward(given: Tensor) -> Tensor:
        inner = given.sin()
        (slope,) = torch.autograd.grad(inner.exp().sum(), given, retain_graph=True)
        (other,) = torch.autograd.grad((given.cos() * given.exp()).sum(), given, retain_graph=True)
        return given.cos() * slope + inner * other

    (wanted,) = torch.autograd.grad(forward(x).sum(), x)
    checkpoint(forward, x, use_reentrant=False, early_stop=early_stop).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, wanted)


def test_checkpoint_gives_a_saved_tensor_once_a_pass(x: Tensor) -> None:
    """A saved tensor can be read outside of a pass; a function that reads its tensors twice in a pass is refused."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * (ctx.saved_tensors[0] + ctx.saved_tensors[0])

    result = checkpoint(lambda given: given.exp().sin(), x, use_reentrant=False)
    for _ in range(2):
        assert torch.equal(private.saved(result.grad_fn, "self"), x.detach().exp())
    result.sum().backward()
    assert x.grad is not None
    with pytest.raises(CheckpointError, match="already unpacked once") as error:
        checkpoint(lambda given: apply(Twice, given), x, use_reentrant=False).sum().backward()
    assert "overlap" not in str(error.value)


def test_graphexecgroup_runs_a_checkpoint_again_once(x: Tensor) -> None:
    """Within a group, several passes over parts of a checkpoint run it again once, and outside once per pass.

    Two passes of a group over the same part are refused, and groups do not nest.
    """
    runs: list[int] = []

    def forward(given: Tensor) -> tuple[Tensor, Tensor]:
        runs.append(1)
        return given.sin(), given.exp().cos()

    def passes() -> int:
        x.grad = None
        first, second = checkpoint(forward, x, use_reentrant=False)
        runs.clear()
        first.sum().backward()
        second.sum().backward()
        assert x.grad is not None
        at = x.detach()
        torch.testing.assert_close(x.grad, at.cos() - at.exp().sin() * at.exp())
        return len(runs)

    assert passes() == 2
    with GraphExecGroup() as group:
        assert isinstance(group, GraphExecGroup)
        assert passes() == 1
        with pytest.raises(RuntimeError, match="cannot be nested"), GraphExecGroup():
            pass
    with GraphExecGroup():
        result = checkpoint(lambda given: given.sin(), x, use_reentrant=False)
        result.sum().backward(retain_graph=True)
        with pytest.raises(CheckpointError, match="two backward calls that overlap"):
            result.sum().backward()
    assert passes() == 2


@pytest.mark.requires(torch=">=2.13")
def test_checkpoint_selective_keeps_each_call_of_an_operator(x: Tensor) -> None:
    """Each of several calls of an operator has its own result, including views, lists and numbers.

    The policy gets the result of the call, and recomputed operators get the keywords of the first run.
    """
    results: list[Any] = []

    def save(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        results.append(context.op_output)
        again = operator is torch.ops.aten.add.Tensor
        return CheckpointPolicy.MUST_RECOMPUTE if again else CheckpointPolicy.MUST_SAVE

    def forward(given: Tensor) -> Tensor:
        scale = given.detach().sum().item()
        first, second = given.view(2, 1).split(1)
        product = (first.sin() * second.sin().exp() * scale).view(1)
        return torch.add(product, product, alpha=2).cos().sum(0, dtype=torch.float64)

    plain = forward(x)
    (wanted,) = torch.autograd.grad(plain.sum(), x)
    result = checkpoint(forward, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(save))
    assert torch.equal(result, plain)
    assert 2.0 in [each for each in results if isinstance(each, float)]
    assert [len(each) for each in results if isinstance(each, list | tuple)] == [2]
    result.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, wanted)


@pytest.mark.requires(torch=">=2.13")
def test_checkpoint_selective_refuses_operators_that_did_not_run_before(x: Tensor) -> None:
    """A second run that calls an operator more often, or another one, is refused with the operator's name."""
    runs: list[int] = []

    def with_more(more: Callable[[Tensor], Tensor]) -> Tensor:
        runs.clear()

        def forward(given: Tensor) -> Tensor:
            runs.append(1)
            return given.sin() if len(runs) == 1 else more(given).sin()

        contexts = lambda: create_selective_checkpoint_contexts([SIN])  # noqa: E731
        result: Tensor = checkpoint(forward, x, use_reentrant=False, early_stop=False, context_fn=contexts)
        return result.sum()

    with pytest.raises(RuntimeError, match=r"sin\.default invocation index 1 encountered during backward"):
        with_more(lambda given: given.detach().sin().requires_grad_()).backward()
    with pytest.raises(RuntimeError, match=r"exp\.default encountered during backward but not found"):
        with_more(torch.exp).backward()


@pytest.mark.requires(accelerator=True)
@KINDS
def test_checkpoint_warns_of_arguments_on_devices_of_two_types(reentrant: bool, x: Tensor) -> None:
    """Arguments on devices of two types, apart from the CPU, warn: the generators of only one type are preserved.

    Arguments on one of the types, with some on the CPU or inside a list, do not warn.
    """

    def forward(given: Tensor, other: Any) -> Tensor:
        return given.sin() * torch.rand_like(given)

    with pytest.warns(UserWarning, match="at least two types of devices"):
        result = checkpoint(forward, x, torch.ones(2, device="meta"), use_reentrant=reentrant)
    torch.manual_seed(3)
    state = torch.get_device_module(x.device).get_rng_state(x.device)
    wanted = checkpoint(forward, x, [torch.ones(2)], use_reentrant=reentrant)
    torch.get_device_module(x.device).set_rng_state(state, x.device)
    plain = forward(x, None)
    assert torch.equal(wanted, plain)
    (gradient,) = torch.autograd.grad(plain.sum(), x)
    wanted.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, gradient)
    assert result.device == x.device


@pytest.mark.requires(device="cuda")  # torch reads `_initialized` of the device's module
@KINDS
def test_checkpoint_draws_again_on_the_device_of_its_arguments(reentrant: bool, x: Tensor) -> None:
    """The second run draws the numbers of the first on the device of the arguments, and then restores its generator.

    The default device type does not matter here. If the arguments are of two types, CUDA takes precedence.
    """
    module = torch.get_device_module(x.device)

    def noisy(*given: Tensor) -> Tensor:
        return given[-1] * torch.rand_like(given[-1])

    forms = [[x], [torch.ones(2), x], [torch.ones(2, device="meta"), x]]
    of_the_host = torch.ones(2, requires_grad=True)
    before = DefaultDeviceType.get_device_type()
    DefaultDeviceType.set_device_type("meta")
    try:
        for number, form in enumerate(forms):
            x.grad = None
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*at least two types of devices", UserWarning)
                result = checkpoint(noisy, *form, use_reentrant=reentrant)
            torch.rand(3, device=x.device)
            state = module.get_rng_state(x.device)
            result.sum().backward()
            assert torch.equal(module.get_rng_state(x.device), state), number
            assert x.grad is not None
            torch.testing.assert_close(x.grad, result.detach() / x.detach(), msg=f"form {number}")
        checkpoint(torch.sin, of_the_host, use_reentrant=reentrant).sum().backward()
    finally:
        DefaultDeviceType.set_device_type(before)
    assert of_the_host.grad is not None
    torch.testing.assert_close(of_the_host.grad, of_the_host.detach().cos())
