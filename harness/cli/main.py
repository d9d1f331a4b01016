"""The `harness` command. Each command imports its own modules, which keeps ``harness --help`` fast."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from harness import __version__
from harness.backends.table import BACKENDS, parse_device
from harness.cli.backend import app as backend
from harness.cli.backend import faults
from harness.cli.cluster import app as cluster
from harness.cli.console import make_console, say, say_lines, say_styled, with_verbatim_help
from harness.cli.diff import diff
from harness.cli.evidence import conformance, package, verify
from harness.cli.history import app as history_app
from harness.cli.installed import run
from harness.cli.matrix import app as matrix
from harness.cli.notify import notify
from harness.cli.ready import ready
from harness.cli.report import app as report
from harness.cli.report import durations, import_
from harness.cli.sim import app as sim
from harness.cli.waivers import app as waivers
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_RED, EXIT_USAGE
from harness.core.text import format_count, inert_line, single_line

if TYPE_CHECKING:
    from harness.catalog.catalog import CatalogEntry
    from harness.devices.device import Inventory
#: The exit status of typer for a usage error.
_TYPERS_USAGE = 2


#: The commands as `harness --help` groups them, in order.
_PANELS: dict[str, tuple[str, ...]] = {
    "Run": ("run", "cluster", "bisect"),
    "Look": ("devices", "backend", "faults", "catalog", "report"),
    "Compare": ("diff", "matrix", "history", "conformance"),
    "Operate": ("ready", "waivers", "notify", "import", "package", "verify"),
    "Maintain": ("durations", "sim"),
}


class _Harness(TyperGroup):
    """The command `harness`: in the order of the panels, and with the exit status of pytest for usage errors.

    Typer's status 2 would mean an interrupted run.
    """

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return [name for names in _PANELS.values() for name in names]

    def make_context(self, *args: Any, **more: Any) -> Any:
        with _usage_errors():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        with _usage_errors():
            return super().invoke(ctx)


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # typer does not export the base class of its usage errors. `Exit` also has an exit status, but no message.
        if getattr(error, "exit_code", None) == _TYPERS_USAGE and hasattr(error, "show"):
            error.exit_code = EXIT_USAGE  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    cls=_Harness,
    help="Conformance cases for GPUs, drivers and PyTorch: list devices and cases, check waivers, report on runs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _device_kind(text: str) -> str:
    try:
        return parse_device(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: expected {error}") from None


class Format(StrEnum):
    """The output format of a list."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"


def _panel(name: str) -> str:
    """Return the panel of a command."""
    return next(panel for panel, names in _PANELS.items() if name in names)


_RAW = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
for _name, _group in {
    "backend": backend,
    "cluster": cluster,
    "faults": faults,
    "history": history_app,
    "matrix": matrix,
    "report": report,
    "sim": sim,
    "waivers": waivers,
}.items():
    app.add_typer(_group, name=_name, rich_help_panel=_panel(_name))
_COMMANDS: dict[str, Callable[..., object]] = {
    "conformance": conformance,
    "diff": diff,
    "durations": durations,
    "import": import_,
    "notify": notify,
    "package": package,
    "ready": ready,
    "verify": verify,
}
for _name, _command in _COMMANDS.items():
    app.command(_name, rich_help_panel=_panel(_name))(_command)
app.command("run", context_settings=_RAW, rich_help_panel=_panel("run"))(run)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from harness.journal.identity import version_of

        others = ", ".join(f"{name} {version_of(name)}" for name in ("torch", "pytest", "pytest-xdist"))
        say(f"harness {__version__} ({others}, Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def own_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_print_version,
            help="Print the versions of the harness, torch, pytest and Python, and exit.",
        ),
    ] = False,
) -> None:
    """Take the options of the command itself."""


def main() -> None:
    """Run the command line. Print a HarnessError as one line on stderr, with exit status 4."""
    try:
        with_verbatim_help(typer.main.get_command(app))()
    except HarnessError as error:
        say(f"harness: {' '.join(str(error).split())}", err=True)
        sys.exit(EXIT_USAGE)


