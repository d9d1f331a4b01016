"""``harness kit``: one file to run the suites on a machine without network."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Annotated

import typer


def kit(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The tar file to write.")],
    python: Annotated[
        str,
        typer.Option(
            "--python", metavar="VERSION", help="The machine's Python version, such as 3.12. Default: the current one."
        ),
    ] = "",
    platforms: Annotated[
        list[str] | None,
        typer.Option(
            "--platform",
            metavar="TAG",
            help="Wheels for this platform, such as manylinux_2_28_x86_64; may be repeated. Default: the current one.",
        ),
    ] = None,
    root: Annotated[Path, typer.Option("--root", metavar="DIR", help="The checkout of this project.")] = Path(),
) -> None:
    """Make a kit for machines without network: wheels of all dependencies except torch, suites, configs, and run.sh.

    On the machine: tar xf FILE, then gpu-conformance-kit/run.sh --profile driver-validation. The script runs the suites
    with the Python that has torch, installs nothing there, and packs the result as evidence (docs/kit.md).

    Exit status 4: pip cannot get a wheel, the folder is not a checkout, or FILE cannot be written.
    """
    from harness.tools.kit import kit as kits

    version = python or ".".join(platform.python_version_tuple()[:2])
    if not re.fullmatch(r"3\.\d{1,2}", version):
        raise typer.BadParameter(f"--python {python!r}: expected a version such as 3.12")
    made = kits.make_kit(root.resolve(), out, python=version, platforms=platforms or [])
    print(f"wrote {made.path}: {made.size / 1e6:.1f} MB, {len(made.wheels)} wheels, for Python {version}")
