"""Settings of devices: CUDA's settings, the current device and stream, and the last error of the CUDA runtime."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from harness.backends.backend import Backend
from harness.backends.table import BACKENDS
from harness.checks.state.section import ABSENT, StateRow
from harness.checks.state.torch_settings import PlainRow, find_torch_attribute, rows_from_table

#: Settings that exist only once CUDA is initialised: rows for `rows_from_table`.
_CUDA: tuple[PlainRow, ...] = (
    ("the current CUDA device", "_C._cuda_getDevice", "_C._cuda_setDevice", 0),
    ("the CUDA sync debug mode", "_C._cuda_get_sync_debug_mode", "_C._cuda_set_sync_debug_mode", 0),
    ("CUDA graph capture on the current stream", "_C._cuda_isCurrentStreamCapturing", "", False),
    ("CUDA memory history recording", "_C._cuda_isHistoryEnabled", "", False),
    (
        "torch.backends.cudnn.benchmark_limit",
        "_C._cuda_get_cudnn_benchmark_limit",
        "_C._cuda_set_cudnn_benchmark_limit",
        10,
    ),
    ("torch.cuda.tunable.is_enabled()", "_C._cuda_tunableop_is_enabled", "_C._cuda_tunableop_enable", ABSENT),
    (
        "torch.cuda.tunable.tuning_is_enabled()",
        "_C._cuda_tunableop_tuning_is_enabled",
        "_C._cuda_tunableop_tuning_enable",
        ABSENT,
    ),
)


_GPU_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def cuda_settings() -> Sequence[StateRow] | None:
    """Return settings of CUDA, once this process has initialised it."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    rows = [*rows_from_table(torch, _CUDA), *_seen_devices(torch)]
    current = find_torch_attribute(torch, "_C._cuda_getCurrentStream")
    choose = find_torch_attribute(torch, "_C._cuda_setStream")
    exchange = find_torch_attribute(torch, "_C._cuda_exchangeDevice")
    plan_cache = find_torch_attribute(torch, "_C._cufft_get_plan_cache_max_size")
    plan_cache_setter = find_torch_attribute(torch, "_C._cufft_set_plan_cache_max_size")
    for index in range(torch.cuda.device_count()):
        if ABSENT not in (current, choose, exchange):
            rows.append(_stream_row(index, current, choose, exchange))
        if plan_cache is not ABSENT and plan_cache_setter is not ABSENT:
            rows.append(
                StateRow(
                    f"the maximum size of the cuFFT plan cache of cuda:{index}",
                    functools.partial(plan_cache, index),
                    functools.partial(plan_cache_setter, index),
                )
            )
        rows.append(
            StateRow(
                f"the memory pool of new blocks on cuda:{index}",
                functools.partial(_pool, torch, index),
                None,
                "default",
            )
        )
    if (runtime := loaded_cudart(torch)) is not None:
        read, take = last_error_reader(runtime), runtime.cudaGetLastError
        rows.append(StateRow("the last error of the CUDA runtime", read, lambda _: take(), NO_ERROR))
    return rows


def _pool(torch: Any, index: int) -> str:
    """Return the pool from which the allocator of a device takes new blocks: ``default``, or the id of a private one.

    torch has no function for this, so allocate a block, and find its segment.
    """
    if torch.cuda.is_current_stream_capturing():
        return "default"  # the capture has its own row
    try:
        block = torch.empty(1, dtype=torch.uint8, device=f"cuda:{index}")
    except torch.OutOfMemoryError:
        return "default"
    place = block.data_ptr()
    for segment in torch.cuda.memory_snapshot():
        if segment["device"] == index and 0 <= place - segment["address"] < segment["total_size"]:
            pool = tuple(segment.get("segment_pool_id", ()))
            return "default" if not any(pool) else f"private pool {pool}"
    return "default"


