"""``harness sim``: the finished libraries of the software device and the simulated CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import say

if TYPE_CHECKING:
    from harness.sim.native.build import BuildRecipe

app = typer.Typer(
    help="Export the built libraries of the simulated devices, and import them on machines that need not build them.",
    no_args_is_help=True,
)


@app.command()
def export(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The tar.gz file to write.")],
) -> None:
    """Write the libraries of this environment to a file: the software device, and with a CUDA build of torch the
    simulated CUDA and the interposer. Libraries that the cache lacks are built first.

    They fit machines with the same sources, compiler, C library, Python and torch: their keys depend on all of these.

    Exit status: 0; 4 if something cannot be built or written.
    """
    from harness.sim.native import archive

    for entry in archive.write_library_archive(out, _recipes()):
        say(f"{entry.noun}: {entry.key}")
    say(f"wrote {out}: {out.stat().st_size / 1e6:.1f} MB")


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that harness sim export has written.")],
) -> None:
    """Put the libraries of a file into the cache. They are code that runs here: import only files that you trust.

    Exit status: 0; 1 if none of them is what this environment needs; 4 if the file is damaged or the cache cannot be
    written.
    """
    from harness.core.outcome import EXIT_RED
    from harness.sim.native import archive

    libraries = archive.read_library_archive(path, _recipes())
    for library in libraries:
        state = "in the cache already" if library.there else "imported"
        fit = "" if library.needed else "; this environment needs another one: its sources, compiler or torch differ"
        say(f"{library.noun}: {library.key}: {state}{fit}")
    if not any(library.needed for library in libraries):
        raise typer.Exit(EXIT_RED)


def _recipes() -> list[BuildRecipe]:
    from harness.devices import software
    from harness.sim.interposer.build import interposer_recipe
    from harness.sim.native import toolchain
    from harness.sim.simcuda.build import simcuda_recipe
    from harness.sim.simcuda.toolchain import find_simcuda_toolchains
    from harness.sim.softdevice.build import softdevice_recipe

    recipes = [softdevice_recipe(toolchain.find_torch_toolchain())]
    if software.torch_cuda_version().value is not None:
        tools = find_simcuda_toolchains()
        recipes += [simcuda_recipe(tools), interposer_recipe(tools)]
    return recipes
