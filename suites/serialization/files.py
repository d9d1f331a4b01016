"""Saving to and loading from memory, so that no file remains and no names collide."""

from __future__ import annotations

import io
from typing import Any

import torch


def saved(value: object, **options: Any) -> bytes:
    """Return the bytes that `torch.save` writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def loaded(data: bytes, **options: Any) -> Any:
    """Return the value that `torch.load` returns, by default with `weights_only=True`."""
    return torch.load(io.BytesIO(data), **{"weights_only": True, **options})


def through_a_file(value: object, **options: Any) -> Any:
    """Return the value after saving and loading."""
    return loaded(saved(value), **options)
