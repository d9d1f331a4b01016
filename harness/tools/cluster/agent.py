"""One node of a cluster run: ``python -m harness.tools.cluster.agent``, started by the head through Slurm or ssh.

The agent runs an ordinary pytest, passes the head's cases to it, and sends the lines of its journal. Its standard
streams are the connection to the head; pytest prints into a file. When the connection ends, the agent ends its session.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import BaseModel

from harness import __version__
from harness.core.outcome import EXIT_INTERRUPTED, EXIT_NOTHING_RAN, EXIT_OK, EXIT_RED
from harness.journal import environment, journal
from harness.scheduling import remote_queue
from harness.scheduling.resume import LOCK_FILE
from harness.tools.cluster import link
from harness.tools.cluster.link import (
    BEAT,
    VERSION,
    Beat,
    Begin,
    Bye,
    Done,
    End,
    Give,
    Hello,
    LineBuffer,
    Lines,
    LinkProtocolError,
    Open,
    Quit,
    Ready,
    SessionOver,
    Stopping,
    ToAgent,
    Want,
)

#: Seconds that a stopped session has to end, after the grace period of its cases.
MARGIN = 30.0
#: Seconds between two reads of the session's journal.
LOOK = 0.2
#: Maximum bytes of a journal line that is sent, and the approximate size of all lines of one message.
LONGEST_LINE, BLOCK = 8 << 20, 4 << 20
LOG = "pytest.log"
#: The statuses of a pytest that has ended by itself, or was stopped.
_ORDERLY = (EXIT_OK, EXIT_RED, EXIT_INTERRUPTED, EXIT_NOTHING_RAN)
#: The files of each session. Others are kept files of red cases, which their messages name.
_USUAL = frozenset({journal.FILE_NAME, environment.FILE_NAME, LOG, LOCK_FILE, "zygote.log"})
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Session:
    """A running pytest, its end of the socket pair, and its journal."""

    def __init__(self, begin: Begin, number: int, folder: Path, *, alone: bool = False) -> None:
        """Start pytest. `alone`: with one worker, whatever its arguments are. Raise OSError."""
        self.number = number
        self.folder = folder
        self.ended = self.was_ready = False
        folder.mkdir(parents=True)
        own_end, session_end = socket.socketpair()
        self.socket = own_end
        self._buffer = LineBuffer()
        command = [
            sys.executable,
            "-m",
            "pytest",
            *begin.arguments,
            *(["--numprocesses=1"] if alone else []),
            f"--harness-results-dir={folder}",
            "--harness-progress=off",
        ]
        queue_variable = {remote_queue.VARIABLE: f"{session_end.fileno()}:{os.getpid()}:{begin.node}"}
        with (folder / LOG).open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=begin.folder,
                env={**os.environ, **begin.variables, **queue_variable},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[session_end.fileno()],
                start_new_session=True,
            )
        session_end.close()
        self._journal = folder / journal.FILE_NAME
        self._offset = 0
        self._descriptor = -1

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message to the session. Other code notices when the session has ended."""
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps({"say": kind, **fields}).encode("ascii") + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages of the session."""
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return []
        return [json.loads(line) for line in self._buffer.feed(data)]

    def new_lines(self) -> list[str]:
        """Return the new complete lines of its journal since the last call, at most about `BLOCK` bytes of them."""
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self._journal, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return []
        data = os.pread(self._descriptor, BLOCK, self._offset)
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) == BLOCK:
            whole = self._long_line()
        self._offset += len(whole)
        return [line.decode("ascii", "backslashreplace") for line in whole.split(b"\n") if 0 < len(line) < LONGEST_LINE]

    def _long_line(self) -> bytes:
        """Return a line that is longer than a block."""
        line = b""
        while (more := os.pread(self._descriptor, BLOCK, self._offset + len(line))) and b"\n" not in line:
            line += more
        return line[: line.find(b"\n") + 1]

    def kill(self) -> None:
        """Kill its processes now: the workers die with pytest."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def output(self) -> str:
        """Return the end of its output."""
        return link.tail_of(self.folder / LOG)

    def close(self) -> None:
        self.socket.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)


