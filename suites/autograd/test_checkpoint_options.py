"""Options of checkpoints: policies of operators, mutated entries, debugging, and refused options."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import (
    CheckpointError,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    get_device_states,
    set_checkpoint_debug_enabled,
    set_checkpoint_early_stop,
    set_device_states,
)

from .counting import OperatorCounts

Tensor = torch.Tensor
SIN = torch.ops.aten.sin.default


def chain(x: Tensor) -> Tensor:
    """Return exp(cos(sin x))."""
    return x.sin().cos().exp()


def derivative(x: Tensor) -> Tensor:
    return -x.sin().cos().exp() * x.sin().sin() * x.cos()


def run(x: Tensor, **options: Any) -> OperatorCounts:
    """Run the chain in a checkpoint, forward and backward, and return the operators that ran."""
    with OperatorCounts() as counted:
        checkpoint(chain, x, use_reentrant=False, **options).sum().backward()
    return counted


POLICIES = [
    (CheckpointPolicy.MUST_SAVE, 1),
    (CheckpointPolicy.PREFER_SAVE, 1),
    (CheckpointPolicy.MUST_RECOMPUTE, 2),
    (CheckpointPolicy.PREFER_RECOMPUTE, 2),
    (True, 1),
    (False, 2),
]


@pytest.mark.parametrize(("policy", "runs"), POLICIES, ids=[str(policy).rpartition(".")[2] for policy, _ in POLICIES])
def test_checkpoint_policy_decides_whether_an_operator_runs_again(device: torch.device, policy: Any, runs: int) -> None:
    """An operator that the policy saves runs once, and others run again in the backward pass, with the same gradient.

    The policy is called for each operator with its arguments, and not when the operator runs again.
    """
    x = torch.linspace(0.1, 1.0, 5, dtype=torch.float64, device=device).requires_grad_()
    asked: list[Any] = []

    def choose(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(args[0], Tensor)
        if not context.is_recompute:
            asked.append(operator)
        return policy if operator is SIN else CheckpointPolicy.PREFER_RECOMPUTE

    counts = run(x, context_fn=lambda: create_selective_checkpoint_contexts(choose)).counts

    # One sin belongs to the derivative of cos.
    assert counts["sin"] == runs + 1
    assert asked.count(SIN) == 1
    torch.testing.assert_close(x.grad, derivative(x.detach()))


def test_create_selective_checkpoint_contexts_takes_a_list_of_overloads(device: torch.device) -> None:
    """A list names the operators to save; entries that are not overloads are refused."""
    x = torch.linspace(0.1, 1.0, 5, dtype=torch.float64, device=device).requires_grad_()
    assert run(x, context_fn=lambda: create_selective_checkpoint_contexts([SIN])).counts["sin"] == 2
    with pytest.raises(ValueError, match="specific OpOverload"):
        create_selective_checkpoint_contexts([torch.ops.aten.sin])
    with pytest.raises(ValueError, match="Expected op") as error:
        create_selective_checkpoint_contexts([torch.sin])
    assert "OpOverloadPacket" not in str(error.value)
    with pytest.raises(TypeError, match="function or a list"):
        create_selective_checkpoint_contexts((SIN,))


@pytest.mark.parametrize(
    "allowed",
    [
        pytest.param(
            False,
            marks=pytest.mark.keeps(
                "a refused entry of a selective checkpoint keeps what is cached",
                tensors=8,
                host="64KiB",
                device="4KiB",
            ),
        ),
        True,
    ],
    ids=["refused", "allowed"],
)
def test_allow_cache_entry_mutation_decides_whether_a_changed_entry_is_refused(
    device: torch.device, allowed: bool
) -> None:
    """A saved tensor changed in place is refused in the backward pass, unless `allow_cache_entry_mutation` is set."""
    x = torch.linspace(0.1, 1.0, 5, dtype=torch.float64, device=device).requires_grad_()
    kept: list[Tensor] = []

    options = {"allow_cache_entry_mutation": True} if allowed else {}

    def forward(x: Tensor) -> Tensor:
        kept.append(x.sin())
        return kept[-1].exp()

    result = checkpoint(
        forward,
        x,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts([SIN], **options),
    )
    with torch.no_grad():
        kept[0].mul_(2)
    if not allowed:
        with pytest.raises(RuntimeError, match="has been mutated"):
            result.sum().backward()
        return
    result.sum().backward()
    values = x.detach()
    torch.testing.assert_close(x.grad, (2 * values.sin()).exp() * values.cos())


def different() -> Callable[[Tensor], Tensor]:
    """Return a function whose second call creates another shape."""
    calls: list[int] = []

    def forward(x: Tensor) -> Tensor:
        calls.append(1)
        return (x if len(calls) == 1 else x[:2]).sin().cos()

    return forward


def test_checkpoint_determinism_check_none_does_not_compare(device: torch.device) -> None:
    """A function whose shapes differ in the second run is refused; `determinism_check="none"` disables the check."""
    x = torch.ones(4, device=device, requires_grad=True)
    with pytest.raises(CheckpointError, match="different metadata"):
        checkpoint(different(), x, use_reentrant=False).sum().backward()
    with pytest.raises(RuntimeError) as found:
        checkpoint(different(), x, use_reentrant=False, determinism_check="none").sum().backward()
    assert "different metadata" not in str(found.value)
    with pytest.raises(ValueError, match="determinism_check"):
        checkpoint(chain, x, use_reentrant=False, determinism_check="other").sum().backward()


@pytest.mark.parametrize(
    ("context", "given", "shown"),
    [(None, False, False), (None, True, True), (True, False, True), (False, True, False)],
    ids=["off", "argument", "context", "context_over_argument"],
)
def test_set_checkpoint_debug_enabled_overrides_the_argument(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, context: bool | None, given: bool, shown: bool
) -> None:
    """With debugging, the error has the operators of both runs; the context decides, and None defers to `debug`."""
    # The logger's records cannot be formatted, and pytest formats all records.
    monkeypatch.setattr(logging.getLogger("LoggingTensor"), "propagate", False)
    x = torch.ones(4, device=device, requires_grad=True)
    with set_checkpoint_debug_enabled(not shown), set_checkpoint_debug_enabled(context):
        result = checkpoint(different(), x, use_reentrant=False, debug=given)
    with pytest.raises(CheckpointError) as found:
        result.sum().backward()
    assert ("aten::sin" in str(found.value) or "aten.sin" in str(found.value)) is shown


@pytest.mark.parametrize("early", [True, False])
def test_set_checkpoint_early_stop_decides_whether_the_rest_runs_again(device: torch.device, early: bool) -> None:
    """With early stop, operators that no gradient needs do not run again; without it, the whole function runs again."""
    x = torch.linspace(0.1, 1.0, 5, dtype=torch.float64, device=device).requires_grad_()

    def forward(x: Tensor) -> Tensor:
        y = x.exp()
        return (y * 2).neg() if y.dim() else y

    with OperatorCounts() as counted:
        with set_checkpoint_early_stop(early):
            result = checkpoint(forward, x, use_reentrant=False)
        result.sum().backward()
    # The gradient also negates once.
    assert counted.counts["exp"] == 2
    assert counted.counts["neg"] == (2 if early else 3)


def test_checkpoint_refuses_options_that_it_does_not_have(device: torch.device) -> None:
    """Unknown options are refused, as are options of the other kind of checkpoint."""
    x = torch.ones(3, device=device, requires_grad=True)
    with pytest.raises(ValueError, match="Unexpected keyword"):
        checkpoint(chain, x, use_reentrant=True, other=1)
    with pytest.raises(ValueError, match="debug"):
        checkpoint(chain, x, use_reentrant=True, debug=True)
    with pytest.raises(ValueError, match="context_fn"):
        checkpoint(chain, x, use_reentrant=True, context_fn=lambda: create_selective_checkpoint_contexts([SIN]))


@pytest.mark.requires(accelerator=True)
def test_set_device_states_restores_what_get_device_states_saw(device: torch.device) -> None:
    """`get_device_states` returns the generator states of the tensors' devices, and `set_device_states` restores them.

    The same numbers follow.
    """
    x = torch.zeros(4, device=device)
    before = torch.get_device_module(device).get_rng_state(device)
    devices, states = get_device_states(1, x, torch.zeros(2))
    assert devices == [device.index]
    assert torch.equal(states[0], before)
    wanted = torch.rand(64, device=device)
    set_device_states(devices, states, device_type=device.type)
    assert torch.equal(torch.rand(64, device=device), wanted)
    assert not torch.equal(torch.rand(64, device=device), wanted)
    set_device_states(devices, states, device_type="meta")
    assert not torch.equal(torch.rand(64, device=device), wanted)


@pytest.mark.requires(torch=">=2.13")
def test_checkpoint_context_fn_may_not_hide_an_error_of_the_function(device: torch.device) -> None:
    """`checkpoint` raises an error of the function; a context of `context_fn` that hides it is refused."""
    x = torch.ones(2, device=device, requires_grad=True)

    def fails(_: Tensor) -> Tensor:
        raise LookupError("in the function")

    with pytest.raises(LookupError, match="in the function"):
        checkpoint(fails, x, use_reentrant=False)
    for hidden, error in ((LookupError, RuntimeError), (ZeroDivisionError, LookupError)):
        contexts = (contextlib.suppress(hidden), contextlib.nullcontext())
        with pytest.raises(error, match=r"suppressed an exception|in the function"):
            checkpoint(fails, x, use_reentrant=False, context_fn=lambda given=contexts: given)


def test_set_device_states_of_meta_does_nothing() -> None:
    """The meta device has no random numbers: there is no state to restore, and none is read."""
    before = torch.get_rng_state()
    set_device_states([0], [torch.zeros(8, dtype=torch.uint8)], device_type="meta")
    assert torch.equal(torch.get_rng_state(), before)


def _halved(*x: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.nn.functional.dropout(each, 0.5) for each in x)


two_devices = pytest.mark.requires(accelerator=True, devices=2)
each_order = pytest.mark.parametrize("places", [(0, 1), (1, 0)], ids=str)


@two_devices
@each_order
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_of_tensors_on_two_devices_draws_the_same_numbers_on_each(
    device: torch.device, use_reentrant: bool, places: tuple[int, ...]
) -> None:
    """The recomputation repeats the random numbers of each device of an argument, and leaves both generators alone."""
    module = torch.get_device_module(device)
    inputs = [torch.ones(64, device=torch.device(device.type, place), requires_grad=True) for place in places]

    results = checkpoint(_halved, *inputs, use_reentrant=use_reentrant)
    for result in results:
        torch.rand(1, device=result.device)  # what is drawn between the passes
    states = [module.get_rng_state(each.device) for each in inputs]
    if use_reentrant:
        torch.autograd.backward(results, [torch.ones_like(each) for each in results])
    else:
        for result in results:  # one after the other: the next case is about both at once
            result.sum().backward(retain_graph=True)

    for x, result, state in zip(inputs, results, states, strict=True):
        assert x.grad is not None
        assert torch.equal(x.grad, result.detach())
        assert torch.equal(module.get_rng_state(x.device), state)


@two_devices
@each_order
@pytest.mark.xfail(
    raises=(AssertionError, CheckpointError),
    strict=True,
    reason="each thread runs the function again (https://github.com/pytorch/pytorch/issues/96764)",
)
def test_checkpoint_of_tensors_on_two_devices_runs_again_once(device: torch.device, places: tuple[int, ...]) -> None:
    """One backward pass, which has a thread per device, runs the function again once for both."""
    inputs = [torch.ones(64, device=torch.device(device.type, place), requires_grad=True) for place in places]
    both = threading.Barrier(2)
    runs = 0

    def halved(*x: Tensor) -> tuple[Tensor, ...]:
        nonlocal runs
        runs += 1
        if runs > 1:
            # If one thread runs it, the other does not come.
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(timeout=2)
        return _halved(*x)

    results = checkpoint(halved, *inputs, use_reentrant=False)
    torch.autograd.backward(results, [torch.ones_like(each) for each in results])

    assert runs == 2
    for x, result in zip(inputs, results, strict=True):
        assert x.grad is not None
        assert torch.equal(x.grad, result.detach())
