"""A pytest plugin that restores names that `torch.testing` has lost, as `-p benchmarks.upstream.older_names`.

Files of PyTorch's tests import them from the installed torch, which is newer than the files, and cannot be collected
without them. Importing this module adds them: the processes of ranks import it, too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.testing._internal import common_cuda, common_fsdp, common_mkldnn, common_nn, inductor_utils


def _add(module: object, name: str, value: Callable[[], object]) -> None:
    """Set the attribute of the module to the result of `value`, if the module lacks the name."""
    if not hasattr(module, name):
        setattr(module, name, value())


def _tf32_is_not_fp32() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)


def _run_eagerly(**_: object) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator of tests that torch once also ran compiled."""
    return lambda test: test


# On the simulated CUDA, Inductor compiles without Triton, as C++.
_add(inductor_utils, "HAS_CUDA", torch.cuda.is_available)
_add(common_cuda, "tf32_is_not_fp32", lambda: _tf32_is_not_fp32)
_add(common_fsdp, "test_compiled_fsdp", lambda: _run_eagerly)
_add(common_mkldnn, "bf32_on_and_off", lambda: common_mkldnn.reduced_f32_on_and_off)
_add(common_nn, "new_module_tests", lambda: common_nn.get_new_module_tests())
