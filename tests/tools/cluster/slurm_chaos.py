"""A cluster run in a simulated Slurm that is hit twice: ``python -m tests.tools.cluster.slurm_chaos SEED FOLDER``.

The seed determines time, kind and node. It runs inside the cluster. The remaining cases are resumed on repaired nodes.
`tests.tools.cluster.test_slurm` checks the result.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from tests import slurm_cluster
from tests.tools.cluster.project import SLOW, Project, Running
from tests.tools.cluster.slurm_scenarios import SLURM

_CASES, _SECONDS, _NODES = 30, 0.3, 3


def _agent(running: Running, node: str) -> psutil.Process | None:
    with contextlib.suppress(StopIteration):
        return running.agent(node)
    return None


def _kill_agent(running: Running, node: str) -> None:
    if (agent := _agent(running, node)) is not None:
        agent.kill()


def _kill_session(running: Running, node: str) -> None:
    if (agent := _agent(running, node)) is not None:
        for child in agent.children():
            child.kill()


def _kill_daemon(running: Running, node: str) -> None:
    del running
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(Path(f"/var/spool/slurm/{node}.pid").read_text()), signal.SIGKILL)


def _kill_node(running: Running, node: str) -> None:
    agent = _agent(running, node)
    _kill_daemon(running, node)
    if agent is not None:
        step = agent.parent()
        for process in filter(None, [step, agent]):
            process.kill()


def _scontrol(*words: str) -> None:
    subprocess.run(["scontrol", *words], check=True)


def _drain(running: Running, node: str) -> None:
    del running
    _scontrol("update", f"nodename={node}", "state=drain", "reason=test")


def _down(running: Running, node: str) -> None:
    del running
    _scontrol("update", f"nodename={node}", "state=down", "reason=test")


def _warn(running: Running, node: str) -> None:
    del running, node
    subprocess.run(["scancel", "--signal=TERM", "1"], check=True)


def _cancel(running: Running, node: str) -> None:
    del running, node
    subprocess.run(["scancel", "1"], check=True)


def _kill_head(running: Running, node: str) -> None:
    del node
    running.process.kill()


BLOWS: dict[str, Callable[[Running, str], None]] = {
    "agent": _kill_agent,
    "session": _kill_session,
    "slurmd": _kill_daemon,
    "node": _kill_node,
    "drain": _drain,
    "down": _down,
    "warn": _warn,
    "cancel": _cancel,
    "head": _kill_head,
}


def planned(seed: int) -> list[tuple[int, str, int]]:
    """Return two blows: the number of finished cases before it, its kind, and its node. Nine seeds cover all kinds."""
    choose = random.Random(seed)
    names = [*BLOWS]
    kinds = names[seed % len(names)], choose.choice(names)
    moments = sorted(choose.sample(range(3, _CASES - 10), 2))
    return [(moment, kind, choose.randrange(_NODES)) for moment, kind in zip(moments, kinds, strict=True)]


def main(seed: int, folder: Path) -> None:
    project = Project(folder)
    project.write("suites/some/test_some.py", SLOW.format(cases=_CASES, seconds=_SECONDS))
    running = project.start(*SLURM, f"--nodes={_NODES}")
    blows = planned(seed)
    print(f"seed {seed}: {', '.join(f'{kind} {node} after {moment}' for moment, kind, node in blows)}", flush=True)
    for moment, kind, number in blows:
        over = _wait(running, moment)
        nodes = sorted({line["host"] for line in running.of("node", state="ready")})
        if over or not nodes:
            break
        BLOWS[kind](running, nodes[number % len(nodes)])
    first = running.wait()
    for node in slurm_cluster.NODES:
        _mend(node)
    (folder / "first.ndjson").write_bytes((folder / "run" / "journal.ndjson").read_bytes())
    again = project.start(*SLURM, "--nodes=2", "--resume=run", name="resumed")
    (folder / "ended.json").write_text(json.dumps({"first": first, "status": again.wait()}))


def _wait(running: Running, moment: int) -> bool:
    """Wait for this number of finished cases. Return whether the run ends before."""

    def come() -> bool:
        return running.process.poll() is not None or len(running.of("finish")) >= moment

    running.wait_for(come, f"{moment} ended cases")
    return running.process.poll() is not None


def _mend(node: str) -> None:
    """Restore a node, whatever has happened to it."""
    pid = int(Path(f"/var/spool/slurm/{node}.pid").read_text())
    if not psutil.pid_exists(pid):
        subprocess.run(["slurmd", "-N", node], check=True)
    subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], check=False, capture_output=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
