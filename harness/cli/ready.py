"""``harness ready``: is this node ready for work, and what is the next step if not?"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.console import make_console, say, say_lines, say_styled, shell_words
from harness.core.errors import HarnessError

if TYPE_CHECKING:
    from harness.gating.profiles import Hardware
    from harness.ready.fleet import FleetReport, NodeAnswer
    from harness.ready.health_event import Connector
    from harness.ready.model import NodeReport
    from harness.ready.rules import Rule

_NO_VERDICT = 2
_NAGIOS_UNKNOWN = 3
_NOT_SENT = 3
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BUDGET = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*(s|m|min|h)?", re.ASCII)
_LEAST_BUDGET, _MOST_BUDGET = 5.0, 24 * 3600.0
STYLES = {"ready": "green", "degraded": "yellow", "unknown": "bold yellow", "not_ready": "bold red"}


def parse_budget(text: str) -> float:
    """Return seconds: ``20s``, ``60``, ``10m``. Raise BadParameter."""
    match = _BUDGET.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2] or ""] if match else 0.0
    if not _LEAST_BUDGET <= seconds <= _MOST_BUDGET:
        raise typer.BadParameter(f"{text!r}: expected 5s to 24h, such as 20s, 60s or 10m")
    return seconds


def ready(
    budget: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long the check may take: 20s, 60s; from 3m on it also runs suites."),
    ] = "60s",
    passive: Annotated[
        bool, typer.Option("--passive", help="Only read: about a second, safe beside a running job.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="A degraded node is not ready: exit status 1.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON.")] = False,
    as_nagios: Annotated[
        bool, typer.Option("--nagios", help="Print one line and exit as a Nagios plugin does: 0, 1, 2, 3.")
    ] = False,
    prometheus: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a text file for Prometheus' node_exporter.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also print all checks and readings.")] = False,
    hardware: Annotated[
        str, typer.Option(metavar="NAME", help="What the node must have (configs/hardware; name or path).")
    ] = "",
    device: Annotated[
        str, typer.Option(metavar="KIND", help="auto or cuda: GPUs. simcuda: the simulated CUDA, to try it.")
    ] = "auto",
    inject: Annotated[
        list[str] | None,
        typer.Option(metavar="FAULT", help="Break the device, to try it (harness faults list); may be repeated."),
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file that replaces verdicts and next steps, by kind of problem."),
    ] = None,
    results_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Also keep the report as a run directory, for harness history and harness report."
        ),
    ] = None,
    health_event: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Also send the verdict to NVSentinel, at unix:///path; auto: at $PLATFORM_CONNECTOR_SOCKET.",
        ),
    ] = "",
    hosts: Annotated[
        str, typer.Option(metavar="LIST", help="Check these nodes by ssh, such as a[1-64],b7.", rich_help_panel=PANEL)
    ] = "",
    hostfile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check the nodes in a file by ssh, one per line.", rich_help_panel=PANEL),
    ] = None,
    slurm: Annotated[
        bool,
        typer.Option("--slurm", help="Check the nodes of the Slurm allocation of this process.", rich_help_panel=PANEL),
    ] = False,
    local: Annotated[
        int, typer.Option(min=0, metavar="N", help="Check this machine N times, for a trial.", rich_help_panel=PANEL)
    ] = 0,
    fabric: Annotated[
        bool,
        typer.Option(
            "--fabric",
            help="Then test all good nodes together, and fewer and fewer if they fail, until a node or link is named.",
            rich_help_panel=PANEL,
        ),
    ] = False,
    lists: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="The folder for ready.txt and not_ready.txt, the nodes as LIST.", rich_help_panel=PANEL
        ),
    ] = Path(),
    parallel: Annotated[
        int, typer.Option(min=1, max=1024, metavar="N", help="Nodes that are asked at a time.", rich_help_panel=PANEL)
    ] = 128,
    answer_limit: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="When the answer of a node must be there. Default: the budget and 45 s.",
            rich_help_panel=PANEL,
        ),
    ] = "",
    python: Annotated[
        str,
        typer.Option(metavar="PATH", help="The Python on the nodes. Default: the current one.", rich_help_panel=PANEL),
    ] = "",
    launcher: Annotated[
        str,
        typer.Option(
            metavar="WORDS",
            help="Command prefix for Python, such as 'apptainer exec --nv IMAGE'.",
            rich_help_panel=PANEL,
        ),
    ] = "",
    ssh_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An ssh configuration file.", rich_help_panel=PANEL)
    ] = None,
) -> None:
    """Is this node ready for work? One verdict, the worst problem first, and one next step.

    The verdict is ready, degraded, unknown or not ready. Standard output has one line, which fits Slurm's Reason=;
    standard error has a line per GPU and the problems. The command reports and changes nothing.

    Exit status: 0 ready or degraded; 1 not ready or unknown; 2 no verdict, such as for a wrong file; 3 ready or
    degraded, but --health-event failed; 4 wrong usage.
    """
    seconds = parse_budget(budget)
    if as_json and as_nagios:
        raise typer.BadParameter("--json and --nagios: expected one of them")
    limit = parse_budget(answer_limit) if answer_limit else None
    many = bool(hosts or hostfile or slurm or local)
    if many and (as_nagios or prometheus is not None or results_dir is not None or verbose or health_event):
        raise typer.BadParameter(
            "--nagios, --prometheus, --results-dir, --health-event and -v are about one node: leave them out, or "
            "--hosts and its like"
        )
    if fabric and not many:
        raise typer.BadParameter(
            "--fabric tests nodes together: expected --hosts, --hostfile, --slurm or --local with it"
        )
    words = shell_words("--launcher", launcher)
    with _without_verdict(as_nagios=as_nagios):
        if many:
            status = _check_fleet(
                ("cuda" if device == "auto" else device) if fabric else "",
                lists,
                strict=strict,
                as_json=as_json,
                launcher=words,
                python=python or sys.executable,
                hosts=hosts,
                hostfile=hostfile,
                slurm=slurm,
                local=local,
                options=_node_options(budget, device, hardware, inject or (), steps, passive=passive),
                budget=seconds,
                limit=limit,
                parallel=parallel,
                ssh_config=ssh_config,
            )
            raise typer.Exit(status)
        from harness.ready import node
        from harness.ready.node import Request
        from harness.ready.rules import RULES

        request = Request(
            budget=seconds,
            passive=passive,
            device=device,
            hardware=_hardware(hardware),
            inject=tuple(inject or ()),
            rules=RULES if steps is None else _rules(steps),
            suites=_suites,
        )
        connector = _connector(health_event) if health_event else None
        report = node.check_node(request, tell=lambda line: None if as_nagios else say(f"harness: {line}", err=True))
        if prometheus is not None:
            _write(report, prometheus)
        if results_dir is not None:
            from harness.ready.run_record import write_run

            write_run(report, results_dir, ["harness", *sys.argv[1:]])
    status = _print(report, strict=strict, as_json=as_json, as_nagios=as_nagios, verbose=verbose)
    raise typer.Exit(status if connector is None else _send(report, connector, status, strict=strict))


@contextlib.contextmanager
def _without_verdict(*, as_nagios: bool) -> Iterator[None]:
    """End with the exit status for "no verdict" if the block raises an error, also an unexpected one.

    Python's own exit status for these is 1, which would say that the node is not ready.
    """
    try:
        yield
    except (typer.Exit, typer.BadParameter):
        raise
    except KeyboardInterrupt:
        say("harness: no verdict: interrupted", err=True)
        raise typer.Exit(_NAGIOS_UNKNOWN if as_nagios else _NO_VERDICT) from None
    except Exception as error:  # noqa: BLE001 - a fault of this program must not drain a sound node
        text = " ".join(str(error).split())
        if not isinstance(error, HarnessError):
            traceback.print_exc()
            text = f"a fault of harness ready: {type(error).__name__}: {text}"
        if as_nagios:
            say(f"GPU UNKNOWN - no verdict: {text.replace('|', '/')}")
            raise typer.Exit(_NAGIOS_UNKNOWN) from None
        say(f"harness: no verdict: {text}", err=True)
        raise typer.Exit(_NO_VERDICT) from None


def _node_options(
    budget: str, device: str, hardware: str, inject: Sequence[str], steps: Path | None, *, passive: bool
) -> tuple[str, ...]:
    """Return the options with which each node of a fleet is checked. Files are read on the nodes."""
    options = [f"--budget={budget}", f"--device={device}", *(f"--inject={fault}" for fault in inject)]
    options += ["--passive"] if passive else []
    options += [f"--hardware={hardware}"] if hardware else []
    return (*options, *([f"--steps={steps}"] if steps is not None else []))


def _hardware(name: str) -> tuple[str, Hardware] | None:
    """Return the hardware file of this name: here, or of this installation."""
    if not name:
        return None
    from harness.cli.installed import configs_with
    from harness.gating.profiles import load_hardware

    configs = Path() if "/" in name else configs_with("hardware")
    return name, load_hardware(name, configs, Path()).value


def _rules(steps: Path) -> Mapping[str, Rule]:
    """Return the table of next steps with the rows of a file. Raise ConfigError."""
    from harness.ready.steps import load_rules

    return load_rules(steps)


def _suites(options: Sequence[str]) -> list[str]:
    """Return all arguments of pytest for a run of the suites of this installation."""
    from harness.cli.installed import Home

    return Home.find().arguments(options, Path.cwd())


def _write(report: NodeReport, path: Path) -> None:
    from harness.core.atomic import write_atomically
    from harness.ready.outputs import prometheus

    write_atomically(path, prometheus(report).encode())


def _connector(address: str) -> Connector:
    """Return NVSentinel's platform connector, before the check: without one, the check would be for nothing."""
    from harness.ready.health_event import Connector

    return Connector.find(address, os.environ, platform.node())


