"""The files that take an executor's output, and the kill ladder."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from harness.protocol.wire import Channel, Message
from harness.supervisor import executor_handle
from harness.supervisor.executor_handle import Binding, ExecutorHandle, OutputFile, Outputs
from harness.zygote.client import ForkRefusedError, ZygoteClient, ZygoteError

BINDING = Binding(devices=("cpu",), kind="cpu", environment={}, workerinput=None, leak_check="off")


def test_a_short_text_is_read_whole() -> None:
    file = OutputFile()
    os.write(file.descriptor, b"one two three")
    assert file.read(4, 7, 100) == "two"
    assert file.read(4, 4, 100) == ""
    assert file.read(9, 2, 100) == ""
    file.close()


def test_of_a_long_text_head_and_tail_are_kept_and_the_loss_is_said() -> None:
    file = OutputFile()
    os.write(file.descriptor, b"head" + b"x" * 1000 + b"tail")
    text = file.read(0, file.size(), 8)
    assert text == "head\n[… 1000 bytes cut …]\ntail"
    file.close()


def test_bytes_that_are_no_utf8_become_visible() -> None:
    file = OutputFile()
    os.write(file.descriptor, b"a\xff\x00b")
    assert file.read(0, 4, 100) == "a\\xff\x00b"
    file.close()


def test_a_writer_goes_on_at_the_start_of_an_emptied_file() -> None:
    file = OutputFile()
    writer = os.dup(file.descriptor)
    os.write(writer, b"before")
    file.empty()
    os.write(writer, b"after")
    assert file.read(0, file.size(), 100) == "after"
    os.close(writer)
    file.close()


def test_a_file_is_trimmed_once_it_is_too_large() -> None:
    file = OutputFile()
    os.write(file.descriptor, b"x" * 20)
    assert file.trimmed(20) == 20
    os.write(file.descriptor, b"x")
    assert file.trimmed(20) == 0
    assert file.size() == 0
    file.close()


def test_all_files_are_emptied_at_once() -> None:
    outputs = Outputs()
    for descriptor in outputs.descriptors():
        os.write(descriptor, b"x")
    outputs.empty()
    assert [os.fstat(descriptor).st_size for descriptor in outputs.descriptors()] == [0, 0, 0, 0]
    outputs.close()


class FakeLink:
    """Stands for the connection to a zygote whose executors do not end; their process id is this process's."""

    cold = ""

    def __init__(self, *, answers: bool = True, refuses: bool = False) -> None:
        self.answers = answers
        self.refuses = refuses
        self.signals: list[int] = []
        self.end, self._other_end = socket.socketpair()
        self.channel = Channel(self._other_end, "the zygote")

    def spawn(self, order: Message, descriptors: Sequence[int]) -> int:
        if self.refuses:
            raise ForkRefusedError(f"no room for {order['executor']} with {len(descriptors)} descriptors")
        return os.getpid()

    def signal(self, executor: str, number: int) -> None:
        assert executor == "e1"
        self.signals.append(number)

    def close(self) -> None:
        self.end.close()
        self.channel.close()


@pytest.fixture
def outputs() -> Iterator[Outputs]:
    outputs = Outputs()
    yield outputs
    outputs.close()


def _kill(link: FakeLink, outputs: Outputs, temp: Path) -> ExecutorHandle:
    handle = ExecutorHandle("e1", cast("ZygoteClient", link), outputs, BINDING, temp / "e1")
    try:
        handle.kill()
    finally:
        handle.close()
        link.close()
    return handle


def test_an_executor_that_cannot_be_killed_is_named(
    outputs: Outputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_handle, "LADDER", ((signal.SIGTERM, 0.0), (signal.SIGKILL, 0.0)))
    link = FakeLink()
    handle = _kill(link, outputs, tmp_path)
    assert link.signals == [signal.SIGTERM, signal.SIGKILL]
    assert handle.unkillable
    (text,) = handle.stuck
    assert text.startswith(f"executor e1 could not be killed: process {os.getpid()} ")
    assert ": state " in text


def test_a_zygote_that_does_not_answer_says_nothing_of_the_executor(
    outputs: Outputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_handle, "LADDER", ((signal.SIGTERM, 0.0), (signal.SIGKILL, 0.0)))
    with pytest.raises(ZygoteError, match="the zygote has not answered: it was to kill executor e1"):
        _kill(FakeLink(answers=False), outputs, tmp_path)


def test_an_executor_that_was_not_made_leaves_nothing(outputs: Outputs, tmp_path: Path) -> None:
    link = FakeLink(refuses=True)
    with pytest.raises(ForkRefusedError):
        ExecutorHandle("e1", cast("ZygoteClient", link), outputs, BINDING, tmp_path / "e1")
    assert not (tmp_path / "e1").exists()
    link.close()
