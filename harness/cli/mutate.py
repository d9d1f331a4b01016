"""``harness mutate list`` and ``harness mutate run``."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.core.outcome import EXIT_RED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.tools.mutation.breaks import Break

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
