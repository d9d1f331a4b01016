"""Copies that share memory with their source, and compiled code that gives up what eager code promises."""

from __future__ import annotations

from typing import Any

from tests.breaks.breaks import Theme, replace

broken = Theme()
_COPIES = "suites/optimizers/test_copies.py"
_REFUSALS = "suites/autograd/test_compiled_refusals.py"
_DRAWS = "suites/autograd/test_recomputed_draws.py"


def _optimizer_copied() -> object:
    """Return the momentum of an optimizer and of its deep copy, after a further step."""
    import copy

    import torch

    parameter = torch.ones(2, requires_grad=True)
    parameter.grad = torch.ones(2)
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    optimizer.step()
    copied = copy.deepcopy(optimizer)
    optimizer.step()
    return [next(iter(each.state.values()))["momentum_buffer"].tolist() for each in (optimizer, copied)]


@broken("The deep copy of an optimizer has the optimizer's state.", _COPIES, shows=_optimizer_copied)
def deep_copies_of_optimizers_share_the_state() -> None:
    import copy

    import torch

    torch.optim.Optimizer.__deepcopy__ = lambda self, _memo: copy.copy(self)  # type: ignore[attr-defined]


def _loaded() -> object:
    """Return the weight of a module that loaded that of another, which has changed since."""
    import torch

    source, target = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        source.weight.fill_(1)
        target.load_state_dict(source.state_dict())
        source.weight.fill_(2)
    return target.weight.tolist()


broken.edit(
    "modules_take_over_what_they_load",
    "A module that loads a state takes over its tensors.",
    "torch.nn.modules.module:Module._load_from_state_dict",
    "param.copy_(input_param)",
    "param.set_(input_param)",
    _COPIES,
    shows=_loaded,
)


def _averaged() -> object:
    """Return a weight of an averaged model whose source has changed since."""
    import torch

    source = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        source.weight.fill_(1)
        averaged: Any = torch.optim.swa_utils.AveragedModel(source)
        source.weight.fill_(2)
    return averaged.module.weight.tolist()


broken.edit(
    "averaged_models_are_their_source",
    "An averaged model has the tensors of the model that it was made of.",
    "torch.optim.swa_utils:AveragedModel.__init__",
    "deepcopy(model)",
    "model",
    _COPIES,
    shows=_averaged,
)


@broken("`clone` of a tensor is a view of it.", _COPIES, shows=lambda: _cloned())
def clones_are_views() -> None:
    import torch

    replace(torch.Tensor, "clone", lambda _: lambda self, **_named: self[...] if self.dim() else self)


def _cloned() -> object:
    import torch

    x = torch.ones(2)
    copied = x.clone()
    x.fill_(2)
    return copied.tolist()


def _changed_between_the_passes() -> object:
    """Return whether compiled code raises for an input that was changed before the backward pass."""
    import torch

    @torch.compile(backend="aot_eager")
    def product(x: Any, w: Any) -> Any:
        return x * w

    x, w = torch.ones(2), torch.ones(2, requires_grad=True)
    result = product(x, w).sum()
    x.mul_(2)
    try:
        result.backward()
    except RuntimeError:
        return "refused"
    return "accepted"


@broken("A function saves copies for its backward pass.", _REFUSALS, shows=_changed_between_the_passes)
def functions_save_copies() -> None:
    import torch

    def around(save: Any) -> Any:
        return lambda self, *tensors: save(self, *(each if each is None else each.clone() for each in tensors))

    replace(torch.autograd.function.FunctionCtx, "save_for_backward", around)


def _drawn_again() -> object:
    """Return whether the gradient of a checkpoint has the mask of its forward pass."""
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(1)
    x = torch.ones(64, requires_grad=True)
    result: Any = checkpoint(torch.nn.functional.dropout, x, use_reentrant=False)
    result.sum().backward()
    assert x.grad is not None
    return bool(x.grad.equal(result.detach()))


broken.edit(
    "checkpoints_draw_anew",
    "A checkpoint draws other random numbers when it computes again.",
    "torch.utils.checkpoint:_checkpoint_without_reentrant_generator",
    "torch.set_rng_state(fwd_cpu_state)",
    "pass",
    _DRAWS,
    shows=_drawn_again,
)


@broken(
    "Compiled autograd stays on after an exception.",
    "suites/compiled_autograd/test_contexts.py",
    shows=lambda: _on_after_an_exception(),
)
def compiled_autograd_stays_on_after_an_exception() -> None:
    import contextlib
    from collections.abc import Iterator

    from torch._dynamo import compiled_autograd

    kept: list[Any] = []

    def around(enable: Any) -> Any:
        @contextlib.contextmanager
        def enables(*arguments: Any, **named: Any) -> Iterator[None]:
            context = enable(*arguments, **named)
            kept.append(context)  # otherwise its end as garbage leaves it
            context.__enter__()
            yield
            context.__exit__(None, None, None)

        return enables

    replace(compiled_autograd, "_enable", around)


def _on_after_an_exception() -> object:
    from torch._dynamo import compiled_autograd

    try:
        with compiled_autograd._enable(lambda graph: graph):
            raise LookupError
    except LookupError:
        return compiled_autograd.compiled_autograd_enabled
