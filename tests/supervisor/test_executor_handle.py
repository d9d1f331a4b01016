"""An executor from outside: its output files, its messages, and how it is ended."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from harness.protocol.endings import EXIT_HARNESS_ERROR, RemoteFailure
from harness.protocol.phase_page import PassedPhase, PhasePage
from harness.protocol.wire import Channel, Message
from harness.supervisor import executor_handle
from harness.supervisor.executor_handle import ExecutorHandle, NoMessage, OutputFile, Outputs
from harness.zygote.client import ForkRefusedError, ZygoteClient, ZygoteError
from tests.supervisor.fakes import BINDING, FakeExecutor, FakeZygote, handle_on

PATIENCE = 60.0


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
    *files, page = outputs.descriptors()
    for descriptor in files:
        os.write(descriptor, b"x")
    written = PhasePage(page)
    written.begin(1)
    written.add(PassedPhase(0, 0.1, 1.0, 1.1, 0, 0))
    outputs.empty()
    assert [os.fstat(descriptor).st_size for descriptor in files] == [0, 0, 0, 0]
    assert outputs.phases.read(1) == []
    written.close()
    outputs.close()


class NoStop:
    """Replaces the listener of a run that is never stopped."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def receive(self) -> None:
        return None

    def fileno(self) -> int:
        return self._read

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class FakeLink:
    """Replaces the connection to a zygote whose executors do not end; their process id is this process's."""

    cold = ""

    def __init__(self, *, answers: bool = True, refuses: bool = False) -> None:
        self.answers = answers
        self.refuses = refuses
        self.signals: list[int] = []
        self.stop = NoStop()
        self.end, self._other_end = socket.socketpair()
        self.channel = Channel(self._other_end, "the zygote")

    def spawn(self, order: Message, descriptors: Sequence[int]) -> int:
        if self.refuses:
            raise ForkRefusedError(f"no room for {order['executor']} with {len(descriptors)} descriptors")
        return os.getpid()

    def exit_of(self, executor: str) -> None:
        assert executor == "e1"

    def signal(self, executor: str, number: int) -> None:
        assert executor == "e1"
        self.signals.append(number)

    def give_up(self, order: str) -> ZygoteError:
        return ZygoteError(f"given up: it was to {order}")

    def close(self) -> None:
        self.stop.close()
        self.end.close()
        self.channel.close()


@pytest.fixture
def outputs() -> Iterator[Outputs]:
    outputs = Outputs()
    yield outputs
    outputs.close()


def _kill(link: FakeLink, outputs: Outputs, temp: Path) -> ExecutorHandle:
    handle = ExecutorHandle("e1", cast("ZygoteClient", link), outputs, BINDING, temp / "e1", temp / "kept")
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
    with pytest.raises(ZygoteError, match="given up: it was to kill executor e1"):
        _kill(FakeLink(answers=False), outputs, tmp_path)


def test_an_executor_that_was_not_made_leaves_nothing(outputs: Outputs, tmp_path: Path) -> None:
    link = FakeLink(refuses=True)
    with pytest.raises(ForkRefusedError):
        ExecutorHandle("e1", cast("ZygoteClient", link), outputs, BINDING, tmp_path / "e1", tmp_path / "kept")
    assert not (tmp_path / "e1").exists()
    link.close()


# The kill ladder. Its rungs do not wait here, except if an executor dies of one.

TERM, KILL = int(signal.SIGTERM), int(signal.SIGKILL)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_handle, "LADDER", ((signal.SIGTERM, 0.0), (signal.SIGKILL, 0.0)))


def _silent(_: FakeExecutor) -> None:
    return


def test_an_executor_that_dies_of_the_first_rung_is_spared_the_second(tmp_path: Path) -> None:
    with handle_on(tmp_path, _silent, {TERM: -15}) as (handle, zygote):
        handle.kill()
    assert (zygote.signals, handle.exit_status, handle.unkillable) == ([TERM], -15, False)


