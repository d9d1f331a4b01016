"""Hold a Slurm allocation: ``salloc … python -m harness.tools.cluster.holder``, started by the head.

salloc gives the allocation back when its command ends. This command prints the variables of the allocation, and ends
with its standard input, which the kernel closes however the head ends.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Print one line of JSON, and wait."""
    variables = {name: value for name, value in os.environ.items() if name.startswith(("SLURM", "SALLOC"))}
    print(json.dumps(variables), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
