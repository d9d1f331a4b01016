"""``harness ready`` on many nodes: each is asked at the same time, and the table has all of them, whatever they answer.

A node may be dead, slow, or send anything. Each answer has a deadline and a size; every field of a report is bounded
and checked (`harness.ready.model`), and a report that contradicts itself is refused. A node without a report is
`unknown`, with the reason.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from harness.core import figures
from harness.core.atomic import write_atomically
from harness.core.disposable import LADDER, DisposableRun, run_disposable
from harness.core.errors import HarnessError, convert_to_write_error
from harness.core.text import format_count, format_exit_code, single_line
from harness.ready import fabric_search
from harness.ready.fabric_search import Blame
from harness.ready.hardware import judge_figures
from harness.ready.model import FORMAT, CheckRun, NodeReport, Step, Verdict, worst
from harness.tools.cluster import engine
from harness.tools.cluster import engine as engines
from harness.tools.cluster.engine import Engine, Host
from harness.tools.cluster.link import last_words

#: Facts that differ between nodes by nature: the hardware file is chosen per node.
_FREE = frozenset({"hardware"})
_ABSENT = "none"


@dataclass(frozen=True, slots=True)
class Drift:
    """A fact in which nodes differ. `usual`: the value of `count` nodes; `others`: the nodes with each other value.

    `majority`: more than half of the nodes have the usual value. Without a majority, nobody can say who is wrong.
    """

    name: str
    usual: str
    count: int
    majority: bool
    others: Mapping[str, tuple[str, ...]]


def drifts(stacks: Mapping[str, Mapping[str, str]]) -> list[Drift]:
    """Return the facts that differ, by node. A node without a fact has the value ``none``.

    Facts in which a single node differs come first: they are the most likely mistakes.
    """
    names = dict.fromkeys(name for stack in stacks.values() for name in stack if name not in _FREE)
    found = []
    for name in names:
        values = {node: stack.get(name, _ABSENT) for node, stack in stacks.items()}
        counts = Counter(values.values())
        if len(counts) < 2:
            continue
        usual, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
        others: dict[str, tuple[str, ...]] = {}
        for node, value in values.items():
            if value != usual:
                others[value] = (*others.get(value, ()), node)
        found.append(Drift(name, usual, count, 2 * count > len(stacks), others))
    return sorted(found, key=lambda drift: (not drift.majority, sum(map(len, drift.others.values())), drift.name))


@dataclass(frozen=True, slots=True)
class SlowGpu:
    """A GPU that is slower than those of its model in the fleet."""

    node: str
    gpu: str
    figure: str
    value: float
    median: float
    count: int

    @property
    def text(self) -> str:
        """The figure beside that of the others."""
        found, usual = (figures.figure_text(self.figure, value) for value in (self.value, self.median))
        return f"{self.figure} is {found}, and the median of {self.count} GPUs is {usual}"


def slow_gpus(checks: Mapping[str, Sequence[CheckRun]], models: Mapping[tuple[str, str], str]) -> list[SlowGpu]:
    """Return the GPUs with a figure that is an outlier among all of their model; see `harness.ready.hardware`.

    `checks`: by node. `models`: the model of each GPU, by node and UUID.
    """
    measured: dict[tuple[str, str], dict[str, float]] = {}
    for node, runs in checks.items():
        for run in runs:
            if run.value is not None and run.gpu is not None:
                measured.setdefault((node, run.gpu), {})[run.name] = run.value
    slow = [each for each in judge_figures(measured, {}, models) if each.why]
    return [SlowGpu(*each.gpu, each.name, each.value, each.median, each.count) for each in slow]


#: Bytes of an answer.
MOST_ANSWER = 8 << 20
#: Seconds that a node gets beyond its budget: for the login, and for the start of Python from a cold disk.
MARGIN = 45.0
#: Nodes that are asked at the same time. Each costs a process here.
PARALLEL = 128
#: Characters of a reason in the table.
_REASON = 160
#: Seconds by which the clock of a node may be wrong before it is said. Journals of many nodes are merged by time.
_CLOCK = 5.0

_decoder = msgspec.json.Decoder(NodeReport)


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What is known of a node: a report, or why there is none. `seconds`: how long the answer took.

    `clock`: by how many seconds its clock is ahead of this machine's, at least; 0 if that is too little to be sure.
    """

    node: str
    report: NodeReport | None
    why: str = ""
    seconds: float = 0.0
    clock: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """The verdict of the report; `unknown` without one."""
        return Verdict.UNKNOWN if self.report is None else self.report.verdict

    @property
    def reason(self) -> str:
        """The first reason for a verdict that is not ready, in one line; empty for a node that is."""
        if self.report is None:
            return single_line(self.why, _REASON)
        if not self.report.problems:
            return ""
        first = self.report.problems[0]
        where = next((f"GPU {gpu.index}: " for gpu in self.report.gpus if gpu.uuid == first.gpu), "")
        more = len(self.report.problems) - 1
        return single_line(where + first.found, _REASON) + (f" (and {more} more)" if more else "")

    @property
    def step(self) -> str:
        """The next step, for people."""
        if self.report is None:
            return Step.LOOK.text
        return self.report.problems[0].step.text if self.report.problems else ""


