"""Settings of torch in several threads: those of one thread, and those of the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from . import together

Block = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Setting:
    """A setting: a block that changes it, and a function that reads it."""

    block: Block
    read: Callable[[], object]


@contextlib.contextmanager
def _changed(read: Callable[[], Any], write: Callable[[Any], object], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


class _Doubled(TorchFunctionMode):
    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.sin else found


class _Halved(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found / 2 if func is torch.ops.aten.sin.default else found


def _sine() -> float:
    return float(torch.sin(torch.ones(1)))


def _gradient() -> float:
    x = torch.ones(1, requires_grad=True)
    x.square().backward()
    assert x.grad is not None
    return float(x.grad)


def _hooks_are_refused() -> bool:
    try:
        with saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
            return False
    except RuntimeError:
        return True


#: Settings of a thread: its own changes alone count in it.
OF_A_THREAD = {
    "no_grad": Setting(torch.no_grad, torch.is_grad_enabled),
    "inference_mode": Setting(torch.inference_mode, torch.is_inference_mode_enabled),
    "autocast": Setting(lambda: torch.autocast("cpu"), lambda: torch.is_autocast_enabled("cpu")),
    "autocast_type": Setting(
        lambda: torch.autocast("cpu", dtype=torch.float16), lambda: torch.get_autocast_dtype("cpu")
    ),
    "autocast_cache": Setting(lambda: torch.autocast("cpu", cache_enabled=False), torch.is_autocast_cache_enabled),
    "default_device": Setting(lambda: torch.device("meta"), lambda: torch.get_default_device().type),
    "saved_tensors_hooks": Setting(
        lambda: saved_tensors_hooks(lambda saved: saved * 3, lambda saved: saved), _gradient
    ),
    "disable_saved_tensors_hooks": Setting(lambda: disable_saved_tensors_hooks("not here"), _hooks_are_refused),
    "function_mode": Setting(_Doubled, _sine),
    "dispatch_mode": Setting(_Halved, _sine),
}
#: Settings of the process: a change in one thread counts in all.
OF_THE_PROCESS = {
    "default_dtype": Setting(
        lambda: _changed(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
        lambda: torch.ones(1).dtype,
    ),
    "deterministic_algorithms": Setting(
        lambda: _changed(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
        torch.are_deterministic_algorithms_enabled,
    ),
    "detect_anomaly": Setting(lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "cudnn": Setting(lambda: torch.backends.cudnn.flags(enabled=False), lambda: torch.backends.cudnn.enabled),
    "sdpa_kernel": Setting(lambda: sdpa_kernel(SDPBackend.MATH), torch.backends.cuda.flash_sdp_enabled),
    "warn_always": Setting(
        lambda: _changed(torch.is_warn_always_enabled, torch.set_warn_always, True), torch.is_warn_always_enabled
    ),
}


def _beside(block: Block, read: Callable[[], object]) -> object:
    """Return what `read` returns in this thread while another thread is in the block."""
    inside, seen = threading.Event(), threading.Event()

    failures: list[BaseException] = []

    def stay() -> None:
        try:
            with block():
                inside.set()
                assert seen.wait(together.LIMIT)
        except BaseException as error:  # noqa: BLE001 - raised again in the case's own thread
            failures.append(error)
            inside.set()

    thread = threading.Thread(target=stay, name="case-beside")
    thread.start()
    try:
        assert inside.wait(together.LIMIT)
        return read()
    finally:
        seen.set()
        thread.join()
        if failures:
            raise failures[0]


@pytest.mark.parametrize("name", OF_A_THREAD)
def test_setting_of_a_thread_is_not_that_of_another(name: str) -> None:
    """A thread has the default of a setting, whatever another is in: a parent in its block, and a child in one.

    Source: torch, "Locally disabling gradient computation" (thread-local modes), `torch.autocast`,
    `saved_tensors_hooks`, `TorchFunctionMode`.
    """
    setting = OF_A_THREAD[name]
    usual = setting.read()
    with setting.block():
        changed = setting.read()
        assert together.elsewhere(setting.read) == usual
        assert setting.read() == changed
    assert changed != usual
    assert _beside(setting.block, setting.read) == usual
    assert setting.read() == usual


@pytest.mark.parametrize("name", OF_THE_PROCESS)
def test_setting_of_the_process_is_that_of_each_thread(name: str) -> None:
    """A change of a global setting by one thread is seen by the others, until it ends.

    Source: torch, `set_default_dtype`, `use_deterministic_algorithms`, `sdpa_kernel`, `set_warn_always`.
    """
    setting = OF_THE_PROCESS[name]
    usual = setting.read()
    with setting.block():
        changed = setting.read()
        assert changed != usual
        assert together.elsewhere(setting.read) == changed
    assert together.elsewhere(setting.read) == usual
    assert _beside(setting.block, setting.read) == changed
    assert setting.read() == usual
