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
    from collections.abc import Callable, Collection, Mapping, Sequence

    from harness.tools.mutation.breaks import Break
    from harness.tools.mutation.generated.campaign import Settings
    from harness.tools.mutation.generated.mutant import Mutant
    from harness.tools.mutation.generated.reach import Recording
    from harness.tools.mutation.generated.results import MutantResult

app = typer.Typer(
    help="Breaks of torch: list them, and find out which cases notice them and which cases notice nothing.",
    no_args_is_help=True,
)

_Catalogue = Annotated[
    Path | None,
    typer.Option(
        "--catalogue", metavar="FILE", help="A Python file with breaks of your own, instead of the harness's."
    ),
]


@app.command("list")
def list_(
    catalogue: _Catalogue = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every field of each break, by name.")] = False,
) -> None:
    """List the breaks, and what each of them breaks."""
    import json

    from harness.tools.mutation import source

    breaks = source.read_source(catalogue)
    if as_json:
        rows = {
            name: {"breaks": entry.breaks, "device": entry.device, "suites": list(entry.suites)}
            for name, entry in breaks.items()
        }
        print(json.dumps(rows, indent=2))
        return
    width, devices = (max(map(len, words)) for words in (breaks, [entry.device for entry in breaks.values()]))
    for name, entry in breaks.items():
        print(f"{name:{width}}  {entry.device:{devices}}  {entry.breaks}")


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
    catalogue: _Catalogue = None,
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
        chosen = [dataclasses.replace(selected, suites=tuple(suites)) for selected in chosen]
    results = (results_dir or Path("results") / f"mutate-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    if results.exists():
        raise BreakError(f"--results-dir={str(results)!r} exists already: name a new folder")
    unusable: dict[str, str] = {}
    for kind in sorted({selected.device for selected in chosen}):
        names = [selected.name for selected in chosen if selected.device == kind and selected.apply is not None]
        unusable |= demonstration.unusable(names, kind, catalogue)
    options = [f"--case-timeout={case_timeout:g}", f"--seed={seed}", *(arguments or ["-n0"])]
    result = campaign.run_mutations(
        chosen,
        campaign.Runner(results, options, catalogue),
        unusable,
        jobs=jobs,
        log=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(table.mutation_text(result), end="")
    print(f"results: {results}")
    if json_file is not None:
        write_atomically(json_file, table.mutation_json(result).encode("ascii"))
    if not result.green:
        raise typer.Exit(EXIT_RED)


_Cases = Annotated[
    list[str] | None, typer.Argument(metavar="[PATH]...", help="Folders or files of cases.", show_default="suites")
]
_Device = Annotated[str, typer.Option("--device", metavar="KIND", help="The kind of device that the cases run on.")]
_Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        metavar="PATTERN",
        help="Only these files, below the folder of the package, such as 'torch/optim/*.py'; repeatable. Default: the "
        "modules of torch whose contracts the suites claim.",
    ),
]
_PytestOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--pytest", metavar="OPTION", help="An option for pytest in the recording run, such as -n2; repeatable."
    ),
]


@app.command()
def record(
    paths: _Cases = None, device: _Device = "cpu", module: _Modules = None, pytest_options: _PytestOptions = None
) -> None:
    """Run the cases once, and record which lines of which modules each of them runs.

    `generate` does this itself if there is no recording for these cases, this torch and this device.
    """
    from harness.tools.mutation.generated import campaign

    settings = _settings(paths, device, module, pytest_options)
    folder = campaign.recording_folder(settings, os.environ)
    campaign.record_cases(settings, folder, _log)
    print(folder)


_Recording = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A folder of 'harness mutate record'. Default: the one of these options."),
]
_Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="NAME", help="Only the mutant with this name; repeatable.")
]
_Share = Annotated[float, typer.Option(min=0.0, max=1.0, metavar="X", help="A share of the mutants, by seed.")]
_Seed = Annotated[int, typer.Option(metavar="N", help="Chooses the share.")]
_Limit = Annotated[
    float, typer.Option(metavar="SECONDS", help="Limit for the cases of one mutant, by their recorded times.")
]
_Time = Annotated[float, typer.Option("--time", metavar="SECONDS", help="Limit for the whole command.")]
_Killed = Annotated[
    float, typer.Option(min=0.0, max=1.0, metavar="X", help="Exit status 1 if a smaller share is killed.")
]
_Reasons = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Mutants that no case can observe, with reasons; they do not count. Default: "
        "configs/unobservable.yaml, if there is one.",
    ),
]
_ListOnly = Annotated[bool, typer.Option("--list", help="Print the mutants, and run none.")]
_JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write everything as JSON.")]
_MutantsDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder for the results; an earlier call's is continued. Default: a new one."),
]