def _send(report: NodeReport, connector: Connector, status: int, *, strict: bool) -> int:
    """Send the verdict to NVSentinel, and return the exit status: that of the verdict, or 3 for a failure to send."""
    from harness.ready.health_event import STORE, HealthEventError, health_events

    try:
        connector.send(health_events(report, connector, strict=strict))
    except HealthEventError as error:
        say(f"harness: {error}", err=True)
        return status or _NOT_SENT
    if status and connector.strategy == STORE:
        say(f"harness: exit status 0 in place of {status}, since NVSentinel's strategy is {STORE}", err=True)
        return 0
    return status


def _print(report: NodeReport, *, strict: bool, as_json: bool, as_nagios: bool, verbose: bool) -> int:
    """Print the report, and return the exit status of the verdict."""
    from harness.ready import outputs

    if as_nagios:
        status, line = outputs.nagios(report, strict=strict)
        say(line)
        return status
    if as_json:
        import msgspec

        say_lines(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        console = make_console(err=True)
        for line, verdict in outputs.lines(report, verbose=verbose):
            say_styled(console, line, None if verdict is None else STYLES[verdict.value])
        say(outputs.reason(report))
    return 0 if report.verdict.allows_work(strict=strict) else 1


PANEL = "Many nodes"
#: Lines of progress about a fleet.
_PROGRESS = 10


def _check_fleet(fabric: str, lists: Path, *, strict: bool, as_json: bool, **request: Any) -> int:
    """Check all nodes, print the table, and write the lists. Return the exit status. Raise HarnessError.

    `fabric`: the kind of devices to test together; empty for none. `request`: see `harness.ready.fleet`.
    """
    from harness.ready import fleet

    asked = fleet.FleetRequest(**request)
    report = fleet.check_fleet(asked, _progress())
    if fabric:
        report = fleet.check_fabric(asked, report, fabric, lambda line: say(f"harness: {line}", err=True))
    written = fleet.write_lists(report, lists, strict=strict)
    _print_fleet(report, written, as_json=as_json)
    broken = report.fabric is not None and report.fabric.broken
    return 1 if broken or report.nodes(ready=False, strict=strict) or not report.answers else 0


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


def _print_fleet(report: FleetReport, lists: tuple[Path, Path], *, as_json: bool) -> None:
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
