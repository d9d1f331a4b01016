"""A device for torch in pure Python, as an out-of-tree package has it: PrivateUse1 with the name ``npu``.

Its memory consists of NumPy arrays. Tests copy this file into a package in a temporary folder. `FLAW` breaks it.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch.utils import backend_registration

#: ``count``: device_count raises. ``mask``: the mask has no effect. ``early``: the import uses a device. ``statistic``:
#: a statistic is not a number. ``crash``: the first use of a device ends the process. ``conjugate``: the copy of a
#: conjugated tensor calls itself without an end; otherwise it raises.
FLAW = os.environ.get("NPU_FLAW", "")


class Module:
    """``torch.npu``."""

    def __init__(self) -> None:
        self.used = FLAW == "early"
        self.seed = -1

    def device_count(self) -> int:
        """Return the number of visible devices."""
        if FLAW == "count":
            raise OSError("the driver does not answer")
        visible = os.environ.get("NPU_VISIBLE_DEVICES")
        if visible is None or FLAW == "mask":
            return 2
        return len([entry for entry in visible.split(",") if entry.strip()])

    def is_available(self) -> bool:
        """Return whether a device is visible."""
        return self.device_count() > 0

    def is_initialized(self) -> bool:
        """Return whether a device has been used."""
        return self.used

    def current_device(self) -> int:
        """Return the only device that tensors are on."""
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Keep the seed, for tests."""
        self.seed = seed

    def synchronize(self, device: Any = None) -> None:
        """Do nothing: all work is synchronous."""

    def host_memory_stats(self) -> dict[str, Any]:
        """Return statistics of pinned memory, of which there is none."""
        return {"active_bytes.current": "none" if FLAW == "statistic" else 0, "allocated_bytes.current": 0}


module = Module()
backend_registration._setup_privateuseone_for_python_backend("npu", module)
_library: Any = torch.library.Library
_aten = _library("aten", "IMPL")


def _make(values: Any, dtype: torch.dtype) -> Any:
    if FLAW == "crash":
        os.kill(os.getpid(), 9)
    module.used = True
    made: Any = torch._C._acc.create_empty_tensor(values.shape, dtype)
    made.raw = values
    return made


def _empty(size: Any, *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Any:
    wanted = torch.get_default_dtype() if dtype is None else dtype
    return _make(np.zeros(tuple(size), dtype=torch.empty(0, dtype=wanted).numpy().dtype), wanted)


def _copy(source: Any, target: Any, non_blocking: bool = False) -> Any:  # noqa: ARG001
    values = source.raw if source.device.type == "npu" else source.numpy()
    if target.device.type == "npu":
        target.raw[...] = values
    else:
        target.copy_(torch.from_numpy(values.copy()))
    return target


def _fill(tensor: Any, value: Any = 0) -> Any:
    tensor.raw[...] = value
    return tensor


def _add(left: Any, right: Any, *, alpha: float = 1) -> Any:
    return _make(left.raw + alpha * getattr(right, "raw", right), left.dtype)


def _item(tensor: Any) -> Any:
    return tensor.raw.item()


_KERNELS: dict[str, Any] = {
    "empty.memory_format": _empty,
    "empty_strided": _empty,
    "_copy_from": _copy,
    "fill_.Scalar": _fill,
    "zero_": _fill,
    "add.Tensor": _add,
    "_local_scalar_dense": _item,
}
for _name, _kernel in _KERNELS.items():
    _aten.impl(_name, _kernel, "PrivateUse1")
if FLAW != "conjugate":
    for _key in ("Conjugate", "Negative"):
        _aten.impl("_copy_from", torch.library.fallthrough_kernel, _key)
