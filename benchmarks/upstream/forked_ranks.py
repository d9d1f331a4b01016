"""A pytest plugin for PyTorch's tests of several ranks, as `-p benchmarks.upstream.forked_ranks`.

It gives each case all devices of the simulated machine, and starts the processes of a test as forks of a server that
has imported torch. PyTorch starts interpreters, each of which imports torch, which takes some seconds of processor
time.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any

import pytest
import torch
from torch.testing._internal.common_distributed import MultiProcessTestCase

DEVICES = int(os.environ.get("SIMCUDA_DEVICE_COUNT", "2"))
#: Modules that the server imports. None of them initialises CUDA if torch counts devices with NVML, as `_COUNTED`
#: requests. A test file does, so each fork imports it itself.
_IMPORTED = (
    "benchmarks.upstream.forked_ranks",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "torch.testing._internal.common_distributed",
    "torch.testing._internal.common_fsdp",
)
#: Plugins that a fork imports before a test file. They initialise CUDA.
_BEFORE = ("benchmarks.upstream.older_names",)
_COUNTED = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Mark each test file."""
    if isinstance(collector, pytest.Module):
        collector.add_marker(pytest.mark.requires(devices=DEVICES))


def pytest_configure(config: pytest.Config) -> None:
    """Replace the method of PyTorch's base class that starts processes."""
    loaded = [name for name in _BEFORE if config.pluginmanager.has_plugin(name)]
    MultiProcessTestCase._spawn_processes = lambda test: _fork_processes(test, loaded)


def _fork_processes(test: MultiProcessTestCase, modules: Sequence[str]) -> None:
    context: Any = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    environment = dict(os.environ)
    os.environ.update(_COUNTED)
    forkserver.ensure_running()
    os.environ.clear()
    os.environ.update(environment)

    def process(*, target: Callable[..., object], args: Sequence[object], **more: Any) -> Any:
        return context.Process(target=_call, args=(_Start(environment, modules), target, *args), **more)

    test._start_processes(process)


@dataclass(frozen=True)
class _Start:
    """Prepares a fork when it is unpickled, before the definitions of a test file are.

    It sets the variables of the process that requested the fork, since the server has older ones, and imports modules.
    """

    environment: Mapping[str, str]
    modules: Sequence[str]

    def __reduce__(self) -> tuple[Callable[..., None], tuple[object, ...]]:
        return _start, (self.environment, self.modules)


def _start(environment: Mapping[str, str], modules: Sequence[str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for name in modules:
        importlib.import_module(name)


def _call(_: None, target: Callable[..., object], *args: object, **named: object) -> None:
    target(*args, **named)