@dataclass(frozen=True, slots=True)
class Fabric:
    """What breaks collectives of these nodes. `words`: what the nodes that saw a failure said last."""

    nodes: tuple[str, ...]
    blame: Blame
    words: Mapping[str, str]

    @property
    def broken(self) -> bool:
        """Whether anything is to blame."""
        return bool(self.blame.nodes or self.blame.links or self.blame.unclear)

    def lines(self) -> Iterator[str]:
        """Yield lines for people."""
        for node in self.blame.nodes:
            yield f"fabric: {node} breaks collectives: {self._said(node)}; next step: look at its network"
        for first, second in self.blame.links:
            yield f"fabric: the link between {first} and {second} breaks collectives: {self._said(first, second)}"
        for group in self.blame.unclear:
            yield f"fabric: {engine.fold(group)} failed together, and parts of them did not; try again"
        if not self.broken:
            yield f"fabric: {format_count(len(self.nodes), 'node')} pass a collective together"

    def _said(self, *nodes: str) -> str:
        return single_line(next((self.words[node] for node in nodes if node in self.words), "no words"), _REASON)


@dataclass(frozen=True, slots=True)
class FleetReport:
    """The answers of all nodes, in their order, and what differs between the nodes. See `harness.ready.fleet`.

    `fabric`: the test of the nodes together, if it was asked for.
    """

    answers: tuple[NodeAnswer, ...]
    drifts: tuple[Drift, ...] = ()
    slow: tuple[SlowGpu, ...] = ()
    notes: tuple[str, ...] = ()
    fabric: Fabric | None = None

    def nodes(self, *, ready: bool, strict: bool = False) -> tuple[str, ...]:
        """Return the nodes that may get work, or all others. `strict`: a degraded node may not.

        A node that breaks the fabric may not either. Both ends of a bad link may: each works with all others.
        """
        broken = {*self.fabric.blame.nodes} if self.fabric is not None else set()
        good = {each.node for each in self.answers if each.verdict.allows_work(strict=strict)} - broken
        return tuple(answer.node for answer in self.answers if (answer.node in good) is ready)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of a node."""
        return worst(answer.verdict for answer in self.answers)


def ask_fleet(
    hosts: Sequence[Host],
    limit: float,
    *,
    parallel: int = PARALLEL,
    tell: Callable[[NodeAnswer, int], object] = lambda _answer, _left: None,
) -> FleetReport:
    """Run the command of each host, which prints a report, for at most `limit` seconds each; compare the answers.

    At most `parallel` nodes are asked at a time. `tell` gets each answer when it is there, and how many are missing.
    """
    answers: dict[str, NodeAnswer] = {}
    stop = threading.Event()
    with (
        ThreadPoolExecutor(min(parallel, max(1, len(hosts))), thread_name_prefix="ready") as pool,
        contextlib.ExitStack() as at_end,
    ):
        at_end.callback(stop.set)  # if the wait is interrupted, no node is waited for
        asked = [pool.submit(_ask, host, limit, stop) for host in hosts]
        for done in as_completed(asked):
            answer = done.result()
            answers[answer.node] = answer
            tell(answer, len(hosts) - len(answers))
    return compare([answers[host.name] for host in hosts])


def _ask(host: Host, limit: float, stop: threading.Event) -> NodeAnswer:
    if stop.is_set():
        return NodeAnswer(host.name, None, "not asked: the check was stopped")
    began = time.time()
    try:
        run = run_disposable(
            host.command, limit, ladder=LADDER, kept=MOST_ANSWER + 1, most=MOST_ANSWER, stopped=stop.is_set
        )
    except OSError as error:
        return NodeAnswer(host.name, None, f"{host.command[0]!r} does not start here: {error.strerror}")
    return read_answer(host.name, run, host.command[0], limit, began)


def read_answer(node: str, run: DisposableRun, program: str, limit: float, began: float = 0.0) -> NodeAnswer:
    """Return the answer of a node from the end and the output of the program that asked it. Pure.

    `began`: when it was asked, by the clock here, in seconds since 1970; 0 if the clocks should not be compared.
    """
    words = last_words(run.errors[-4096:].decode("utf-8", "backslashreplace"))
    said = f"; it said: {words}" if words else ""
    if len(run.output) > MOST_ANSWER:
        return NodeAnswer(node, None, f"no report: it sent more than {MOST_ANSWER >> 20} MiB", run.seconds)
    if not run.in_time:
        how = "and its process could not be killed" if run.status is None else ""
        return NodeAnswer(node, None, f"no answer within {limit:.0f} s {how}".rstrip() + said, run.seconds)
    report, why = _report(run.output)
    if why and run.status:
        why = f"{program} ended with {format_exit_code(run.status)}{said}" if not run.output else why + said
    if report is None or why:
        return NodeAnswer(node, None, why, run.seconds)
    return NodeAnswer(node, report, "", run.seconds, clock_ahead(report.time, began, run.seconds) if began else 0.0)


def clock_ahead(time_there: float, began: float, seconds: float) -> float:
    """Return by how many seconds a clock is ahead; negative behind, and 0 within `_CLOCK` seconds of what can be.

    `time_there`: what it showed at some moment within the `seconds` after `began` by the clock here.

    >>> clock_ahead(1000.0, 990.0, 20.0), clock_ahead(1100.0, 990.0, 20.0), clock_ahead(900.0, 990.0, 20.0)
    (0.0, 90.0, -90.0)
    """
    if time_there > began + seconds + _CLOCK:
        return time_there - began - seconds
    return min(0.0, time_there - began) if time_there < began - _CLOCK else 0.0


def _report(output: bytes) -> tuple[NodeReport | None, str]:
    """Return the report in the output of a node, which may begin with lines of a login, or why there is none."""
    if not output.strip():
        return None, "no report: no output"
    start, end = output.find(b"{"), output.rfind(b"}") + 1
    while start > 0 and output[start - 1 : start] != b"\n":
        start = output.find(b"{", start + 1)
    if start < 0 or end <= start:
        return None, "no report: its output has no JSON object"
    try:
        number = msgspec.json.decode(output[start:end], type=_Format).format
        if number > FORMAT:
            return None, f"a report of format {number}, and this harness reads {FORMAT}: update the harness here"
        report = _decoder.decode(output[start:end])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return None, f"no valid report: {single_line(str(error), _REASON)}"
    return report, contradiction(report)


class _Format(msgspec.Struct):
    format: int


def contradiction(report: NodeReport) -> str:
    """Return how a report contradicts itself; empty if it does not. Only such a report can hide a bad GPU."""
    known = {gpu.uuid for gpu in report.gpus}
    if len(known) < len(report.gpus):
        return "a report that lists a GPU twice"
    found = worst([*(gpu.verdict for gpu in report.gpus), *(problem.verdict for problem in report.problems)])
    if report.verdict.severity < found.severity:
        return f"a report with the verdict {report.verdict.text!r}, and a part of it says {found.text!r}"
    for gpu in report.gpus:
        own = worst(problem.verdict for problem in report.problems if problem.gpu == gpu.uuid)
        if gpu.verdict.severity < own.severity:
            return f"a report that calls a GPU {gpu.verdict.text!r}, with a problem that says {own.text!r}"
    if any(check.state == "problem" for check in report.checks) and not report.problems:
        return "a report with a failed check and no problem"
    if report.verdict is Verdict.READY and not report.gpus:
        return "a report that says 'ready' and lists no GPU"
    return ""


def compare(answers: Sequence[NodeAnswer]) -> FleetReport:
    """Return the report of a fleet: drift, slow GPUs, and notes on answers that cannot all be true. Pure."""
    reports = {answer.node: answer.report for answer in answers if answer.report is not None}
    owners: dict[str, list[str]] = {}
    for node, report in reports.items():
        for gpu in report.gpus:
            owners.setdefault(gpu.uuid, []).append(node)
    shared = {tuple(nodes) for nodes in owners.values() if len(nodes) > 1}
    notes = [
        f"{engine.fold(nodes)} report the same GPUs: one machine under several names, or simulated GPUs"
        for nodes in sorted(shared)
    ]
    notes += [
        f"the clock of {answer.node} is {abs(answer.clock):.0f} s {'ahead' if answer.clock > 0 else 'behind'}"
        for answer in answers
        if answer.clock
    ]
    short = [node for node, report in reports.items() if any(check.left_out for check in report.checks)]
    if short:
        notes.append(f"{engine.fold(short)} did not reach all checks within the budget; give more with --budget")
    models = {(node, gpu.uuid): gpu.name for node, report in reports.items() for gpu in report.gpus}
    found = drifts({node: stack_of(report) for node, report in reports.items()})
    slow = slow_gpus({node: report.checks for node, report in reports.items()}, models)
    return FleetReport(tuple(answers), tuple(found), tuple(slow), tuple(notes))


def stack_of(report: NodeReport) -> Mapping[str, str]:
    """Return what the nodes of a fleet should agree on: versions, limits, and the number of GPUs."""
    return {**report.stack, "gpus": str(len(report.gpus))}


def table(report: FleetReport) -> list[tuple[str, Verdict | None]]:
    """Return the lines about a fleet, each with its verdict: each node that is not ready, the others in one line."""
    answers = report.answers
    others = sorted(
        (answer for answer in answers if answer.verdict is not Verdict.READY), key=lambda each: -each.verdict.severity
    )
    width = min(40, max((len(answer.node) for answer in others), default=0))
    lines: list[tuple[str, Verdict | None]] = []
    for answer in others:
        step = f"; next step: {answer.step}" if answer.step else ""
        lines.append((f"{answer.node:<{width}}  {answer.verdict.text:<9}  {answer.reason}{step}", answer.verdict))
    if good := [answer.node for answer in answers if answer.verdict is Verdict.READY]:
        lines.append((f"ready: {format_count(len(good), 'node')}: {engine.fold(good)}", Verdict.READY))
    if silent := [answer.node for answer in answers if answer.report is None]:
        lines.append((f"without a report: {format_count(len(silent), 'node')}: {engine.fold(silent)}", None))
    return [*lines, *((line, None) for line in _differences(report))]


def _differences(report: FleetReport) -> Iterator[str]:
    for each in report.drifts:
        usual = f"{single_line(each.usual, 80)!r} on {format_count(each.count, 'node')}"
        for value, nodes in each.others.items():
            without = "" if each.majority else ", without a majority"
            yield f"drift: {each.name} is {single_line(value, 80)!r} on {engine.fold(nodes)}, {usual}{without}"
    for slow in report.slow:
        yield f"slow: {slow.node}, {slow.gpu}: {slow.text}"
    if report.fabric is not None:
        yield from report.fabric.lines()
    for note in report.notes:
        yield f"note: {note}"


def summary(report: FleetReport) -> str:
    """Return one line: how many nodes have which verdict, the worst first."""
    counts = dict.fromkeys(reversed(Verdict), 0)
    for answer in report.answers:
        counts[answer.verdict] += 1
    parts = [f"{count} {verdict.text}" for verdict, count in counts.items() if count]
    return f"{format_count(len(report.answers), 'node')}: {', '.join(parts)}"


def as_plain(report: FleetReport) -> dict[str, Any]:
    """Return the report of a fleet as plain values, for JSON. `report` is null for a node without one."""
    return {
        "verdict": report.verdict.value,
        "nodes": [
            {
                "node": answer.node,
                "verdict": answer.verdict.value,
                "reason": answer.reason,
                "step": answer.step,
                "seconds": round(answer.seconds, 3),
                "report": None if answer.report is None else msgspec.to_builtins(answer.report),
            }
            for answer in report.answers
        ],
        "drift": [msgspec.to_builtins(each) for each in report.drifts],
        "slow": [msgspec.to_builtins(each) for each in report.slow],
        "notes": list(report.notes),
        "fabric": None if report.fabric is None else msgspec.to_builtins(report.fabric),
    }


#: Seconds for each place of a collective of many nodes, the first of which makes all connections.
FABRIC_LIMIT = 60
READY_FILE, NOT_READY_FILE = "ready.txt", "not_ready.txt"


class FleetError(HarnessError):
    """A fleet cannot be asked as requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRequest:
    """The nodes, and what each is asked. One of these names the nodes:

    `hosts`: a list as ``a[1-64]``, and `hostfile`: a file with one host per line; both by ssh. `slurm`: the nodes of
    the allocation that this process is in. `local`: so many times this machine, for a trial.

    `options`: those of ``harness ready`` on each node. `budget`: seconds that each node gets; `limit`: seconds until
    its answer must be there, by default the budget and `MARGIN`.
    """

    hosts: str = ""
    hostfile: Path | None = None
    slurm: bool = False
    local: int = 0
    options: tuple[str, ...] = ()
    budget: float = 60.0
    limit: float | None = None
    parallel: int = PARALLEL
    python: str = sys.executable
    launcher: tuple[str, ...] = ()
    ssh_config: Path | None = None

    @property
    def answer_limit(self) -> float:
        """Seconds until the answer of a node must be there."""
        return self.budget + MARGIN if self.limit is None else self.limit


