"""The options of ``harness ready`` for many nodes, and what it prints about them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.console import make_console, say, say_lines, say_styled

if TYPE_CHECKING:
    from harness.ready.fleet import FleetReport, NodeAnswer

PANEL = "Many nodes"
#: Lines of progress about a fleet.
_PROGRESS = 10

Hosts = Annotated[
    str, typer.Option(metavar="LIST", help="Check these nodes by ssh, such as a[1-64],b7.", rich_help_panel=PANEL)
]
Hostfile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Check the nodes in a file by ssh, one per line.", rich_help_panel=PANEL),
]
InSlurm = Annotated[
    bool,
    typer.Option("--slurm", help="Check the nodes of the Slurm allocation of this process.", rich_help_panel=PANEL),
]
Local = Annotated[
    int, typer.Option(min=0, metavar="N", help="Check this machine N times, for a trial.", rich_help_panel=PANEL)
]
WithFabric = Annotated[
    bool,
    typer.Option(
        "--fabric",
        help="Then test all good nodes together, and fewer and fewer if they fail, until a node or link is named.",
        rich_help_panel=PANEL,
    ),
]
Lists = Annotated[
    Path,
    typer.Option(
        metavar="DIR", help="The folder for ready.txt and not_ready.txt, the nodes as LIST.", rich_help_panel=PANEL
    ),
]
Parallel = Annotated[
    int, typer.Option(min=1, max=1024, metavar="N", help="Nodes that are asked at a time.", rich_help_panel=PANEL)
]
AnswerLimit = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="When the answer of a node must be there. Default: the budget and 45 s.",
        rich_help_panel=PANEL,
    ),
]
Python = Annotated[
    str, typer.Option(metavar="PATH", help="The Python on the nodes. Default: the current one.", rich_help_panel=PANEL)
]
Launcher = Annotated[
    str,
    typer.Option(
        metavar="WORDS", help="Command prefix for Python, such as 'apptainer exec --nv IMAGE'.", rich_help_panel=PANEL
    ),
]
SshConfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="An ssh configuration file.", rich_help_panel=PANEL)
]


def check(fabric: str, lists: Path, *, strict: bool, as_json: bool, launcher: str, python: str, **request: Any) -> int:
    """Check all nodes, print the table, and write the lists. Return the exit status. Raise HarnessError.

    `fabric`: the kind of devices to test together; empty for none. `request`: see `harness.ready.fleet_run`.
    """
    from harness.ready import fleet_run

    asked = fleet_run.FleetRequest(**request, python=python or sys.executable, launcher=_words(launcher))
    report = fleet_run.check_fleet(asked, _progress())
    if fabric:
        report = fleet_run.check_fabric(asked, report, fabric, lambda line: say(f"harness: {line}", err=True))
    written = fleet_run.write_lists(report, lists, strict=strict)
    _print(report, written, as_json=as_json)
    broken = report.fabric is not None and report.fabric.broken
    return 1 if broken or report.nodes(ready=False, strict=strict) or not report.answers else 0


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise typer.BadParameter(f"--launcher={text!r}: expected words as in a shell ({error})") from None


def _progress() -> Callable[[NodeAnswer, int], None]:
    """Return what says how many nodes have answered, in some ten lines."""
    answered = 0

    def tell(_answer: NodeAnswer, left: int) -> None:
        nonlocal answered
        answered += 1
        total = answered + left
        if left and answered % max(1, total // _PROGRESS) == 0:
            say(f"harness: {answered} of {total} nodes have answered", err=True)

    return tell


def _print(report: FleetReport, lists: tuple[Path, Path], *, as_json: bool) -> None:
    from harness.cli.ready import STYLES
    from harness.ready import fleet

    if as_json:
        import json

        say_lines(json.dumps(fleet.as_plain(report), indent=2))
        return
    console = make_console(err=True)
    for line, verdict in fleet.table(report):
        say_styled(console, line, None if verdict is None else STYLES[verdict.value])
    say(f"written: {lists[0]}, {lists[1]}", err=True)
    say(fleet.summary(report))
