"""Hold a Slurm allocation: ``python -m harness.tools.cluster.holder HEAD salloc …``, started by the head.

The process becomes salloc, which gets SIGTERM if the head ends in any way: it then withdraws a request that waits, and
ends an allocation. salloc gives the allocation back when its command ends. That is this module again, without
arguments: it prints the variables of the allocation, and ends with its standard input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence

from harness.core import linux


def main(arguments: Sequence[str]) -> None:
    """Become salloc; without arguments, print one line of JSON, and wait."""
    if arguments:
        head, *command = arguments
        linux.die_with_parent(int(head), signal.SIGTERM)
        os.execvp(command[0], command)
    variables = {name: value for name, value in os.environ.items() if name.startswith(("SLURM", "SALLOC"))}
    print(json.dumps(variables), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