def engine_of(request: FleetRequest, program: tuple[str, ...] = ()) -> Engine:
    """Return the engine that knows the nodes. `program`: what it runs there, instead of the check of a node.

    Raise FleetError, HostlistError, EngineError.
    """
    given = {
        "--hosts": bool(request.hosts),
        "--hostfile": request.hostfile is not None,
        "--slurm": request.slurm,
        "--local": bool(request.local),
    }
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) != 1:
        raise FleetError(f"{' and '.join(chosen) or 'no nodes'}: expected exactly one of {', '.join(given)}")
    program = program or ("-m", "harness", "ready", "--json", *request.options)
    python, launcher = request.python, request.launcher
    if request.slurm:
        return engines.Slurm(None, python, launcher, program=program)
    if request.local:
        return engines.Local(request.local, python, launcher, program)
    if request.hostfile is not None:
        destinations = engines.read_hosts(request.hostfile)
    else:
        destinations = engine.expand(request.hosts)
    return engines.Ssh(destinations, python, launcher, request.ssh_config, program)


def check_fleet(
    request: FleetRequest, tell: Callable[[NodeAnswer, int], object] = lambda _answer, _left: None
) -> FleetReport:
    """Ask all nodes. `tell` gets each answer, and how many are missing. Raise HarnessError if none can be asked."""
    hosts = engine_of(request).hosts()
    return ask_fleet(hosts, request.answer_limit, parallel=request.parallel, tell=tell)


