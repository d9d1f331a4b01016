"""``harness cluster``: one run on many hosts."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import say, say_lines, shell_words
from harness.core.secrets import mask_command

if TYPE_CHECKING:
    from harness.tools.cluster.engine import Allocation, Engine
    from harness.tools.cluster.sessions import ClusterRequest

app = typer.Typer(help="Run on many hosts: with Slurm, with ssh, or as a Kubernetes Job.", no_args_is_help=True)


class EngineName(StrEnum):
    """The program that starts the agents."""

    SLURM = "slurm"
    SSH = "ssh"
    LOCAL = "local"


_Arguments = Annotated[
    list[str], typer.Argument(metavar="-- PYTEST-ARGUMENTS", help="Arguments for pytest on each node.")
]
_EngineOption = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        help="slurm: the current allocation, or a new one; ssh: the hosts of --hosts; "
        "local: agents on this machine, for a trial.",
    ),
]
_Nodes = Annotated[
    int, typer.Option("--nodes", "-N", min=1, metavar="N", help="Nodes of a new allocation, or local agents.")
]
_Hosts = Annotated[
    Path | None, typer.Option("--hosts", metavar="FILE", help="With ssh: a file of hosts, one per line.")
]
_ResultsDir = Annotated[
    Path | None,
    typer.Option("--results-dir", metavar="DIR", help="The run directory. Default: results/<time>-<id>."),
]
_Resume = Annotated[
    Path | None, typer.Option("--resume", metavar="DIR", help="Resume the interrupted cluster run in DIR.")
]
_ForceResume = Annotated[
    bool, typer.Option("--force-resume", help="Resume even if torch, suites or options have changed.")
]
_Grace = Annotated[
    float, typer.Option("--grace", min=0, help="Seconds that running cases get to end when the run is stopped.")
]
_LostAfter = Annotated[
    float, typer.Option("--lost-after", min=6, help="Seconds without a message after which a node is lost.")
]
_OrphanedAfter = Annotated[
    float,
    typer.Option(
        "--orphaned-after",
        min=10,
        help="Seconds without a message from the head after which a node stops its pytest, and frees its GPUs.",
    ),
]
_StartLimit = Annotated[
    float, typer.Option("--start-limit", min=1, help="Seconds to wait for the first message of an agent.")
]
_StuckAfter = Annotated[
    float,
    typer.Option("--stuck-after", min=1, help="Seconds without a message about cases after which a node is lost."),
]
_SecondDevice = Annotated[
    int, typer.Option("--second-device", min=0, metavar="N", help="Try up to N red cases on a second device.")
]
_Python = Annotated[
    str, typer.Option("--python", metavar="PATH", help="The Python on the nodes. Default: the current one.")
]
_Folder = Annotated[
    str,
    typer.Option("--folder", metavar="DIR", help="The folder of the suites on the nodes. Default: the current one."),
]
_Launcher = Annotated[
    str,
    typer.Option("--launcher", metavar="WORDS", help="Command prefix for Python, such as 'apptainer exec --nv IMAGE'."),
]
_SlurmOption = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm-option", metavar="OPTION", help="Option for a new allocation, such as --gres=gpu:8; may be repeated."
    ),
]
_ContainerImage = Annotated[
    str, typer.Option("--container-image", metavar="IMAGE", help="With slurm: the container of the steps (pyxis).")
]
_ContainerMounts = Annotated[
    str, typer.Option("--container-mounts", metavar="MOUNTS", help="With slurm: its mounts (pyxis).")
]
_SshConfig = Annotated[
    Path | None, typer.Option("--ssh-config", metavar="FILE", help="With ssh: an ssh configuration file.")
]


@app.command("run")
def run(
    arguments: _Arguments,
    engine: _EngineOption,
    nodes: _Nodes = 2,
    hosts: _Hosts = None,
    results_dir: _ResultsDir = None,
    resume: _Resume = None,
    force_resume: _ForceResume = False,
    grace: _Grace = 10.0,
    silence: _LostAfter = 10.0,
    orphaned_after: _OrphanedAfter = 120.0,
    start_limit: _StartLimit = 120.0,
    stuck: _StuckAfter = 7200.0,
    second_device: _SecondDevice = 20,
    python: _Python = sys.executable,
    folder: _Folder = "",
    launcher: _Launcher = "",
    slurm_option: _SlurmOption = None,
    container_image: _ContainerImage = "",
    container_mounts: _ContainerMounts = "",
    ssh_config: _SshConfig = None,
) -> None:
    """Run the suites on many hosts: one command, one run directory, one verdict.

    Each node runs an ordinary pytest. The head, which is this process, hands out cases as nodes become free. If a node
    is lost, its cases run on other nodes. The exit status is that of pytest: 0 green, 1 red, 2 stopped, 3 the run did
    not begin, 4 usage error, 5 no case ran.
    """
    from harness.tools.cluster.engine import JOB_ID
    from harness.tools.cluster.sessions import ClusterRequest

    words = shell_words("--launcher", launcher)
    container = {"--container-image": container_image, "--container-mounts": container_mounts}
    chosen = ClusterRequest(
        arguments=tuple(arguments),
        argv=tuple(mask_command(["harness", *sys.argv[1:]])),
        results_dir=results_dir,
        resume=resume,
        force=force_resume,
        grace=grace,
        silence=silence,
        orphaned_after=orphaned_after,
        start_limit=start_limit,
        stuck=stuck,
        second_looks=second_device,
        folder=folder,
    )
    with contextlib.ExitStack() as stack:
        allocation = None
        if engine is EngineName.SLURM and JOB_ID not in os.environ:
            allocation = stack.enter_context(_new_allocation(arguments, nodes, slurm_option or ()))
        _run(chosen, _made_engine(engine, nodes, hosts, python, words, ssh_config, container, allocation))


def _new_allocation(arguments: Sequence[str], nodes: int, options: Sequence[str]) -> Allocation:
    """Return an allocation that is requested later. Raise ClusterError, EngineError."""
    from harness.tools.cluster import engine as engines
    from harness.tools.cluster import run as cluster

    cluster.pytest_arguments(arguments, 0)  # report a mistake before the user waits for an allocation
    engines.check_request(nodes, options)
    return engines.Allocation(nodes, options)


def _run(chosen: ClusterRequest, engine: Engine) -> None:
    """Run the suites. Raise typer.Exit with the status of the run unless it is 0."""
    from harness.core.errors import WriteError
    from harness.core.outcome import EXIT_INTERNAL, EXIT_INTERRUPTED
    from harness.tools.cluster import run as cluster
    from harness.tools.cluster.engine import StoppedError

    try:
        status = cluster.run_cluster(chosen, engine, _log)
    except WriteError as error:
        say(f"harness: {error}; make room, then type: harness cluster run … --resume DIR", err=True)
        raise typer.Exit(EXIT_INTERNAL) from None
    except StoppedError as error:
        say(f"harness: {error}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
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
    allocation: Allocation | None,
) -> Engine:
    """Return the engine of the options. Raise EngineError."""
    from harness.tools.cluster import engine as engines

    match name:
        case EngineName.SLURM:
            options = tuple(f"{option}={value}" for option, value in container.items() if value)
            return engines.Slurm(allocation, python, launcher, options)
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
    from harness.tools.cluster import kubernetes as manifests

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
    say_lines(manifests.manifest_text(wanted))


def _log(line: str) -> None:
    say(f"harness: {line}" if not line.startswith(" ") else line)
