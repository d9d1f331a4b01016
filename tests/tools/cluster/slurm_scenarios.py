"""Events during cluster runs in a simulated Slurm: ``python -m tests.tools.cluster.slurm_scenarios NAME FOLDER``.

It runs inside the cluster, and leaves the files that `tests.tools.cluster.test_slurm` checks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.tools.cluster.project import PATIENCE, SLOW, Project, Running

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
    """Kill the process that the user started, as the kernel does without memory. Then resume the run."""
    running = _slow(folder)
    _at_work(running, 2)
    running.process.kill()
    killed = running.wait()
    (folder / "killed.json").write_text(json.dumps(killed))
    _wait_for_empty_queue(running)
    project = Project(folder)
    resumed = project.start(*SLURM, "--nodes=2", "--resume=run")
    resumed.wait()
    return resumed


def stopped_by_sigterm(folder: Path) -> Running:
    return _stopped(folder, signal.SIGTERM)


def stopped_by_sigint(folder: Path) -> Running:
    return _stopped(folder, signal.SIGINT)


def stopped_by_sighup(folder: Path) -> Running:
    return _stopped(folder, signal.SIGHUP)


def _stopped(folder: Path, number: signal.Signals) -> Running:
    """Send a signal to the process that the user started."""
    running = _slow(folder, cases=60)
    _at_work(running, 2)
    running.process.send_signal(number)
    running.wait()
    _wait_for_empty_queue(running)
    return running


def stopped_while_waiting(folder: Path) -> Running:
    return _while_waiting(folder, signal.SIGTERM)


def killed_while_waiting(folder: Path) -> Running:
    return _while_waiting(folder, signal.SIGKILL)


def _while_waiting(folder: Path, number: signal.Signals) -> Running:
    """Send a signal while the request waits, because another job has all nodes. Return when the request is gone."""
    holder = subprocess.Popen(["salloc", "--nodes=4", "--exclusive", "sleep", "600"])
    running = _slow(folder)
    running.wait_for(lambda: _queued("PENDING") != "", "a request that waits")
    running.process.send_signal(number)
    running.wait()
    deadline = time.monotonic() + PATIENCE
    while _queued("PENDING"):
        assert time.monotonic() < deadline, "the request still waits"
        time.sleep(0.1)
    holder.kill()
    holder.wait()
    return running


def _wait_for_empty_queue(running: Running) -> None:
    """Wait until Slurm has all nodes back, and nothing of the run is left on them."""
    deadline = time.monotonic() + PATIENCE
    while _queued("RUNNING,PENDING,COMPLETING") or _agents():
        assert time.monotonic() < deadline, running.output[-6000:]
        time.sleep(0.1)


def _queued(states: str) -> str:
    command = ["squeue", "-h", f"--states={states}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _agents() -> list[list[str]]:
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [words for words in commands if "harness.tools.cluster.agent" in words]


def _main(name: str, folder: Path) -> None:
    scenario: Callable[[Path], Running] = globals()[name]
    running = scenario(folder)
    (folder / "ended.json").write_text(json.dumps({"status": running.wait()}))


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