def check_fabric(request: FleetRequest, report: FleetReport, kind: str, tell: Callable[[str], object]) -> FleetReport:
    """Test the good nodes of a fleet together; return the report with what breaks them. Raise HarnessError."""
    good = {*report.nodes(ready=True)}
    gpus = {
        answer.node: len(answer.report.gpus)
        for answer in report.answers
        if answer.node in good and answer.report is not None
    }
    hosts = engine_of(request, fabric_search.PROGRAM).hosts()
    nodes = fabric_search.nodes_of(hosts, gpus, local=bool(request.local))
    if len(nodes) < 2:
        note = "the fabric was not tested: it needs two nodes that may get work"
        return replace(report, notes=(*report.notes, note))
    blame, words = fabric_search.search_fabric(nodes, kind, FABRIC_LIMIT, tell=tell)
    return replace(report, fabric=Fabric(tuple(node.name for node in nodes), blame, words))


def write_lists(report: FleetReport, folder: Path, *, strict: bool = False) -> tuple[Path, Path]:
    """Write the nodes that may get work, and all others, each as one line in Slurm's notation. Raise WriteError.

    ``srun --exclude=$(cat not_ready.txt)`` takes such a list.
    """
    written = []
    for name, ready in ((READY_FILE, True), (NOT_READY_FILE, False)):
        path = folder / name
        with convert_to_write_error(str(path)):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _line(report.nodes(ready=ready, strict=strict)).encode())
        written.append(path)
    return written[0], written[1]


def _line(nodes: Sequence[str]) -> str:
    return engine.fold(nodes) + "\n" if nodes else ""
