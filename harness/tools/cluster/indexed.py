"""One pod of an indexed Kubernetes Job.

``python -m harness.tools.cluster.indexed --shards=N --results=DIR -- ARGUMENTS``. The process becomes pytest with the
pod's shard. A pod that replaces an evicted one resumes its run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_USAGE

#: Kubernetes sets this variable in each pod of an indexed Job, from 0.
INDEX = "JOB_COMPLETION_INDEX"


class PodError(HarnessError):
    """This process is not a pod of an indexed Job, or its arguments are wrong."""


def command(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the command of this pod's pytest. Raise PodError."""
    options = dict(word[2:].split("=", 1) for word in words[: _end(words)] if "=" in word)
    shards, results = options.get("shards", ""), options.get("results", "")
    if not shards.isdecimal() or not results or int(shards) < 1:
        raise PodError(f"{' '.join(words)!r}: expected --shards=N --results=DIR -- PYTEST-ARGUMENTS")
    index = environ.get(INDEX, "")
    if not index.isdecimal() or int(index) >= int(shards):
        raise PodError(f"{INDEX}={index!r}: expected a number from 0 to {int(shards) - 1}, as in an indexed Job")
    number = int(index) + 1
    run_dir = Path(results) / f"shard-{number}"
    shard = [f"--shard={number}/{shards}", f"--resume={run_dir}"]
    return [sys.executable, "-m", "pytest", *words[_end(words) + 1 :], *shard]


def _end(words: Sequence[str]) -> int:
    return list(words).index("--") if "--" in words else len(words)


def main(words: Sequence[str]) -> NoReturn:
    """Become pytest."""
    try:
        made = command(words, os.environ)
    except PodError as error:
        print(f"harness: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    os.execv(made[0], made)


if __name__ == "__main__":
    main(sys.argv[1:])