def test_one_that_ignores_the_first_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_handle, "LADDER", ((signal.SIGTERM, 0.0), (signal.SIGKILL, 60.0)))
    with handle_on(tmp_path, _silent, {KILL: -9}) as (handle, zygote):
        handle.kill()
    assert (zygote.signals, handle.exit_status, handle.unkillable) == ([TERM, KILL], -9, False)


@pytest.mark.usefixtures("impatient")
def test_one_that_nothing_ends_is_said_to_be_so(tmp_path: Path) -> None:
    with handle_on(tmp_path, _silent) as (handle, zygote):
        handle.kill()
    assert (zygote.signals, handle.exit_status, handle.unkillable) == ([TERM, KILL], None, True)


def test_one_that_has_ended_is_sent_no_signal(tmp_path: Path) -> None:
    with handle_on(tmp_path, _silent) as (handle, zygote):
        zygote.executors[0].exit(3)
        assert handle.wait_exit(time.monotonic() + PATIENCE)
        handle.kill()
    assert (zygote.signals, handle.exit_status, handle.unkillable) == ([], 3, False)


def test_what_it_says_while_it_dies_does_not_keep_the_ladder(tmp_path: Path) -> None:
    with handle_on(tmp_path, _silent, {TERM: -15}) as (handle, zygote):
        zygote.executors[0].send("done")
        zygote.executors[0].send_raw(b"garbage\n")
        handle.kill()
    assert (zygote.signals, handle.exit_status) == ([TERM], -15)


def test_a_zygote_that_is_gone_is_reported(tmp_path: Path) -> None:
    with handle_on(tmp_path, _silent) as (handle, zygote):
        zygote.die()
        with pytest.raises(ZygoteError):
            handle.kill()


# Messages.


def test_there_is_no_message_at_a_deadline_that_has_passed(tmp_path: Path) -> None:
    with handle_on(tmp_path, _silent) as (handle, _):
        assert handle.receive(time.monotonic()) is NoMessage.DEADLINE


def test_a_deadline_may_be_years_away(tmp_path: Path) -> None:
    with handle_on(tmp_path, lambda executor: executor.send("done")) as (handle, _):
        handle.send({"op": "run"})
        assert handle.receive(time.monotonic() + 1e9) == {"op": "done"}


def test_an_available_message_is_received_even_after_the_deadline(tmp_path: Path) -> None:
    with handle_on(tmp_path, _silent) as (handle, zygote):
        zygote.executors[0].send("one")
        zygote.executors[0].send("two")
        assert handle.receive(time.monotonic() + PATIENCE) == {"op": "one"}
        assert handle.receive(time.monotonic() - 1) == {"op": "two"}


def test_the_last_message_comes_before_the_exit(tmp_path: Path) -> None:
    with handle_on(tmp_path, _silent) as (handle, zygote):
        zygote.executors[0].send("last")
        zygote.executors[0].exit(0, ["a child"])
        deadline = time.monotonic() + PATIENCE
        assert handle.receive(deadline) == {"op": "last"}
        assert handle.receive(deadline) is NoMessage.EXITED
        assert handle.receive(deadline) is NoMessage.EXITED
    assert (handle.exit_status, handle.swept) == (0, ["a child"])


def test_an_exit_that_came_with_an_answer_of_the_zygote_is_known(tmp_path: Path) -> None:
    """The call that waited for the answer read both messages, so nothing is left to read."""
    with handle_on(tmp_path, _silent) as (handle, zygote):
        zygote.executors[0].exit(3)
        zygote.client.pump()
        assert handle.receive(time.monotonic()) is NoMessage.EXITED
    assert handle.exit_status == 3


def test_an_error_of_the_harness_is_no_message_but_kept(tmp_path: Path) -> None:
    with handle_on(tmp_path, _silent) as (handle, zygote):
        zygote.executors[0].send("step", step="x")
        zygote.executors[0].send("harness_error", error="E: x", traceback="Traceback")
        zygote.executors[0].exit(EXIT_HARNESS_ERROR)
        deadline = time.monotonic() + PATIENCE
        assert handle.receive(deadline) == {"op": "step", "step": "x"}
        assert handle.receive(deadline) is NoMessage.EXITED
    assert handle.harness_error == RemoteFailure("E: x", "Traceback")


