"""Saved things in memory: no file is left behind, and none has a name that another case could have."""

from __future__ import annotations

import io
from typing import Any

import torch


def saved(value: object, **options: Any) -> bytes:
    """What `torch.save` writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def loaded(data: bytes, **options: Any) -> Any:
    """What `torch.load` makes of it, by the safe unpickler unless told otherwise."""
    return torch.load(io.BytesIO(data), **{"weights_only": True, **options})


def through_a_file(value: object, **options: Any) -> Any:
    """A value that was saved and loaded."""
    return loaded(saved(value), **options)
