"""The supervisor's handle of one executor: messages, deadline, exit, and the kill ladder.

`ExecutorHandle.receive` waits for four things at once, and the order in which it looks at them decides verdicts:

1. The exit, which the zygote reports. It may have arrived together with another answer of the zygote, so it is looked
   for before each wait. All that the executor has sent is in the socket's buffer by then, and is read; the end of the
   stream is not awaited, since a process that the sweep missed may hold the other end.
2. A message. One that has arrived wins over an exit, a request to stop and a deadline: an executor that reports the end
   of a case and then dies has ended the case.
3. A request to stop. It first forbids further cases on the page of phases; `StoppedError` comes after the grace.
4. The deadline. Once it has passed there is one more look at all of the above, because this process may not have run
   between the message and the deadline. Without that look a busy machine would turn passed cases into timeouts.

The deadline is `GRACE` later than the executor's own watchdog, which writes the stacks: it is for an executor that is
stopped, or hangs in the kernel. Starvation is read once a second during the wait. It only explains a timeout in words:
nothing extends a deadline, since a case that hangs on a busy machine must end too.

After a ProtocolError, nothing that the executor sends is trusted. After a ZygoteError, its state is unknown. Not
handled: an executor that sends half a line and then stops is a deadline, and no error of the protocol.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path

from harness.backends.backend import DeviceKind
from harness.backends.table import device_variables
from harness.checks.process import StarvationWatch, describe_stuck
from harness.configuration.context import RunContext
from harness.core import clock, temp_folder
from harness.core.disposable import LADDER
from harness.core.errors import convert_to_write_error
from harness.devices.device import Device, masks_for
from harness.fixtures import CaseSettings
from harness.gating import requirements
from harness.gating.policy import Policy
from harness.protocol.endings import EXIT_HARNESS_ERROR, ProcessEnd, RemoteFailure, parse_ending
from harness.protocol.phase_page import PhasePage
from harness.protocol.wire import Channel, Message, ProtocolError
from harness.scheduling.stop_request import StoppedError
from harness.sim.native import faults
from harness.supervisor import executor_files
from harness.zygote.client import START_LIMIT, ZygoteClient, ZygoteError
from harness.zygote.spec import executor_environment

_XDIST_VARIABLES = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID")


@dataclass(frozen=True, slots=True)
class Binding:
    """What an executor is bound to: devices (by UUID), environment, and the `workerinput` of its xdist worker.

    `kind` is that of the devices. `library`: for software devices, the backend to load. `leak_check` is
    ``--leak-check``: off, fast or full. `race_check`: the devices check the order of work. `snapshots`: the
    executor writes the allocator's snapshot when a case fails. `settings`: the settings of the run that cases may read.
    `unused`: the executor does not use a software device before the case, which has its own process and may fork.
    `echo`: its output is shown at once.
    """

    devices: tuple[str, ...]
    kind: DeviceKind
    environment: Mapping[str, str | None]
    workerinput: Mapping[str, object] | None
    leak_check: str
    race_check: bool = False
    library: str | None = None
    snapshots: bool = False
    settings: CaseSettings = field(default_factory=CaseSettings)
    unused: bool = False
    echo: bool = False

    @property
    def device_variables(self) -> dict[str, str | None]:
        """The variables of the environment that select the devices."""
        return variables_of_devices(self.environment)


def variables_of_devices(environment: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the variables of an executor's environment that select its devices."""
    names = device_variables()
    return {name: value for name, value in environment.items() if name in names and value}


