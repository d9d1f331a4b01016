"""Saved-tensor hooks, which pack tensors saved for a backward pass and unpack them in the pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import (
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    save_on_cpu,
    saved_tensors_hooks,
)

from . import _torch_private as private
from .engines import Engine
from .functions import square

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"


@pytest.mark.covers(ROW)
def test_saved_tensors_hooks_decide_what_the_pass_computes_with(engine: Engine, device: torch.device) -> None:
    """Each tensor saved within the block is packed immediately and unpacked in the backward pass.

    The gradients are computed with the unpacked tensors.
    """
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    calls: list[str] = []

    def pack(tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
        calls.append("pack")
        return "packed", tensor.detach() * 10

    def unpack(packed: tuple[str, torch.Tensor]) -> torch.Tensor:
        calls.append("unpack")
        assert packed[0] == "packed"
        return packed[1]

    with saved_tensors_hooks(pack, unpack):
        y = x.pow(2)
    assert calls == ["pack"]
    outside = x.pow(2)
    (y + outside).sum().backward()

    assert calls == ["pack", "unpack"]
    assert x.grad is not None
    assert x.grad.tolist() == [22.0, 44.0]


@pytest.mark.covers(ROW)
def test_saved_tensors_hooks_pack_what_custom_functions_save(engine: Engine, device: torch.device) -> None:
    """Tensors that a custom function saves go through the hooks too."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)

    with saved_tensors_hooks(lambda tensor: tensor.detach() * 10, lambda packed: packed):
        y = square(x)
    y.sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [20.0, 40.0]


@pytest.mark.covers(ROW)
def test_saved_tensors_hooks_apply_innermost_only(engine: Engine, device: torch.device) -> None:
    """Only the innermost of nested blocks packs; after its end, the enclosing one does again."""
    x = torch.ones(2, device=device, requires_grad=True)
    packed: list[str] = []

    def hooks(name: str, factor: float) -> saved_tensors_hooks:
        def pack(tensor: torch.Tensor) -> torch.Tensor:
            packed.append(name)
            return tensor.detach() * factor

        return saved_tensors_hooks(pack, lambda tensor: tensor)

    with hooks("outer", 10):
        with hooks("inner", 100):
            a = x.pow(2)
        b = x.pow(2)
    (a + b).sum().backward()

    assert packed == ["inner", "outer"]
    assert x.grad is not None
    assert x.grad.tolist() == [220.0, 220.0]


def test_saved_tensors_hooks_pack_only_what_is_saved(engine: Engine, device: torch.device) -> None:
    """Nothing is packed if grad mode is off, or for functions that save nothing."""
    x = torch.ones(2, device=device, requires_grad=True)
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        with torch.no_grad():
            x.pow(2)
        x.detach().pow(2)
        y = x + x
    assert packed == []
    y.sum().backward()
    assert x.grad is not None


