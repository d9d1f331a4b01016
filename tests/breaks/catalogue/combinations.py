"""Two features that disturb each other, while each alone is right."""

from __future__ import annotations

from typing import Any

from tests.breaks.breaks import Theme

broken = Theme()
_PAIRS = "suites/combinations/test_pairs.py"


def _autocast_in_a_mode() -> object:
    import torch
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with torch.enable_grad(), Mode(), torch.autocast("cpu", enabled=False):
        return torch.ones(1, requires_grad=True).exp().requires_grad


broken.edit(
    "autocast_in_a_function_mode_has_no_gradients",
    "A block of autocast within a function mode switches gradients off.",
    "torch.amp.autocast_mode:autocast.__enter__",
    "self.prev_cache_enabled = torch.is_autocast_cache_enabled()",
    "self.prev_cache_enabled = torch.is_autocast_cache_enabled(); "
    "torch._C._len_torch_function_stack() and torch.set_grad_enabled(False)",
    _PAIRS,
    shows=_autocast_in_a_mode,
)
