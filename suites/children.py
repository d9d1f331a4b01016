"""Child processes, for what a case cannot do in its own: a permanent device failure, a first use, a fork.

A child has the case's environment, and so the same devices, and can import the same modules. It writes no core file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch

#: Seconds. The first use of a GPU takes several on a large machine, and longer under load.
LIMIT = 120.0

NO_CORE_FILE = "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"


#: The end of a script whose last work is a backward pass on a GPU, without Python's finalization. A thread of torch's
#: engine frees the pass a moment later and needs Python for that, because each pass holds the context in which it was
#: called (torch 2.13). Before 3.14, Python terminates such a thread during its own finalization, which aborts the
#: process.
AT_ONCE = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"


@dataclass(frozen=True)
class Ended:
    """The result of a child: its exit status, negative for the signal that killed it, and its output."""

    status: int
    out: str
    err: str

    def text(self) -> str:
        """All output, for searches."""
        return f"{self.out}\n{self.err}"

    def lines(self) -> list[str]:
        """The lines of standard output, for a child that must have succeeded."""
        assert self.status == 0, f"the process ended with {self.status}: {self.err[-3000:]}"
        return self.out.splitlines()


def run(
    script: str,
    device: torch.device | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    limit: float = LIMIT,
) -> Ended:
    """Run a script to its end. With `device`, the script can use that device, under the name `DEVICE`.

    `environ` is added to the environment. After `limit` seconds, the child is killed and subprocess.TimeoutExpired
    raised.
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


def _loading(device: torch.device) -> str:
    """Return the code that registers a device with torch: that of its module, or the import of the module's package."""
    if device.type in ("cpu", "cuda"):
        return ""
    module = torch.get_device_module(device)
    if hasattr(module, "loading_code"):
        return str(module.loading_code())
    name = getattr(module, "__name__", type(module).__module__)
    return f"import torch\nimport {name.partition('.')[0]}\n"


def bring(device: torch.device | None) -> str:
    """The start of a script that provides the device; a third-party device is loaded by its own module."""
    if device is None:
        return ""
    return f"{_loading(device)}\nDEVICE = {str(device)!r}\n"
