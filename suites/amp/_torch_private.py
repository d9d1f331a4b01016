"""The undocumented or release-dependent torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

from suites.reaching import reach

#: The module with torch's lists of the operations that autocast handles, with arguments for each. It is written for
#: torch's own tests.
LISTS = "torch.testing._internal.autocast_test_lists"
#: A module from which the lists' module imports two names. It is large, freezes `torch.backends` and parses the command
#: line.
COMMON = "torch.testing._internal.common_utils"


class _NoTestCase:
    """A placeholder for the base class of a test class in the lists' module that is not used here."""


@contextmanager
def _without_common() -> Iterator[None]:
    """Allow importing the lists' module without its large import, unless that is already imported."""
    if COMMON in sys.modules:
        yield
        return
    stand_in = ModuleType(COMMON)
    vars(stand_in).update(TEST_WITH_ROCM=torch.version.hip is not None, TestCase=_NoTestCase)
    sys.modules[COMMON] = stand_in
    try:
        yield
    finally:
        del sys.modules[COMMON]


@functools.cache
def _module() -> ModuleType:
    """Return torch's module of lists, under a separate name, because it uses the placeholder."""
    spec = importlib.util.find_spec(LISTS)
    if spec is None or spec.loader is None:
        pytest.skip(f"torch {torch.__version__} has no {LISTS}")
    module = importlib.util.module_from_spec(spec)
    with _without_common():
        spec.loader.exec_module(module)
    return module


def onednn_lacks_bf16() -> bool:
    """Return whether oneDNN has no BF16 arithmetic on this processor (on x86: without AVX-512).

    Return False if torch has no oneDNN, or cannot tell.
    """
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return torch.backends.mkldnn.is_available() and supported is not None and not supported()


def operator_lists(of: str, device: torch.device) -> dict[str, list[tuple[Any, ...]]]:
    """Return torch's lists of operations with arguments on the device, by name, for "cpu" or for an "accelerator".

    The arguments are drawn from torch's generator.
    """
    name = "AutocastCPUTestLists" if of == "cpu" else "AutocastTestLists"
    found: Any = getattr(_module(), name, None)
    if found is None:
        pytest.skip(f"torch {torch.__version__} has no {LISTS}.{name}")
    return {key: value for key, value in vars(found(device)).items() if isinstance(value, list)}


def nn_function(name: str) -> Callable[..., Any]:
    """Return a function of `torch._C._nn`, whose operations autocast handles for `torch.nn.functional`."""
    function: Callable[..., Any] = reach(f"torch._C._nn.{name}")
    return function


def counting_casts(tally: list[torch.dtype]) -> Any:
    """Return a context that appends the target dtype of every floating-point conversion to `tally`.

    This includes autocast's conversions.

    The dispatch mode below autocast is not a public name.
    """
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        pytest.skip(f"torch {torch.__version__} has no torch.utils._python_dispatch.TorchDispatchMode")

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            wanted = (kwargs or {}).get("dtype")
            if func is torch.ops.aten._to_copy.default and wanted is not None and wanted != args[0].dtype:
                tally.append(wanted)
            return func(*args, **(kwargs or {}))

    return Counting()


def growth_tracker(scaler: torch.amp.GradScaler) -> int:
    """Return the number of consecutive finite steps since the scaler's scale last changed.

    The scaler's state dictionary has it under a name with an underscore.
    """
    found: Any = scaler.state_dict().get("_growth_tracker")
    if found is None:
        pytest.skip(f"torch {torch.__version__}: GradScaler.state_dict() has no '_growth_tracker'")
    return int(found)
