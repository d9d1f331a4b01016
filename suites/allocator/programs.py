"""Programs for an allocator, with each step checked against the model, and a generator of random programs."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, Protocol

from .model import MIB, BrokenPromiseError, Counters, Model

#: The maximum number of bytes that a program uses, so that it fits any device.
MOST = 160 * MIB
STREAMS = 3


class Subject(Protocol):
    """An allocator from the point of view of programs. Streams are numbered from 0; values are bytes."""

    def allocate(self, size: int, stream: int) -> int:
        """Return the address of a new block for `stream`, 0 for none."""

    def free(self, address: int) -> None:
        """Free a block; streams recorded for it may still use it."""

    def write(self, address: int, value: int) -> None:
        """Fill the requested bytes of a block, on its stream."""

    def holds(self, address: int, value: int) -> bool:
        """Return whether all of the block still has that value."""

    def use(self, address: int, stream: int) -> None:
        """Read a block late on another stream, and record the use with the allocator.

        Only one such use exists at a time.
        """

    def use_is_done(self) -> bool:
        """Return whether the last use has ended; True if there was none."""

    def use_read(self, value: int) -> bool:
        """Return whether the last use, which has ended, read only that value."""

    def synchronize(self) -> None:
        """Synchronize all streams."""

    def empty(self) -> None:
        """Return cached memory to the device."""

    def ask_too_much(self) -> None:
        """Request more than the device has, and return after the request fails."""

    def counters(self) -> Counters:
        """Return the counters by name and pool, relative to the values before the program."""

    def reset_peaks(self) -> None: ...

    def reset_accumulated(self) -> None: ...


P = ParamSpec("P")


def step(method: Callable[Concatenate[Program, P], None]) -> Callable[Concatenate[Program, P], None]:
    """Wrap a step of a program. The step is logged, and the program is over if the step raises."""

    @functools.wraps(method)
    def run(program: Program, *args: P.args, **kwargs: P.kwargs) -> None:
        given = [*map(str, args), *(f"{name}={value}" for name, value in kwargs.items())]
        program.steps.append(f"{method.__name__}({', '.join(given)})")
        program.over = True
        method(program, *args, **kwargs)
        program.over = False

    return run


@dataclass
class Live:
    address: int
    size: int
    stream: int
    value: int


@dataclass
class Program:
    """Steps on an allocator. A wrong answer, counter or content raises BrokenPromiseError."""

    subject: Subject
    model: Model = field(default_factory=Model)
    live: list[Live] = field(default_factory=list)
    used_value: int | None = None
    written: int = 0
    over: bool = False
    steps: list[str] = field(default_factory=list)

    @property
    def free_bytes(self) -> int:
        """The bytes that the program may still request."""
        return MOST - sum(each.size for each in self.live)

    @property
    def may_use(self) -> bool:
        """Whether a block may be freed in use. Only one such use exists at a time."""
        return self.model.held is None and self.used_value is None

    @step
    def allocate(self, size: int, stream: int) -> None:
        """Request a block, check its address, and write to it."""
        address = self.subject.allocate(size, stream)
        counters = self._notice()
        self.model.given(size, stream, address)
        self.model.agree(counters)
        if size:
            self.written = self.written % 250 + 1
            self.live.append(Live(address, size, stream, self.written))
            self.subject.write(address, self.written)

    @step
    def free(self, which: int) -> None:
        block = self._take(which)
        self.subject.free(block.address)
        counters = self._notice()
        self.model.given_back(block.address)
        self.model.agree(counters)

    @step
    def free_in_use(self, which: int) -> None:
        """Free a block that another stream has not read yet. No other such use may exist."""
        block = self._take(which)
        self.subject.use(block.address, (block.stream + 1) % STREAMS)
        self.used_value = block.value
        self.subject.free(block.address)
        self.model.given_back(block.address, used_elsewhere=True)
        self.model.agree(self._notice())

    @step
    def synchronize(self) -> None:
        self.subject.synchronize()
        self._check_use()
        self.model.synchronized()
        self.model.agree(self._notice())

    @step
    def empty(self) -> None:
        self.subject.empty()
        counters = self._notice()
        self.model.emptied()
        self.model.agree(counters)

    @step
    def ask_too_much(self) -> None:
        """Make a request that fails, after which only cached memory has been returned to the device."""
        self.subject.ask_too_much()
        counters = self._notice()
        self.model.emptied()
        self.model.agree(counters)

    @step
    def reset_peaks(self) -> None:
        self.subject.reset_peaks()
        self.model.peaks_reset()
        self.model.agree(self._notice())

    @step
    def reset_accumulated(self) -> None:
        self.subject.reset_accumulated()
        self.model.accumulated_reset()
        self.model.agree(self._notice())

    @step
    def check_contents(self) -> None:
        self.model.consistent()
        for block in self.live:
            self._check(block)

    def end(self) -> None:
        """Free everything; the allocator must then be in its initial state."""
        while self.live:
            self.free(0)
        self.synchronize()
        self.empty()
        left = {name: count.current for name, count in self.subject.counters().items() if count.current}
        if left:
            raise BrokenPromiseError(f"after everything was freed, these counters are not zero: {left}")

    def _take(self, which: int) -> Live:
        block = self.live.pop(which)
        self._check(block)
        return block

    def _check(self, block: Live) -> None:
        if not self.subject.holds(block.address, block.value):
            raise BrokenPromiseError(f"a block of {block.size} bytes at {block.address:#x} lost its contents")

    def _check_use(self) -> None:
        value, self.used_value = self.used_value, None
        if value is not None and not self.subject.use_read(value):
            raise BrokenPromiseError("another stream read data that was written after the block had been freed")

    def _notice(self) -> Counters:
        """Return the current counters. The model learns of a block whose use on another stream has ended."""
        counters = self.subject.counters()
        held = counters["active.all"].current - counters["allocation.all"].current
        self.model.noticed(held, use_is_done=self.subject.use_is_done())
        return counters


#: Sizes at which a rule of rounding, pools or segments changes.
EDGES = (1, 511, 512, 513, 1024, MIB - 512, MIB - 1, MIB, MIB + 1, 2 * MIB, 9 * MIB, 10 * MIB - 1, 10 * MIB, 12 * MIB)

#: The number of last steps to report for a failed program.
TOLD = 60


def random_size(draw: random.Random) -> int:
    kinds: list[Callable[[], int]] = [
        lambda: draw.choice(EDGES),
        lambda: draw.randint(1, 8192),
        lambda: draw.randint(1, MIB),
        lambda: draw.randint(MIB, 6 * MIB),
    ]
    return draw.choice(kinds)()


def random_step(program: Program, draw: random.Random) -> None:
    """Take one random step of the currently possible ones."""
    live = program.live
    which = draw.randrange(len(live)) if live else 0
    match draw.choices(range(7), (40, 6, 20, 15, 8, 3, 8))[0]:
        case 0:
            request(program, random_size(draw), draw.randrange(STREAMS))
        case 1:
            size, stream = draw.randint(1, 4096), draw.randrange(STREAMS)
            for _ in range(draw.randint(2, 6)):
                request(program, size, stream)
        case 2 if live:
            program.free(which)
        case 3 if live:
            block = live[which]
            program.free(which)
            request(program, block.size, block.stream)
        case 4 if live and program.may_use:
            block = live[which]
            program.free_in_use(which)
            request(program, block.size, block.stream)
        case 5:
            program.allocate(0, draw.randrange(STREAMS))
        case 6:
            steps = [program.synchronize, program.empty, program.ask_too_much]
            draw.choice([*steps, program.reset_peaks, program.reset_accumulated, program.check_contents])()
        case _:
            pass


def request(program: Program, size: int, stream: int) -> None:
    if size <= program.free_bytes:
        program.allocate(size, stream)


def run_random(program: Program, number: int, steps: int) -> None:
    """Take random steps from a seed, then free everything. An error is raised with the last steps as a note."""
    draw = random.Random(number)
    try:
        for _ in range(steps):
            random_step(program, draw)
        program.check_contents()
        program.end()
    except BrokenPromiseError as violation:
        violation.add_note("The last steps: " + ", ".join(program.steps[-TOLD:]))
        raise


def check(make: Callable[[], Subject], *, number: int, programs: int, steps: int) -> None:
    """Run random programs from a seed, each on its own subject. The first failure raises."""
    for each in range(programs):
        run_random(Program(make()), number + each, steps)