@app.command(rich_help_panel=_panel("devices"))
def devices(
    capabilities: Annotated[
        bool, typer.Option("--capabilities", help="Print all capabilities of each usable device, with their sources.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON, with sizes in bytes and the capabilities of every usable device."),
    ] = False,
    examine: Annotated[
        bool,
        typer.Option(
            "--health",
            help="Test every usable device: compute, copy, compare. Exit status 1 if one is sick, or if there is no "
            "GPU and --device names no other kind. For NVIDIA GPUs, harness ready replaces it.",
        ),
    ] = False,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            callback=_device_kind,
            help="List the devices that a run with this option uses: auto, or a kind (`harness backend list`).",
        ),
    ] = "auto",
    history: Annotated[
        list[Path] | None,
        typer.Option(
            "--history",
            metavar="DIR",
            help="Report the results of each device in the runs of this folder; may be repeated.",
        ),
    ] = None,
) -> None:
    """List the devices of this machine, and the capabilities of the first usable device.

    With --history, list the devices of earlier runs instead; no device is queried.

    This process does not initialise CUDA. If necessary, a short-lived child process queries the driver.
    """
    import json

    from harness.controller.machine import inventory as chosen
    from harness.devices import render
    from harness.devices.capabilities import detect_capabilities
    from harness.devices.device import DeviceError

    if history:
        _history(history, as_json=as_json)
        return
    inventory = chosen(device)
    if examine and device in BACKENDS and BACKENDS[device].software:
        raise DeviceError("--health works on GPUs and the CPU, not on software devices: leave --health out")
    if examine:
        _examine(inventory, anything=device == "auto")
        return
    detected = {device.uuid: detect_capabilities(inventory, device) for device in inventory.usable}
    if as_json:
        say_lines(json.dumps(render.inventory_json(inventory, detected), indent=2))
        return
    if capabilities:
        tables = render.capability_tables(inventory, detected)
    else:
        tables = render.inventory_tables(inventory, detected[inventory.usable[0].uuid])
    console = make_console()
    for table in tables:
        console.print(table)


def _history(folders: list[Path], *, as_json: bool) -> None:
    """Print what earlier runs report about each device, the most suspicious device first."""
    import json
    import time

    from rich.table import Table

    from harness.fleet.answers import Answers
    from harness.fleet.reading import reading
    from harness.fleet.run import find_runs

    found = find_runs(folders)
    with reading(found.paths, found.notes) as read:
        past = Answers(read.database).device_history()
    for note in read.notes:
        say(f"harness: {note}", err=True)
    if as_json:
        say_lines(json.dumps(past, indent=2))
        return
    table = Table()
    for name in (
        "device",
        "hosts",
        "runs",
        "last run",
        "cases",
        "red",
        "red only here",
        "red on both",
        "sick",
        "findings",
    ):
        table.add_column(name, overflow="fold")
    for device in past["devices"]:
        last = time.strftime("%Y-%m-%d", time.gmtime(device["last"]))
        counts = [device[name] for name in ("cases", "red", "only_here", "on_both")]
        numbers = (*counts, device["sick"] + device["drained"])
        hosts, findings = ", ".join(device["hosts"]), _kinds(device["findings"])
        row = (device["device"], hosts, str(device["runs"]), last, *map(str, numbers), findings)
        table.add_row(*map(inert_line, row))
    console = make_console()
    console.print(table)
    if past["findings"]:
        say_styled(console, f"findings about no device: {_kinds(past['findings'])}")


def _kinds(findings: Mapping[str, int]) -> str:
    """Return the number of findings of each kind: ``2 batch_leak, 1 worker``."""
    return ", ".join(f"{number} {single_line(kind)}" for kind, number in sorted(findings.items()))


def _examine(inventory: Inventory, *, anything: bool) -> None:
    """Examine the devices one at a time. A device with a known fault is sick without an examination.

    `anything`: no kind of device was named. The CPU is then no substitute for GPUs, whose driver may be gone.
    """
    from harness.devices import health
    from harness.devices.inventory import why_no_gpu

    console, sick = make_console(), 0
    hardware = [device for device in inventory.devices if device.backend.hardware]
    looked = hardware or list(inventory.usable)
    problems = _read_problems() if any(device.backend.nvml for device in looked) else {}
    for device in looked:
        result = health.check_device(device)
        sick += not result.healthy
        state, style = ("healthy", "green") if result.healthy else ("SICK", "bold red")
        line = f"{state} {device.uuid} ({device.name}): {result.text}, in {result.seconds:.1f} s"
        say_styled(console, line, style)
        for text in problems.get(device.mig_parent or device.uuid, ()):
            say_styled(console, f"    {text}", "yellow")
    unseen = anything and not hardware
    if unseen:
        line = f"no GPU was examined ({why_no_gpu(inventory)}): repair the driver, or name the device with --device"
        say_styled(console, line, "bold red")
    if sick or unseen:
        raise typer.Exit(EXIT_RED)


