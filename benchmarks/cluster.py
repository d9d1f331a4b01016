"""The number of cases per second that the head of a cluster run can distribute and record, by number of nodes.

The nodes are simulated: processes on this machine that speak the protocol, run nothing, and immediately report each
case as passed. The figures are therefore the head's: its processor time per case, and its memory. See README.md in this
folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.tools.cluster.fake_agent import attempt, open_session, send

_WORKERS = 8
#: The average seconds of a case in `suites/` (2026-11-23).
_MEAN_CASE = 0.35


@dataclass(frozen=True, slots=True)
class Sample:
    """One run. `head_cpu`: seconds of the head's own processor time. `memory`: its largest resident size in bytes."""

    nodes: int
    cases: int
    wall: float
    head_cpu: float
    memory: int

    @property
    def by_case(self) -> float:
        return self.head_cpu / self.cases


def ids(count: int) -> list[str]:
    return [f"suites/some/test_{number // 50:04}.py::test_it[{number}]" for number in range(count)]


# A simulated node


def node(name: str, count: int) -> None:
    """Answer the head until it ends the run."""
    cases, data = ids(count), b""
    while True:
        while b"\n" not in data:
            if not select.select([0], [], [], 1.0)[0]:
                send("beat")
                continue
            data += os.read(0, 1 << 20) or b'{"say":"quit"}\n'
        line, _, data = data.partition(b"\n")
        message = json.loads(line)
        match message["say"]:
            case "begin":
                facts = {"host": name, "pid": os.getpid(), "harness": "0", "clock": time.time()}
                send("hello", version=message["version"], token=message["token"], **facts)
                open_session(name, cases, workers=_WORKERS, device=name)
            case "give":
                for each in message["cases"]:
                    send("lines", lines=attempt(cases[each["case"]], "passed", device=name))
                    send("done", case=each["case"])
                send("want", cases=len(message["cases"]))
            case "end":
                send("session_over", status=0, output="")
            case "quit":
                send("bye", sessions=1, cases=1)
                return


# The head


def head(nodes: int, count: int) -> None:
    """Do one run, and print its figures."""
    from harness.tools.cluster.engine import Host
    from harness.tools.cluster.head import Head
    from harness.tools.cluster.sessions import ClusterRequest
    from tests.tools.cluster.fake_rules import fake_rules

    own = (sys.executable, str(Path(__file__).resolve()))
    hosts = [Host(f"n{at}", (*own, "--node", f"n{at}", "--cases", str(count))) for at in range(nodes)]
    with tempfile.TemporaryDirectory() as folder:
        wanted = ClusterRequest(
            (), ("harness",), "/", Path(folder), "r", silence=300.0, start_limit=300.0, second_looks=0
        )
        run = Head(wanted, fake_rules(), hosts, lambda _: None)
        begun = time.monotonic()
        run.run()
        wall = time.monotonic() - begun
        finished = sum(b'"event":"finish"' in line for line in (Path(folder) / "journal.ndjson").open("rb"))
    assert finished == count, f"{finished} of {count} cases have ended"
    used = resource.getrusage(resource.RUSAGE_SELF)
    found = Sample(nodes, count, wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
    print(json.dumps(asdict(found)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--output", type=Path, help="a file for all figures, as JSON")
    parser.add_argument("--node", help=argparse.SUPPRESS)
    parser.add_argument("--head", type=int, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.node is not None:
        node(wanted.node, wanted.cases)
        return
    if wanted.head is not None:
        head(wanted.head, wanted.cases)
        return
    from measuring import machine_facts

    samples = []
    for nodes in wanted.nodes:
        command = [sys.executable, __file__, "--head", str(nodes), "--cases", str(wanted.cases)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        sample = Sample(**json.loads(done.stdout))
        samples.append(sample)
        most = _MEAN_CASE / sample.by_case / _WORKERS
        print(
            f"{nodes:4} nodes: {sample.cases / sample.wall:7.0f} cases/s, {1e3 * sample.by_case:.2f} ms of the head a "
            f"case, {sample.memory / 2**20:.0f} MiB; enough for {most:.0f} nodes of {_WORKERS} workers",
            flush=True,
        )
    if wanted.output is not None:
        figures = {"machine": machine_facts(), "samples": [asdict(sample) for sample in samples]}
        wanted.output.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
