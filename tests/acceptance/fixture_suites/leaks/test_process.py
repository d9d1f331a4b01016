"""Cases that leak memory other than tensors, threads, descriptors and files."""

from __future__ import annotations

import concurrent.futures
import ctypes
import mmap
import os
import socket
import tempfile
import threading
from pathlib import Path

import numpy as np

EXPECTED = {
    "test_before": "passed",
    "test_numpy": "leaked: more malloc memory of C code, NumPy or torch on the CPU after each of 4 repetitions",
    "test_after_numpy": "passed",
    "test_malloc": "leaked: more malloc memory of C code, NumPy or torch on the CPU after each of 4 repetitions",
    "test_bytearray": "leaked: more malloc memory of C code, NumPy or torch on the CPU after each of 4 repetitions",
    "test_mmap": "leaked: 32.0 MiB more address space outside malloc (mmap, thread stacks, Python arenas, libraries)",
    "test_shared_memory": "leaked: 1 more file of this process under /dev/shm after each of 4 repetitions",
    "test_temporary_file": "leaked: 1 more file or folder in the temporary folder",
    "test_temporary_folder": "leaked: 2 more files or folders in the temporary folder",
    "test_between": "passed",
    "test_thread": "leaked: 1 more thread (Python or native) after each of 4 repetitions",
    "test_pool_of_threads": "leaked: 2 more threads",
    "test_descriptor": "leaked: 1 more open file descriptor after each of 4 repetitions",
    "test_sockets": "leaked: 2 more open file descriptors",
    "test_file_in_memory": "leaked: 1 more open file descriptor",
    "test_after": "passed",
}
NOTES = {
    "test_numpy": "test_process.py:",
    "test_bytearray": "test_process.py:",
    "test_mmap": "mapped_bytes: 128.0 MiB of /dev/zero",
    "test_shared_memory": "shm_files: harness-acceptance-",
    "test_temporary_file": "/kept-",
    "test_temporary_folder": "/kept-",
    "test_thread": "daemon thread 'straggler' at ",
    "test_pool_of_threads": "thread 'idler_",
    "test_descriptor": "/dev/null",
    "test_sockets": "socket:",
    "test_file_in_memory": "memfd:kept",
}

ARRAYS: list[np.ndarray] = []
BLOCKS: list[int] = []
BUFFERS: list[bytearray] = []
MAPS: list[mmap.mmap] = []
POOLS: list[concurrent.futures.Executor] = []
SOCKETS: list[socket.socket] = []
NEVER = threading.Event()
SHARED_MEMORY = Path("/dev/shm")


def test_before() -> None:
    np.zeros(1 << 20)


def test_numpy() -> None:
    ARRAYS.append(np.ones(1 << 16))


def test_after_numpy() -> None:
    assert ARRAYS == []


def test_malloc() -> None:
    malloc = ctypes.CDLL(None).malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    BLOCKS.append(malloc(512 << 10))


def test_bytearray() -> None:
    BUFFERS.append(bytearray(1 << 20))


def test_mmap() -> None:
    MAPS.append(mmap.mmap(-1, 32 << 20))


def test_shared_memory() -> None:
    with tempfile.NamedTemporaryFile(
        prefix=f"harness-acceptance-{os.environ['ACCEPTANCE_RUN']}-", dir=SHARED_MEMORY, delete=False
    ) as file:
        file.write(b"left")


def test_temporary_file() -> None:
    with tempfile.NamedTemporaryFile(prefix="kept-", delete=False) as file:
        file.write(b"left")


def test_temporary_folder() -> None:
    folder = Path(tempfile.mkdtemp(prefix="kept-"))
    (folder / "file").write_text("left")


def test_between() -> None:
    assert not any([ARRAYS, BLOCKS, BUFFERS, MAPS])
    # except the harness's own link
    assert [path for path in Path(tempfile.gettempdir()).iterdir() if not path.is_symlink()] == []


def test_thread() -> None:
    threading.Thread(target=NEVER.wait, name="straggler", daemon=True).start()


def test_pool_of_threads() -> None:
    pool = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="idler")
    both = threading.Barrier(3)
    for _ in range(2):
        pool.submit(both.wait)
    both.wait()
    POOLS.append(pool)


def test_descriptor() -> None:
    os.open(os.devnull, os.O_RDONLY)


def test_sockets() -> None:
    SOCKETS.extend(socket.socketpair())


def test_file_in_memory() -> None:
    os.memfd_create("kept")


def test_after() -> None:
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("straggler", "idler"))]
    assert not POOLS
    assert not SOCKETS
