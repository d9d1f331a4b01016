"""What a case may leave chosen on software devices: the current one, and the current stream of each."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from harness.checks.state.section import Row


def soft_settings() -> Sequence[Row] | None:
    """Settings of software devices, where this process has any; reading them wakes none."""
    torch: Any = sys.modules.get("torch")
    soft = getattr(torch, "soft", None)
    if soft is None:
        return None
    chosen = torch.accelerator.current_device_index, torch.accelerator.set_device_index
    rows = [Row("the current software device", *chosen, 0)]
    for index in range(soft.device_count()):
        read, put_back = functools.partial(_stream, torch, index), functools.partial(_choose, torch, index)
        rows.append(Row(f"the current stream of soft:{index}", read, put_back, 0))
    return rows


def _stream(torch: Any, index: int) -> int:
    """The number of a device's current stream; 0 is the default stream, and all that a device has which sleeps."""
    awake = bool(torch.accelerator.memory_stats(index))
    return torch.accelerator.current_stream(index).stream_id if awake else 0


def _choose(torch: Any, index: int, number: int) -> None:
    """Make it the current stream of its device, and leave the current device as it is."""
    device = torch.accelerator.current_device_index()
    kind = torch.accelerator.current_stream(index).device_type
    torch.accelerator.set_stream(torch.Stream(stream_id=number, device_index=index, device_type=kind))
    torch.accelerator.set_device_index(device)
