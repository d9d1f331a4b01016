"""``harness cluster``: one run on many hosts."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.tools.cluster.engine import Engine

app = typer.Typer(help="One run on many hosts: by Slurm, by ssh, or as a job of Kubernetes.", no_args_is_help=True)

_IN_ALLOCATION = "SLURM_JOB_ID"


class EngineName(StrEnum):
    """What starts the agents."""

    SLURM = "slurm"
    SSH = "ssh"
    LOCAL = "local"


@app.command("run")
def run(
    arguments: Annotated[
        list[str], typer.Argument(metavar="-- PYTEST-ARGUMENTS", help="What pytest gets on each node.")
    ],
    engine: Annotated[
        EngineName,
        typer.Option(
            "--engine",
            help="slurm: the allocation that this runs in, or a new one; ssh: the hosts of --hosts; "
            "local: agents on this machine, to try it out.",
        ),
    ],
    nodes: Annotated[
        int, typer.Option("--nodes", "-N", min=1, metavar="N", help="Nodes of a new allocation, or local agents.")
    ] = 2,
    hosts: Annotated[
        Path | None, typer.Option("--hosts", metavar="FILE", help="With ssh: the hosts, one a line.")
    ] = None,
    results_dir: Annotated[
        Path | None,
        typer.Option("--results-dir", metavar="DIR", help="The run directory. Default: results/<time>-<id>."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Go on with the interrupted cluster run in DIR.")
    ] = None,
    force_resume: Annotated[
        bool, typer.Option("--force-resume", help="Go on although torch, suites or options have changed.")
    ] = False,
    grace: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds that running cases get when the run is stopped.")
    ] = 10.0,
    silence: Annotated[
        float, typer.Option("--lost-after", min=6, help="A node that says nothing for so many seconds is lost.")
    ] = 10.0,
    start_limit: Annotated[
        float, typer.Option("--start-limit", min=1, help="Seconds until the first word of an agent.")
    ] = 120.0,
    stuck: Annotated[
        float,
        typer.Option("--stuck-after", min=1, help="A node that says nothing of its cases for so many seconds is lost."),
    ] = 7200.0,
    second_device: Annotated[
        int,
        typer.Option("--second-device", min=0, metavar="N", help="Try up to N red cases on a second device."),
    ] = 20,
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help="The Python on the nodes. Default: this one.")
    ] = sys.executable,
    folder: Annotated[
        str, typer.Option("--folder", metavar="DIR", help="The folder of the suites on the nodes. Default: this one.")
    ] = "",
    launcher: Annotated[
        str, typer.Option("--launcher", metavar="WORDS", help="Before Python, such as 'apptainer exec --nv IMAGE'.")
    ] = "",
    slurm_option: Annotated[
        list[str] | None,
        typer.Option("--slurm-option", metavar="OPTION", help="For a new allocation, such as --gres=gpu:8; repeat it."),
    ] = None,
    container_image: Annotated[
        str, typer.Option("--container-image", metavar="IMAGE", help="With slurm: the container of the steps (pyxis).")
    ] = "",
    container_mounts: Annotated[
        str, typer.Option("--container-mounts", metavar="MOUNTS", help="With slurm: its mounts (pyxis).")
    ] = "",
    ssh_config: Annotated[
        Path | None, typer.Option("--ssh-config", metavar="FILE", help="With ssh: a configuration file of ssh.")
    ] = None,
) -> None:
    """Run the suites on many hosts: one command, one run directory, one verdict.

    Each node runs an ordinary pytest. The head, this process, gives out the cases as nodes get free. If a node is lost,
    its cases run on others. Exit status as for pytest: 0 green, 1 red, 2 stopped, 3 the run did not begin, 4 usage, 5
    nothing ran.
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
        cluster.pytest_arguments(arguments, 0)  # a mistake is said before anybody waits for an allocation
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
    container = (("--container-image", container_image), ("--container-mounts", container_mounts))
    made: Engine
    match engine:
        case EngineName.SLURM:
            options = tuple(f"{name}={value}" for name, value in container if value)
            made = engines.Slurm(os.environ[_IN_ALLOCATION], python, words, options)
        case EngineName.SSH:
            if hosts is None:
                raise engines.EngineError("--engine=ssh needs --hosts FILE: one destination of ssh a line")
            made = engines.Ssh(engines.read_hosts(hosts), python, words, ssh_config)
        case EngineName.LOCAL:
            made = engines.Local(nodes, python, words)
    try:
        status = cluster.run_cluster(asked, made, _say)
    except WriteError as error:
        print(f"harness: {error}; make room, then type: harness cluster run … --resume DIR", file=sys.stderr)
        raise typer.Exit(EXIT_INTERNAL) from None
    if status:
        raise typer.Exit(status)


@app.command("manifest")
def manifest(
    arguments: Annotated[
        list[str], typer.Argument(metavar="-- PYTEST-ARGUMENTS", help="What pytest gets in each pod.")
    ],
    image: Annotated[str, typer.Option("--image", help="The image with Python, torch, the harness and the suites.")],
    claim: Annotated[
        str, typer.Option("--claim", metavar="NAME", help="The PersistentVolumeClaim for the run directories.")
    ],
    shards: Annotated[int, typer.Option("--shards", min=1, metavar="N", help="How many pods.")] = 2,
    name: Annotated[str, typer.Option("--name", help="The name of the Job.")] = "conformance",
    namespace: Annotated[str, typer.Option("--namespace", help="Its namespace.")] = "",
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="GPUs of each pod.")] = 1,
    resource: Annotated[str, typer.Option("--resource", help="The name of the resource.")] = "nvidia.com/gpu",
    folder: Annotated[str, typer.Option("--folder", metavar="DIR", help="The folder of the suites in the image.")] = "",
    deadline: Annotated[
        int, typer.Option("--deadline", min=0, metavar="SECONDS", help="End the Job after so long.")
    ] = 0,
    node_selector: Annotated[
        list[str] | None,
        typer.Option("--node-selector", metavar="NAME=VALUE", help="Only on nodes with this label; repeat it."),
    ] = None,
) -> None:
    """Print the manifest of an indexed Job for Kubernetes: one shard of the run in each pod.

    The comments at its top say what to type next.
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
    """Replace this process, so that signals and the exit status are those of the allocation."""
    from harness.tools.cluster.engine import EngineError

    try:
        os.execvp(command[0], command)
    except OSError:
        raise EngineError(f"there is no {command[0]!r} here: run this where Slurm is installed") from None


def _say(line: str) -> None:
    print(f"harness: {line}" if not line.startswith(" ") else line, flush=True)
