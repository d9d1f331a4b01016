"""``harness mutate list``, ``run``, ``record``, ``generate`` and ``api``."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.core.outcome import EXIT_RED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.tools.mutation.breaks import Break
    from harness.tools.mutation.generated.campaign import Settings

app = typer.Typer(
    help="Breaks of torch: list them, and find out which cases notice them and which cases notice nothing.",
    no_args_is_help=True,
)

_CATALOGUE = Annotated[
    Path | None,
    typer.Option(
        "--catalogue", metavar="FILE", help="A Python file with breaks of your own, instead of the harness's."
    ),
]


@app.command("list")
def list_(
    catalogue: _CATALOGUE = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every field of each break, by name.")] = False,
) -> None:
    """List the breaks, and what each of them breaks."""
    import json

    from harness.tools.mutation import source

    known = source.read_source(catalogue)
    if as_json:
        rows = {
            name: {"breaks": each.breaks, "device": each.device, "suites": list(each.suites)}
            for name, each in known.items()
        }
        print(json.dumps(rows, indent=2))
        return
    width, devices = (max(map(len, words)) for words in (known, [each.device for each in known.values()]))
    for name, each in known.items():
        print(f"{name:{width}}  {each.device:{devices}}  {each.breaks}")


@app.command()
def run(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- PYTEST_ARGUMENTS]", help="Options for pytest after --.", show_default=False),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Only this break; repeatable.")
    ] = None,
    suites: Annotated[
        list[str] | None,
        typer.Option(
            "--suites",
            metavar="PATH",
            help="Run these cases with each break instead of those that should notice; repeatable.",
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="KIND", help="Only breaks for this kind of device; repeatable."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the table as JSON.")
    ] = None,
    catalogue: _CATALOGUE = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, metavar="N", help="Number of parallel runs.")] = 1,
    case_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Limit for cases without a timeout mark.")
    ] = 60.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of every run.")] = 1,
    results_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the results. Default: results/mutate-<time>.")
    ] = None,
) -> None:
    """Run cases without a break, then, for each break of torch, the cases that should notice it. Print which cases
    noticed.

    Each break is first shown to have an effect. Exit status 1: a break is missed or cannot be used, or a case is red
    without a break.
    """
    from harness.core.atomic import write_atomically
    from harness.tools.mutation import campaign, demonstration, source, table
    from harness.tools.mutation.breaks import BreakError

    chosen = _chosen(source.read_source(catalogue), only or [], device or [])
    if suites:
        chosen = [dataclasses.replace(each, suites=tuple(suites)) for each in chosen]
    results = (results_dir or Path("results") / f"mutate-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    if results.exists():
        raise BreakError(f"--results-dir={str(results)!r} exists already: name a new folder")
    unusable: dict[str, str] = {}
    for kind in sorted({each.device for each in chosen}):
        names = [each.name for each in chosen if each.device == kind and each.apply is not None]
        unusable |= demonstration.unusable(names, kind, catalogue)
    options = [f"--case-timeout={case_timeout:g}", f"--seed={seed}", *(arguments or ["-n0"])]
    found = campaign.run_mutations(
        chosen,
        campaign.Runner(results, options, catalogue),
        unusable,
        jobs=jobs,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(table.mutation_text(found), end="")
    print(f"results: {results}")
    if json_file is not None:
        write_atomically(json_file, table.mutation_json(found).encode("ascii"))
    if not found.green:
        raise typer.Exit(EXIT_RED)


_CASES = Annotated[
    list[str] | None, typer.Argument(metavar="[PATH]...", help="Folders or files of cases.", show_default="suites")
]
_DEVICE = Annotated[str, typer.Option("--device", metavar="KIND", help="The kind of device that the cases run on.")]
_MODULES = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        metavar="PATTERN",
        help="Only these files, below the folder of the package, such as 'torch/optim/*.py'; repeatable. Default: the "
        "modules of torch whose contracts the suites claim.",
    ),
]
_OPTION = Annotated[
    list[str] | None,
    typer.Option(
        "--pytest", metavar="OPTION", help="An option for pytest in the recording run, such as -n2; repeatable."
    ),
]


@app.command()
def record(
    paths: _CASES = None, device: _DEVICE = "cpu", module: _MODULES = None, pytest_options: _OPTION = None
) -> None:
    """Run the cases once, and record which lines of which modules each of them runs.

    `generate` does this itself if there is no recording for these cases, this torch and this device.
    """
    from harness.tools.mutation.generated import campaign

    settings = _settings(paths, device, module, pytest_options)
    folder = campaign.recording_folder(settings, os.environ)
    campaign.record_cases(settings, folder, _tell)
    print(folder)


@app.command()
def generate(
    paths: _CASES = None,
    device: _DEVICE = "cpu",
    module: _MODULES = None,
    pytest_options: _OPTION = None,
    recording: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder of 'harness mutate record'. Default: the one of these options."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Only the mutant with this name; repeatable.")
    ] = None,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, metavar="X", help="A share of the mutants, by seed.")] = 1.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Chooses the share.")] = 1,
    limit: Annotated[
        float, typer.Option(metavar="SECONDS", help="Limit for the cases of one mutant, by their recorded times.")
    ] = 6.0,
    seconds: Annotated[float, typer.Option("--time", metavar="SECONDS", help="Limit for the whole command.")] = 86400.0,
    killed: Annotated[
        float, typer.Option(min=0.0, max=1.0, metavar="X", help="Exit status 1 if a smaller share is killed.")
    ] = 0.0,
    reasons: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Mutants that no case can observe, with reasons; they do not count. Default: "
            "configs/unobservable.yaml, if there is one.",
        ),
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Print the mutants, and run none.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write everything as JSON.")
    ] = None,
    results_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for the results; an earlier call's is continued. Default: a new one."),
    ] = None,
) -> None:
    """Make small changes of torch's Python code by rules, and run each against the cases that reach it.

    Print the share of the changes that a case notices, by module, and the changes that no case notices.
    """
    from harness.core.atomic import write_atomically
    from harness.tools.mutation.breaks import BreakError
    from harness.tools.mutation.generated import campaign, reach, score
    from harness.tools.mutation.generated.reasons import read_reasons

    settings = _settings(paths, device, module, pytest_options)
    mutants = reach.sampled(campaign.all_mutants(settings.patterns, os.environ), share, seed)
    if only:
        if unknown := set(only) - {each.name for each in mutants}:
            raise BreakError(f"--only={min(unknown)!r}: there is no such mutant; see 'harness mutate generate --list'")
        mutants = [each for each in mutants if each.name in only]
    if list_only:
        for mutant in mutants:
            print(mutant.name, mutant.sentence)
        return
    reason = read_reasons(reasons).of
    folder = recording or campaign.recording_folder(settings, os.environ)
    if recording is None and not (folder / campaign.COMPLETE).exists():
        campaign.record_cases(settings, folder, _tell)
    known = campaign.recorded(folder)
    results = (results_dir or Path("results") / f"mutants-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    found = campaign.run_mutants(settings, mutants, known, results, limit=limit, seconds=seconds)
    table = score.scores(mutants, [each for each in mutants if known.reaching(each)], found, reason)
    nearest = {each.mutant.name: reach.nearest(each.mutant, known) for each in found if each.verdict == "survived"}
    print(score.survivors_text(found, nearest, reason) + "\n" + score.scores_text(table), end="")
    print(f"results: {results}")
    if json_file is not None:
        write_atomically(json_file, score.scores_json(table, found, reason).encode("ascii"))
    whole = score.total(table)
    if whole.killed < killed * whole.tried:
        raise typer.Exit(EXIT_RED)


@app.command()
def api(
    recordings: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of 'harness mutate record', of any devices.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The table to write.")] = Path(
        "suites/api.txt"
    ),
) -> None:
    """Write the table of public names of torch that `harness catalog --api` shows, from recordings.

    A name that no case calls keeps the reason that the table has for it.
    """
    from harness.catalog import api as names
    from harness.tools.mutation.generated import campaign, modules

    reasons = {each.name: each.text for each in names.read_api(output) if not each.cases} if output.exists() else {}
    callers, arguments = campaign.calls(recordings)
    root = campaign.package_root(["torch"])
    found = names.called(names.public_names(), root, modules.is_wanted, callers, arguments, reasons)
    names.write_api(output, found)
    print(names.api_summary(found))


def _settings(
    paths: Sequence[str] | None, device: str, module: Sequence[str] | None, options: Sequence[str] | None
) -> Settings:
    from harness.tools.mutation.generated.campaign import Settings
    from harness.tools.mutation.generated.modules import MODULES

    return Settings(device, tuple(paths or ["suites"]), tuple(module or MODULES), tuple(options or ["-n0"]))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _chosen(known: Mapping[str, Break], only: Sequence[str], devices: Sequence[str]) -> list[Break]:
    """Return the selected breaks. Raise BreakError for an unknown name, or if no break is left."""
    from harness.tools.mutation.breaks import BreakError

    if unknown := [name for name in only if name not in known]:
        raise BreakError(f"--only={unknown[0]!r}: there is no such break; see 'harness mutate list'")
    chosen = [each for name, each in known.items() if not only or name in only]
    chosen = [each for each in chosen if not devices or each.device in devices]
    if not chosen:
        raise BreakError("no break is left: leave out --only or --device")
    return chosen
