"""``python -m tests.breaks``: break a device or torch on purpose, run cases, and report which of them notice.

Also which lines, names and overloads of torch the cases reach.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import with_verbatim_help
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_RED, EXIT_USAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from tests.breaks.breaks import Break
    from tests.breaks.mutants.campaign import Settings
    from tests.breaks.mutants.mutant import Mutant
    from tests.breaks.mutants.reach import Recording
    from tests.breaks.mutants.results import MutantResult

app = typer.Typer(
    help="Break a device or torch on purpose, and see which cases notice, and which notice nothing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_Catalogue = Annotated[
    Path | None,
    typer.Option(
        "--catalogue", metavar="FILE", help="A Python file with breaks of your own, instead of the catalogue."
    ),
]
_Faults = Annotated[
    str,
    typer.Option(
        "--faults",
        metavar="KIND",
        help="The faults that --inject accepts for this kind of device (soft, simcuda or cuda), instead of the "
        "catalogue.",
    ),
]
_Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="NAME", help="Only this one; repeatable. A fault as NAME or NAME:probability."),
]


@app.command("list")
def list_(
    catalogue: _Catalogue = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every field of each break, by name.")] = False,
) -> None:
    """List the breaks, and what each of them breaks. `harness faults list` lists the faults of devices."""
    import json

    from tests.breaks import source

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
        typer.Argument(metavar="[-- PYTEST_OPTIONS]", help="Options for pytest after --.", show_default="-n0"),
    ] = None,
    catalogue: _Catalogue = None,
    faults: _Faults = "",
    only: _Only = None,
    suites: Annotated[
        list[str] | None,
        typer.Option(
            "--suites",
            metavar="PATH",
            help="Run these cases with each break instead of those that should notice; repeatable. With --faults, the "
            "default is all suites that have cases for the device.",
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="KIND", help="Only breaks for this kind of device; repeatable."),
    ] = None,
    first: Annotated[bool, typer.Option("--first", help="End each run with a break at its first red case.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, metavar="N", help="Number of parallel runs.")] = 1,
    case_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Limit for cases without a timeout mark. Default: 60, or 10 with --faults."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of every run.")] = 1,
    results_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the results. Default: results/breaks-<time>.")
    ] = None,
) -> None:
    """Run cases without a break, then, for each break, the cases that should notice it. Print which cases noticed.

    Each break of torch is first shown to have an effect. The folder of the results has the table as `breaks.txt` and
    `breaks.json`, after each break. Exit status 1: a break is missed or cannot be used, or a case is red without one.
    """
    from harness.core.atomic import write_atomically
    from tests.breaks import demonstration, engine, source, table
    from tests.breaks.breaks import BreakError
    from tests.breaks.faults import fault_breaks

    if faults:
        chosen = list(fault_breaks(faults, only or [], suites or []).values())
    else:
        chosen = _chosen(source.read_source(catalogue), only or [], device or [])
        if suites:
            chosen = [dataclasses.replace(selected, suites=tuple(suites)) for selected in chosen]
    results = (results_dir or Path("results") / f"breaks-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    if results.exists():
        raise BreakError(f"--results-dir={str(results)!r} exists already: name a new folder")
    unusable: dict[str, str] = {}
    for kind in sorted({selected.device for selected in chosen}):
        names = [selected.name for selected in chosen if selected.device == kind and selected.apply is not None]
        unusable |= demonstration.unusable(names, kind, catalogue)
    limit = case_timeout or (10.0 if faults else 60.0)

    def keep(so_far: table.Table) -> None:
        write_atomically(results / table.TEXT, table.table_text(so_far).encode("utf-8", "backslashreplace"))
        write_atomically(results / table.RECORD, table.table_json(so_far).encode("ascii"))

    result = engine.run_breaks(
        chosen,
        engine.PytestRuns(results, (f"--case-timeout={limit:g}", f"--seed={seed}", *(arguments or ["-n0"])), catalogue),
        unusable,
        jobs=jobs,
        first=first,
        log=_log,
        keep=keep,
    )
    print(table.table_text(result), end="")
    print(f"results: {results}")
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

    `mutants` does this itself if there is no recording for these cases, this torch and this device.
    """
    from tests.breaks.mutants import campaign

    settings = _settings(paths, device, module, pytest_options)
    folder = campaign.recording_folder(settings, os.environ)
    campaign.record_cases(settings, folder, _log)
    print(folder)


