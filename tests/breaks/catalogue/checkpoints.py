"""Checkpoints of activations, saved tensors and hooks of the autograd engine."""

from __future__ import annotations

from typing import Any

from tests.breaks.breaks import Theme, edit, replace

broken = Theme()

_CHECKPOINT, _NESTED = "suites/autograd/test_checkpoint.py", "suites/autograd/test_nested_checkpoints.py"
_SAVED, _TENSOR_HOOKS = "suites/autograd/test_saved_tensor_hooks.py", "suites/autograd/test_tensor_hooks.py"
_MIXED = "suites/amp/test_with_others.py"
_MODULE = "torch.utils.checkpoint"


def _gradient(*, reentrant: bool, autocast: bool = False, **options: Any) -> object:
    """Return the gradient through a checkpoint that uses random numbers, and the next random number."""
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(3)
    x = torch.ones(4, 4, requires_grad=True)
    seen = []

    def work(y: Any) -> Any:
        seen.append(str((y @ y).dtype))
        return torch.nn.functional.dropout(y @ y, 0.5).float()

    with torch.autocast("cpu", enabled=autocast):
        out = checkpoint(work, x, use_reentrant=reentrant, **options)
    torch.rand(1)
    assert isinstance(out, torch.Tensor)
    out.sum().backward()
    assert x.grad is not None
    return x.grad.tolist(), torch.rand(1).item(), seen


broken.edit(
    "checkpoint_keeps_no_random_state",
    "A reentrant checkpoint draws other random numbers when it computes again.",
    f"{_MODULE}:CheckpointFunction.backward",
    "torch.set_rng_state(ctx.fwd_cpu_state)",
    "pass",
    _CHECKPOINT,
    shows=lambda: _gradient(reentrant=True),
)
broken.edit(
    "checkpoint_spoils_the_random_state",
    "A reentrant checkpoint leaves the random state as it was in the forward pass.",
    f"{_MODULE}:CheckpointFunction.backward",
    "enabled=ctx.preserve_rng_state",
    "enabled=False",
    _CHECKPOINT,
    shows=lambda: _gradient(reentrant=True),
)
broken.edit(
    "checkpoint_forgets_autocast",
    "A reentrant checkpoint computes again without autocast.",
    f"{_MODULE}:CheckpointFunction.backward",
    'torch.amp.autocast("cpu", **ctx.cpu_autocast_kwargs)',
    'torch.amp.autocast("cpu", enabled=False)',
    _CHECKPOINT,
    _MIXED,
    shows=lambda: _gradient(reentrant=True, autocast=True),
)
broken.edit(
    "checkpoint_accepts_autograd_grad",
    "A reentrant checkpoint takes part in `autograd.grad` without an error.",
    f"{_MODULE}:CheckpointFunction.backward",
    "if not torch.autograd._is_checkpoint_valid():",
    "if False:",
    _CHECKPOINT,
    shows=lambda: _by_grad(),
)
broken.edit(
    "new_checkpoint_keeps_no_random_state",
    "A checkpoint that is not reentrant draws other random numbers when it computes again.",
    f"{_MODULE}:_checkpoint_without_reentrant_generator",
    "torch.set_rng_state(fwd_cpu_state)",
    "pass",
    _CHECKPOINT,
    shows=lambda: _gradient(reentrant=False),
)
broken.edit(
    "new_checkpoint_misses_other_shapes",
    "A checkpoint that computes other tensors the second time is not refused.",
    f"{_MODULE}:_CheckpointFrame.check_recomputed_tensors_match",
    "if len(nb_meta_different) > 0:",
    "if False:",
    _CHECKPOINT,
    _NESTED,
    shows=lambda: _changing("shape"),
)
broken.edit(
    "new_checkpoint_misses_fewer_tensors",
    "A checkpoint that saves fewer tensors the second time is not refused as such.",
    f"{_MODULE}:_CheckpointFrame.check_recomputed_tensors_match",
    "if not len(self.weak_holders) == self.recomp_counter[gid]:",
    "if False:",
    _CHECKPOINT,
    _NESTED,
    shows=lambda: _changing("fewer"),
)
broken.edit(
    "checkpoint_sequential_skips_a_function",
    "A sequence in segments leaves out the last function of each segment.",
    f"{_MODULE}:checkpoint_sequential",
    "for j in range(start, end + 1):",
    "for j in range(start, end + (end == len(functions) - 1)):",
    _CHECKPOINT,
    shows=lambda: _sequence(),
)
broken.edit(
    "selective_checkpoint_saves_nothing",
    "A selective checkpoint recomputes what its policy saves.",
    f"{_MODULE}:_CachingTorchDispatchMode.__torch_dispatch__",
    "if policy in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE) or is_compiling:",
    "if is_compiling:",
    _CHECKPOINT,
    shows=lambda: _selective(),
)
broken.edit(
    "selective_checkpoint_runs_twice",
    "A second backward pass through a selective checkpoint is not refused.",
    f"{_MODULE}:_CachedTorchDispatchMode.__torch_dispatch__",
    "func_storage[idx] = _CONSUMED",
    "pass",
    _CHECKPOINT,
    shows=lambda: _selective(twice=True),
)
broken.edit(
    "multi_grad_hook_runs_at_the_first",
    "A hook on several gradients is called when the first of them is there.",
    "torch.autograd.graph:register_multi_grad_hook",
    "if curr_count == nb_calls - 1:",
    "if curr_count == 0:",
    _TENSOR_HOOKS,
    shows=lambda: _multi("all"),
)
broken.edit(
    "multi_grad_hook_runs_each_time",
    "A hook on any of several gradients is called for each.",
    "torch.autograd.graph:register_multi_grad_hook",
    "if prev:",
    "if False:",
    _TENSOR_HOOKS,
    shows=lambda: _multi("any"),
)