@app.command()
def generate(
    paths: _Cases = None,
    device: _Device = "cpu",
    module: _Modules = None,
    pytest_options: _PytestOptions = None,
    recording: _Recording = None,
    only: _Only = None,
    share: _Share = 1.0,
    seed: _Seed = 1,
    limit: _Limit = 6.0,
    seconds: _Time = 86400.0,
    killed: _Killed = 0.0,
    reasons: _Reasons = None,
    list_only: _ListOnly = False,
    json_file: _JsonFile = None,
    results_dir: _MutantsDir = None,
) -> None:
    """Make small changes of torch's Python code by rules, and run each against the cases that reach it.

    Print the share of the changes that a case notices, by module, and the changes that no case notices.
    """
    from harness.core.atomic import write_atomically
    from harness.tools.mutation.generated import campaign, score
    from harness.tools.mutation.generated.reasons import read_reasons

    settings = _settings(paths, device, module, pytest_options)
    mutants = _chosen_mutants(settings, share, seed, only or [])
    if list_only:
        for mutant in mutants:
            print(mutant.name, mutant.sentence)
        return
    reason = read_reasons(reasons).of
    recorded = _recorded(settings, recording)
    folder = (results_dir or Path("results") / f"mutants-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    results = campaign.run_mutants(settings, mutants, recorded, folder, limit=limit, seconds=seconds)
    table = score.scores(mutants, [mutant for mutant in mutants if recorded.reaching(mutant)], results, reason)
    print(_survivors(results, recorded, reason) + "\n" + score.scores_text(table), end="")
    print(f"results: {folder}")
    if json_file is not None:
        write_atomically(json_file, score.scores_json(table, results, reason).encode("ascii"))
    whole = score.total(table)
    if whole.killed < killed * whole.tried:
        raise typer.Exit(EXIT_RED)


def _chosen_mutants(settings: Settings, share: float, seed: int, only: Collection[str]) -> list[Mutant]:
    """Return the mutants of a share, or those of `only` among them. Raise BreakError for an unknown name."""
    from harness.tools.mutation.breaks import BreakError
    from harness.tools.mutation.generated import campaign, reach

    mutants = reach.sampled(campaign.all_mutants(settings.patterns, os.environ), share, seed)
    if unknown := set(only) - {mutant.name for mutant in mutants}:
        raise BreakError(f"--only={min(unknown)!r}: there is no such mutant; see 'harness mutate generate --list'")
    return [mutant for mutant in mutants if mutant.name in only] if only else mutants


def _recorded(settings: Settings, given: Path | None) -> Recording:
    """Return the recording in the folder `given`, else the one with these settings, which is made if there is none."""
    from harness.tools.mutation.generated import campaign

    folder = given or campaign.recording_folder(settings, os.environ)
    if given is None and not (folder / campaign.COMPLETE).exists():
        campaign.record_cases(settings, folder, _log)
    return campaign.recorded(folder)


def _survivors(results: Sequence[MutantResult], recorded: Recording, reason: Callable[[Mutant], str]) -> str:
    """Return the changes that no case noticed, each with the cases nearest to it."""
    from harness.tools.mutation.generated import reach, score

    survivors = [result.mutant for result in results if result.verdict == "survived"]
    nearest = {mutant.name: reach.nearest(mutant, recorded) for mutant in survivors}
    return score.survivors_text(results, nearest, reason)


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

    reasons = {row.name: row.text for row in names.read_api(output) if not row.cases} if output.exists() else {}
    callers, arguments = campaign.calls(recordings)
    root = campaign.package_root(["torch"])
    rows = names.called(names.public_names(), root, modules.is_wanted, callers, arguments, reasons)
    names.write_api(output, rows)
    print(names.api_summary(rows))


@app.command()
def reach(
    recordings: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of 'harness mutate record', of any devices.")
    ],
    module: Annotated[
        list[str] | None,
        typer.Option(
            "--module",
            metavar="PATTERN",
            help="Only these files, below the folder of the package, such as 'torch/optim/*.py'; repeatable.",
        ),
    ] = None,
    functions: Annotated[
        bool, typer.Option("--functions", help="Name the functions of which cases miss lines, with the lines.")
    ] = False,
) -> None:
    """Show how many lines of torch's public functions the recorded cases run, by module.

    The recordings must be of this torch. Lines that this machine cannot reach count: other systems, older releases.
    """
    from harness.tools.mutation.generated import campaign
    from harness.tools.mutation.generated.modules import MODULES
    from harness.tools.mutation.generated.public_lines import format_ranges

    modules = campaign.public_reach(recordings, module or MODULES)
    width = max((len(entry.path) for entry in modules), default=0)
    for entry in modules:
        print(f"{entry.path:<{width}}  {entry.reached:5} of {entry.lines:5} lines  {entry.reached / entry.lines:4.0%}")
        for function in entry.functions if functions else ():
            if function.missed:
                print(f"    {function.name}: {format_ranges(function.missed)}")
    total, reached = (sum(getattr(entry, name) for entry in modules) for name in ("lines", "reached"))
    print(f"{'total':<{width}}  {reached:5} of {total:5} lines  {reached / total if total else 0:4.0%}")


def _settings(
    paths: Sequence[str] | None, device: str, module: Sequence[str] | None, options: Sequence[str] | None
) -> Settings:
    from harness.tools.mutation.generated.campaign import Settings
    from harness.tools.mutation.generated.modules import MODULES

    return Settings(device, tuple(paths or ["suites"]), tuple(module or MODULES), tuple(options or ["-n0"]))


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _chosen(breaks: Mapping[str, Break], only: Sequence[str], devices: Sequence[str]) -> list[Break]:
    """Return the selected breaks. Raise BreakError for an unknown name, or if no break is left."""
    from harness.tools.mutation.breaks import BreakError

    if unknown := [name for name in only if name not in breaks]:
        raise BreakError(f"--only={unknown[0]!r}: there is no such break; see 'harness mutate list'")
    chosen = [entry for name, entry in breaks.items() if not only or name in only]
    chosen = [entry for entry in chosen if not devices or entry.device in devices]
    if not chosen:
        raise BreakError("no break is left: leave out --only or --device")
    return chosen