@pytest.mark.parametrize(
    "wrong", [b'{"op": "harness_error"}\n', b'{"op": "harness_error", "error": 1, "traceback": 2}\n']
)
def test_an_error_of_the_harness_that_is_none_is_garbage(tmp_path: Path, wrong: bytes) -> None:
    with handle_on(tmp_path, _silent) as (handle, zygote):
        zygote.executors[0].send_raw(wrong)
        assert handle.receive(time.monotonic() + PATIENCE) is NoMessage.GARBLED
    assert handle.harness_error is None
    assert "an executor sent an invalid 'harness_error'" in handle.garbled


@pytest.mark.parametrize(("status", "spoke", "failed"), [(244, False, True), (244, True, False), (1, False, False)])
def test_a_silent_end_with_the_status_of_the_harness_s_own(
    tmp_path: Path, status: int, spoke: bool, failed: bool
) -> None:
    with handle_on(tmp_path, _silent) as (handle, zygote):
        if spoke:
            zygote.executors[0].send("grown", growths={})
        zygote.executors[0].exit(status)
        assert handle.wait_exit(time.monotonic() + PATIENCE)
        while handle.receive(time.monotonic() + PATIENCE) is not NoMessage.EXITED:
            continue
    assert (handle.harness_error is not None) is failed


def test_to_speak_to_one_that_is_gone_is_no_error(tmp_path: Path) -> None:
    with handle_on(tmp_path, _silent) as (handle, zygote):
        zygote.executors[0].exit(-11)
        assert handle.wait_exit(time.monotonic() + PATIENCE)
        handle.close()
        handle.send({"op": "run"})


def test_to_speak_to_one_that_does_not_read_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example an executor that a signal has stopped."""
    monkeypatch.setattr(executor_handle, "SEND_LIMIT", 0.05)
    free = threading.Event()

    def stuck(_: FakeExecutor) -> None:
        assert free.wait(PATIENCE)

    with handle_on(tmp_path, stuck) as (handle, _):
        handle.send({"op": "run"})
        handle.send({"op": "round", "cases": ["x" * (4 << 20)]})
        assert handle.receive(time.monotonic()) is NoMessage.DEADLINE
        free.set()


# Cold executors, which collect before they are ready.


def _cold(folder: Path, script: Callable[[FakeExecutor], None], prepare: Callable[[FakeExecutor], None]) -> str:
    """Start an executor that calls `prepare` before the first request; return the message of its error."""

    class Cold(FakeZygote):
        cold = "--start=cold"

        def spawn(self, order: Message, descriptors: Sequence[int]) -> int:
            pid = super().spawn(order, descriptors)
            prepare(self.executors[0])
            return pid

    zygote, outputs = Cold(script), Outputs()
    try:
        ExecutorHandle("e1", zygote.client, outputs, BINDING, folder / "e1", folder / "kept").close()
    except ZygoteError as error:
        return str(error)
    finally:
        zygote.end()
        outputs.close()
    return ""


def test_a_cold_executor_is_waited_for_until_it_is_ready(tmp_path: Path) -> None:
    assert _cold(tmp_path, _silent, lambda executor: executor.send("ready", collected=1, hash="sha256:0")) == ""


def test_a_cold_executor_that_ends_before_has_its_log_quoted(tmp_path: Path) -> None:
    text = _cold(tmp_path, _silent, lambda executor: executor.exit(1))
    assert text == "executor e1, started cold, ended before it was ready; the log ends with:\nwhat the log ends with"


def test_a_cold_executor_in_which_the_harness_fails_has_its_traceback_quoted(tmp_path: Path) -> None:
    def fail(executor: FakeExecutor) -> None:
        executor.send("harness_error", error="E: x", traceback="Traceback\nE: x")
        executor.exit(EXIT_HARNESS_ERROR)

    text = _cold(tmp_path, _silent, fail)
    assert text == "executor e1, started cold, ended before it was ready; the harness failed in it:\nTraceback\nE: x"
