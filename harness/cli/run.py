"""``harness run``: the conformance suites, wherever this package has them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer


def run(context: typer.Context) -> None:
    """Run the conformance suites of this installation with pytest; needs no checkout.

    All arguments are pytest's: harness run -n auto --profile smoke. Suites are named as in a checkout, for example
    harness run suites/streams; without a name, all run. The exit status is pytest's. Exit status 4: this installation
    has no suites.
    """
    from harness.cli.installed import Home

    here = Path.cwd()
    words = [sys.executable, "-m", "pytest", *Home.find().arguments(context.args, here)]
    sys.stdout.flush()
    os.execv(sys.executable, words)