def _read_problems() -> dict[str, list[str]]:
    """Return what the readings of `harness ready` say against each GPU, by UUID."""
    from harness.ready.judge_node import judge_node
    from harness.ready.passive import read_node
    from harness.ready.rules import RULES, worst_first

    found: dict[str, list[str]] = {}
    for problem in worst_first(judge_node(read_node(), RULES).problems):
        if problem.gpu is not None:
            text = f"{problem.verdict.text}: {problem.check}: wanted {problem.wanted}, found {problem.found}"
            found.setdefault(problem.gpu, []).append(text)
    return found


_CatalogPaths = Annotated[
    list[str] | None,
    typer.Argument(help="Folders, files or case ids. Default: suites, here or of this installation."),
]
_Hardware = Annotated[
    str, typer.Option(metavar="NAME", help="Only cases that this kind of machine must run (configs/hardware).")
]
_Exclude = Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Leave out these cases; may be repeated.")]
_Default = Annotated[bool, typer.Option("--default", help="Leave out the cases that only --extended runs.")]
_MustPass = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Check this must-pass list against the cases. Write it if it does not exist."),
]
_Update = Annotated[bool, typer.Option("--update", help="Replace the must-pass list.")]
_Description = Annotated[str, typer.Option(help="A description for the header of the must-pass list.")]


@app.command(rich_help_panel=_panel("catalog"))
def catalog(
    paths: _CatalogPaths = None,
    format_: Annotated[Format, typer.Option("--format", help="How to print the list.")] = Format.TABLE,
    hardware: _Hardware = "",
    exclude: _Exclude = None,
    default: _Default = False,
    must_pass: _MustPass = None,
    update: _Update = False,
    description: _Description = "",
) -> None:
    """List every case: what it checks, requires and covers, and the group of its suite. No case runs.

    The list is kept in the user's cache (HARNESS_CACHE_DIR) until a file that it was made from changes. In a pipe, each
    case is one line with fields between tabs.

    With --must-pass, exit status 1 means that the list names cases that do not exist.
    """
    entries, configs = _collected(paths or ["suites"])
    if hardware:
        entries = _promised(entries, hardware, configs)
    if default:
        entries = [entry for entry in entries if not entry.extended]
    if exclude:
        entries = _without(entries, exclude)
    if must_pass is not None:
        _keep_must_pass(entries, must_pass, update=update, description=description)
    else:
        _print_entries(entries, format_)


def _collected(paths: list[str]) -> tuple[list[CatalogEntry], Path]:
    """Return the cases with their groups, and the folder of the configuration: here, or of this installation."""
    from harness.catalog.catalog import collect_catalog
    from harness.gating.profiles import suite_groups

    arguments, configs = paths, Path("configs")
    if not Path("suites").exists() and all(path.partition("/")[0] == "suites" for path in paths):
        from harness.cli.installed import Home

        home = Home.find()
        arguments, configs = home.arguments(paths, None), home.folder / "configs"
    groups = suite_groups(configs)
    return [replace(entry, group=groups.get(entry.suite, "")) for entry in collect_catalog(arguments)], configs


def _without(entries: list[CatalogEntry], exclude: list[str]) -> list[CatalogEntry]:
    """Return the cases that match none of the patterns."""
    from harness.gating.patterns import matches_pattern

    return [entry for entry in entries if not any(matches_pattern(pattern, entry.id) for pattern in exclude)]


def _print_entries(entries: list[CatalogEntry], format_: Format) -> None:
    if format_ is Format.JSON:
        from harness.catalog.catalog import catalog_json

        say_lines(catalog_json(entries))
    elif format_ is Format.MARKDOWN:
        from harness.catalog.catalog import suites_page

        say_lines(suites_page(entries, Path()))
    else:
        _print_catalog(entries)


