"""``harness cluster``: one run on many hosts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.tools.cluster.engine import Engine

app = typer.Typer(help="Run on many hosts: with Slurm, with ssh, or as a Kubernetes Job.", no_args_is_help=True)

_IN_ALLOCATION = "SLURM_JOB_ID"


class EngineName(StrEnum):
    """The program that starts the agents."""

    SLURM = "slurm"
    SSH = "ssh"
    LOCAL = "local"


@app.command("run")
def run(
    arguments: Annotated[
        list[str], typer.Argument(metavar="-- PYTEST-ARGUMENTS", help="Arguments for pytest on each node.")
    ],
    engine: Annotated[
        EngineName,
        typer.Option(
            "--engine",
            help="slurm: the current allocation, or a new one; ssh: the hosts of --hosts; "
            "local: agents on this machine, for a trial.",
        ),
    ],
    nodes: Annotated[
        int, typer.Option("--nodes", "-N", min=1, metavar="N", help="Nodes of a new allocation, or local agents.")
    ] = 2,
    hosts: Annotated[
        Path | None, typer.Option("--hosts", metavar="FILE", help="With ssh: a file of hosts, one per line.")
    ] = None,
    results_dir: Annotated[
        Path | None,
        typer.Option("--results-dir", metavar="DIR", help="The run directory. Default: results/<time>-<id>."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Resume the interrupted cluster run in DIR.")
    ] = None,
    force_resume: Annotated[
        bool, typer.Option("--force-resume", help="Resume even if torch, suites or options have changed.")
    ] = False,
    grace: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds that running cases get to end when the run is stopped.")
    ] = 10.0,
    silence: Annotated[
        float, typer.Option("--lost-after", min=6, help="Seconds without a message after which a node is lost.")
    ] = 10.0,
    start_limit: Annotated[
        float, typer.Option("--start-limit", min=1, help="Seconds to wait for the first message of an agent.")
    ] = 120.0,
    stuck: Annotated[
        float,
        typer.Option("--stuck-after", min=1, help="Seconds without a message about cases after which a node is lost."),
    ] = 7200.0,
    second_device: Annotated[
        int,
        typer.Option("--second-device", min=0, metavar="N", help="Try up to N red cases on a second device."),
    ] = 20,
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help="The Python on the nodes. Default: the current one.")
    ] = sys.executable,
    folder: Annotated[
        str,
        typer.Option(
            "--folder", metavar="DIR", help="The folder of the suites on the nodes. Default: the current one."
        ),
    ] = "",
    launcher: Annotated[
        str,
        typer.Option(
            "--launcher", metavar="WORDS", help="Command prefix for Python, such as 'apptainer exec --nv IMAGE'."
        ),
    ] = "",
    slurm_option: Annotated[
        list[str] | None,
        typer.Option(
            "--slurm-option",
            metavar="OPTION",
            help="Option for a new allocation, such as --gres=gpu:8; may be repeated.",
        ),
    ] = None,
    container_image: Annotated[
        str, typer.Option("--container-image", metavar="IMAGE", help="With slurm: the container of the steps (pyxis).")
    ] = "",
    container_mounts: Annotated[
        str, typer.Option("--container-mounts", metavar="MOUNTS", help="With slurm: its mounts (pyxis).")
    ] = "",
    ssh_config: Annotated[
        Path | None, typer.Option("--ssh-config", metavar="FILE", help="With ssh: an ssh configuration file.")
    ] = None,
) -> None:
    """Run the suites on many hosts: one command, one run directory, one verdict.

    Each node runs an ordinary pytest. The head, which is this process, hands out cases as nodes become free. If a node
    is lost, its cases run on other nodes. The exit status is that of pytest: 0 green, 1 red, 2 stopped, 3 the run did
    not begin, 4 usage error, 5 no case ran.
    """
    import shlex

    from harness.core.errors import WriteError
    from harness.core.outcome import EXIT_INTERNAL
    from harness.tools.cluster import engine as engines
    from harness.tools.cluster import run as cluster

    try:
        words = tuple(shlex.split(launcher))
    except ValueError as error:
        raise engines.EngineError(f"--launcher={launcher!r}: expected words as in a shell ({error})") from None
    argv = ("harness", *sys.argv[1:])
    if engine is EngineName.SLURM and _IN_ALLOCATION not in os.environ:
        cluster.pytest_arguments(arguments, 0)  # report a mistake before the user waits for an allocation
        engines.check_request(nodes, slurm_option or ())
        command = engines.allocate(nodes, slurm_option or (), [sys.executable, "-m", "harness.cli", *sys.argv[1:]])
        _become(command)
    asked = cluster.ClusterOptions(
        arguments=tuple(arguments),
        argv=argv,
        results_dir=results_dir,
        resume=resume,
        force=force_resume,
        grace=grace,
        silence=silence,
        start_limit=start_limit,
        stuck=stuck,
        second_looks=second_device,
        folder=folder,
    )
    container = {"--container-image": container_image, "--container-mounts": container_mounts}
    made = _made_engine(engine, nodes, hosts, python, words, ssh_config, container)
    try:
        status = cluster.run_cluster(asked, made, _say)
    except WriteError as error:
        print(f"harness: {error}; make room, then type: harness cluster run … --resume DIR", file=sys.stderr)
        raise typer.Exit(EXIT_INTERNAL) from None
    if status:
        raise typer.Exit(status)


def _made_engine(
    name: EngineName,
    nodes: int,
    hosts: Path | None,
    python: str,
    launcher: tuple[str, ...],
    ssh_config: Path | None,
    container: Mapping[str, str],
) -> Engine:
    """Return the engine of the options. Raise EngineError."""
    from harness.tools.cluster import engine as engines

    match name:
        case EngineName.SLURM:
            options = tuple(f"{option}={value}" for option, value in container.items() if value)
            return engines.Slurm(os.environ[_IN_ALLOCATION], python, launcher, options)
        case EngineName.SSH:
            if hosts is None:
                raise engines.EngineError("--engine=ssh needs --hosts FILE: one ssh destination per line")
            return engines.Ssh(engines.read_hosts(hosts), python, launcher, ssh_config)
        case EngineName.LOCAL:
            return engines.Local(nodes, python, launcher)


@app.command("manifest")
def manifest(
    arguments: Annotated[
        list[str], typer.Argument(metavar="-- PYTEST-ARGUMENTS", help="Arguments for pytest in each pod.")
    ],
    image: Annotated[str, typer.Option("--image", help="The image with Python, torch, the harness and the suites.")],
    claim: Annotated[
        str, typer.Option("--claim", metavar="NAME", help="The PersistentVolumeClaim for the run directories.")
    ],
    shards: Annotated[int, typer.Option("--shards", min=1, metavar="N", help="Number of pods.")] = 2,
    name: Annotated[str, typer.Option("--name", help="The name of the Job.")] = "conformance",
    namespace: Annotated[str, typer.Option("--namespace", help="Its namespace.")] = "",
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="GPUs per pod.")] = 1,
    resource: Annotated[str, typer.Option("--resource", help="The name of the resource.")] = "nvidia.com/gpu",
    folder: Annotated[str, typer.Option("--folder", metavar="DIR", help="The folder of the suites in the image.")] = "",
    deadline: Annotated[
        int, typer.Option("--deadline", min=0, metavar="SECONDS", help="End the Job after this many seconds.")
    ] = 0,
    node_selector: Annotated[
        list[str] | None,
        typer.Option("--node-selector", metavar="NAME=VALUE", help="Only nodes with this label; may be repeated."),
    ] = None,
) -> None:
    """Print the manifest of an indexed Kubernetes Job that runs one shard per pod.

    The comments at the top of the manifest give the next commands.
    """
    from harness.tools.cluster import manifest as manifests

    wanted = manifests.ManifestRequest(
        image=image,
        claim=claim,
        arguments=tuple(arguments),
        shards=shards,
        name=name,
        namespace=namespace,
        gpus=gpus,
        resource=resource,
        folder=folder,
        deadline=deadline,
        node_selector=manifests.label_pairs(node_selector or ()),
    )
    sys.stdout.write(manifests.manifest_text(wanted))


def _become(command: list[str]) -> None:
    """Replace this process with `command`: signals and exit status are then those of the allocation.

    Raise EngineError if there is no such program.
    """
    from harness.tools.cluster.engine import EngineError

    try:
        os.execvp(command[0], command)
    except OSError:
        raise EngineError(f"there is no {command[0]!r} here: run this where Slurm is installed") from None


def _say(line: str) -> None:
    print(f"harness: {line}" if not line.startswith(" ") else line, flush=True)
