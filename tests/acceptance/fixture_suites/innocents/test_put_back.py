"""Cases that allocate and change much, and free and restore all of it before they end."""

from __future__ import annotations

import asyncio
import decimal
import gc
import logging
import mmap
import os
import signal
import socket
import sys
import tempfile
import threading
import unittest.mock
import warnings
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pytest
import torch

EXPECTED = {
    "test_nothing": "passed",
    "test_state_put_back": "passed",
    "test_monkeypatch": "passed",
    "test_captured": "passed",
    "test_recorded_warnings": "passed",
    "test_warning_that_nobody_catches": "passed",
    "test_filter_of_warnings": "passed",
    "test_file_of_the_case": "passed",
    "test_temporary_files": "passed",
    "test_that_fails_with_tensors_in_hand": "failed: assert",
    "test_after_the_failure": "passed",
    "test_exception_kept_for_a_debugger": "passed",
    "test_cycle_with_tensors": "passed",
    "test_cycle_with_a_finalizer": "passed",
    "test_hook_that_closes_over_its_tensor": "passed",
    "test_thread_that_is_joined": "passed",
    "test_pool_that_is_shut_down": "passed",
    "test_event_loop": "passed",
    "test_descriptors_closed": "passed",
    "test_mapping_unmapped": "passed",
    "test_much_memory": "passed",
    "test_shared_memory_unlinked": "passed",
    "test_shared_memory_unlinked_again": "passed",
    "test_signal_handler_put_back": "passed",
    "test_logging": "passed",
    "test_session_fixture": "passed",
    "test_session_fixture_again": "passed",
    "test_environment_of_the_session": "passed",
    "test_module_fixture": "passed",
    "test_module_fixture_again": "passed",
    "test_function_fixture": "passed",
    "test_skips": "skipped",
    "TestClass::test_first": "passed",
    "TestClass::test_second": "passed",
}


def test_nothing() -> None:
    pass


def test_state_put_back() -> None:
    with (
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", torch.float16),
        torch.device("meta"),
        torch.autograd.set_detect_anomaly(True, check_nan=False),
        decimal.localcontext(decimal.Context(prec=3)),
        np.errstate(all="raise"),
        unittest.mock.patch.dict(os.environ, STATE_NEW="for a moment"),
        unittest.mock.patch("torch.add"),
    ):
        torch.zeros(3)


def test_monkeypatch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STATE_NEW", "for a moment")
    monkeypatch.setattr(torch.nn.functional, "relu", lambda x: x)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_captured(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    print("y" * 100_000)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("a").debug("text %s", "x" * 1000)
    assert capsys.readouterr().out
    assert caplog.text


def test_recorded_warnings(recwarn: pytest.WarningsRecorder) -> None:
    warnings.warn("one", stacklevel=1)
    assert len(recwarn) == 1


def test_warning_that_nobody_catches() -> None:
    warnings.warn("for the summary", stacklevel=1)


def test_filter_of_warnings() -> None:
    """pytest restores the filters."""
    warnings.resetwarnings()
    warnings.simplefilter("ignore")


def test_file_of_the_case(tmp_path: Path) -> None:
    torch.save(torch.zeros(10_000), tmp_path / "values.pt")
    assert torch.load(tmp_path / "values.pt").numel() == 10_000


def test_temporary_files() -> None:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as file:
        (Path(folder) / "file").write_text("x")
        file.write(b"x")


def test_that_fails_with_tensors_in_hand() -> None:
    values = torch.zeros(100_000)
    assert values.sum() == 1


def test_after_the_failure() -> None:
    torch.zeros(10)


def test_exception_kept_for_a_debugger() -> None:
    values = torch.zeros(1000)
    try:
        values.reshape(3)
    except RuntimeError as error:
        sys.last_value = error


class Node:
    def __init__(self) -> None:
        self.itself = self
        self.values = torch.zeros(1000, requires_grad=True)
        self.loss = (self.values * 2).sum()


class Finalized(Node):
    def __del__(self) -> None:
        self.values.detach().add_(1)


def test_cycle_with_tensors() -> None:
    Node()


def test_cycle_with_a_finalizer() -> None:
    Finalized()


def test_hook_that_closes_over_its_tensor() -> None:
    values = torch.zeros(1000, requires_grad=True)
    values.register_hook(lambda grad: grad + values)  # type: ignore[no-untyped-call]
    (values * 2).sum().backward()  # type: ignore[no-untyped-call]


def test_thread_that_is_joined() -> None:
    threads = [threading.Thread(target=torch.zeros, args=(1000,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_pool_that_is_shut_down() -> None:
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(abs, [-1, -2])) == [1, 2]


def test_event_loop() -> None:
    asyncio.run(asyncio.sleep(0))


def test_descriptors_closed() -> None:
    one, other = socket.socketpair()
    with one, other, Path(os.devnull).open():
        one.send(b"x")


def test_mapping_unmapped() -> None:
    with mmap.mmap(-1, 64 << 20) as memory:
        memory[0] = 1


def test_much_memory() -> None:
    torch.ones(8 << 20).sum()
    np.ones(4 << 20).sum()


def test_shared_memory_unlinked() -> None:
    """The first use in a process starts multiprocessing's resource tracker, which stays."""
    memory = shared_memory.SharedMemory(create=True, size=4096)
    buffer = memory.buf
    assert buffer is not None
    buffer[0] = 1
    del buffer
    memory.close()
    memory.unlink()


def test_shared_memory_unlinked_again() -> None:
    test_shared_memory_unlinked()


def test_signal_handler_put_back() -> None:
    old = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, old)


def test_logging() -> None:
    logging.warning("to standard error")
    logging.getLogger("suite.module").info("unheard")


def test_session_fixture(model: torch.nn.Module) -> None:
    model(torch.zeros(3, 50)).sum().backward()


def test_session_fixture_again(model: torch.nn.Module) -> None:
    assert len(list(model.parameters())) == 4


def test_environment_of_the_session(variable: str) -> None:
    assert os.environ[variable] == "for the session"


def test_module_fixture(in_double: torch.dtype) -> None:
    assert torch.zeros(1).dtype == in_double


def test_module_fixture_again(in_double: torch.dtype) -> None:
    assert torch.zeros(1).dtype == in_double


def test_function_fixture(seeded: torch.Generator) -> None:
    assert seeded.initial_seed() == 5


def test_skips() -> None:
    pytest.skip("nothing to see")


class TestClass:
    @pytest.fixture(scope="class")
    @staticmethod
    def values() -> torch.Tensor:
        return torch.zeros(10_000)

    def test_first(self, values: torch.Tensor) -> None:
        values += 1

    def test_second(self, values: torch.Tensor) -> None:
        gc.collect()
        assert values.numel() == 10_000
