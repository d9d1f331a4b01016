"""Batches of copies (`cudaMemcpyBatchAsync`, CUDA 13): all copies run in stream order, or the call returns an error."""

from __future__ import annotations

import ctypes

import pytest
import torch

from ..streams.busy import calibrate
from .cudart import CAPTURE_UNSUPPORTED, INVALID_VALUE, SUCCESS, Runtime, at, busy

pytestmark = pytest.mark.requires(device="cuda", rocm=False, torch=">=2.11")

PIECE, COUNT = 256, 4
STREAM_ORDER = 1  # cudaMemcpySrcAccessOrderStream


class Location(ctypes.Structure):
    """cudaMemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Attributes(ctypes.Structure):
    """cudaMemcpyAttributes."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source", Location),
        ("destination", Location),
        ("flags", ctypes.c_uint),
    )


@pytest.fixture
def batched(cuda: Runtime) -> Runtime:
    """Return the runtime, if its batches have the parameters of CUDA 13."""
    version = ctypes.c_int()
    cuda.call("cudaRuntimeGetVersion", ctypes.byref(version))
    if version.value < 13000:
        pytest.skip(f"the CUDA runtime {version.value} has no batches of this kind")
    return cuda


def batch(cuda: Runtime, to: ctypes.c_void_p, source: ctypes.c_void_p, stream: ctypes.c_void_p | None) -> int:
    """Copy the pieces of `source` to `to` in reverse order, in one batch; return the error code."""
    places = (ctypes.c_void_p * COUNT)(*(at(to, PIECE * (COUNT - 1 - number)).value for number in range(COUNT)))
    sources = (ctypes.c_void_p * COUNT)(*(at(source, PIECE * number).value for number in range(COUNT)))
    sizes = (ctypes.c_size_t * COUNT)(*[PIECE] * COUNT)
    attributes, first = Attributes(order=STREAM_ORDER), (ctypes.c_size_t * 1)(0)
    return cuda.code(
        "cudaMemcpyBatchAsync",
        places,
        sources,
        sizes,
        ctypes.c_size_t(COUNT),
        ctypes.byref(attributes),
        first,
        ctypes.c_size_t(1),
        stream,
    )


def fill(cuda: Runtime, memory: ctypes.c_void_p, stream: ctypes.c_void_p) -> None:
    """Write its number to each piece, in stream order."""
    for number in range(COUNT):
        cuda.call("cudaMemsetAsync", at(memory, PIECE * number), number + 1, ctypes.c_size_t(PIECE), stream)


WANTED = b"".join(bytes([number + 1]) * PIECE for number in reversed(range(COUNT)))


def test_cudamemcpybatchasync_copies_each_piece_in_stream_order(batched: Runtime, device: torch.device) -> None:
    """All copies of a batch run after earlier work of the stream, and are complete when the stream is."""
    calibrate(device)
    with batched.stream() as stream, batched.memory(COUNT * PIECE) as x, batched.memory(COUNT * PIECE) as y:
        busy(stream, device)
        fill(batched, x, stream)
        assert batch(batched, y, x, stream) == SUCCESS
        assert batched.read(y, COUNT * PIECE) == WANTED


@pytest.mark.usefixtures("in_use")
def test_cudamemcpybatchasync_in_a_capture_is_captured_or_refused(batched: Runtime) -> None:
    """A batch in a capture becomes part of the graph, or the call returns an error.

    https://github.com/rapidsai/rmm/issues/2518
    """
    answers: list[int] = []
    with batched.stream() as stream, batched.memory(COUNT * PIECE) as x, batched.memory(COUNT * PIECE) as y:
        batched.call("cudaStreamBeginCapture", stream, 2)
        fill(batched, x, stream)
        answers.append(batch(batched, y, x, stream))
        graph = ctypes.c_void_p()
        ended = batched.code("cudaStreamEndCapture", stream, ctypes.byref(graph))
        batched.code("cudaGetLastError")
        assert answers[0] in (SUCCESS, CAPTURE_UNSUPPORTED)
        if ended != SUCCESS:
            assert answers[0] == CAPTURE_UNSUPPORTED
            assert graph.value is None
            return
        try:
            launched = batched.pointer("cudaGraphInstantiate", graph, ctypes.c_ulonglong(0))
            batched.call("cudaGraphLaunch", launched, stream)
            found = batched.read(y, COUNT * PIECE)
            batched.call("cudaGraphExecDestroy", launched)
        finally:
            batched.call("cudaGraphDestroy", graph)
        assert found == (WANTED if answers[0] == SUCCESS else b"\0" * COUNT * PIECE)


def test_cudamemcpybatchasync_refuses_the_default_stream(batched: Runtime) -> None:
    """A batch on the legacy default stream returns cudaErrorInvalidValue."""
    with batched.memory(COUNT * PIECE) as x, batched.memory(COUNT * PIECE) as y:
        assert batch(batched, y, x, None) == INVALID_VALUE
        assert batched.code("cudaGetLastError") == INVALID_VALUE
        assert batched.read(y, COUNT * PIECE) == b"\0" * COUNT * PIECE