@pytest.mark.covers(ROW)
def test_saved_tensors_hooks_can_keep_tensors_in_files(engine: Engine, device: torch.device, tmp_path: Path) -> None:
    """A pack hook may return any object, such as a path, so that saved tensors can be kept in files until the pass."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)

    def pack(tensor: torch.Tensor) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pt"
        torch.save(tensor, path)
        return path

    def unpack(path: Path) -> torch.Tensor:
        loaded: torch.Tensor = torch.load(path, weights_only=True)
        return loaded

    with saved_tensors_hooks(pack, unpack):
        y = (x.exp() * x).sum()
    assert len(list(tmp_path.iterdir())) == 3
    y.backward()

    (expected,) = torch.autograd.grad((x.exp() * x).sum(), x)
    assert x.grad is not None
    assert torch.equal(x.grad, expected)


@pytest.mark.requires(any=[{"accelerator": False}, {"caching_allocator": True}])
@pytest.mark.covers(ROW)
def test_save_on_cpu_changes_no_gradient(engine: Engine, device: torch.device) -> None:
    """`save_on_cpu` keeps saved tensors in host memory and none on the device.

    Gradients and their device are unchanged.
    """
    torch.manual_seed(3)
    x = torch.randn(3, 3, device=device, requires_grad=True)
    w = torch.randn(3, 3, device=device, requires_grad=True)

    def taken() -> int:
        return torch.accelerator.memory_allocated(device) if device.type != "cpu" else 0

    expected = torch.autograd.grad((x @ w).sin().sum(), [x, w])
    before = taken()
    plain = (x @ w).sin().sum()
    between = taken()
    with save_on_cpu():
        y = (x @ w).sin().sum()
    assert device.type == "cpu" or taken() - between < between - before
    assert y.item() == plain.item()
    y.backward()

    for found, wanted in zip((x.grad, w.grad), expected, strict=True):
        assert found is not None
        assert found.device == device
        assert torch.equal(found, wanted)


def test_disable_saved_tensors_hooks_forbids_them(engine: Engine, device: torch.device) -> None:
    """Within `disable_saved_tensors_hooks`, entering a block of hooks raises with the given message.

    Outside it, hooks work.
    """
    x = torch.ones(2, device=device, requires_grad=True)
    hooks = saved_tensors_hooks(lambda tensor: tensor.detach() * 10, lambda tensor: tensor)

    with disable_saved_tensors_hooks("not in here"):
        y = x.pow(2)
        with pytest.raises(RuntimeError, match="not in here"), hooks:
            pass
    with hooks:
        z = x.pow(2)
    (y + z).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [22.0, 22.0]


def test_saved_tensors_hooks_must_not_change_what_is_saved(engine: Engine, device: torch.device) -> None:
    """A pack hook that changes its tensor in place raises, and so does an unpack hook that returns a non-tensor."""
    x = torch.ones(2, device=device, requires_grad=True)

    with (
        pytest.raises(RuntimeError, match="pack hook is modifying its input in place"),
        saved_tensors_hooks(lambda tensor: tensor.add_(1), lambda tensor: tensor),
    ):
        (x * 1).pow(2)
    with saved_tensors_hooks(lambda tensor: "no tensor", lambda packed: packed):
        y = x.pow(2)
    with pytest.raises(
        (TypeError, RuntimeError), match=r"unpack_hook expected to be a Tensor|cast no tensor to Tensor"
    ):
        y.sum().backward()
    assert x.grad is None
    engine.still_works()


class OwnError(Exception):
    """Raised during unpacking."""


@pytest.mark.covers(ROW)
def test_saved_tensors_hooks_error_while_unpacking_ends_the_pass(engine: Engine, device: torch.device) -> None:
    """An exception from an unpack hook propagates unchanged from the pass."""

    def refuse(packed: torch.Tensor) -> torch.Tensor:
        raise OwnError("gone")

    x = torch.ones(2, device=device, requires_grad=True)
    with saved_tensors_hooks(lambda tensor: tensor, refuse):
        y = x.pow(2)

    with pytest.raises(OwnError, match="gone"):
        y.sum().backward()
    assert x.grad is None
    engine.still_works()


def test_register_hooks_on_one_saved_tensor(engine: Engine, device: torch.device) -> None:
    """Hooks can be registered once on a saved tensor of a node, and the pass uses what they return."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    y = x.pow(2)
    saved: Any = private.raw_saved(y.grad_fn, "self")

    saved.register_hooks(lambda tensor: tensor.detach() * 10, lambda packed: packed)
    with pytest.raises(RuntimeError, match="already been set"):
        saved.register_hooks(lambda tensor: tensor, lambda packed: packed)
    y.sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [20.0, 40.0]


def test_allow_mutation_on_saved_tensors_keeps_the_values_that_were_saved(engine: Engine, device: torch.device) -> None:
    """An in-place change of a saved tensor makes the backward pass raise.

    Within `allow_mutation_on_saved_tensors`, the pass uses the values before the change, and the tensor keeps the new
    ones.
    """
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)

    def changed() -> tuple[torch.Tensor, torch.Tensor]:
        saved = x * 3
        result = saved * saved
        saved.mul_(5)
        return saved, result

    _, result = changed()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    assert x.grad is None

    with allow_mutation_on_saved_tensors():
        saved, result = changed()
        result.sum().backward()
    assert saved.tolist() == [15.0, 30.0]
    assert x.grad is not None
    assert x.grad.tolist() == [18.0, 36.0]
    engine.still_works()
