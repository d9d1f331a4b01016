"""Grad modes as functions, contexts and decorators: when their objects take effect, and the mode that follows.

All backward passes here run in the eager engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.grad_mode import set_multithreading_enabled

from . import _torch_private as private


def test_set_grad_enabled_as_a_function_a_context_and_a_decorator() -> None:
    """`set_grad_enabled` takes effect when it is called; the end of its block restores the mode from before the call.

    As a decorator, it takes effect while the function runs, and not before. An object can be entered again.
    """
    try:
        mode = torch.set_grad_enabled(False)
        assert not torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        assert torch.is_grad_enabled()
        for _ in range(2):
            with mode:
                assert not torch.is_grad_enabled()
            assert torch.is_grad_enabled()

        @torch.set_grad_enabled(True)
        def on() -> bool:
            return torch.is_grad_enabled()

        @torch.set_grad_enabled(False)
        def off() -> bool:
            return torch.is_grad_enabled()

        assert torch.is_grad_enabled()
        assert [off(), on(), off()] == [False, True, False]
        with torch.no_grad():
            assert [off(), on(), torch.is_grad_enabled()] == [False, True, False]
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_inference_mode_ends_with_its_block() -> None:
    """Inference mode ends with its block even if the object lives on, nests, and can be entered again."""
    outer, inner = torch.inference_mode(), torch.inference_mode(mode=False)
    for _ in range(2):
        with outer:
            assert torch.is_inference_mode_enabled()
            assert not torch.is_grad_enabled()
            with inner:
                assert not torch.is_inference_mode_enabled()
                assert torch.is_grad_enabled()
            assert torch.is_inference_mode_enabled()
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()
    with pytest.raises(KeyError), outer:
        raise KeyError
    assert not torch.is_inference_mode_enabled()


def modes() -> tuple[bool, bool]:
    return torch.is_inference_mode_enabled(), torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("decorate", "wanted"),
    [
        (torch.no_grad, (False, False)),
        (torch.no_grad(), (False, False)),
        (torch.enable_grad, (False, True)),
        (torch.enable_grad(), (False, True)),
        (torch.inference_mode, (True, False)),
        (torch.inference_mode(), (True, False)),
        (torch.inference_mode(mode=False), (False, True)),
    ],
    ids=["no_grad", "no_grad()", "enable_grad", "enable_grad()", "inference_mode", "inference_mode()", "mode=False"],
)
def test_grad_modes_decorate_with_and_without_parentheses(
    decorate: Callable[[Any], Callable[[], tuple[bool, bool]]], wanted: tuple[bool, bool]
) -> None:
    """A decorated function has its mode on every call, including recursive ones, and its caller keeps its own mode."""
    depth: list[int] = []

    def recursive() -> tuple[bool, bool]:
        depth.append(1)
        if len(depth) == 1:
            assert decorated() == wanted
        return modes()

    decorated = decorate(recursive)
    for outer, shown in ((torch.no_grad, (False, False)), (torch.enable_grad, (False, True))):
        depth.clear()
        with outer():
            assert decorated() == wanted
            assert modes() == shown
        assert modes() == (False, True)


def test_set_multithreading_enabled_acts_at_once_and_ends_with_its_block() -> None:
    """The setting applies from the call of `set_multithreading_enabled`, and the end of its block restores it.

    A decorated function has the setting while it runs.
    """
    read = private.multithreading_enabled
    before = read()
    try:
        with set_multithreading_enabled(not before):
            assert read() is not before
            with set_multithreading_enabled(before):
                assert read() is before
            assert read() is not before
        assert read() is before
        set_multithreading_enabled(not before)
        assert read() is not before
    finally:
        set_multithreading_enabled(before)
    assert read() is before
    decorated = set_multithreading_enabled(not before)(read)
    set_multithreading_enabled(before)
    assert [decorated(), decorated(), read()] == [not before, not before, before]


def strides(device: torch.device) -> tuple[int, ...]:
    """Return the strides of the gradient of a transposed parameter, which a function returns row by row."""

    class Rows(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.sum()

        @staticmethod
        def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
            return torch.ones(2, 3, device=device)

    leaf = torch.zeros(3, 2, device=device).t().requires_grad_()
    Rows.apply(leaf).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    return leaf.grad.stride()


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract")
def test_enforce_grad_layout_policy_decides_the_strides_of_a_gradient(device: torch.device) -> None:
    """A new gradient has the strides of its parameter; with the policy disabled, it may keep its own strides.

    The end of the block restores the policy, and a decorated function has it while it runs.
    """
    enforce_grad_layout_policy = torch.autograd.grad_mode.enforce_grad_layout_policy
    assert strides(device) == (1, 2)
    with enforce_grad_layout_policy(False):
        assert strides(device) == (3, 1)
        with enforce_grad_layout_policy():
            assert strides(device) == (1, 2)
        assert strides(device) == (3, 1)
    assert strides(device) == (1, 2)
    decorated = enforce_grad_layout_policy(False)(strides)
    assert strides(device) == (1, 2)
    assert [decorated(device), decorated(device)] == [(3, 1), (3, 1)]
    assert strides(device) == (1, 2)


@pytest.mark.parametrize("mode", [True, False])
def test_set_grad_enabled_says_its_mode(mode: bool) -> None:
    """The text of `set_grad_enabled` has its name and its mode."""
    with torch.set_grad_enabled(mode) as nothing:
        assert nothing is None
        assert torch.is_grad_enabled() is mode
    switch = torch.set_grad_enabled(mode)
    try:
        assert repr(switch) == str(switch)
        assert str(switch).endswith(f"set_grad_enabled(mode={mode})")
    finally:
        switch.__exit__(None, None, None)
