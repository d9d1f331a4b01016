"""Settings of devices: CUDA's own, and which device and stream a case left as the current one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from harness.checks.state.section import ABSENT, Row
from harness.checks.state.torch_settings import plain_rows, reach

#: What means something only once CUDA is awake: rows for `plain_rows`.
_CUDA: tuple[tuple[str, str, str, object], ...] = (
    ("the current CUDA device", "_C._cuda_getDevice", "_C._cuda_setDevice", 0),
    ("CUDA's warning of synchronisations", "_C._cuda_get_sync_debug_mode", "_C._cuda_set_sync_debug_mode", 0),
    ("the capture of a CUDA graph", "_C._cuda_isCurrentStreamCapturing", "", False),
    ("the history of CUDA memory", "_C._cuda_isHistoryEnabled", "", False),
    ("cuDNN's limit of benchmarks", "_C._cuda_get_cudnn_benchmark_limit", "_C._cuda_set_cudnn_benchmark_limit", 10),
    ("tuning of operators", "_C._cuda_tunableop_is_enabled", "_C._cuda_tunableop_enable", ABSENT),
    ("tuning of new operators", "_C._cuda_tunableop_tuning_is_enabled", "_C._cuda_tunableop_tuning_enable", ABSENT),
)


def cuda_settings() -> Sequence[Row] | None:
    """Settings of CUDA, once it is awake in this process."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    rows = plain_rows(torch, _CUDA)
    current, choose = reach(torch, "_C._cuda_getCurrentStream"), reach(torch, "_C._cuda_setStream")
    exchange = reach(torch, "_C._cuda_exchangeDevice")
    plan_cache = reach(torch, "_C._cufft_get_plan_cache_max_size")
    plan_cache_setter = reach(torch, "_C._cufft_set_plan_cache_max_size")
    for index in range(torch.cuda.device_count()):
        if ABSENT not in (current, choose, exchange):
            rows.append(_stream_row(index, current, choose, exchange))
        if plan_cache is not ABSENT and plan_cache_setter is not ABSENT:
            rows.append(
                Row(
                    f"the size of cuFFT's plan cache for cuda:{index}",
                    functools.partial(plan_cache, index),
                    functools.partial(plan_cache_setter, index),
                )
            )
    return rows


def _stream_row(index: int, current: Callable[[int], Any], choose: Callable[..., Any], exchange: Any) -> Row:
    """The number of the current stream of one device; 0 is the default stream."""
    kind = current(index)[2]

    def put_back(old: object) -> None:
        device = exchange(index)
        choose(stream_id=old, device_index=index, device_type=kind)
        exchange(device)

    return Row(f"the current stream of cuda:{index}", lambda: current(index)[0], put_back, 0)


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
