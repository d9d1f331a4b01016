"""``harness sim``: programs on the simulated CUDA, and the finished libraries of the simulated devices."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import say, say_lines
from harness.core.errors import HarnessError

if TYPE_CHECKING:
    from harness.sim.native.build import BuildRecipe

app = typer.Typer(
    help="Run any program on a simulated CUDA, without a GPU; export the built libraries of the simulated devices, and "
    "import them on machines that need not build them.",
    no_args_is_help=True,
)


class Check(StrEnum):
    """What `run` looks for besides what was used."""

    LEAKS = "leaks"
    RACES = "races"
    MEMORY = "memory"


class Order(StrEnum):
    """When work begins that may begin."""

    EARLIEST = "earliest"
    LATEST = "latest"
    REVERSED = "reversed"


class EnvironmentFormat(StrEnum):
    """The form in which `env` prints the variables."""

    SHELL = "shell"
    DOTENV = "dotenv"
    JSON = "json"


_Program = Annotated[
    list[str], typer.Argument(metavar="[--] PROGRAM [ARGUMENTS]", help="The program, and its own arguments.")
]
_Devices = Annotated[
    int | None,
    typer.Option(
        "--devices",
        metavar="N",
        help="Simulated GPUs, 1 to 64. Default: SIMCUDA_DEVICE_COUNT, or 2.",
        show_default=False,
    ),
]
_Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Memory of each, such as 80GiB. Memory of the machine is used as the program writes to it. Default: "
        "SIMCUDA_DEVICE_MEMORY, or 2GiB.",
        show_default=False,
    ),
]
_Inject = Annotated[
    list[str] | None,
    typer.Option(
        "--inject",
        metavar="FAULT",
        help="A fault of the device, NAME[:probability][,seed=N], from harness faults list --device simcuda; may be "
        "repeated.",
    ),
]
#: The program's own options come after its name, and are none of this command.
_OPTIONS_FIRST = {"allow_interspersed_args": False}


@app.command(context_settings=_OPTIONS_FIRST)
def run(
    program: _Program,
    devices: _Devices = None,
    memory: _Memory = None,
    inject: _Inject = None,
    check: Annotated[
        list[Check] | None,
        typer.Option(
            "--check",
            help="leaks: also report the streams, events and graphs that were not destroyed. races: report work that "
            "uses the same memory without an order between its streams, whatever the timing was. memory: report "
            "tensors that are read before they are written, and refuse the accesses that a GPU refuses. May be "
            "repeated.",
        ),
    ] = None,
    order: Annotated[
        Order | None,
        typer.Option(
            "--order",
            help="Begin work at another time that CUDA permits, so that a missing wait has its effect. earliest: each "
            "launch returns when its work is done, if that can begin. latest: work begins once the program waits for "
            "it. reversed: as latest, and the newest stream first where several are waited for. Default: as soon as "
            "possible.",
            show_default=False,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="FILE", help="With --check races or memory: also write the findings to a JSON file."
        ),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="No line at the end. The program then takes the place of this process."),
    ] = False,
) -> None:
    """Run a program, and all that it starts, on simulated GPUs: harness sim run -- python train.py.

    It needs a CUDA build of PyTorch in this environment, and neither a GPU nor a driver. The libraries of the
    simulation are built first, if they are missing. At the end, one line on stderr says how many kernels ran, and how
    much memory of each device a process used.

    Exit status: that of the program, 128 + N if signal N ended it; 1 if it would be 0 and a check of work has found
    something; 127 if the program does not exist, 126 if it cannot be executed; 4 if the simulation is not possible
    here.
    """
    from harness.sim.simcuda import program as programs

    checks = frozenset(check or ())
    if quiet and checks:
        raise HarnessError("--quiet reports nothing at the end: leave it out, or --check")
    of_work = [check.value for check in (Check.RACES, Check.MEMORY) if check in checks]
    if report is not None and not of_work:
        raise HarnessError("--report has the findings of --check races and --check memory: give one of them, too")
    if report is not None and not report.absolute().parent.is_dir():
        raise HarnessError(f"--report={str(report)!r}: expected a file in a folder that exists")
    environ = {**_environment(devices, memory, inject), **({programs.ORDER: order.value} if order else {})}
    if quiet:
        raise typer.Exit(programs.replace_process(program, environ))
    wanted = programs.Watch(leaks=Check.LEAKS in checks, checks=of_work, report=report)
    raise typer.Exit(programs.run_with_summary(program, environ, lambda line: say(line, err=True), wanted))


@app.command()
def shell(devices: _Devices = None, memory: _Memory = None, inject: _Inject = None) -> None:
    """Start a shell ($SHELL, or /bin/sh) in which each program has simulated GPUs. `exit` ends it.

    Exit status: that of the shell; 4 if the simulation is not possible here.
    """
    from harness.sim.simcuda import program as programs

    environ = _environment(devices, memory, inject)
    say("programs of this shell use simulated GPUs; exit ends it", err=True)
    raise typer.Exit(programs.replace_process([environ.get("SHELL") or "/bin/sh"], environ))


@app.command()
def env(
    devices: _Devices = None,
    memory: _Memory = None,
    inject: _Inject = None,
    format_: Annotated[
        EnvironmentFormat,
        typer.Option(
            "--format", help="shell: export X=…, for eval; dotenv: X=…, for Docker's --env-file and editors; json."
        ),
    ] = EnvironmentFormat.SHELL,
) -> None:
    """Print the variables with which a program starts on simulated GPUs, for a Dockerfile, an editor or a shell.

    The paths in them are those of this machine's cache (HARNESS_CACHE_DIR).

    Exit status: 0; 4 if the simulation is not possible here.
    """
    import json
    import shlex

    variables = _variables(devices, memory, inject)
    if format_ is EnvironmentFormat.JSON:
        say(json.dumps(variables))
        return
    for name, value in variables.items():
        say(f"export {name}={shlex.quote(value)}" if format_ is EnvironmentFormat.SHELL else f"{name}={value}")


@app.command()
def doctor() -> None:
    """Try the simulated CUDA: what of this environment's PyTorch runs on it, what does not, and why.

    Exit status: 0; 1 if something does not run that does elsewhere; 4 if the simulation is not possible here.
    """
    from harness.core.outcome import EXIT_RED
    from harness.sim.simcuda import machine as doctors

    environ = _environment(None, None, None)
    say_lines("\n".join(doctors.describe_environment(environ)))
    broken = False
    for result in doctors.examine(environ):
        say(result.line())
        broken = broken or result.is_broken
    if broken:
        raise typer.Exit(EXIT_RED)


def _variables(devices: int | None, memory: str | None, inject: list[str] | None) -> dict[str, str]:
    from harness.sim.simcuda import program as programs

    return programs.program_environment(devices, memory, inject or (), os.environ)


def _environment(devices: int | None, memory: str | None, inject: list[str] | None) -> Mapping[str, str]:
    """Return the whole environment of a program. Raise HarnessError."""
    return {**os.environ, **_variables(devices, memory, inject)}


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
    from harness.sim.interposer.front import interposer_recipe
    from harness.sim.native import toolchain
    from harness.sim.simcuda.build import simcuda_recipe
    from harness.sim.simcuda.toolchain import find_simcuda_toolchains
    from harness.sim.softdevice.build import softdevice_recipe

    recipes = [softdevice_recipe(toolchain.find_torch_toolchain())]
    if software.torch_cuda_version().value is not None:
        tools = find_simcuda_toolchains()
        recipes += [simcuda_recipe(tools), interposer_recipe(tools)]
    return recipes
