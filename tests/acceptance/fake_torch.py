"""A fake of the package torch for machines without GPUs: the real torch, with the CPU in place of the masked GPUs.

Not for import: a test copies this file to ``torch/__init__.py`` in the first folder of a run's PYTHONPATH. Computations
are real. The file with a device's UUID in the folder FAKE_TORCH determines the device's sickness. It is read whenever a
context is created, so a case may write it during the run:

    wrong      one element of each matrix product is off by one
    crashes    creating a context ends the process with SIGSEGV
    hangs      creating a context never returns

A case that sets `torch.cuda.fake_error` to a text has poisoned its process: every synchronisation raises it.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.remove(str(Path(__file__).parents[1]))
del sys.modules["torch"]
torch: Any = importlib.import_module("torch")
sys.path.insert(0, str(Path(__file__).parents[1]))

_make_device, _multiply = torch.device, torch.Tensor.__matmul__
_awake: set[str] = set()
torch.cuda.fake_error = ""


def _visible() -> list[str]:
    return os.environ["CUDA_VISIBLE_DEVICES"].split(",")


def _sickness(uuid: str) -> str:
    try:
        return Path(os.environ["FAKE_TORCH"], uuid).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _device(kind: str, index: int = 0) -> Any:
    """Return what `torch.device` returns; for a GPU, also create its context."""
    if kind == "cuda":
        uuid = _visible()[index]
        _awake.add(uuid)
        sickness = _sickness(uuid)
        if sickness == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        while sickness == "hangs":
            signal.pause()
    return _make_device("cpu")


def _product(left: Any, right: Any) -> Any:
    product = _multiply(left, right)
    if any(_sickness(uuid) == "wrong" for uuid in _awake):
        product[17, 400] += 1
    return product


def _synchronize(_index: int | None = None) -> None:
    if torch.cuda.fake_error:
        raise RuntimeError(torch.cuda.fake_error)


torch.device = _device
torch.Tensor.__matmul__ = _product
torch.cuda.synchronize = _synchronize
torch.cuda.empty_cache = lambda: None
torch.cuda.is_initialized = lambda: bool(_awake)
torch.cuda.device_count = lambda: len(_visible())