class Agent:
    """Connects the head, on two descriptors, with one session at a time."""

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._lines = LineBuffer()
        self._begin: Begin | None = None
        self._base: Path | None = None
        #: The folder of all sessions, if the head does not see it. It is removed at the end.
        self._temporary: Path | None = None
        self._session: Session | None = None
        self._number = self._cases = 0
        self._selector = selectors.DefaultSelector()
        self._received = self._beaten = time.monotonic()
        self._deadline: float | None = None
        self._quitting = False
        self._signal = 0
        self._wake, write = os.pipe()
        os.set_blocking(write, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(write)
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, _wake_up)
        self._selector.register(source, selectors.EVENT_READ, self._read_head)
        self._selector.register(self._wake, selectors.EVENT_READ, self._drain)

    def run(self) -> int:
        """Work until the head ends the agent or is gone. Return the exit status."""
        while not (self._quitting and self._session is None):
            for key, _ in self._selector.select(LOOK if self._session is not None else BEAT):
                key.data()
            self._look_after()
        self._remove_empty()
        if self._begin is not None:
            self._send(Bye(sessions=self._number, cases=self._cases))
        return 0

    def _act_on_signal(self) -> None:
        if self._signal:
            name, self._signal = signal.Signals(self._signal).name, 0
            self._send(Stopping(why=f"stopped by {name}"))
            self._stop(f"stopped by {name}", now=self._quitting)

    def _look_after(self) -> None:
        now = time.monotonic()
        self._act_on_signal()
        if self._begin is not None and now - self._beaten >= BEAT:
            self._beaten = now
            self._send(Beat())
        silent = now - self._received
        if self._begin is not None and silent > self._begin.orphaned_after and not self._quitting:
            self._stop(f"the head has sent nothing for {silent:.0f} s")
        if self._session is not None:
            self._send_lines(self._session)
            if self._session.process.poll() is not None:
                self._end_session(self._session)
            elif self._deadline is not None and now > self._deadline:
                self._session.kill()

    # The head.

    def _read_head(self) -> None:
        data = os.read(self._source, 1 << 16)
        self._received = time.monotonic()
        if not data:
            self._selector.unregister(self._source)
            self._stop("the head is gone")
            return
        for line in self._lines.feed(data):
            self._obey(link.to_agent(line))

    def _obey(self, message: ToAgent) -> None:
        match message:
            case Begin():
                self._start(message)
            case Open(alone=alone):
                self._open(alone=alone)
            case Give(cases=cases) if self._session is not None:
                self._session.send("give", cases=[[case.case, case.avoid] for case in cases])
            case End() if self._session is not None:
                self._session.send("end")
            case Quit(stop=stop, now=now):
                if stop:
                    self._stop(stop, now=now)
                elif self._session is not None:
                    self._session.send("end")
                self._quitting = True

    def _start(self, begin: Begin) -> None:
        if begin.version != VERSION:
            raise LinkProtocolError(f"the head uses version {begin.version} of the protocol, and this agent {VERSION}")
        self._begin = begin
        host = platform.node()
        self._send(
            Hello(
                version=VERSION,
                token=begin.token,
                host=host,
                pid=os.getpid(),
                harness=__version__,
                clock=time.time(),
            )
        )
        shared = bool(begin.proof) and (Path(begin.run_dir) / begin.proof).exists()
        self._temporary = None if shared else Path(tempfile.mkdtemp(prefix="conformance-node-"))
        self._base = (self._temporary or Path(begin.run_dir) / "nodes") / begin.node
        self._open()

    def _open(self, *, alone: bool = False) -> None:
        if self._begin is None or self._base is None or self._session is not None or self._quitting:
            return
        self._number += 1
        folder = _free(self._base)
        self._session = Session(self._begin, self._number, folder, alone=alone)
        self._selector.register(self._session.socket, selectors.EVENT_READ, self._read_session)

    def _send(self, message: BaseModel) -> None:
        """Send a line. If the head is gone, the end of the other stream stops the session."""
        rest = memoryview(link.encode_message(message))
        try:
            while rest:
                rest = rest[os.write(self._target, rest) :]
        except OSError:
            if not self._quitting:
                self._stop("the head is gone")

    # The session.

    def _read_session(self) -> None:
        session = self._session
        if session is None:
            return
        for message in session.receive():
            self._send_lines(session)  # lines of a case are sent before the message that it is done
            self._pass_on(session, message)
        if session.ended:
            self._selector.unregister(session.socket)

    def _pass_on(self, session: Session, message: Mapping[str, Any]) -> None:
        fields = {name: value for name, value in message.items() if name != "say"}
        match message["say"]:
            case "ready":
                session.was_ready = True
                facts = session.folder / environment.FILE_NAME
                fields["seconds"] = tuple(float(second) for second in fields["seconds"])
                self._send(
                    Ready(
                        session=session.number,
                        folder=str(session.folder),
                        environment=facts.read_text(encoding="ascii"),
                        **fields,
                    )
                )
            case "want":
                self._send(Want(**fields))
            case "done":
                self._cases += 1
                self._send(Done(**fields))

    def _send_lines(self, session: Session) -> None:
        self._act_on_signal()  # the head must know before it reads the effects of a signal to all processes
        while lines := session.new_lines():
            self._send(Lines(lines=tuple(lines)))

    def _end_session(self, session: Session) -> None:
        if not session.ended:
            while not session.ended:
                self._read_session()
        self._send_lines(session)
        status = session.process.returncode
        self._session, self._deadline = None, None
        well = session.was_ready and status in (EXIT_OK, EXIT_NOTHING_RAN)
        self._send(SessionOver(status=status, output="" if well else session.output()))
        session.close()
        if self._temporary is not None and status in _ORDERLY and {*os.listdir(session.folder)} <= _USUAL:
            shutil.rmtree(session.folder, ignore_errors=True)

    def _remove_empty(self) -> None:
        """Remove the temporary folder, unless a session has left something in it."""
        for folder in filter(None, (self._base, self._temporary)) if self._temporary is not None else ():
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _stop(self, why: str, *, now: bool = False) -> None:
        """Stop the session like a signal: running cases get the grace period."""
        self._quitting = True
        if self._session is None or self._begin is None:
            return
        grace = 0.0 if now else self._begin.grace
        self._session.send("stop", reason=why, grace=grace)
        if self._deadline is None or now:
            self._deadline = time.monotonic() + grace + MARGIN

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._signal = number

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass


def _wake_up(number: int, frame: FrameType | None) -> None:
    """Do nothing: the handler must exist, so that the signal wakes the selector."""


def _free(base: Path) -> Path:
    number = 1
    while (base / str(number)).exists():
        number += 1
    return base / str(number)


def main(arguments: Sequence[str] = ()) -> int:
    """Run the agent on the standard streams. Other output of this process goes to standard error."""
    del arguments
    target = os.dup(1)
    os.dup2(2, 1)
    try:
        return Agent(0, target).run()
    except LinkProtocolError as error:
        print(f"harness agent: {error}", file=sys.stderr)
        return 4


if __name__ == "__main__":
    sys.exit(main())
