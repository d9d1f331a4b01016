"""Memory that another process opens."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from .. import children
from .cudart import Runtime

pytestmark = pytest.mark.requires(device="cuda", rocm=False)

SIZE = 1 << 16

_PEER = """
import ctypes, sys
from suites.runtime.cudart import IpcHandle, Runtime
cuda = Runtime.of_torch()
cuda.call("cudaSetDevice", torch.device(DEVICE).index or 0)
handle = IpcHandle.from_buffer_copy(bytes.fromhex(sys.stdin.readline().strip()))
memory = cuda.pointer("cudaIpcOpenMemHandle", handle, ctypes.c_uint(1))
for line in sys.stdin:
    match line.split():
        case ["read"]:
            print(set(cuda.read(memory, {size})), flush=True)
        case ["write", value]:
            cuda.call("cudaMemset", memory, int(value), ctypes.c_size_t({size}))
            cuda.call("cudaDeviceSynchronize")
            print("written", flush=True)
cuda.call("cudaIpcCloseMemHandle", memory)
""".replace("{size}", str(SIZE))


@contextmanager
def peer(cuda: Runtime, device: torch.device, memory: ctypes.c_void_p) -> Iterator[Callable[[str], str]]:
    """Start another process that opens the memory. It answers each line with a line."""
    handle = ctypes.create_string_buffer(64)
    cuda.call("cudaIpcGetMemHandle", handle, memory)
    script = "\n".join(["import torch", children.bring(device), _PEER])
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        reported, answers = process.stdin, process.stdout

        def tell(line: str) -> str:
            print(line, file=reported)
            return answers.readline().strip()

        try:
            print(handle.raw.hex(), file=reported)
            yield tell
        finally:
            reported.close()
            assert process.wait(children.LIMIT) == 0


@pytest.mark.timeout(300)
def test_cudaipcopenmemhandle_shares_the_memory(cuda: Runtime, device: torch.device) -> None:
    """Another process that has opened the memory sees later writes to it."""
    with cuda.memory(SIZE) as x, peer(cuda, device, x) as tell:
        for value in (0, 5, 9):
            cuda.call("cudaMemset", x, value, ctypes.c_size_t(SIZE))
            cuda.call("cudaDeviceSynchronize")
            assert tell("read") == f"{{{value}}}"


@pytest.mark.timeout(300)
def test_cudaipcopenmemhandle_shows_writes_to_the_owner(cuda: Runtime, device: torch.device) -> None:
    """The owner of memory sees what another process that opened it writes."""
    with cuda.memory(SIZE) as x, peer(cuda, device, x) as tell:
        for value in (5, 9):
            assert tell(f"write {value}") == "written"
            assert set(cuda.read(x, SIZE)) == {value}