class Bindings:
    """Makes the bindings of one worker's executors."""

    def __init__(self, context: RunContext, policy: Policy, workerinput: Mapping[str, object] | None) -> None:
        """`workerinput`: what an executor gets of the input of its xdist worker; None without xdist."""
        self._context = context
        self._policy = policy
        self._workerinput = workerinput

    def bind(self, devices: Sequence[Device]) -> Binding:
        """Return the binding of an executor to these devices, of which there is at least one."""
        context = self._context
        backend = devices[0].backend
        visible: dict[str, str | None] = {**masks_for(devices)}
        # Use the values of this process: a conftest may have changed them in the zygote after the devices were counted.
        visible |= {name: os.environ.get(name) for name in backend.variables}
        visible |= context.variables | backend.stated
        if backend.injectable:
            visible[backend.faults_variable] = faults.join_injections(context.inject) or None
        visible |= executor_files.cache_variables(Path(context.run_dir), os.environ)
        return Binding(
            devices=tuple(device.uuid for device in devices),
            kind=devices[0].kind,
            environment=executor_environment(os.environ, {**visible, **self.types}, _XDIST_VARIABLES),
            workerinput=self._workerinput,
            leak_check=context.leak_check,
            race_check=context.race_check,
            library=context.library,
            snapshots="allocator" in context.collect_on_failure,
            settings=self.settings,
            echo=context.echo,
        )

    @property
    def types(self) -> dict[str, str | None]:
        """The environment variable with the types that the device lacks."""
        return {requirements.VARIABLE: ",".join(self._policy.without_types) or None}

    @property
    def settings(self) -> CaseSettings:
        """The settings of the run that cases may read."""
        return CaseSettings(self._context.endurance, self._policy.floors, self._policy.hardware)


#: Seconds until a blocked send gives up. An executor between cases waits only for requests, so a block is a fault.
SEND_LIMIT = 30.0
_OUTPUT_KEPT = 1 << 20
#: The folder that the executors share, beside their own, with the base folders of their ``tmp_path``.
SHARED_FOLDER = "basetemp"
#: The most seconds of one poll call. poll(2) rejects a timeout of a month, but a month is a valid limit for a case.
_LONGEST_POLL = 3600.0


def basetemp_of(temp: Path) -> Path:
    """Return the base folder of ``tmp_path`` of a running executor with the folder `temp`."""
    return temp.parent / SHARED_FOLDER / temp.name


class NoMessage(Enum):
    """Why a wait for a message ended without one."""

    EXITED = "exited"
    DEADLINE = "deadline"
    GARBLED = "garbled"


