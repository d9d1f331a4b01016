"""What of this environment runs on the simulated CUDA: the answer of ``harness sim doctor``. Does not import torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.core.disposable import run_disposable
from harness.core.errors import HarnessError
from harness.core.text import format_bytes, format_count, format_exit_code, single_line
from harness.devices import software
from harness.sim.simcuda import build, machine

_LIMIT = 600.0  # seconds; on a busy machine the compiler alone takes one minute


class ProbesError(HarnessError):
    """The program of the probes has failed before its first one."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Whether one thing runs. `error`: None if it does. `limit`: why it cannot; empty if it should."""

    name: str
    error: str | None
    limit: str = ""

    @property
    def is_broken(self) -> bool:
        """Whether it should run, and does not."""
        return self.error is not None and not self.limit

    def line(self) -> str:
        """Return it for a reader."""
        if self.error is None:
            return f"runs          {self.name}"
        if self.limit:
            return f"needs a GPU   {self.name}: {self.limit}"
        return f"DOES NOT RUN  {self.name}: {self.error}"


def describe_environment(environ: Mapping[str, str]) -> list[str]:
    """Return what the simulation is made of. Raise BuildError, MachineError."""
    facts = build.describe_build()
    first, *others = machine.simulated_inventory(environ).devices
    count = format_count(1 + len(others), "device")
    return [
        f"torch      {software.torch_build()} of {sys.executable}",
        f"compiler   {facts['compiler']}",
        f"libraries  {facts['key']}",
        f"devices    {count} with {format_bytes(first.memory or 0)}: {first.name}",
    ]


def examine(environ: Mapping[str, str], limit: float = _LIMIT) -> list[ProbeResult]:
    """Run the probes in a process with this environment, for `limit` seconds at most. Raise ProbesError."""
    done = run_disposable([sys.executable, "-m", "harness.sim.simcuda.probes"], limit, environ=environ)
    results = list(read_results(done.output.decode(errors="replace")))
    if not results:
        raise ProbesError(f"the simulated CUDA: torch cannot be imported on it: {single_line(done.last_error)}")
    if results[-1].error == _UNFINISHED:
        status = "was killed" if done.status is None else format_exit_code(done.status)
        how = f"the process ended there ({status})" if done.in_time else f"it did not end within {limit:.0f} s"
        results[-1] = ProbeResult(results[-1].name, how)
    return results


_UNFINISHED = "unfinished"


def read_results(output: str) -> Iterator[ProbeResult]:
    """Yield the results in the output of the probes. One that has begun only, as the last one, is unfinished."""
    begun = None
    for line in output.splitlines():
        if not line.startswith("{"):
            continue  # torch's profiler prints too
        entry = json.loads(line)
        if "begin" in entry:
            begun = entry["begin"]
        else:
            begun = None
            yield ProbeResult(entry["probe"], entry["error"], entry["limit"])
    if begun is not None:
        yield ProbeResult(begun, _UNFINISHED)
