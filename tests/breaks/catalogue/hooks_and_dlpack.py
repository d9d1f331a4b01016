"""Hooks of modules and of several tensors, dual levels, and memory that libraries share by DLPack."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from tests.breaks.breaks import Theme, edit, replace

broken = Theme()

_HOOKS, _DLPACK = "suites/autograd/test_forward_hooks.py", "suites/transfers/test_dlpack.py"
_CALL = "torch.nn.modules.module:Module._call_impl"


def _torch() -> Any:
    return importlib.import_module("torch")


def _calls(fails: bool, **options: Any) -> object:
    """Return how often hooks of a module run if its block raises, and then once more afterwards."""
    import torch

    class Fails(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            if fails:
                raise ValueError
            return x

    module, seen = Fails(), []
    with contextlib.suppress(ValueError), module.register_forward_hook(lambda *_: seen.append(1), **options):
        module(1)
        raise ValueError
    module(1) if not fails else None
    return len(seen)


broken.edit(
    "always_call_is_ignored",
    "A forward hook that is always to run does not run after an error.",
    _CALL,
    "if hook_id in self._forward_hooks_always_called and hook_id not in called_always_called_hooks",
    "if False",
    _HOOKS,
    shows=lambda: _calls(True, always_call=True),
)
broken.edit(
    "hook_handle_stays_after_an_error",
    "A hook stays if the block of its handle raises.",
    "torch.utils.hooks:RemovableHandle.__exit__",
    "self.remove()",
    "type is None and self.remove()",
    _HOOKS,
    shows=lambda: _calls(False),
)


def _keywords() -> object:
    import torch

    class Answers(torch.nn.Module):
        def forward(self, x: Any, answer: int = 0) -> int:
            return answer

    module = Answers()
    module.register_forward_pre_hook(lambda _, inputs, __: (inputs, {"answer": 5}), with_kwargs=True)
    return module(1, answer=1)


broken.edit(
    "pre_hook_keeps_keywords",
    "A pre-hook cannot replace keyword arguments.",
    _CALL,
    "args, kwargs = args_kwargs_result",
    "args, _ = args_kwargs_result",
    _HOOKS,
    shows=_keywords,
)


def _forgiven() -> object:
    import torch

    module = torch.nn.Linear(1, 1)
    module.register_load_state_dict_post_hook(lambda _, keys: keys.missing_keys.clear())
    try:
        return str(module.load_state_dict({}))
    except RuntimeError:
        return "missing"


broken.edit(
    "load_hooks_cannot_forgive",
    "A hook after loading gets a copy of what is missing.",
    "torch.nn.modules.module:Module.load_state_dict",
    "out = hook(module, incompatible_keys)",
    "out = hook(module, _IncompatibleKeys(list(missing_keys), list(unexpected_keys)))",
    _HOOKS,
    shows=_forgiven,
)


def _removed() -> object:
    import torch
    from torch.autograd.graph import register_multi_grad_hook

    a, b = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    seen: list[int] = []
    register_multi_grad_hook((a, b), lambda *_: seen.append(1), mode="any").remove()
    (a * b).sum().backward()
    return len(seen)


broken.edit(
    "multi_grad_hook_stays",
    "A hook on several gradients stays on all but the first when it is removed.",
    "torch.autograd.graph:_MultiHandle.remove",
    "in self.handles:",
    "in self.handles[:1]:",
    "suites/autograd/test_tensor_hooks.py",
    shows=_removed,
)


def _edge() -> object:
    import torch

    second = torch.ones(4, requires_grad=True).mul(1).split(2)[1]
    return torch.autograd.graph.get_gradient_edge(second).output_nr


broken.edit(
    "gradient_edge_is_of_the_first_output",
    "A gradient edge is that of the first output.",
    "torch.autograd.graph:get_gradient_edge",
    "tensor.output_nr",
    "0",
    "suites/autograd/test_node_hooks.py",
    shows=_edge,
)


def _level() -> object:
    from torch.autograd import forward_ad

    with contextlib.suppress(ValueError), forward_ad.dual_level():
        raise ValueError
    try:
        with forward_ad.dual_level():
            return "entered"
    except RuntimeError:
        return "refused"


broken.edit(
    "dual_level_stays_after_an_error",
    "A dual level stays if its block raises.",
    "torch.autograd.forward_ad:dual_level.__exit__",
    "exit_dual_level()",
    "exc_type is None and exit_dual_level()",
    "suites/autograd/test_forward_mode.py",
    shows=_level,
)


def _lent(**options: Any) -> object:
    import torch

    first = torch.ones(2, **options)
    try:
        second: Any = _torch().from_dlpack(first, copy=True)
    except BufferError:
        return "refused"
    first.detach().add_(1)
    return second.tolist()


@broken("`from_dlpack` ignores `copy`.", _DLPACK, shows=_lent)
def from_dlpack_never_copies() -> None:
    import torch
    from torch.utils import dlpack

    edit("torch.utils.dlpack:from_dlpack", 'kwargs["copy"] = copy', "pass")
    replace(torch, "from_dlpack", lambda _: dlpack.from_dlpack)


broken.edit(
    "dlpack_loses_gradients",
    "A tensor that requires a gradient is passed on without one.",
    "torch._tensor:Tensor.__dlpack__",
    "if self.requires_grad:",
    "if False:",
    _DLPACK,
    shows=lambda: _lent(requires_grad=True),
)
broken.edit(
    "dlpack_loses_conjugation",
    "A conjugated tensor is passed on as what lies in its memory.",
    "torch._tensor:Tensor.__dlpack__",
    "if self.is_conj():",
    "if False:",
    _DLPACK,
    shows=lambda: _conjugated(),
)


def _conjugated() -> object:
    try:
        return _torch().from_dlpack(_torch().tensor([1j]).conj()).tolist()
    except BufferError:
        return "refused"


broken.edit(
    "only_the_first_output_is_not_differentiable",
    "mark_non_differentiable(a, b) marks only a.",
    "torch.autograd.function:FunctionCtx.mark_non_differentiable",
    "self.non_differentiable = args",
    "self.non_differentiable = args[:1]",
    "suites/autograd/test_functions.py",
    shows=lambda: _marked(),
)


def _marked() -> object:
    import torch

    class Marks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            a, b = x + 1, x + 2
            ctx.mark_non_differentiable(a, b)
            return x * 2, a, b

    outputs: Any = Marks.apply(torch.ones(2, requires_grad=True))
    return [output.requires_grad for output in outputs]


@broken(
    "torch.load gives compressed sparse tensors int64 indices.",
    "suites/serialization/test_tensors.py",
    shows=lambda: _loaded_indices(),
)
def loaded_compressed_tensors_have_int64_indices() -> None:
    import torch

    def around(rebuild: Any) -> Any:
        def _rebuild_sparse_tensor(layout: Any, data: Any) -> Any:
            if layout != torch.sparse_coo:
                data = (data[0].long(), data[1].long(), *data[2:])
            return rebuild(layout, data)

        # torch.save writes the function by name.
        _rebuild_sparse_tensor.__module__ = "torch._utils"
        _rebuild_sparse_tensor.__qualname__ = "_rebuild_sparse_tensor"
        return _rebuild_sparse_tensor

    replace(importlib.import_module("torch._utils"), "_rebuild_sparse_tensor", around)


def _loaded_indices() -> object:
    import io

    import torch

    starts, places = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32)
    written = io.BytesIO()
    torch.save(torch.sparse_csr_tensor(starts, places, torch.ones(2), (2, 2)), written)
    written.seek(0)
    return str(torch.load(written, weights_only=False).crow_indices().dtype)
