"""Gradients that hooks, checkpoints, transforms of functions and the compiler change."""

from __future__ import annotations

from typing import Any

from tests.breaks.breaks import Theme

broken = Theme()
_FILE = "suites/operators/test_wrapped_gradients.py"


def _gradients(run: Any) -> object:
    """Return the gradients of a product of two vectors, which `run` computes."""
    import torch

    x, y = (torch.tensor(values, requires_grad=True) for values in ([1.0, -2.0], [-3.0, 4.0]))
    out = run(lambda a, b: a * b, x, y)
    return [each.tolist() for each in torch.autograd.grad(out, [x, y], torch.tensor([1.0, 2.0]))]


def _hooked(hooks: Any) -> object:
    def run(function: Any, x: Any, y: Any) -> Any:
        with hooks:
            return function(x, y)

    return _gradients(run)


def _by_hooks() -> object:
    from torch.autograd.graph import saved_tensors_hooks

    return _hooked(saved_tensors_hooks(lambda saved: saved.clone(), lambda saved: saved))


def _offloaded() -> object:
    from torch.autograd.graph import save_on_cpu

    return _hooked(save_on_cpu())


def _checkpointed(*, reentrant: bool) -> object:
    import torch
    from torch.utils.checkpoint import checkpoint

    if not reentrant:
        return _gradients(lambda function, x, y: checkpoint(function, x, y, use_reentrant=False))
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    out = checkpoint(torch.square, x, use_reentrant=True)
    assert isinstance(out, torch.Tensor)
    out.sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


def _pulled() -> object:
    import torch

    pull: Any = torch.func.vjp(lambda a: a * 2, torch.ones(2))[1]
    return [each.tolist() for each in pull(torch.tensor([1.0, 3.0]))]


def _mapped() -> object:
    import torch

    found = torch.func.vmap(lambda a: (a + 1, a * 3))(torch.ones(2))
    return [each.tolist() for each in found]


def _compiled() -> object:
    import torch

    torch.compiler.reset()
    x = torch.ones(2, requires_grad=True)
    out = torch.compile(lambda a: a * -torch.cos(a), backend="aot_eager")(x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    return gradient.tolist()


broken.edit(
    "hooks_get_amounts",
    "The unpack hook of saved tensors gets their absolute values.",
    "torch.autograd.graph:saved_tensors_hooks.__enter__",
    "self.pack_hook, self.unpack_hook",
    "lambda saved: self.pack_hook(saved.detach().abs()), self.unpack_hook",
    _FILE,
    shows=_by_hooks,
)
broken.edit(
    "offloaded_tensors_lose_their_sign",
    "`save_on_cpu` gives back the absolute values of what it saved.",
    "torch.autograd.graph:save_on_cpu.__init__",
    "return tensor.to(device, non_blocking=pin_memory)",
    "return tensor.to(device, non_blocking=pin_memory).abs()",
    _FILE,
    shows=_offloaded,
)
broken.edit(
    "checkpoint_computes_again_from_amounts",
    "A checkpoint that is not reentrant computes again from the absolute values of its inputs.",
    "torch.utils.checkpoint:_checkpoint_hook.__init__",
    "args = frame.get_inputs()",
    "args = [each.abs() if isinstance(each, torch.Tensor) else each for each in frame.get_inputs()]",
    _FILE,
    shows=lambda: _checkpointed(reentrant=False),
)
broken.edit(
    "reentrant_checkpoint_computes_again_from_amounts",
    "A reentrant checkpoint computes again from the absolute values of its inputs.",
    "torch.utils.checkpoint:CheckpointFunction.backward",
    "detach_variable(tuple(inputs))",
    "detach_variable(tuple(each.abs() if isinstance(each, torch.Tensor) else each for each in inputs))",
    _FILE,
    shows=lambda: _checkpointed(reentrant=True),
)
broken.edit(
    "vjp_ignores_the_weights",
    "The function that `torch.func.vjp` returns takes all weights for 1.",
    "torch._functorch.eager_transforms:_vjp_with_argnums",
    "flat_cotangents,\n                    retain_graph",
    "[torch.ones_like(each) for each in flat_cotangents],\n                    retain_graph",
    _FILE,
    shows=_pulled,
)
broken.edit(
    "vmap_returns_the_first_result_in_each_place",
    "A function under `torch.func.vmap` returns its first result in place of the others of the same shape.",
    "torch._functorch.vmap:_unwrap_batched",
    "return tree_unflatten(flat_outputs, output_spec)",
    "return tree_unflatten([flat_outputs[0] if each.shape == flat_outputs[0].shape else each for each in flat_outputs],"
    " output_spec)",
    _FILE,
    shows=_mapped,
)
broken.edit(
    "compiled_code_has_no_negation",
    'The graphs of "aot_eager" leave out `aten.neg`.',
    "torch._dynamo.backends.debugging:boxed_nop",
    "fx_g.recompile()",
    "[each.replace_all_uses_with(*each.args) for each in fx_g.graph.nodes if str(each.target) == 'aten.neg.default']\n"
    "    fx_g.recompile()",
    _FILE,
    shows=_compiled,
)