@broken("Hooks on saved tensors of an outer block are used in an inner one.", _SAVED, shows=lambda: _saved_hooks())
def saved_tensor_hooks_do_not_nest() -> None:
    edit(
        "torch.autograd.graph:saved_tensors_hooks.__exit__",
        "torch._C._autograd._pop_saved_tensors_default_hooks()",
        "pass",
    )


def _saved_hooks() -> object:
    import torch

    calls = []

    def packed(name: str) -> Any:
        return lambda x: calls.append(name) or x  # type: ignore[func-returns-value]

    x = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(packed("outer"), lambda x: x):
        with torch.autograd.graph.saved_tensors_hooks(packed("inner"), lambda x: x):
            pass
        x * x
    return calls


@broken("A tensor changed in place while it may be is used as it is then.", _SAVED, shows=lambda: _mutated())
def mutation_of_saved_tensors_is_seen() -> None:
    edit(
        "torch.autograd.graph:_swap_with_cloned.__init__",
        "res = ctx.cloned[handle]",
        "res = torch.zeros_like(ctx.cloned[handle])",
    )


def _mutated() -> object:
    import torch

    x = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        y = x.clone()
        z = y * y
        y.mul_(5)
        z.sum().backward()
    return x.grad


@broken("`inference_mode` works as `no_grad`.", "suites/autograd/test_grad_modes.py", shows=lambda: _inference())
def inference_mode_is_no_grad() -> None:
    import torch

    replace(torch, "inference_mode", lambda _: lambda mode=True: torch.set_grad_enabled(not mode))


def _inference() -> object:
    import torch

    with torch.inference_mode():
        return torch.ones(1).is_inference()


@broken("`no_grad` as a decorator does nothing.", "suites/autograd/test_grad_modes.py", shows=lambda: _decorated())
def no_grad_decorates_nothing() -> None:
    import torch

    replace(torch.no_grad, "__call__", lambda _: lambda self, function: function)


def _decorated() -> object:
    import torch

    return torch.no_grad()(torch.is_grad_enabled)()


@broken(
    "`set_grad_enabled` does not restore what was before.",
    "suites/autograd/test_grad_modes.py",
    shows=lambda: _restored(),
)
def set_grad_enabled_stays() -> None:
    import torch

    replace(torch.set_grad_enabled, "__exit__", lambda _: lambda self, *error: None)


def _restored() -> object:
    import torch

    with torch.set_grad_enabled(False):
        pass
    found = torch.is_grad_enabled()
    torch._C._set_grad_enabled(True)
    return found


@broken("Anomaly detection does not look for NaN.", "suites/autograd/test_anomaly.py", shows=lambda: _anomaly())
def anomaly_mode_ignores_nan() -> None:
    import torch

    replace(
        torch.autograd.detect_anomaly,
        "__init__",
        lambda init: lambda self, check_nan=True: init(self, False),
    )


def _anomaly() -> object:
    import warnings

    import torch

    x = torch.zeros(1, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            (x.sqrt() * 0).backward()
    return x.grad


@broken(
    "A custom function that is once differentiable may be differentiated twice.",
    "suites/autograd/test_functions.py",
    "suites/autograd/test_higher_order.py",
    shows=lambda: _once(),
)
def once_differentiable_is_ignored() -> None:
    import torch
    from torch.autograd import function

    for module in (torch.autograd.function, function):
        replace(module, "once_differentiable", lambda _: lambda backward: backward)


def _once() -> object:
    import torch
    from torch.autograd import function

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @function.once_differentiable
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 2 * ctx.saved_tensors[0]

    x = torch.ones(1, requires_grad=True)
    (first,) = torch.autograd.grad(Own.apply(x), x, create_graph=True)
    return torch.autograd.grad(first, x)


def _by_grad() -> object:
    import torch
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(2, requires_grad=True)
    out = checkpoint(torch.exp, x, use_reentrant=True)
    assert isinstance(out, torch.Tensor)
    return torch.autograd.grad(out.sum(), x)


def _changing(what: str) -> object:
    import torch
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(4, requires_grad=True)
    calls: list[int] = []

    def work(y: Any) -> Any:
        calls.append(1)
        if what == "shape" and len(calls) > 1:
            y = y[:2]
        out = y.exp()
        return (out.sin() if what == "shape" or len(calls) == 1 else out).sum()

    out = checkpoint(work, x, use_reentrant=False)
    assert isinstance(out, torch.Tensor)
    out.backward()
    return x.grad


def _sequence() -> object:
    import torch
    from torch.utils.checkpoint import checkpoint_sequential

    functions = [lambda x, number=number: x * number for number in (2, 3, 5, 7)]
    return checkpoint_sequential(functions, 2, torch.ones(1, requires_grad=True), use_reentrant=False).item()


def _selective(*, twice: bool = False) -> object:
    import functools

    import torch
    from torch.utils import checkpoint as module

    calls: list[str] = []

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, requires_grad=True)
    context = functools.partial(module.create_selective_checkpoint_contexts, [torch.ops.aten.sin.default])
    out: Any = module.checkpoint(lambda y: y.sin().cos(), x, use_reentrant=False, context_fn=context)
    with Counting():
        out.sum().backward(retain_graph=twice)
        if twice:
            out.sum().backward()
    return calls, x.grad


def _multi(mode: str) -> object:
    import torch

    a, b = (torch.ones(1, requires_grad=True) for _ in range(2))
    calls: list[str] = []
    torch.autograd.graph.register_multi_grad_hook((a, b), lambda grads: calls.append(str(grads)), mode=mode)  # type: ignore[arg-type]
    (a * 2 + b * 3).backward()
    return calls
