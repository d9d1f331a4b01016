"""``harness run``: run the conformance suites of this installation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer


def run(context: typer.Context) -> None:
    """Run the conformance suites of this installation with pytest; no checkout is needed.

    All arguments go to pytest: harness run -n auto --profile smoke. Name suites as in a checkout, for example harness
    run suites/streams; without a name, all suites run. The exit status is that of pytest. Exit status 4: this
    installation has no suites.
    """
    from harness.cli.installed import Home

    here = Path.cwd()
    words = [sys.executable, "-m", "pytest", *Home.find().arguments(context.args, here)]
    sys.stdout.flush()
    os.execv(sys.executable, words)
