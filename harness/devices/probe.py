"""The disposable process for risky detections: ``python -m harness.devices.probe QUESTION PID``.

It prints one JSON object and ends. The object has, for each capability of the question, a ``value`` (true, false, a
list of ints for a version, or null) and a ``detail``. PID is the process that asks; the probe dies with it. The probe
may crash or hang: `harness.devices.prober` starts it, limits its time and judges its answer.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any

_PR_SET_PDEATHSIG = 1

# CUdevice_attribute of cuda.h.
_DRIVER_ATTRIBUTES = {"cuda_malloc_async": 115, "expandable_segments": 102}
_DRIVER_MEANINGS = {"cuda_malloc_async": "memory pools", "expandable_segments": "virtual memory management"}
_INVALID_VALUE = 1  # CUDA_ERROR_INVALID_VALUE of CUresult

# libraryPropertyType of library_types.h.
_MAJOR_MINOR_PATCH = (0, 1, 2)

Answer = dict[str, Any]


class Question(StrEnum):
    """The questions that a probe answers."""

    DRIVER = "driver"
    LIBRARIES = "libraries"
    PROCESSOR = "processor"

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The names of the capabilities in the answer."""
        if self is Question.DRIVER:
            return tuple(_DRIVER_ATTRIBUTES)
        return tuple(_LIBRARIES if self is Question.LIBRARIES else _PROCESSOR)


class CudaError(Exception):
    """A call to the driver returned an error."""


def probe_driver() -> dict[str, Answer]:
    """Ask the driver about the one visible device. Raise OSError without a driver, and CudaError."""
    cuda = ctypes.CDLL("libcuda.so.1")
    _call(cuda, "cuInit", ctypes.c_uint(0))
    count, device = ctypes.c_int(), ctypes.c_int()
    _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    if count.value != 1:
        raise CudaError(f"the driver shows {count.value} devices, expected 1")
    _call(cuda, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    return {name: _attribute(cuda, device, name) for name in _DRIVER_ATTRIBUTES}


def _attribute(cuda: ctypes.CDLL, device: ctypes.c_int, name: str) -> Answer:
    value = ctypes.c_int()
    meaning = _DRIVER_MEANINGS[name]
    number = ctypes.c_int(_DRIVER_ATTRIBUTES[name])
    status = cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    if status == _INVALID_VALUE:
        return _answer(False, f"the driver is too old for {meaning}")
    if status:
        return _answer(None, f"cuDeviceGetAttribute: {_error_name(cuda, status)}")
    return _answer(value.value != 0, "" if value.value else f"the device has no {meaning}")


def _call(cuda: ctypes.CDLL, name: str, *arguments: Any) -> None:
    if status := cuda[name](*arguments):
        raise CudaError(f"{name}: {_error_name(cuda, status)}")


def _error_name(cuda: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    unknown = cuda.cuGetErrorName(ctypes.c_int(status), ctypes.byref(text))
    return f"error {status}" if unknown or text.value is None else text.value.decode(errors="replace")


def probe_libraries() -> dict[str, Answer]:
    """Return the versions of the libraries that torch loads. Raise ImportError if torch cannot be imported."""
    import torch

    return {name: _answer_or_error(ask, torch) for name, ask in _LIBRARIES.items()}


def _answer_or_error(ask: Callable[[Any], Answer], torch: Any) -> Answer:
    try:
        return ask(torch)
    except (OSError, AttributeError, RuntimeError) as error:
        return _answer(None, str(error) or type(error).__name__)


def _cudnn(torch: Any) -> Answer:
    number = torch.backends.cudnn.version()
    if number is None:
        return _answer(None, "torch is built without cudnn")
    return _answer(cudnn_release(number))


def cudnn_release(number: int) -> list[int]:
    """Return the version for cuDNN's version number: 91301 is 9.13.1; before 9.0, 8907 is 8.9.7."""
    scale = 10000 if number >= 90000 else 1000
    return [number // scale, number % scale // 100, number % 100]


def _nccl(torch: Any) -> Answer:
    if not hasattr(torch._C, "_nccl_version"):
        return _answer(None, "torch is built without nccl")
    return _answer([part for part in torch.cuda.nccl.version() if isinstance(part, int)])


def _cublas(_: Any) -> Answer:
    """Return the version of the cuBLAS that the import of torch loaded. torch has no function for it."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in file if "/libcublas.so" in line}
    if not paths:
        return _answer(None, "torch loads no libcublas.so")
    library = ctypes.CDLL(min(paths))
    parts = []
    for part in _MAJOR_MINOR_PATCH:
        value = ctypes.c_int()
        if status := library.cublasGetProperty(ctypes.c_int(part), ctypes.byref(value)):
            return _answer(None, f"cublasGetProperty: status {status}")
        parts.append(value.value)
    return _answer(parts)


_LIBRARIES: dict[str, Callable[[Any], Answer]] = {"cudnn": _cudnn, "cublas": _cublas, "nccl": _nccl}


def probe_processor() -> dict[str, Answer]:
    """Return what torch can run on the processor. Raise ImportError if torch cannot be imported."""
    import torch

    return {name: _answer_or_error(ask, torch) for name, ask in _PROCESSOR.items()}


def _bfloat16(torch: Any) -> Answer:
    """Run BF16 operations that are large enough for the oneDNN kernels that use the processor's tiles (AMX).

    Some virtual machines announce tiles but do not describe them (CPUID leaf 1DH is zero); there such a kernel dies of
    an illegal instruction. The results are not checked here: the cases do that.
    """
    matrix = torch.ones(256, 256, dtype=torch.bfloat16)
    torch.matmul(matrix, matrix)
    images, weight = torch.ones(2, 32, 16, 16), torch.ones(32, 32, 3, 3)
    torch.nn.functional.conv2d(images.bfloat16(), weight.bfloat16())
    return _answer(True)


_PROCESSOR: dict[str, Callable[[Any], Answer]] = {"cpu_bf16": _bfloat16}


def _answer(value: bool | list[int] | None, detail: str = "") -> Answer:
    return {"value": value, "detail": detail}


def answer_question(question: Question) -> dict[str, Answer]:
    """Return the answer for each capability of the question. If the whole question fails, each answer has the error."""
    try:
        return {
            Question.DRIVER: probe_driver,
            Question.LIBRARIES: probe_libraries,
            Question.PROCESSOR: probe_processor,
        }[question]()
    except (OSError, ImportError, AttributeError, RuntimeError, CudaError) as error:
        return {name: _answer(None, str(error) or type(error).__name__) for name in question.capabilities}


def main(arguments: list[str]) -> None:
    """Answer a question. The arguments are the question and the pid of the process that asks."""
    question, asker = Question(arguments[0]), int(arguments[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != asker:
        return  # the asking process died before the line above
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a valid answer here and must leave no core file
    # Libraries may print to stdout. Redirect that to stderr, so that stdout has only the answer.
    with open(os.dup(1), "w", encoding="ascii") as output:
        os.dup2(2, 1)
        json.dump(answer_question(question), output)


if __name__ == "__main__":
    # The import of torch takes a tenth longer with it, and the finalisation of a process that has torch 0.4 s.
    gc.disable()
    main(sys.argv[1:])
    os._exit(0)
