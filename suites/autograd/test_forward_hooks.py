"""Hooks around a module's forward and its state: the values that they may replace, their order, and their removal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules


class Weighted(nn.Module):
    """`x * factor + offset`, multiplied by a weight of 3."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(3.0, device=device))

    def forward(self, x: torch.Tensor, *, offset: float = 0.0) -> torch.Tensor:
        if offset < 0:
            raise ValueError("a negative offset")
        return x * self.factor + offset


@pytest.fixture
def x(device: torch.device) -> torch.Tensor:
    return torch.tensor([1.0, 2.0], device=device)


def named(name: str, calls: list[str]) -> Callable[..., None]:
    return lambda *_: calls.append(name)


def test_register_forward_pre_hook_replaces_the_inputs(device: torch.device, x: torch.Tensor) -> None:
    """The result of a hook, unless None, is the input of the next hook and of forward, as a tuple."""
    module = Weighted(device)
    seen: list[Any] = []

    def note(which: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append((which is module, [each.tolist() for each in inputs]))

    module.register_forward_pre_hook(lambda _, inputs: inputs[0] * 10)
    module.register_forward_pre_hook(note)
    module.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))

    assert module(x).tolist() == [33.0, 63.0]
    assert seen == [(True, [[10.0, 20.0]])]
    assert x.tolist() == [1.0, 2.0]


def test_register_forward_pre_hook_with_kwargs_replaces_both(device: torch.device, x: torch.Tensor) -> None:
    """With `with_kwargs=True`, a hook also gets keyword arguments, and must return both or None."""
    module = Weighted(device)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda _, inputs, kwargs: seen.append((len(inputs), kwargs)), with_kwargs=True)
    handle = module.register_forward_pre_hook(
        lambda _, inputs, kwargs: ((inputs[0] * 2,), {"offset": kwargs["offset"] + 1}), with_kwargs=True
    )
    assert module(x, offset=0.5).tolist() == [7.5, 13.5]
    assert seen == [(1, {"offset": 0.5})]

    handle.remove()
    module.register_forward_pre_hook(lambda _, inputs, kwargs: inputs, with_kwargs=True)  # type: ignore[arg-type, return-value]
    with pytest.raises(RuntimeError, match="forward pre-hook must return"):
        module(x)


