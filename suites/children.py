"""Fresh processes, for what a case cannot do in its own: a device that fails for good, a first use, a fork.

A child finds its devices as the case found them, in the environment, and imports what the case could import. It
leaves no core file, so that one that dies leaves nothing behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch

#: Seconds. The first use of a GPU takes several on a large machine, and a busy one is slower.
LIMIT = 120.0

NO_CORE_FILE = "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"


#: The end of a script whose last work is a backward pass on a GPU, without Python's finalisation. A thread of torch's
#: engine lets go of the pass a moment later and needs Python for that, since each pass holds the context that it was
#: called in (torch 2.13). Before 3.14, Python ends such a thread when it ends itself, which aborts the process.
AT_ONCE = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit status, negative for the signal that killed it, and what it wrote."""

    status: int
    out: str
    err: str

    def text(self) -> str:
        """Everything it wrote, for searching."""
        return f"{self.out}\n{self.err}"

    def lines(self) -> list[str]:
        """What it wrote to standard output, of a child that must have ended well."""
        assert self.status == 0, f"the process ended with {self.status}: {self.err[-3000:]}"
        return self.out.splitlines()


def run(
    script: str,
    device: torch.device | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    limit: float = LIMIT,
) -> Ended:
    """Run a script to its end. With `device`, the script can use it, and finds its name as `DEVICE`.

    `environ` is added to the environment. Raises subprocess.TimeoutExpired, the child killed, after `limit` seconds.
    """
    lines = [NO_CORE_FILE, bring(device), script]
    child = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **(environ or {})},
        check=False,
    )
    return Ended(child.returncode, child.stdout, child.stderr)


def bring(device: torch.device | None) -> str:
    """What a script begins with so that it has that device; a device of a third party comes by its own module."""
    if device is None:
        return ""
    loading = "" if device.type in ("cpu", "cuda") else torch.get_device_module(device).loading_code()
    return f"{loading}\nDEVICE = {str(device)!r}\n"