_Recording = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A folder of 'python -m tests.breaks record'. Default: the one of these options."),
]
_Share = Annotated[float, typer.Option(min=0.0, max=1.0, metavar="X", help="A share of the mutants, by seed.")]
_Seed = Annotated[int, typer.Option(metavar="N", help="Chooses the share.")]
_Limit = Annotated[
    float, typer.Option(metavar="SECONDS", help="Limit for the cases of one mutant, by their recorded times.")
]
_Time = Annotated[float, typer.Option("--time", metavar="SECONDS", help="Limit for the whole command.")]
_Noticed = Annotated[
    float, typer.Option(min=0.0, max=1.0, metavar="X", help="Exit status 1 if a smaller share is noticed.")
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
_MutantsDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder for the results; an earlier call's is continued. Default: a new one."),
]


@app.command()
def mutants(
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
    noticed: _Noticed = 0.0,
    reasons: _Reasons = None,
    list_only: _ListOnly = False,
    results_dir: _MutantsDir = None,
) -> None:
    """Make small changes of torch's Python code by rules, and run each against the cases that reach it.

    Print the share of the changes that a case notices, by module, and the changes that no case notices. The folder of
    the results has everything in `mutants.json`.
    """
    from harness.core.atomic import write_atomically
    from tests.breaks.mutants import campaign, score
    from tests.breaks.mutants.reasons import read_reasons

    settings = _settings(paths, device, module, pytest_options)
    chosen = _chosen_mutants(settings, share, seed, only or [])
    if list_only:
        for mutant in chosen:
            print(mutant.name, mutant.sentence)
        return
    reason = read_reasons(reasons).of
    recorded = _recorded(settings, recording)
    folder = (results_dir or Path("results") / f"mutants-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    results = campaign.run_mutants(settings, chosen, recorded, folder, limit=limit, seconds=seconds)
    table = score.scores(chosen, [mutant for mutant in chosen if recorded.reaching(mutant)], results, reason)
    print(_survivors(results, recorded, reason) + "\n" + score.scores_text(table), end="")
    print(f"results: {folder}")
    write_atomically(folder / "mutants.json", score.scores_json(table, results, reason).encode("ascii"))
    whole = score.total(table)
    if whole.noticed < noticed * whole.tried:
        raise typer.Exit(EXIT_RED)


def _chosen_mutants(settings: Settings, share: float, seed: int, only: Collection[str]) -> list[Mutant]:
    """Return the mutants of a share, or those of `only` among them. Raise BreakError for an unknown name."""
    from tests.breaks.breaks import BreakError
    from tests.breaks.mutants import campaign, reach

    mutants = reach.sampled(campaign.all_mutants(settings.patterns, os.environ), share, seed)
    if unknown := set(only) - {mutant.name for mutant in mutants}:
        raise BreakError(
            f"--only={min(unknown)!r}: there is no such mutant; see 'python -m tests.breaks mutants --list'"
        )
    return [mutant for mutant in mutants if mutant.name in only] if only else mutants


def _recorded(settings: Settings, given: Path | None) -> Recording:
    """Return the recording in the folder `given`, else the one with these settings, which is made if there is none."""
    from tests.breaks.mutants import campaign

    folder = given or campaign.recording_folder(settings, os.environ)
    if given is None and not (folder / campaign.COMPLETE).exists():
        campaign.record_cases(settings, folder, _log)
    return campaign.recorded(folder)


def _survivors(results: Sequence[MutantResult], recorded: Recording, reason: Callable[[Mutant], str]) -> str:
    """Return the changes that no case noticed, each with the cases nearest to it."""
    from tests.breaks.mutants import reach, score

    survivors = [result.mutant for result in results if result.verdict == "missed"]
    nearest = {mutant.name: reach.nearest(mutant, recorded) for mutant in survivors}
    return score.survivors_text(results, nearest, reason)


@app.command()
def seen(
    results: Annotated[
        list[Path] | None, typer.Argument(metavar="[DIR]...", help="Folders of results of 'run', to add first.")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--run",
            metavar="DIR",
            help="A run directory of a run without a break, to add first: functions that torch itself turns red, and "
            "the reasons of gates; repeatable.",
        ),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Drop functions that are gone, and write the table of docs/mutation.md.")
    ] = False,
) -> None:
    """Show by suite how many test functions were seen red, and name those that were not, with the reason."""
    from tests.breaks import seen as table
    from tests.breaks.search.search import verdicts_of

    functions = _functions()
    if results or runs or update:
        verdicts = verdicts_of(runs or [])
        found = [*(pair for each in results or [] for pair in table.noticed(each)), *table.red_by_torch(verdicts)]
        _add_seen(found, table.reasons_of_gates(verdicts), functions)
    print(table.seen_page(table.read_table(table.FILE), table.read_table(table.REASONS), functions), end="")


