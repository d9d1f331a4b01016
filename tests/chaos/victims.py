"""The processes of a run by kind, as an attacker finds them."""

from __future__ import annotations

from collections.abc import Container
from enum import StrEnum

import psutil


class Victim(StrEnum):
    """The kinds of processes in a run. A worker is a starting one until it has collected."""

    EXECUTOR = "executor"
    WORKER = "worker"
    STARTING_WORKER = "starting worker"
    ZYGOTE = "zygote"
    CONTROLLER = "controller"


def living(controller: psutil.Process, victim: Victim, ready: Container[int]) -> list[psutil.Process]:
    """Return the processes of this kind, ordered by id. `ready` are the process ids of workers that have collected."""
    if victim is Victim.CONTROLLER:
        return [controller]
    below = children(controller)
    workers = [process for process in below if not _is_zygote(process)]
    # The run's own zygote, and those that workers have started in its place. Executors have the same command line.
    zygotes = [process for process in below if _is_zygote(process)]
    zygotes += [process for worker in workers for process in children(worker) if _is_zygote(process)]
    found = {
        Victim.WORKER: [worker for worker in workers if worker.pid in ready],
        Victim.STARTING_WORKER: [worker for worker in workers if worker.pid not in ready],
        Victim.ZYGOTE: zygotes,
        Victim.EXECUTOR: [process for zygote in zygotes for process in children(zygote)],
    }
    return sorted(found[victim], key=lambda process: process.pid)


def children(parent: psutil.Process) -> list[psutil.Process]:
    """Return the children that have not ended."""
    try:
        return [child for child in parent.children() if _is_alive(child)]
    except psutil.NoSuchProcess:
        return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _is_zygote(process: psutil.Process) -> bool:
    try:
        return "harness.zygote" in process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
