"""Events during cluster runs in a simulated Slurm: ``python -m tests.tools.cluster.slurm_scenarios NAME FOLDER``.

It runs inside the cluster, and leaves the files that `tests.tools.cluster.test_slurm` checks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.tools.cluster.project import SLOW, Project, Running

SLURM = ("--engine=slurm", "--slurm-option=--gres=gpu:4", "--slurm-option=--cpus-per-task=2")


def _slow(folder: Path, *options: str, nodes: int = 2, cases: int = 16, seconds: float = 0.8) -> Running:
    project = Project(folder)
    project.write("suites/some/test_some.py", SLOW.format(cases=cases, seconds=seconds))
    return project.start(*SLURM, f"--nodes={nodes}", *options)


def _at_work(running: Running, nodes: int) -> list[str]:
    """Wait until each node has finished a case and runs another. Return the names of the nodes."""

    def works(node: str) -> bool:
        return 0 < len(running.of("finish", host=node)) < len(running.of("start", host=node))

    def names() -> list[str]:
        return [line["host"] for line in running.of("node", state="ready")]

    running.wait_for(lambda: len(names()) >= nodes and all(map(works, names())), "nodes at work")
    return names()


def plain(folder: Path) -> Running:
    """Let the run finish undisturbed."""
    running = _slow(folder, nodes=4, cases=8, seconds=0.1)
    running.wait()
    return running


def refused(folder: Path) -> Running:
    """Request a type of GPU that no node has."""
    project = Project(folder)
    running = project.start("--engine=slurm", "--slurm-option=--gres=gpu:b200:1")
    running.wait()
    return running


def killed_agent(folder: Path) -> Running:
    running = _slow(folder)
    running.agent(_at_work(running, 2)[-1]).kill()
    running.wait()
    return running


def killed_node(folder: Path) -> Running:
    """Kill the node's daemon and all processes of its step, as a power failure does."""
    running = _slow(folder)
    node = _at_work(running, 2)[-1]
    agent = running.agent(node)
    step = agent.parent()
    daemon = int(Path(f"/var/spool/slurm/{node}.pid").read_text())
    for process in [psutil.Process(daemon), *([step] if step is not None else []), agent]:
        process.kill()
    running.wait()
    return running


def killed_daemon(folder: Path) -> Running:
    """Kill only slurmd: the step continues."""
    running = _slow(folder, cases=30)
    node = _at_work(running, 2)[-1]
    os.kill(int(Path(f"/var/spool/slurm/{node}.pid").read_text()), signal.SIGKILL)
    running.wait()
    return running


def drained_node(folder: Path) -> Running:
    running = _slow(folder)
    node = _at_work(running, 2)[-1]
    subprocess.run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=test"], check=True)
    running.wait()
    return running


def cancelled(folder: Path) -> Running:
    running = _slow(folder, cases=60)
    _at_work(running, 2)
    subprocess.run(["scancel", "1"], check=True)
    running.wait()
    return running


def warned(folder: Path) -> Running:
    """Let Slurm warn the steps before the time limit, as with --signal."""
    running = _slow(folder, cases=60)
    _at_work(running, 2)
    subprocess.run(["scancel", "--signal=TERM", "1"], check=True)
    running.wait()
    return running


def timed_out(folder: Path) -> Running:
    """Let the allocation reach its time limit, a minute after its start."""
    running = _slow(folder, "--slurm-option=--time=1", "--slurm-option=--signal=TERM@20", cases=150)
    running.wait()
    return running


def killed_head(folder: Path) -> Running:
    running = _slow(folder)
    _at_work(running, 2)
    kill_head()
    running.wait()
    left = subprocess.run(
        ["squeue", "-h", "--states=RUNNING,PENDING"], capture_output=True, text=True, check=True
    ).stdout
    (folder / "squeue").write_text(left)
    project = Project(folder)
    resumed = project.start(*SLURM, "--nodes=2", "--resume=run")
    resumed.wait()
    return resumed


def kill_head() -> None:
    """Kill the head of the run, which is a child of salloc."""
    heads = [each for each in psutil.process_iter(["cmdline"]) if (each.info["cmdline"] or [])[1:5] == _HEAD]
    for head in heads:
        head.kill()


_HEAD = ["-m", "harness.cli", "cluster", "run"]


def _main(name: str, folder: Path) -> None:
    scenario: Callable[[Path], Running] = globals()[name]
    running = scenario(folder)
    (folder / "ended.json").write_text(json.dumps({"status": running.wait()}))


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