def _functions() -> set[str]:
    """Return the test functions of the suites."""
    from harness.catalog.catalog import collect_catalog
    from tests.breaks.seen import function_of

    return {function_of(entry.id) for entry in collect_catalog(["suites"])}


def _add_seen(found: Iterable[tuple[str, str]], reasons: Mapping[str, str], functions: Collection[str]) -> None:
    """Add functions with their breaks, and others with reasons, to the tables, and write the table of the page."""
    from harness.core.atomic import write_atomically
    from tests.breaks import seen as table

    known = table.merged(table.read_table(table.FILE), found, functions)
    old = {each: text for each, text in table.read_table(table.REASONS).items() if each not in reasons}
    left = table.merged(old, reasons.items(), set(functions).difference(known))
    write_atomically(table.FILE, table.table_text(known).encode("ascii"))
    write_atomically(table.REASONS, table.table_text(left).encode("ascii"))
    page = table.with_table(table.PAGE.read_text(encoding="utf-8"), table.page_table(known, left, functions))
    write_atomically(table.PAGE, page.encode())


@app.command()
def search(
    runs: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run directories: runs of the suites on the device.")
    ],
    functions: Annotated[
        list[str] | None,
        typer.Option("--function", metavar="ID", help="Only this function, or this file or folder; repeatable."),
    ] = None,
    device: _Device = "cpu",
    again: Annotated[
        bool, typer.Option("--again", help="Try the break that the table has for each function, and no other.")
    ] = False,
    most: Annotated[int, typer.Option(min=1, metavar="N", help="The most breaks for one function.")] = 60,
    limit: Annotated[float, typer.Option(metavar="SECONDS", help="Limit for one function.")] = 60.0,
    seconds: _Time = 86400.0,
    results_dir: _MutantsDir = None,
) -> None:
    """Search, for each test function that no break ever turned red, a break that does, and write it into the table.

    Exit status 1: a function was not turned red.
    """
    from tests.breaks import seen as table
    from tests.breaks.search import search as searching

    known, every = table.read_table(table.FILE), _functions()
    wanted = {
        function
        for function in every
        if (function in known) == again and (not functions or function.startswith(tuple(functions)))
    }
    folder = (results_dir or Path("results") / f"search-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    tried = searching.search(
        device,
        searching.verdicts_of(runs),
        wanted,
        folder,
        given=known if again else None,
        most=most,
        limit=limit,
        seconds=seconds,
    )
    if not again:
        failed = {each.function: f"{table.OPEN}{each.ends}" for each in tried if not each.name}
        _add_seen(((each.function, each.name) for each in tried if each.name), failed, every)
    missed = [each for each in tried if not each.name]
    for each in missed:
        print(f"not red: {each.function} ({each.ends})")
    print(f"{len(tried) - len(missed)} of {len(tried)} functions were turned red\nresults: {folder}")
    if missed:
        raise typer.Exit(EXIT_RED)


