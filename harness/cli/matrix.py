"""``harness matrix``: many runs on many machines as one page and one JSON file, and the plan of such runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import group_with_default, say, say_lines
from harness.tools.plan_words import PlanFormat, System, When

_CONFIGS = Path("configs")


app = typer.Typer(
    cls=group_with_default("page"),
    help=(
        "Compare many runs: harness matrix DIR... -o matrix.html. Plan which runs to make on which machines: "
        "harness matrix plan. Write ./plan or ./page for a folder with that name."
    ),
    no_args_is_help=True,
)


@app.command()
def page(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Run directories, or folders with run directories up to four levels below."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("matrix.html"),
    json_out: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write everything as JSON to this file.")
    ] = None,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit with 0 if the page was written, even if something is red.")
    ] = False,
) -> None:
    """Compare many runs on many machines: cases by machines, and what the failures have in common.

    A machine is a host with its kind of device, driver and torch; its runs count together. Each failure gets a class:
    everywhere, one torch, one driver, one kind of device, one host, one device, one option, one commit, one setting,
    since or until a run, mixed or flake. The report adds how sure the class is, which causes cannot be distinguished,
    and what to run next. Findings are listed with their runs, and cells without a result are counted by reason.

    Exit status: 0 nothing is red; 1 a run is red, did not finish, or has unreadable lines in its journal; 4 a DIR has
    no run or a file cannot be written; 5 no case ran.
    """
    import gc

    from harness.core.atomic import write_atomically
    from harness.fleet import matrix_model as model
    from harness.fleet import matrix_page as pages
    from harness.fleet.matrix import exit_status, make_matrix
    from harness.fleet.reading import reading
    from harness.fleet.run import find_runs

    run_paths = find_runs(folders)
    gc.disable()  # millions of small values, without reference cycles
    with reading(run_paths.paths, run_paths.notes) as read:
        made = make_matrix(read)
    write_atomically(out, pages.render_matrix(made))
    if json_out is not None:
        write_atomically(json_out, model.matrix_json(made))
    say_lines(pages.matrix_text(made))
    say(f"wrote {out}" + (f" and {json_out}" if json_out is not None else ""))
    if not exit_zero and (status := exit_status(made)):
        raise typer.Exit(status)


@app.command()
def plan(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The plan: machines, and what runs on them.", show_default=True)
    ] = _CONFIGS / "matrix.yaml",
    format_: Annotated[
        PlanFormat,
        typer.Option(
            "--format",
            help="table: for people. slurm: one sbatch command per job. github: one line of JSON for "
            "strategy.matrix. gitlab: a child pipeline. names: RUN/PART per job, for scripts.",
        ),
    ] = PlanFormat.TABLE,
    when: Annotated[
        list[When] | None,
        typer.Option("--when", help="Jobs for this time; may be repeated. Default: nightly.", show_default=False),
    ] = None,
    machine: Annotated[
        list[str] | None,
        typer.Option("--machine", metavar="NAME", help="Only jobs on this machine; may be repeated."),
    ] = None,
    by: Annotated[
        System | None,
        typer.Option("--by", help="Only jobs on machines that this system reaches. The formats for a system imply it."),
    ] = None,
) -> None:
    """Print the jobs of a plan. Nothing runs.

    Hardware files and profiles come from ./configs. The command refuses a machine that no hardware file declares, and a
    profile that cannot run on its machine.

    Exit status 4: the plan has an error, or no job is left. Only the reasons are printed.
    """
    from harness.tools.plan import all_jobs, load_plan, select
    from harness.tools.plan_formats import formatted_plan

    every = all_jobs(load_plan(file, _CONFIGS, Path()))
    chosen = select(every, list(dict.fromkeys(when or [When.NIGHTLY])), machine or [])
    text, note = formatted_plan(chosen, format_, by)
    say_lines(text)
    if note:
        say(f"harness: {note}", err=True)
