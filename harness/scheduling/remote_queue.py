"""The cases of a session of a cluster run: the agent of this node sends them as workers become free.

The agent hands this process one end of a socket pair. Both sides write lines of JSON. This process sends ``ready``
(what it has collected), ``want`` (how many cases it can take) and ``done`` (a case has ended); the agent sends
``give``, ``end`` (no more cases will come) and ``stop``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.core import linux

#: The variable that the agent sets, only for its pytest: the descriptor, and the name of the node.
VARIABLE = "HARNESS_NODE_SESSION"
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class GivenCase:
    """A case to run: its position in the list of the run. `avoid`: the UUID of a device that it should not run on."""

    case: int
    avoid: str = ""


class Receiver(Protocol):
    """The receiver of the agent's messages. It is called from a separate thread."""

    def give(self, cases: Sequence[GivenCase]) -> None:
        """Accept new cases."""

    def end(self) -> None:
        """Note that no more cases will come."""

    def stop(self, reason: str, grace: float) -> None:
        """Give running cases `grace` seconds to end, and begin no other case."""


class RemoteQueue:
    """This process's end of the socket pair. `node`: the name of this node in the run."""

    def __init__(self, descriptor: int, node: str) -> None:
        self.node = node
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.Lock()

    @classmethod
    def of_this_process(cls) -> RemoteQueue | None:
        """Return the queue of the session that this process was started for; None for an ordinary session.

        Child processes do not inherit the descriptor. This process ends with the agent.
        """
        value = os.environ.pop(VARIABLE, "")
        if not value:
            return None
        descriptor, agent, node = value.split(":", 2)
        linux.die_with_parent(int(agent))
        return cls(int(descriptor), node)

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message to the agent. If the agent is gone, the kernel ends this process, so there is nothing to
        handle.
        """
        line = json.dumps({"say": kind, **fields}, separators=(",", ":")).encode("ascii") + b"\n"
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(line)

    def listen(self, receiver: Receiver) -> None:
        """From now on, call `receiver` with all messages of the agent."""
        threading.Thread(target=self._listen, args=(receiver,), name="remote-queue", daemon=True).start()

    def close(self) -> None:
        """Close this end. The listening thread ends."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self, receiver: Receiver) -> None:
        rest = b""
        while True:
            try:
                data = self._socket.recv(_BLOCK)
            except OSError:
                return  # closed by this process, which is about to end
            if not data:
                receiver.end()
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _pass_on(json.loads(line), receiver)


def _pass_on(message: Mapping[str, Any], receiver: Receiver) -> None:
    match message["say"]:
        case "give":
            receiver.give([GivenCase(case, avoid) for case, avoid in message["cases"]])
        case "end":
            receiver.end()
        case "stop":
            receiver.stop(message["reason"], message["grace"])
