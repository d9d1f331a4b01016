"""A fake of the package torch for machines without GPUs: the real one, with a CPU in place of the GPUs of its mask.

Not for import: a test copies this file to ``torch/__init__.py`` of a folder that stands first on a run's PYTHONPATH.
What is computed is computed for real. A device is as sick as its file in the folder FAKE_TORCH says, by its UUID; the
file is read whenever a context is made, so a case may write it while the run goes on:

    wrong      one element of every product of matrices is off by one
    crashes    whoever makes a context is ended by SIGSEGV
    hangs      whoever makes a context waits for ever

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
    """As `torch.device`; a GPU's context is made at once."""
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
