"""Single tensors of given numbers, and their comparison with NumPy's results, for calls that a case writes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from . import lists
from .comparison import Bound
from .references import formats
from .references.formats import Array

EXACT = Bound(0)
#: The software device only has the operators of torch's catalogue that it declares.
CPU_OR_CUDA = pytest.mark.requires(any=[{"not_": {"accelerator": True}}, {"device": "cuda"}])
#: The simulated devices provide the operators of torch's catalogue. They cannot run an operator whose first argument is
#: a number, or whose result has another shape than torch declares.
CPU_OR_GPU = pytest.mark.requires(any=[{"not_": {"accelerator": True}}, {"silicon": True}])


def given(values: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor on the device of these numbers, rounded to the type."""
    return lists.number(np.asarray(values), dtype).to(device)


def exactly(values: Any, dtype: torch.dtype) -> Array:
    """Return the numbers that a tensor of the type holds."""
    return formats.read(lists.number(np.asarray(values), dtype))


def same(found: torch.Tensor, wanted: Any, what: str, bound: Bound = EXACT) -> None:
    """Raise WrongValueError unless a tensor has this shape and these numbers."""
    array = np.asarray(wanted)
    lists.check([found], [array.shape], array.ravel(), found.dtype, bound, what)
