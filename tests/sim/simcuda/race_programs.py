"""Small programs with and without an order between streams, for the check for races.

`race_streams`, `race_kernels` and `triton_races` add programs when they are imported.
``python -m tests.sim.simcuda.race_programs`` runs those of the first two in one process with ``SIMCUDA_CHECK=races``,
and prints a JSON object: by program, the kinds of the findings that it has caused. No program depends on the time that
work takes.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

Program = Callable[[], object]

#: Programs by name, with the kind of the finding that each causes; "" for none.
PROGRAMS: dict[str, tuple[str, Program]] = {}
RACE, REUSED, NOTHING = "race", "used after it was freed", ""


def add(name: str, kind: str, program: Program) -> None:
    assert name not in PROGRAMS
    PROGRAMS[name] = kind, program


def races(program: Program, kind: str = RACE) -> Program:
    add(program.__name__, kind, program)  # type: ignore[attr-defined]
    return program


def reuses(program: Program) -> Program:
    return races(program, REUSED)


def is_ordered(program: Program) -> Program:
    return races(program, NOTHING)


class Memory:
    """Tensors that the work of a program uses. Nothing is pending on them."""

    def __init__(self) -> None:
        self.x = torch.ones(32, 32, device="cuda")
        self.y = torch.ones(32, 32, device="cuda")
        self.rows = torch.arange(0, 32, 2, device="cuda")
        self.pinned = torch.ones(32, 32).pin_memory()
        self.side = torch.cuda.Stream()
        torch.cuda.synchronize()


def main() -> None:
    """Run all programs, each from an idle device, and print the kinds of their findings."""
    file = Path(os.environ["SIMCUDA_FINDINGS"]) / f"{os.getpid()}.ndjson"
    torch.ones(1, device="cuda").item()
    dist.init_process_group("nccl", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    found: dict[str, list[str]] = {}
    for name, (_, program) in PROGRAMS.items():
        before = file.read_text().count("\n") if file.exists() else 0
        kept = program()
        torch.cuda.synchronize()
        lines = file.read_text().splitlines()[before:] if file.exists() else []
        found[name] = sorted({json.loads(line)["kind"] for line in lines})
        del kept
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    importlib.import_module("tests.sim.simcuda.race_kernels")
    importlib.import_module("tests.sim.simcuda.race_streams")
    importlib.import_module("tests.sim.simcuda.race_programs").main()