class OutputFile:
    """A file for an executor's output. Not a pipe: a pipe could fill up, or a grandchild could keep it open.

    It is opened in append mode, so that it can be truncated between cases while another process still writes to it.
    """

    def __init__(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix="harness-output-")
        os.close(descriptor)
        self.descriptor = os.open(name, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        os.unlink(name)

    def size(self) -> int:
        """Bytes written so far."""
        return os.fstat(self.descriptor).st_size

    def read(self, start: int, end: int, limit: int) -> str:
        """Return the text from byte `start` to `end`; of a text longer than `limit` bytes only head and tail."""
        length = max(0, end - start)
        if not length:
            return ""
        if length <= limit:
            return _text(os.pread(self.descriptor, length, start))
        half = limit // 2
        head, tail = os.pread(self.descriptor, half, start), os.pread(self.descriptor, half, end - half)
        return f"{_text(head)}\n[… {length - 2 * half} bytes cut …]\n{_text(tail)}"

    def whole(self, limit: int) -> str:
        """Return the whole text, shortened as by `read`."""
        return self.read(0, self.size(), limit)

    def lines(self, start: int) -> list[bytes]:
        """Return all complete lines from byte `start`. An incomplete last line of a killed writer is dropped."""
        return os.pread(self.descriptor, self.size() - start, start).split(b"\n")[:-1]

    def empty(self) -> None:
        """Truncate the file."""
        os.ftruncate(self.descriptor, 0)

    def trimmed(self, limit: int) -> int:
        """Empty the file if it is larger than `limit` bytes. Returns the size afterwards."""
        size = self.size()
        if size > limit:
            self.empty()
            return 0
        return size

    def close(self) -> None:
        os.close(self.descriptor)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


class Outputs:
    """The files of an executor: standard output and error, the stacks from faulthandler, the facts, and the phases.

    Facts are messages about a running case that are not urgent, but must survive a crash. The page of phases lists the
    passed phases of the running case.
    """

    def __init__(self) -> None:
        self.out, self.err, self.stacks, self.facts = (OutputFile() for _ in range(4))
        self._page = PhasePage.create()
        self.phases = PhasePage(self._page)

    @property
    def _all(self) -> tuple[OutputFile, ...]:
        return self.out, self.err, self.stacks, self.facts

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors for an executor, in protocol order."""
        return *(file.descriptor for file in self._all), self._page

    def empty(self) -> None:
        """Empty all files."""
        for file in self._all:
            file.empty()
        self.phases.clear()

    def close(self) -> None:
        for file in self._all:
            file.close()
        self.phases.close()
        os.close(self._page)


class ExecutorHandle:
    """A running executor; `exit_status` is set once it has ended."""

    def __init__(
        self,
        name: str,
        link: ZygoteClient,
        outputs: Outputs,
        binding: Binding,
        temp: Path,
        kept: Path,
        *,
        ahead: bool = False,
    ) -> None:
        """Have the executor forked.

        `temp` becomes its folder for temporary files; they may be moved to `kept` at its end.

        With `ahead`, do not wait for the fork: call `await_start` before the first use. Raises ZygoteError.
        """
        self.name = name
        self.binding = binding
        self.outputs = outputs
        self.cases: list[str] = []
        self.exit_status: int | None = None
        self.swept: list[str] = []
        self.stuck: list[str] = []
        self.unkillable = False
        #: Why the end of the executor is unknown, if its zygote was lost.
        self.lost = ""
        self.garbled = ""
        #: An exception of the harness's own code in the executor, which ends the executor.
        self.harness_error: RemoteFailure | None = None
        #: The number of the tests that a cold executor has collected, and the hash of their sorted ids.
        self.collected: tuple[int, str] | None = None
        #: What the executor reported when it was asked to exit.
        self.end = ProcessEnd()
        self.temp = temp
        #: pytest's base folder of ``tmp_path``. All executors of the run on this host have the same parent folder, as
        #: with xdist: fixtures use a lock there to make what they all share.
        self.basetemp = basetemp_of(temp)
        self.kept = kept
        self.pid = 0
        self._link = link
        outputs.empty()
        self.marks = (0, 0)
        # An xdist worker can only reach standard error.
        targets = (1, 2) if binding.workerinput is None else (2, 2)
        self._echo = OutputEcho((outputs.out, outputs.err), targets) if binding.echo else None
        self.starvation = StarvationWatch()
        self._facts_start = 0
        self._sent_message = False
        with convert_to_write_error(f"into {str(temp.parent)!r}"):
            temp.mkdir(mode=0o700, parents=True)
            self.basetemp.parent.mkdir(mode=0o700, exist_ok=True)
        executor_files.share_default_cache(temp)
        channel = self._spawn(ahead=ahead)
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._poll.register(link.channel, select.POLLIN)
        self._poll.register(link.stop, select.POLLIN)
        if link.cold:
            self._await_ready()

    def _spawn(self, *, ahead: bool) -> socket.socket:
        """Have the executor forked. Returns the local end of its socket. Raises ZygoteError."""
        binding = self.binding
        own_end, executor_end = socket.socketpair()
        order: Message = {
            "executor": self.name,
            "env": dict(binding.environment),
            "temp": str(self.temp),
            "basetemp": str(self.basetemp),
            "kind": binding.kind,
            "library": binding.library,
            "unused": binding.unused,
            "workerinput": binding.workerinput,
            "leak_check": binding.leak_check,
            "races": str(self.temp.with_name(f"{self.temp.name}-races")) if binding.race_check else None,
            "snapshots": str(self.kept) if binding.snapshots else None,
            "settings": asdict(binding.settings),
        }
        seconds, rest = divmod(SEND_LIMIT, 1.0)
        own_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(rest * 1e6)))
        self._channel = Channel(own_end, f"executor {self.name}")
        with executor_end:
            try:
                given = [executor_end.fileno(), *self.outputs.descriptors()]
                if ahead:
                    self._link.order(order, given)
                else:
                    self.pid = self._link.spawn(order, given)
            except ZygoteError:
                self.close()
                temp_folder.remove_temp_folder(self.temp)
                raise
        return own_end

    def gather_temp(self) -> None:
        """Move the base folder of ``tmp_path`` of an ended executor to its other temporary files."""
        with contextlib.suppress(OSError):  # the executor made none, or a case has removed the target
            self.basetemp.rename(self.temp / self.basetemp.parent.name)

    def await_start(self) -> bool:
        """Wait for an executor that was started ahead. Returns whether it is usable: alive, without an error.

        Raises ZygoteError.
        """
        self.pid = self._link.spawned(self.name)
        self._check_exit()
        # An executor is silent until the first request, so readable means an error message or the end of the stream.
        return self.exit_status is None and not select.select([self._channel], [], [], 0)[0]

    def _await_ready(self) -> None:
        """Wait until a cold executor has collected, so that the limits of its cases do not include the collection.

        Raises ZygoteError, StoppedError.
        """
        answer = self.receive(clock.monotonic() + START_LIMIT)
        if isinstance(answer, dict) and answer["op"] == "ready":
            self.collected = (int(answer["collected"]), str(answer["hash"]))
            return
        if answer is NoMessage.DEADLINE:
            self.kill()
        how = f"was not ready after {START_LIMIT:g} s" if answer is NoMessage.DEADLINE else "ended before it was ready"
        details = f"the log ends with:\n{self._link.last_output()}"
        if self.harness_error is not None:
            details = f"the harness failed in it:\n{self.harness_error.traceback}"
        self.close()
        raise ZygoteError(f"executor {self.name}, started cold, {how}; {details}")

    def send(self, message: Message) -> None:
        """Send a request. If the executor is gone or does not read, the next `receive` reports it."""
        with contextlib.suppress(
            OSError
        ):  # `receive` detects the exit of a dead executor, and the deadline of a stuck one
            self._channel.send(message)

    def stop_within(self, seconds: float) -> str:
        """Return why the run is stopped, if a request to stop is there or comes within this time; otherwise empty."""
        stop = self._link.stop.receive()
        if stop is None and select.select([self._link.stop], [], [], seconds)[0]:
            stop = self._link.stop.receive()
        return "" if stop is None else stop.reason

    def receive(self, deadline: float, *, obey_stop: bool = True) -> Message | NoMessage:
        """Return the next message, or why none came by `deadline` (of `core.clock.monotonic`). Raises ZygoteError.

        With `obey_stop`, raises StoppedError after a request to stop the run, once its grace period has passed.
        """
        stop = self._link.stop.receive() if obey_stop else None
        over = False
        while True:
            if stop is not None:
                self.outputs.phases.hold()
            if self._echo is not None:
                self._echo.copy()
            try:
                if self.exit_status is None:
                    self._check_exit()
                if (message := self._channel.pop()) is not None:
                    self._sent_message = True
                    if message["op"] != "harness_error":
                        return message
                    self.harness_error = parse_ending(message, RemoteFailure)
                    continue
                if self.exit_status is not None and self._channel.closed:
                    self._check_silent_exit()
                    return NoMessage.EXITED
                now = clock.monotonic()
                if stop is not None and stop.deadline <= now:
                    raise StoppedError(stop.text)
                remaining = (deadline if stop is None else min(deadline, stop.deadline)) - now
                if over:
                    return NoMessage.DEADLINE
                over = remaining <= 0
                self.starvation.look(self.pid, now)
                wait = min(remaining, self.starvation.due - now, _LONGEST_POLL if self._echo is None else ECHO_INTERVAL)
                for descriptor, _ in self._poll.poll(max(0.0, wait) * 1000):
                    if descriptor == self._channel.fileno():
                        self._read_channel()
                    elif descriptor == self._link.channel.fileno():
                        self._link.pump()
                        self._check_exit()
                    else:  # also without `obey_stop`: this empties the pipe, so that the next poll can wait
                        latest = self._link.stop.receive()
                        stop = latest if obey_stop else None
            except ProtocolError as error:
                self.garbled = str(error)
                return NoMessage.GARBLED

    def wait_exit(self, deadline: float) -> bool:
        """Wait for the exit; messages that arrive meanwhile are dropped. Raises ZygoteError."""
        while self.exit_status is None:
            happened = self.receive(deadline, obey_stop=False)
            if happened is NoMessage.DEADLINE:
                return False
        return True

    def kill(self, *, at_once: bool = False) -> None:
        """Apply the kill ladder to the process group. Sets `unkillable` if the executor survives all signals.

        With `at_once`, and after a request to stop without grace, use the last step only. Raises ZygoteError, also if
        the zygote did not send the signals: then the state of the executor is unknown, and the zygote is killed.
        """
        stop = self._link.stop.receive()
        at_once = at_once or (stop is not None and not stop.grace)
        for number, grace in LADDER[-1:] if at_once else LADDER:
            if self.exit_status is not None:
                return
            self._link.signal(self.name, number)
            if self.wait_exit(clock.monotonic() + grace):
                return
        if not self._link.answers:
            raise self._link.give_up(f"kill executor {self.name}")
        self.unkillable = True
        self.stuck.append(f"executor {self.name} could not be killed: {describe_stuck(self.pid)}")

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def new_facts(self) -> list[bytes]:
        """Return the lines of facts about the current or last case."""
        return self.outputs.facts.lines(self._facts_start)

    def pass_facts(self, lines: list[bytes]) -> None:
        """Skip these lines, the first of the new facts: they are about a case that has ended."""
        self._facts_start += sum(map(len, lines)) + len(lines)

    def trim_output(self) -> None:
        """Between two cases, drop the stacks and facts of the last case, and empty files that have grown large."""
        if self._echo is not None:
            self._echo.copy()
        if self.outputs.stacks.size():
            self.outputs.stacks.empty()
        out, err, facts = (
            file.trimmed(_OUTPUT_KEPT) for file in (self.outputs.out, self.outputs.err, self.outputs.facts)
        )
        self.marks, self._facts_start = (out, err), facts

    def _read_channel(self) -> None:
        self._channel.receive()
        if self._channel.closed:
            self._poll.unregister(self._channel.socket)

    def _check_silent_exit(self) -> None:
        """Detect an executor that failed before it had a channel. Only its exit status shows the failure.

        The status alone is no proof, since a case may exit with any status.
        """
        outputs = self.outputs
        silent = not self._sent_message and not outputs.facts.size() and outputs.phases.is_clear
        if self.exit_status == EXIT_HARNESS_ERROR and silent and self.harness_error is None:
            log = f"the zygote's log ends with:\n{self._link.last_output()}"
            self.harness_error = RemoteFailure("the executor ended before it could report an error", log)

    def _check_exit(self) -> None:
        message = self._link.exit_of(self.name)
        if message is None:
            return
        self.exit_status = int(message["status"])
        self.swept = [str(command) for command in message["swept"]]
        left = f"executor {self.name} left a process that could not be killed"
        self.stuck += [f"{left}: {text}" for text in message["stuck"]]
        while not self._channel.closed and select.select([self._channel], [], [], 0)[0]:
            self._read_channel()
        self._channel.closed = True


#: Seconds between two looks at the files of a running case.
ECHO_INTERVAL = 0.1
_MOST = 1 << 20


class OutputEcho:
    """Copies the output files of an executor to standard output and standard error of this process."""

    def __init__(self, files: Sequence[OutputFile], targets: Sequence[int]) -> None:
        """`targets`: the descriptors to copy to, in the order of the files."""
        self._pairs = [*zip(files, targets, strict=True)]
        self._positions = [0 for _ in files]

    def copy(self) -> None:
        """Copy what is new. A file that has been emptied is read from its start."""
        for index, (file, target) in enumerate(self._pairs):
            size = file.size()
            position = self._positions[index] if self._positions[index] <= size else 0
            self._positions[index] = size
            if size > position:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
            while position < size and (data := os.pread(file.descriptor, min(_MOST, size - position), position)):
                position += len(data)
                _write(target, data)


def _write(target: int, data: bytes) -> None:
    """Write all of the data; nothing if nobody reads it any more."""
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(target, data) :]