def _seen_devices(torch: Any) -> list[StateRow]:
    """Return a row with the devices that CUDA was initialised with, which stay.

    They must be those of the process's lease.

    They differ if a case changed the variable of visible devices while it initialised CUDA, and restored it later. If
    the variable has no full UUIDs, as for MIG instances, nothing is known about the lease.
    """
    wanted = tuple(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
    if torch.version.hip or not all(map(_GPU_UUID.fullmatch, wanted)):
        return []
    seen = tuple(f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(torch.cuda.device_count()))
    return [StateRow("the devices that CUDA was initialised with", lambda: seen, initial=wanted)]


def _stream_row(index: int, current: Callable[[int], Any], choose: Callable[..., Any], exchange: Any) -> StateRow:
    """Return a row with the id of the current stream of one device; 0 is the default stream."""
    kind = current(index)[2]

    def restore(old: object) -> None:
        device = exchange(index)
        choose(stream_id=old, device_index=index, device_type=kind)
        exchange(device)

    return StateRow(f"the current stream of cuda:{index}", lambda: current(index)[0], restore, 0)


def accelerator_settings() -> Sequence[StateRow] | None:
    """Return settings of the devices that torch.accelerator serves, once this process uses them. CUDA has its own."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    rows: list[StateRow] = []
    for backend in BACKENDS.values():
        if backend.torch_type not in ("cuda", "cpu") and backend.is_initialized(torch):
            rows += _accelerator_rows(torch, backend)
    return rows or None


def _accelerator_rows(torch: Any, backend: Backend) -> list[StateRow]:
    """Return the rows of one kind. A row whose reader fails once, here, is left out."""
    rows = []
    with contextlib.suppress(Exception):
        torch.accelerator.set_device_index(torch.accelerator.current_device_index())
        chosen = torch.accelerator.current_device_index, torch.accelerator.set_device_index
        rows.append(StateRow(f"the current device of {backend.kind}", *chosen, 0))
    for index in range(backend.device_count(torch)):
        with contextlib.suppress(Exception):
            _stream(torch, index)
            read, restore = functools.partial(_stream, torch, index), functools.partial(_choose, torch, index)
            rows.append(StateRow(f"the current stream of {backend.kind}:{index}", read, restore, 0))
    return rows


def _stream(torch: Any, index: int) -> int:
    """Return the id of the current stream of a device."""
    return int(torch.accelerator.current_stream(index).stream_id)


def _choose(torch: Any, index: int, number: int) -> None:
    """Make a stream the current one of its device. Keep the current device."""
    device = torch.accelerator.current_device_index()
    kind = torch.accelerator.current_stream(index).device_type
    torch.accelerator.set_stream(torch.Stream(stream_id=number, device_index=index, device_type=kind))
    torch.accelerator.set_device_index(device)


NO_ERROR = "cudaSuccess"


def loaded_cudart(torch: ModuleType) -> ctypes.CDLL | None:
    """Return the runtime that torch calls. None if torch is linked with it statically, or has none.

    The symbols of the process's global scope come first, as for torch itself, so that calls go through a library in
    front of the runtime. Nothing is loaded.
    """
    process = ctypes.CDLL(None)
    if hasattr(process, "cudaPeekAtLastError"):
        return process
    version = getattr(getattr(torch, "version", None), "cuda", None)
    if version is None:
        return None
    try:
        return ctypes.CDLL(f"libcudart.so.{version.partition('.')[0]}", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


def last_error_reader(runtime: ctypes.CDLL) -> Callable[[], str]:
    """Return a function that returns the name of the calling thread's pending error, ``cudaSuccess`` if there is none.

    A failed call sets the error. torch raises the error after its next kernel launch, whichever code launches.
    """
    peek, name = runtime.cudaPeekAtLastError, runtime.cudaGetErrorName
    name.restype = ctypes.c_char_p

    def read() -> str:
        code = peek()
        if code == 0:
            return NO_ERROR
        text = name(code)
        return text.decode() if isinstance(text, bytes) else str(code)

    return read
