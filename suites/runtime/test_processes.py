"""Memory that another process has opened."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
import torch

from .. import children
from .cudart import Runtime

pytestmark = pytest.mark.requires(device="cuda", rocm=False)

SIZE = 1 << 16

_READER = """
import ctypes, sys
from suites.runtime.cudart import IpcHandle, Runtime
cuda = Runtime.of_torch()
cuda.call("cudaSetDevice", torch.device(DEVICE).index or 0)
handle = IpcHandle.from_buffer_copy(bytes.fromhex(sys.stdin.readline().strip()))
memory = cuda.pointer("cudaIpcOpenMemHandle", handle, ctypes.c_uint(1))
for _ in sys.stdin:
    print(set(cuda.read(memory, {size})), flush=True)
cuda.call("cudaIpcCloseMemHandle", memory)
""".replace("{size}", str(SIZE))


@pytest.mark.timeout(300)
def test_cudaipcopenmemhandle_shares_the_memory(cuda: Runtime, device: torch.device) -> None:
    """Contract: another process that has opened the memory sees what is written to it, also after it was opened."""
    with cuda.memory(SIZE) as x:
        handle = ctypes.create_string_buffer(64)
        cuda.call("cudaIpcGetMemHandle", handle, x)
        script = "\n".join(["import torch", children.bring(device), _READER])
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            try:
                print(handle.raw.hex(), file=reader.stdin)
                for value in (0, 5, 9):
                    cuda.call("cudaMemset", x, value, ctypes.c_size_t(SIZE))
                    cuda.call("cudaDeviceSynchronize")
                    print("read", file=reader.stdin)
                    assert reader.stdout.readline() == f"{{{value}}}\n"
            finally:
                reader.stdin.close()
                assert reader.wait(children.LIMIT) == 0