def test_register_forward_hook_replaces_the_output(device: torch.device, x: torch.Tensor) -> None:
    """The result of a hook, unless None, is the output of the next hook and of the call; gradients pass through it."""
    module = Weighted(device)
    seen: list[Any] = []

    def note(which: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        seen.append((which is module, inputs[0] is x, output.tolist()))

    module.register_forward_hook(lambda _, inputs, output: output + inputs[0])
    module.register_forward_hook(note)
    module.register_forward_hook(lambda _, __, output: output * 2)

    result = module(x)

    assert result.tolist() == [8.0, 16.0]
    assert seen == [(True, True, [4.0, 8.0])]
    result.sum().backward()
    assert module.factor.grad is not None
    assert module.factor.grad.item() == 6.0
    assert module.forward(x).tolist() == [3.0, 6.0]  # forward itself calls no hook


def test_register_forward_hook_with_kwargs_sees_them(device: torch.device, x: torch.Tensor) -> None:
    """With `with_kwargs=True`, a hook gets the keyword arguments of forward, and otherwise does not."""
    module = Weighted(device)
    seen: list[Any] = []
    module.register_forward_hook(lambda *given: seen.append(len(given)))
    module.register_forward_hook(
        lambda _, inputs, kwargs, output: seen.append((len(inputs), kwargs, output.tolist())), with_kwargs=True
    )
    module(x, offset=1.0)
    assert seen == [3, (1, {"offset": 1.0}, [4.0, 7.0])]


@pytest.mark.parametrize(
    ("register", "for_all"),
    [
        ("register_forward_pre_hook", "register_module_forward_pre_hook"),
        ("register_forward_hook", "register_module_forward_hook"),
        ("register_full_backward_pre_hook", "register_module_full_backward_pre_hook"),
        ("register_full_backward_hook", "register_module_full_backward_hook"),
    ],
)
def test_module_hooks_run_in_order(device: torch.device, register: str, for_all: str) -> None:
    """Global hooks run first, then a hook with `prepend=True`, then those of the module in registration order."""
    module = Weighted(device)
    calls: list[str] = []
    getattr(module, register)(named("first", calls))
    getattr(module, register)(named("second", calls))
    getattr(module, register)(named("before", calls), prepend=True)
    with getattr(modules, for_all)(named("all", calls)):
        module(torch.ones(2, device=device, requires_grad=True)).sum().backward()
    assert calls == ["all", "before", "first", "second"]
    calls.clear()
    module(torch.ones(2, device=device, requires_grad=True)).sum().backward()
    assert calls == ["before", "first", "second"]


@pytest.mark.parametrize("register", ["register_forward_pre_hook", "register_forward_hook"])
def test_removablehandle_ends_a_hook(device: torch.device, x: torch.Tensor, register: str) -> None:
    """A handle removes only its own hook: immediately, repeatedly, or at the end of a block, also after an error."""
    module = Weighted(device)
    calls: list[str] = []
    kept = getattr(module, register)(named("kept", calls))
    handle = getattr(module, register)(named("removed", calls))
    module(x)
    handle.remove()
    handle.remove()
    module(x)
    assert calls == ["kept", "removed", "kept"]

    calls.clear()
    with contextlib.suppress(ValueError), getattr(module, register)(named("in the block", calls)):
        module(x)
        raise ValueError
    module(x)
    assert calls == ["kept", "in the block", "kept"]

    calls.clear()
    kept.remove()
    module(x)
    assert calls == []


@pytest.mark.parametrize("everywhere", [False, True], ids=["own", "all"])
def test_register_forward_hook_always_call_runs_after_an_error(
    device: torch.device, x: torch.Tensor, everywhere: bool
) -> None:
    """With `always_call=True`, a hook also runs once if forward raises; other hooks do not run.

    The error is raised.
    """
    module = Weighted(device)
    calls: list[str] = []
    register: Any = modules.register_module_forward_hook if everywhere else module.register_forward_hook
    with contextlib.ExitStack() as stack:
        stack.enter_context(register(named("plain", calls)))
        stack.enter_context(register(named("always", calls), always_call=True))
        with pytest.raises(ValueError, match="a negative offset"):
            module(x, offset=-1.0)
        assert calls == ["always"]
        calls.clear()
        assert module(x).tolist() == [3.0, 6.0]
        assert calls == ["plain", "always"]


def test_register_forward_hook_always_call_after_an_error_of_a_hook(device: torch.device, x: torch.Tensor) -> None:
    """A hook that has run is not called again because a later one raises."""
    module = Weighted(device)
    calls: list[str] = []

    def fails(*_: object) -> None:
        raise ValueError("of a hook")

    module.register_forward_hook(named("early", calls), always_call=True)
    module.register_forward_hook(fails)
    module.register_forward_hook(named("late", calls), always_call=True)
    with pytest.raises(ValueError, match="of a hook"):
        module(x)
    assert calls == ["early", "late"]


@pytest.fixture
def pair(device: torch.device) -> nn.Sequential:
    """Return two modules in a sequence."""
    return nn.Sequential(Weighted(device), Weighted(device))


def test_register_state_dict_hooks_of_a_module(pair: nn.Sequential) -> None:
    """Before `state_dict`, a hook gets the module and its prefix; after it, the state, which it may change."""
    seen: list[Any] = []
    pair[1].register_state_dict_pre_hook(lambda which, prefix, _: seen.append((which is pair[1], prefix)))

    def add(_: nn.Module, state: dict[str, Any], prefix: str, __: object) -> None:
        state[f"{prefix}more"] = 7

    pair[1].register_state_dict_post_hook(add)
    assert list(pair.state_dict()) == ["0.factor", "1.factor", "1.more"]
    assert seen == [(True, "1.")]


def test_register_load_state_dict_hooks_of_a_module(pair: nn.Sequential) -> None:
    """A hook before loading may rename entries; a hook after it sees the missing entries and may clear them."""
    states: list[Any] = []

    def rename(_: nn.Module, state: dict[str, Any], prefix: str, *__: object) -> None:
        state[f"{prefix}factor"] = state.pop(f"{prefix}scale")

    pair[0].register_load_state_dict_pre_hook(rename)

    def forgive(_: nn.Module, keys: Any) -> None:
        states.append((list(keys.missing_keys), list(keys.unexpected_keys)))
        keys.missing_keys.clear()

    handle = pair.register_load_state_dict_post_hook(forgive)
    result = pair.load_state_dict({"0.scale": torch.tensor(5.0)})
    assert (pair[0].factor.item(), pair[1].factor.item()) == (5.0, 3.0)
    assert states == [(["1.factor"], [])]
    assert result.missing_keys == []
    handle.remove()
    with pytest.raises(RuntimeError, match=r"1\.factor"):
        pair.load_state_dict({"0.scale": torch.tensor(6.0)})
