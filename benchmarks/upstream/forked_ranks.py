"""A pytest plugin for PyTorch's tests of several ranks, as `-p benchmarks.upstream.forked_ranks`.

It gives each case all devices of the simulated machine, and starts the processes of a test as forks of a server that
has imported torch. PyTorch starts interpreters: each of these imports torch, which takes some seconds of a processor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from typing import Any

import pytest
import torch
from torch.testing._internal.common_distributed import MultiProcessTestCase

DEVICES = int(os.environ.get("SIMCUDA_DEVICE_COUNT", "2"))
#: What the server imports. None of them initialises CUDA if torch counts devices by NVML, as `_COUNTED` asks. A test
#: file does, so each fork imports it for itself.
_IMPORTED = (
    "benchmarks.upstream.forked_ranks",
    "benchmarks.upstream.older_names",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "torch.testing._internal.common_distributed",
    "torch.testing._internal.common_fsdp",
)
_COUNTED = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Mark each test file."""
    if isinstance(collector, pytest.Module):
        collector.add_marker(pytest.mark.requires(devices=DEVICES))


def pytest_configure() -> None:
    """Replace the method of PyTorch's base class that starts processes."""
    MultiProcessTestCase._spawn_processes = _fork_processes


def _fork_processes(test: MultiProcessTestCase) -> None:
    context: Any = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    environment = dict(os.environ)
    os.environ.update(_COUNTED)
    forkserver.ensure_running()
    os.environ.clear()
    os.environ.update(environment)

    def process(*, target: Callable[..., object], args: Sequence[object], **more: Any) -> Any:
        return context.Process(target=_with_environment, args=(environment, target, *args), **more)

    test._start_processes(process)


def _with_environment(
    environment: Mapping[str, str], target: Callable[..., object], *args: object, **named: object
) -> None:
    """Call a function with the variables of the process that has asked for it; the server has older ones."""
    os.environ.clear()
    os.environ.update(environment)
    target(*args, **named)