@app.command()
def names(
    recordings: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="Folders of 'record', of any devices, to write the table from."),
    ] = None,
) -> None:
    """Show which case calls each public name of torch. With recordings, write the table first.

    A name that no case calls keeps the reason that the table has for it. Exit status 1: the installed torch has a name
    that no case calls, without a reason.
    """
    from tests.breaks.calls import api
    from tests.breaks.mutants import campaign, modules

    if recordings:
        reasons = {row.name: row.text for row in api.read_api(api.FILE) if not row.cases}
        callers, arguments = campaign.calls(recordings)
        root = campaign.package_root(["torch"])
        api.write_api(api.FILE, api.called(api.public_names(), root, modules.is_wanted, callers, arguments, reasons))
    table = api.with_installed_names(api.read_api(api.FILE), api.public_names())
    print(api.api_page(table), end="")
    if any(row.missing for row in table):
        raise typer.Exit(EXIT_RED)


@app.command()
def overloads(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH]...", help="Run these folders, files or cases, and write the table from them."),
    ] = None,
    recorded: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the table from what a run with the recorder left there.")
    ] = None,
) -> None:
    """Show which case calls each overload of aten that has kernels of its own. With PATH, write the table first.

    Lines of overloads for CUDA are kept if this build of torch has no CUDA. Exit status 1: the installed torch has an
    overload that no case calls, without a reason.
    """
    from tests.breaks.calls import overloads as table

    if paths or recorded:
        table.record(paths or [], recorded)
    rows = table.with_installed(table.read_overloads(table.FILE), table.registered_overloads())
    print(table.overloads_page(rows), end="")
    if any(row.missing for row in rows):
        raise typer.Exit(EXIT_RED)


@app.command()
def inputs(
    results_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the run. Default: results/inputs-<time>.")
    ] = None,
) -> None:
    """Show which inputs the cases of operators compare, by argument: with gaps, with NaN, far from zero, and so on.

    Runs the cases, without their references. Exit status 1: an input that no case gives has no reason.
    """
    from tests.breaks.calls import inputs as table

    found = table.record(results_dir or Path(f"results/inputs-{time.strftime('%Y%m%d-%H%M%S')}"))
    print(table.inputs_page(found), end="")
    if any(not hole.reason for hole in table.holes(found)):
        raise typer.Exit(EXIT_RED)


@app.command()
def reach(
    recordings: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of 'python -m tests.breaks record', of any devices.")
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
    from tests.breaks.mutants import campaign
    from tests.breaks.mutants.modules import MODULES
    from tests.breaks.mutants.public_lines import format_ranges

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
    from tests.breaks.mutants.campaign import Settings
    from tests.breaks.mutants.modules import MODULES

    return Settings(device, tuple(paths or ["suites"]), tuple(module or MODULES), tuple(options or ["-n0"]))


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _chosen(breaks: Mapping[str, Break], only: Sequence[str], devices: Sequence[str]) -> list[Break]:
    """Return the selected breaks. Raise BreakError for an unknown name, or if no break is left."""
    from tests.breaks.breaks import BreakError

    if unknown := [name for name in only if name not in breaks]:
        raise BreakError(f"--only={unknown[0]!r}: there is no such break; see 'python -m tests.breaks list'")
    chosen = [entry for name, entry in breaks.items() if not only or name in only]
    chosen = [entry for entry in chosen if not devices or entry.device in devices]
    if not chosen:
        raise BreakError("no break is left: leave out --only or --device")
    return chosen


def main() -> None:
    """Run the command. An expected error is one line, and a usage error has pytest's exit status."""
    try:
        with_verbatim_help(typer.main.get_command(app))()
    except HarnessError as error:
        print(f"tests.breaks: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


if __name__ == "__main__":
    main()