def _promised(entries: list[CatalogEntry], name: str, configs: Path) -> list[CatalogEntry]:
    """Return the cases whose requirements this kind of hardware promises to meet."""
    from harness.gating import requirements
    from harness.gating.implication import implication
    from harness.gating.profiles import load_hardware

    kind = load_hardware(name, configs, Path()).value
    promised = requirements.parse_requirements({**kind.device, **kind.offers})
    conditions = (
        (entry, [requirement for mark in entry.requires for requirement in requirements.parse_requirements(mark)])
        for entry in entries
    )
    return [entry for entry, wanted in conditions if not wanted or implication(wanted, promised).certain]


def _keep_must_pass(entries: list[CatalogEntry], path: Path, *, update: bool, description: str) -> None:
    from harness.gating import mustpass

    ids = [entry.id for entry in entries]
    if update or not path.exists():
        written = mustpass.write_must_pass(path, ids, description)
        say(f"wrote {path}: {format_count(len(written.ids), 'case')}, {written.hash}")
        return
    listed = mustpass.read_must_pass(path)
    missing, new = mustpass.check_must_pass(listed, ids), sorted({*ids} - {*listed.ids})
    for case_id in missing:
        say(f"does not exist: {case_id}")
    for case_id in new:
        say(f"not on the list: {case_id}")
    counted = f"{format_count(len(listed.ids), 'case')}, {listed.hash}"
    say(f"{path}: {counted}; {len(missing)} do not exist, {len(new)} not on the list")
    if missing:
        say("restore the missing cases, or use --update to remove them from the list")
        raise typer.Exit(EXIT_RED)


@app.command(rich_help_panel=_panel("bisect"))
def bisect(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of the run in which the case failed.")],
    case: Annotated[str, typer.Argument(help="The id of the case.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- OPTION...]", help="Options for pytest that the run had, such as -- -p NAME."),
    ] = None,
) -> None:
    """Find the smallest set of earlier cases after which CASE fails, by running CASE again after ever fewer of them.

    Run it in the root folder of the suites, or anywhere for the installed suites. RUN may come from somebody else: only
    cases in files of this folder run, outside of run directories, and options that can load code (-c, -o, -p, -W,
    --confcutdir, --import-mode) are not taken from it. Give those of the run after --.

    The result is added to the journal of RUN. Exit status 4: the case fails without other cases, does not fail again,
    or is not one of these suites.
    """
    from harness.journal import journal, reader
    from harness.tools import order

    root, given = _root_of(case)
    contents = reader.read_run_journal(run_dir / journal.FILE_NAME)
    history = order.process_history_of(contents, case, root, [*given, *(options or ())])
    console = make_console()
    say(f"{case} was {history.outcome} after {format_count(len(history.earlier), 'case')} in its process")
    if history.omitted:
        say(f"options that are not taken from a journal; if you know them, add them: -- {shlex.join(history.omitted)}")
    dependence = order.bisect_order(history, lambda line: say_styled(console, line, "dim"))
    order.record_dependence(run_dir, dependence)
    for culprit in dependence.culprits:
        say_styled(console, f"it needs {culprit}", "bold")
    say(f"goes wrong:     {history.command(dependence.culprits)}")
    say(f"does not alone: {history.command([])}")


def _root_of(case: str) -> tuple[Path, list[str]]:
    """Return the root folder of a case's suites, here or of this installation, and the options that it needs."""
    if Path(case.partition("::")[0]).exists() or not case.startswith("suites/"):
        return Path.cwd(), []
    from harness.cli.installed import SETTINGS, Home

    home = Home.find().folder
    return home, ["-c", str(home / SETTINGS), f"--rootdir={home}"]


def _print_catalog(entries: list[CatalogEntry]) -> None:
    from harness.catalog.catalog import catalog_lines, catalog_rows, covered_in_part

    console = make_console()
    for_people = console.is_terminal or bool(os.environ.get("COLUMNS"))
    if entries:
        say_lines("\n".join(catalog_lines(entries, console.width) if for_people else catalog_rows(entries)))
    console.print(
        f"{format_count(len(entries), 'case')} in {format_count(len({entry.suite for entry in entries}), 'suite')}"
    )
    for suite, cases in covered_in_part(entries).items():
        say_styled(console, f"covered in part only, by {format_count(cases, 'case')}: {suite}")
